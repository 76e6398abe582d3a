"""Speculative rounds and prefills on given streams: submit, await, commit. Shared by the lane policies.

Not here: which requests and when (each policy's file).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from sim.engine.serving import Serving
from sim.interface.host import Stream, Ticket
from sim.interface.request import Request
from sim.interface.request_queue import RequestQueue
from sim.interface.work import Model, Work
from sim.policies import works
from sim.policies.options import BatchBy, EngineLimits, KvMode, LaneOptions, RoundOptions

NO_KV, REFORWARD = KvMode.NONE, KvMode.REFORWARD


class DraftPrompts:
    """Prompts in a draft model that has separate streams, `stream_of` a request; its first draft comes after them."""

    def __init__(self, stream_of: Callable[[Request], Stream]) -> None:
        self.stream_of = stream_of
        self._tickets: dict[int, Ticket] = {}

    def add(self, request: Request, ticket: Ticket) -> None:
        self._tickets[request.index] = ticket

    def is_done(self, request: Request) -> bool:
        ticket = self._tickets.get(request.index)
        return ticket is None or ticket.is_done

    def take(self, requests: Sequence[Request]) -> list[Ticket]:
        """Tickets that a draft for `requests` comes after; later ones come after none."""
        tickets = [self._tickets.pop(request.index, None) for request in requests]
        return [ticket for ticket in tickets if ticket is not None]


def submit(
    serving: Serving, work: Work, stream: Stream, after: Sequence[Ticket] = (), ahead_s: float | None = None
) -> Ticket:
    """Submit `work`, which was planned `ahead_s` before now; None: as long before as it could be."""
    if ahead_s is None:
        ahead_s = serving.ahead_s(work.requests, stream)
    serving.planned(work.requests, stream)
    if ahead_s:
        work = msgspec.structs.replace(work, ahead_s=ahead_s)
    return serving.host.run(work, stream, after=after)


def submit_prefill(serving: Serving, request: Request, stream: Stream) -> Ticket:
    """Prefill `request` in the target and, where one drafts, in the draft model; the ticket is that of the last work.

    Prompts beyond the engine's token budget go in several works. So a first token leaves as it does under `continuous`,
    with all that its step computes (docs/adr/008).
    """
    return submit_prompts(serving, request, stream)[1]


def submit_prompts(
    serving: Serving, request: Request, stream: Stream, apart: DraftPrompts | None = None
) -> tuple[Ticket, Ticket]:
    """Prefill as `submit_prefill` does, the draft model on a separate stream if it is `apart`, where it holds up the
    first draft alone; tickets of the target's last work, and of the last one on `stream`."""
    draft_stream = stream if apart is None else apart.stream_of(request)
    target = submit_prompt(serving, request, Model.TARGET, stream)
    return target, _with_draft_prompt(serving, request, target, draft_stream, apart)


def _with_draft_prompt(
    serving: Serving,
    request: Request,
    target: Ticket,
    draft_stream: Stream,
    apart: DraftPrompts | None,
    max_tokens: int | None = None,
) -> Ticket:
    """Submit the draft model's prompt behind the target's, where one drafts; the last ticket on the target's stream."""
    if not serving.controller.draft_tokens_max:
        return target
    draft = submit_prompt(serving, request, Model.DRAFT, draft_stream, max_tokens)
    if apart is None:
        return draft
    apart.add(request, draft)
    return target


