"""Speculative rounds and prefills on given streams: submit, await, commit. Shared by the lane policies.

Not here: which requests and when; that is each policy's own file.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from sim.engine.draft_choice import DraftChoice
from sim.engine.serving import Serving
from sim.interface.host import Stream, Ticket
from sim.interface.request import Request
from sim.interface.request_queue import Lane
from sim.interface.work import Model
from sim.policies import works
from sim.policies.choices import batch_for
from sim.policies.options import KvMode, PolicyOptions

DraftStreamOf = Callable[[Request], Stream]
"""Where the draft model computes the prompt of a request."""


def submit_prefill(serving: Serving, request: Request, stream: Stream, draft_stream: Stream | None = None) -> Ticket:
    """Prefill `request` in the target and, where one drafts, in the draft model, on `draft_stream` if that is another;
    the ticket is that of the last work on `stream`.

    Prompts beyond the engine's token budget go in several works. So a first token leaves as it does under `continuous`,
    with all that its step computes (docs/adr/035); a draft model on a stream of its own holds up the first draft alone.
    """
    return submit_prompts(serving, request, stream, draft_stream)[1]


def submit_prompts(
    serving: Serving, request: Request, stream: Stream, draft_stream: Stream | None = None
) -> tuple[Ticket, Ticket]:
    """As `submit_prefill`; tickets of the target's last work, and of the last one on `stream`."""
    target = submit_prompt(serving, request, Model.TARGET, stream)
    return target, _with_draft_prompt(serving, request, target, stream, draft_stream)


def _with_draft_prompt(
    serving: Serving,
    request: Request,
    target: Ticket,
    stream: Stream,
    draft_stream: Stream | None,
    most_tokens: int | None = None,
) -> Ticket:
    """Submit the draft model's prompt behind the target's, where one drafts; the last ticket on `stream`."""
    if not serving.controller.draft_tokens_max:
        return target
    draft = submit_prompt(serving, request, Model.DRAFT, draft_stream or stream, most_tokens)
    if draft_stream is None or draft_stream is stream:
        return draft
    request.draft_prefill = draft
    return target


async def prefilled(
    serving: Serving, options: PolicyOptions, stream: Stream, draft_stream_of: DraftStreamOf | None = None
) -> AsyncIterator[Request]:
    """Requests as they are admitted and their prompts are through on `stream`, one after the other; the draft model's
    may have another stream.

    While the draft model computes one prompt, the target's next one is submitted behind it, so that the stream does not
    wait for the host.
    """
    last: tuple[Request, Ticket] | None = None
    while True:
        request = await serving.admit(poll_s=options.poll_s) if last is None else serving.admit_now()
        draft_stream = None if request is None or draft_stream_of is None else draft_stream_of(request)
        if request is not None and options.prefill_chunk_tokens is not None:
            await prefill_by_chunks(serving, request, stream, options.prefill_chunk_tokens, draft_stream)
            yield request
            continue
        tickets = None if request is None else submit_prompts(serving, request, stream, draft_stream)
        if last is not None:
            await last[1]
            yield last[0]
            last = None
        if request is not None and tickets is not None:
            target, through = tickets
            await target
            if through is target:
                yield request
            else:
                last = request, through


def submit_prompt(
    serving: Serving, request: Request, model: Model, stream: Stream, most_tokens: int | None = None
) -> Ticket:
    """The prompt through one of the models, in as many works as the token budget wants, or pieces of `most_tokens`; the
    last one's ticket."""
    drafter = _first_drafter(serving, request) if model is Model.DRAFT else 0
    chunks = works.prefill(request, model, most_tokens or serving.max_num_batched_tokens, drafter=drafter)
    return [serving.host.run(work, stream) for work in chunks][-1]


def _first_drafter(serving: Serving, request: Request) -> int:
    """The draft model that computes the prompt of `request`: the one for the present load, of several."""
    if isinstance(serving.controller, DraftChoice):
        request.drafter = serving.controller.drafter_for(serving.num_active)
    return request.drafter


