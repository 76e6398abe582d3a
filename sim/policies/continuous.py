"""Continuous batching as in vLLM v1: every step one target pass of verify rows and prefill chunks under a token budget.

There are no phases: a step brings each request's computed tokens closer to all that it has (prompt, output, drafts).
RUNNING goes before WAITING, draft tokens consume budget, blocks are taken as tokens come, with look-ahead slots for the
next draft; where they run out the last running request is preempted, and nothing is admitted in that step. Drafting
follows the target pass on the same stream and the step is over when both are: then tokens are emitted. Drafts of
unfinished prompts are never made. Without speculation this is `autoregressive`.

With asynchronous scheduling the next step is planned while the last one is under way, without its results: what arrives
meanwhile waits one step longer, and the host's preparation is hidden behind the device.

The draft pass is padded to two tokens per row (the newest, and the one that is missing after full acceptance) because
the host submits it before it knows what was accepted; an EAGLE head takes all verified tokens of the row. Not here: the
same decisions with lazy accounting (continuous_lazy), blocks (sim.engine.paged).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from sim.engine.adaptive_length import AdaptiveVerification
from sim.engine.serving import Serving
from sim.interface.host import Stream, Ticket
from sim.interface.request import Request
from sim.interface.work import Chunk, Kind, Model, Work
from sim.policies.options import EngineLimits, Method, PolicyOptions

DRAFT_ROW_TOKENS = 2
"""Tokens per row of a draft model's padded first pass."""


class Step(NamedTuple):
    """What one pass carries: `rows` decode or verify `row_tokens` each, `prompts` prefill one of `chunks` each."""

    rows: list[Request]
    row_tokens: list[int]
    prompts: list[Request]
    chunks: tuple[Chunk, ...]

    @property
    def is_empty(self) -> bool:
        return not self.rows and not self.prompts

    @property
    def completed(self) -> list[Request]:
        """Prompts whose last chunk this is."""
        return [
            request
            for request, chunk in zip(self.prompts, self.chunks, strict=True)
            if chunk.history_tokens + chunk.new_tokens == request.prefill_goal
        ]


class Flight(NamedTuple):
    """A step under way."""

    step: Step
    target: Ticket
    last: Ticket
    """Of its last work: the draft where one follows the target pass."""
    draft_tokens: int
    started_s: float
    accepted: Sequence[int] | None = None
    """Accepted drafted tokens of each row where they are known already; None = as the target's ticket tells."""


class Pause(NamedTuple):
    """Between two steps, none of which is under way."""

    running: list[Request]
    """Seated requests, oldest first."""
    planned: Step | None
    """The next step, where it was planned ahead."""
    planned_at_s: float


def coroutines(serving: Serving, options: PolicyOptions, limits: EngineLimits) -> list[Coroutine[Any, None, None]]:
    return [_serve(serving, limits, serving.host.stream("gpu"))]


async def _serve(serving: Serving, limits: EngineLimits, stream: Stream) -> None:
    await engine(serving, limits, stream, [])


async def engine(
    serving: Serving,
    limits: EngineLimits,
    stream: Stream,
    running: list[Request],
    flight: Flight | None = None,
    may_stop: Callable[[Pause], bool] | None = None,
) -> Pause:
    """Serve until `may_stop` at a pause, for ever without it; `running` requests are seated already, oldest first, and
    `flight` is under way."""
    host = serving.host
    planned: Step | None = None
    planned_at_s = 0.0
    while True:
        if flight is None:
            if may_stop is not None and may_stop(pause := Pause(running, planned, planned_at_s)):
                return pause
            if planned is None or planned.is_empty:
                planned, planned_at_s = plan_step(serving, running, limits, None), host.now_s
                if planned.is_empty:
                    await host.wait(serving.intake)
                    continue
            step, planned = begin_step(serving, planned), None
            if step.is_empty:
                continue
            flight = _submit(serving, step, stream, limits.method, host.now_s - planned_at_s)
        if limits.async_scheduling:
            planned, planned_at_s = plan_step(serving, running, limits, flight.draft_tokens), host.now_s
        await flight.last
        step, draft_tokens = flight.step, flight.draft_tokens
        if draft_tokens and (step.rows or step.completed):
            serving.controller.saw_draft(host.now_s - flight.started_s, 0)
        accepted = flight.accepted if flight.accepted is not None else (await flight.target).accepted
        for request in commit_step(serving, step, accepted):
            serving.open_round(request, draft_tokens)
        running = [request for request in running if not request.is_finished]
        flight = None