async def prefilled(
    serving: Serving, options: LaneOptions, limits: EngineLimits, stream: Stream, apart: DraftPrompts | None = None
) -> AsyncIterator[Request]:
    """Requests as they are admitted and their prompts are through on `stream`, one after the other; the draft model's
    may be `apart`.

    While the draft model computes one prompt, the target's next one is submitted behind it, so that the stream does not
    wait for the host. Prompts that a partition defers begin, and are through, where a round ends.
    """
    last: tuple[Request, Ticket] | None = None
    chunk_tokens = limits.long_prefill_token_threshold
    while True:
        request = await serving.admit(poll_s=options.looks_every_s()) if last is None else serving.admit_now()
        if request is not None and chunk_tokens:
            await prefill_by_chunks(serving, request, options, stream, chunk_tokens, apart)
            yield request
            continue
        if request is not None:
            await round_end(serving, options)
        tickets = None if request is None else submit_prompts(serving, request, stream, apart)
        if last is not None:
            await last[1]
            yield last[0]
            last = None
        if request is not None and tickets is not None:
            target, through = tickets
            await target
            if through is target or options.defers_prompts:
                await through
                await round_end(serving, options)
                yield request
            else:
                last = request, through


async def round_end(serving: Serving, options: LaneOptions) -> None:
    """Wait until the round in flight is over where prompts are deferred: shares change between steps, by one scheduler
    that sees a prompt's end then, too (pegainfer: docs/adr/003)."""
    if options.defers_prompts and serving.last_round is not None and serving.round_ended_s != serving.host.now_s:
        await serving.last_round


def submit_prompt(
    serving: Serving, request: Request, model: Model, stream: Stream, max_tokens: int | None = None
) -> Ticket:
    """The prompt through one of the models, in as many works as the token budget wants, or pieces of `max_tokens`; the
    last one's ticket."""
    drafter = serving.controller.drafter_of_prompt(request, serving.num_active) if model is Model.DRAFT else 0
    chunks = works.prefill(request, model, max_tokens or serving.max_num_batched_tokens, drafter=drafter)
    return [submit(serving, work, stream) for work in chunks][-1]


def submit_draft(
    serving: Serving,
    requests: Sequence[Request],
    options: RoundOptions,
    stream: Stream,
    lengths: Sequence[int],
    after: Sequence[Ticket] = (),
) -> Ticket:
    """Draft as long as the longest of `lengths` [requests] for every row; opens their rounds. A draft of 0 tokens only
    brings the draft model's KV up to date. The model that was chosen with the lengths computes first what it has
    missed; drafts come `after` these works on the device."""
    drafter, draft_tokens = serving.controller.drafter, max(lengths)
    for request, known_tokens in serving.controller.take_over(requests):
        if options.kv is not NO_KV:
            goal, most = request.context_tokens, serving.max_num_batched_tokens
            for work in works.prompt_passes(request, Model.DRAFT, known_tokens, goal, most, drafter):
                submit(serving, work, stream)
    if options.kv is NO_KV:
        drafts = works.draft_without_kv(requests, draft_tokens, drafter=drafter)
    else:
        drafts = [works.draft(requests, draft_tokens, drafter=drafter)]
    ticket = [submit(serving, work, stream, after) for work in drafts][-1]
    for request, length in zip(requests, lengths, strict=True):
        serving.open_round(request, length)
    return ticket


def submit_verify(
    serving: Serving,
    requests: Sequence[Request],
    options: RoundOptions,
    stream: Stream,
    after: Sequence[Ticket] = (),
    ahead_s: float | None = None,
) -> Ticket:
    """Verify the drafts of `requests`, planned `ahead_s` before now; None: since they set off."""
    verify = works.verify_without_kv if options.kv is NO_KV else works.verify
    work = verify(requests, serving.controller.drafters_of(requests))
    serving.last_round = ticket = submit(serving, work, stream, after, ahead_s)
    return ticket


def submit_round(
    serving: Serving,
    requests: Sequence[Request],
    options: RoundOptions,
    draft_stream: Stream,
    verify_stream: Stream,
    after: Sequence[Ticket] = (),
) -> Ticket:
    """Draft, `after` these works, then verify, nothing awaited between; without speculation a plain decode. Both are
    planned as one, while the round before runs."""
    lengths = serving.controller.lengths_for(requests)
    if serving.controller.draft_tokens_max == 0:
        for request in requests:
            serving.open_round(request, 0)
        return submit_verify(serving, requests, options, verify_stream)
    ahead_s = serving.ahead_s(requests, draft_stream)
    draft = submit_draft(serving, requests, options, draft_stream, lengths, after)
    return submit_verify(serving, requests, options, verify_stream, after=(draft,), ahead_s=ahead_s)