def submit_draft(
    serving: Serving, requests: Sequence[Request], options: PolicyOptions, stream: Stream, draft_tokens: int
) -> Ticket:
    """Draft for every row; opens their rounds. A draft of 0 tokens only brings the draft model's KV up to date. Of
    several draft models it is the one that was chosen with the draft length; it computes first what it has missed."""
    host, drafter = serving.host, 0
    if isinstance(serving.controller, DraftChoice):
        drafter = serving.controller.drafter
        _change_drafter(serving, requests, options, stream, drafter)
    after = [request.draft_prefill for request in requests if request.draft_prefill is not None]
    if options.kv is KvMode.NONE:
        drafts = works.draft_without_kv(requests, draft_tokens, drafter=drafter)
    else:
        drafts = [works.draft(requests, draft_tokens, drafter=drafter)]
    ticket = [host.run(work, stream, after=after) for work in drafts][-1]
    for request in requests:
        request.draft_prefill = None
        serving.open_round(request, draft_tokens)
    return ticket


def _change_drafter(
    serving: Serving, requests: Sequence[Request], options: PolicyOptions, stream: Stream, drafter: int
) -> None:
    """`drafter` drafts for these rows from now on, and has their KV once what is submitted here is through."""
    for request in requests:
        if request.drafter == drafter:
            continue
        known_tokens = request.change_drafter(drafter)
        if options.kv is not KvMode.NONE:
            for work in works.catch_up(request, known_tokens, drafter, serving.max_num_batched_tokens):
                serving.host.run(work, stream)


def submit_verify(
    serving: Serving, requests: Sequence[Request], options: PolicyOptions, stream: Stream, after: Sequence[Ticket] = ()
) -> Ticket:
    work = works.verify_without_kv(requests) if options.kv is KvMode.NONE else works.verify(requests)
    return serving.host.run(work, stream, after=after)


def submit_round(
    serving: Serving, requests: Sequence[Request], options: PolicyOptions, draft_stream: Stream, verify_stream: Stream
) -> Ticket:
    """Draft, then verify, nothing awaited between; without speculation a plain decode."""
    controller = serving.controller
    draft_tokens = controller.draft_tokens_for(len(requests), len(serving.inbox))
    if controller.draft_tokens_max == 0:
        for request in requests:
            serving.open_round(request, 0)
        return submit_verify(serving, requests, options, verify_stream)
    draft = submit_draft(serving, requests, options, draft_stream, draft_tokens)
    return submit_verify(serving, requests, options, verify_stream, after=(draft,))


async def finish_round(
    serving: Serving, requests: Sequence[Request], options: PolicyOptions, verify: Ticket, verify_stream: Stream
) -> list[Request]:
    """Await `verify`, re-forward if the engine does, commit; returns the requests that go on."""
    accepted = (await verify).accepted
    if options.kv is KvMode.REFORWARD:
        await serving.host.run(works.reforward(requests, accepted), verify_stream)
    return serving.commit_rounds(requests, accepted)


async def take_batch(
    serving: Serving, lane: Lane, options: PolicyOptions, at_most: int, num_lanes: int
) -> list[Request]:
    """The oldest of `lane`, one of `num_lanes` that rounds go through, once there is one: as many as `batch_by` has it
    then, 1 to `at_most`."""
    await lane.filled(serving.host, poll_s=options.poll_s)
    kv = serving.kv
    size = batch_for(
        options.batch_by,
        at_most,
        num_active=serving.num_active,
        num_lanes=num_lanes,
        free_tokens=kv.num_blocks * kv.block_size - kv.held.value,
        draft_tokens=serving.controller.draft_tokens_max,
    )
    return lane.take_now(serving.host, at_most=size)


async def prefill_by_chunks(
    serving: Serving, request: Request, stream: Stream, chunk_tokens: int, draft_stream: Stream | None = None
) -> None:
    """As `submit_prefill`, in pieces of at most `chunk_tokens`, each of the target's awaited before the next; the draft
    model's on `draft_stream`, if that is another one."""
    most_tokens = min(chunk_tokens, serving.max_num_batched_tokens or chunk_tokens)
    for work in works.prefill(request, Model.TARGET, most_tokens):
        ticket = serving.host.run(work, stream)
        await ticket
    await _with_draft_prompt(serving, request, ticket, stream, draft_stream, most_tokens)


async def run_round(
    serving: Serving, requests: Sequence[Request], options: PolicyOptions, draft_stream: Stream, verify_stream: Stream
) -> list[Request]:
    """One atomic round: draft and verify as one step of the caller."""
    started_s = serving.host.now_s
    verify = submit_round(serving, requests, options, draft_stream, verify_stream)
    going_on = await finish_round(serving, requests, options, verify, verify_stream)
    serving.controller.saw_draft(serving.host.now_s - started_s, 0)
    return going_on