def _submit(serving: Serving, step: Step, stream: Stream, method: Method, ahead_s: float) -> Flight:
    """The target pass of `step`, planned `ahead_s` before now, and the drafts that follow it."""
    host, controller, completed = serving.host, serving.controller, step.completed
    draft_tokens = controller.draft_tokens_for(len(step.rows) + len(step.prompts), len(serving.inbox))
    target = last = host.run(step_work(step, len(completed), ahead_s), stream)
    if draft_tokens or (controller.draft_tokens_max and method is not Method.NGRAM):
        last = host.run(draft_work(step, completed, draft_tokens, method), stream)
    return Flight(step, target, last, draft_tokens, host.now_s)


def plan_step(serving: Serving, running: list[Request], limits: EngineLimits, drafting: int | None) -> Step:
    """Fill one step's budget: `running` requests first, oldest first, then waiting ones, which join `running`.

    `drafting` is the draft length of the step under way, whose results are not known yet; None where there is none.
    """
    serving.take_in()
    budget = limits.max_num_batched_tokens
    longest = limits.long_prefill_token_threshold or budget
    lookahead = serving.controller.draft_tokens_max if limits.method is not Method.NGRAM else 0
    grow = serving.paged.grow
    step = Step([], [], [], ())
    chunks: list[Chunk] = []
    has_preempted = False
    index = 0
    while index < len(running) and budget > 0:
        request = running[index]
        index += 1
        in_flight = request.in_flight
        prefilled = request.prefilled_tokens
        missing = request.prefill_goal - prefilled - in_flight
        if prefilled < request.prefill_goal and missing > 0:
            tokens, held = min(missing, longest, budget), prefilled + in_flight
        elif in_flight and request.emitted_tokens + 1 >= request.output_tokens:
            continue
        else:
            missing, held = 0, request.context_tokens + in_flight
            tokens = min(budget, 1 + (drafting if in_flight and drafting is not None else request.drafted))
        while not grow(request, held + tokens, lookahead):
            has_preempted = True
            victim = running.pop()
            serving.preempt(victim)
            if victim is request:
                break
        if request.is_preempted:
            break
        budget -= tokens
        if missing > 0:
            step.prompts.append(request)
            chunks.append(Chunk(tokens, held))
        else:
            step.rows.append(request)
            step.row_tokens.append(tokens)
    while budget > 0 and not has_preempted and len(running) < limits.max_num_seqs:
        seated = serving.seat_now(min(budget, longest))
        if seated is None:
            break
        request, chunk = seated
        running.append(request)
        step.prompts.append(request)
        chunks.append(chunk)
        budget -= chunk.new_tokens
    return step._replace(chunks=tuple(chunks))


def begin_step(serving: Serving, planned: Step) -> Step:
    """`planned` as it is submitted: rows that have finished meanwhile left out, drafts cut to what had room and to what
    the controller would verify."""
    step = Step([], [], planned.prompts, planned.chunks)
    for request, tokens in zip(planned.rows, planned.row_tokens, strict=True):
        if request.is_finished:
            continue
        if request.drafted >= tokens:
            serving.trim_draft(request, tokens - 1)
        request.in_flight = request.drafted + 1
        step.rows.append(request)
        step.row_tokens.append(request.in_flight)
    for request, chunk in zip(step.prompts, step.chunks, strict=True):
        request.in_flight = chunk.new_tokens
    if isinstance(serving.controller, AdaptiveVerification) and step.rows:
        for place, (request, tokens) in enumerate(zip(step.rows, serving.controller.verified(step.rows), strict=True)):
            if tokens < request.drafted:
                serving.trim_draft(request, tokens)
                request.in_flight = step.row_tokens[place] = tokens + 1
    return step