async def finish_round(
    serving: Serving, requests: Sequence[Request], options: RoundOptions, verify: Ticket, verify_stream: Stream
) -> list[Request]:
    """Await `verify`, re-forward if the engine does, commit; returns the requests that go on."""
    accepted = (await verify).accepted
    serving.round_ended_s = serving.host.now_s
    if options.kv is REFORWARD:
        await submit(serving, works.reforward(requests, accepted), verify_stream)
    return serving.commit_rounds(requests, accepted)


async def filled(serving: Serving, lane: RequestQueue, options: LaneOptions) -> None:
    """Wait until somebody is in `lane`. Nothing is prepared for who comes from a prompt to an idle lane until it
    looks."""
    if not lane.items:
        await lane.filled(serving.host, poll_s=options.looks_every_s())
        for request in lane.items:
            if request.emitted_tokens == 1 and not request.drafted:
                request.known_s = serving.host.now_s


def batch_for(
    by: BatchBy, at_most: int, *, num_active: int, num_lanes: int, free_tokens: int, draft_tokens: int
) -> int:
    """Requests that one of `num_lanes` lanes takes at once, 1 to `at_most`: all it may, an even share of the active
    ones, or as many as `free_tokens` of KV hold drafts and a token each for.

    >>> lanes = {"num_lanes": 2, "draft_tokens": 4}
    >>> batch_for(BatchBy.MOST, 12, num_active=3, free_tokens=0, **lanes)
    12
    >>> [batch_for(BatchBy.QUEUE, 12, num_active=count, free_tokens=0, **lanes) for count in (7, 100, 0)]
    [4, 12, 1]
    >>> [batch_for(BatchBy.MEMORY, 12, num_active=7, free_tokens=free, **lanes) for free in (24, 1000, 4)]
    [4, 12, 1]
    """
    if by is BatchBy.QUEUE:
        return max(1, min(at_most, -(-num_active // num_lanes)))
    if by is BatchBy.MEMORY:
        return max(1, min(at_most, free_tokens // (draft_tokens + 1)))
    return at_most


async def take_batch(
    serving: Serving, lane: RequestQueue, options: LaneOptions, at_most: int, num_lanes: int
) -> list[Request]:
    """The oldest of `lane`, one of `num_lanes` that rounds go through, once there is one: as many as `batch_by` has it
    then, 1 to `at_most`."""
    await filled(serving, lane, options)
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
    serving: Serving,
    request: Request,
    options: LaneOptions,
    stream: Stream,
    chunk_tokens: int,
    apart: DraftPrompts | None = None,
) -> None:
    """Prefill as `submit_prefill` does, in pieces of at most `chunk_tokens`, each of the target's awaited before the
    next."""
    draft_stream = stream if apart is None else apart.stream_of(request)
    max_tokens = min(chunk_tokens, serving.max_num_batched_tokens or chunk_tokens)
    for work in works.prefill(request, Model.TARGET, max_tokens):
        await round_end(serving, options)
        ticket = submit(serving, work, stream)
        await ticket
    await round_end(serving, options)
    await _with_draft_prompt(serving, request, ticket, draft_stream, apart, max_tokens)


async def run_round(
    serving: Serving,
    requests: Sequence[Request],
    options: RoundOptions,
    draft_stream: Stream,
    verify_stream: Stream,
    after: Sequence[Ticket] = (),
) -> list[Request]:
    """One atomic round: draft, `after` these works, and verify as one step of the caller."""
    started_s = serving.host.now_s
    verify = submit_round(serving, requests, options, draft_stream, verify_stream, after)
    going_on = await finish_round(serving, requests, options, verify, verify_stream)
    serving.controller.saw_draft(serving.host.now_s - started_s, 0)
    return going_on