def commit_step(serving: Serving, step: Step, accepted: Sequence[int]) -> list[Request]:
    """Commit what `step` brought; returns the requests whose next round opens."""
    for request in (*step.rows, *step.prompts):
        request.in_flight = 0
    going_on = serving.commit_rounds(step.rows, accepted)
    completed = step.completed
    for request, chunk in zip(step.prompts, step.chunks, strict=True):
        serving.commit_chunk(request, chunk.new_tokens)
    going_on.extend(request for request in completed if not request.is_finished)
    return [request for request in going_on if not request.is_preempted]


def step_work(step: Step, num_completed: int, ahead_s: float) -> Work:
    row_tokens = sum(step.row_tokens)
    return Work(
        kind=Kind.STEP,
        requests=(*step.rows, *step.prompts),
        rows=len(step.rows),
        row_tokens=row_tokens,
        context_tokens=sum(request.context_tokens for request in step.rows),
        chunks=step.chunks,
        head_rows=row_tokens + num_completed,
        ahead_s=ahead_s,
    )


def draft_work(step: Step, completed: Sequence[Request], draft_tokens: int, method: Method) -> Work:
    """Drafts for every row that sampled in this step, and the draft model's share of the prefill; a draft of 0 tokens
    only brings the draft model's KV up to date."""
    num_rows = len(step.rows) + len(completed)
    if method is Method.NGRAM:
        return Work(kind=Kind.HOST, rows=num_rows)
    context_tokens = sum(request.context_tokens for request in step.rows)
    context_tokens += sum(request.prefill_goal for request in completed)
    requests = (*step.rows, *completed, *step.prompts)
    return draft_of(method, num_rows, sum(step.row_tokens), context_tokens, step.chunks, draft_tokens, requests)


def draft_of(
    method: Method,
    num_rows: int,
    verified_tokens: int,
    context_tokens: int,
    chunks: tuple[Chunk, ...],
    draft_tokens: int,
    requests: Sequence[Request] = (),
) -> Work:
    """The draft of `draft_tokens` tokens for each of `num_rows` rows, of which `verified_tokens` were just verified and
    `context_tokens` are in KV, beside `chunks` of prompts.

    - draft_model: two tokens a row in the first pass, then one pass per token.
    - eagle3, mtp: every verified token in the first pass, then one pass per token.
    - parallel: every verified token and the masked slots after the newest in one pass, LM head over all slots.
    - dspark: the slots in one pass, LM head over all; verified tokens and prompts are projected into its KV, no more.
    """
    row_tokens, head_rows, passes, projected = DRAFT_ROW_TOKENS * num_rows, num_rows, draft_tokens, 0
    if method in (Method.EAGLE3, Method.MTP):
        row_tokens = verified_tokens
    elif method is Method.PARALLEL:
        row_tokens = verified_tokens + num_rows * max(0, draft_tokens - 1)
        head_rows, passes = num_rows * draft_tokens, min(1, draft_tokens)
    elif method is Method.DSPARK:
        row_tokens = head_rows = num_rows * draft_tokens
        passes = min(1, draft_tokens)
        projected = verified_tokens + sum(chunk.new_tokens for chunk in chunks)
        chunks = ()
    has_pass = method is not Method.DSPARK or draft_tokens > 0
    return Work(
        kind=Kind.DRAFT,
        model=Model.DRAFT,
        requests=requests,
        rows=num_rows if has_pass else 0,
        row_tokens=row_tokens,
        context_tokens=context_tokens if has_pass else 0,
        chunks=chunks,
        head_rows=head_rows if draft_tokens else 0,
        draft_tokens=passes if num_rows else 0,
        projected_tokens=projected,
    )
