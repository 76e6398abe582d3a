"""`continuous` with lazy accounting: the same decisions at a cost per step that does not grow with the batch.

A request's luck is known when it joins, so the step in which it leaves and the tokens it adds to the context in every
step until then are written down at once; each step only adds up totals. Requires that nothing can change a row's fate
meanwhile: a fixed draft length, a budget that always has room for every row, whole prompts before the next ones (no
threshold), and no look at a row's state from outside (no cut window). Works that are recorded name their requests.
With asynchronous scheduling a step's prompts are chosen while the one before it is under way: rows that may go on count
against the budget, rows that must end (one token left) do not, and all hold their seats and memory.
Memory is reserved for whole lives: as long as all reservations fit no block can run out. Where one of those who could
be admitted next does not, every row's state is written out and `continuous` goes on from there, with the step that is
under way, until nobody waits and all who run, and some more, would fit: then the account goes on. Where requests have
content in common, prompts take their blocks at admission, as in `continuous`, and what the rows' tables gain in each
plan is taken by number: what is found and what is lost depends on no more than that. A property test holds it to
`continuous`.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from itertools import islice
from math import inf
from typing import Any, NamedTuple

from sim.engine.lazy_rows import RoundLuck, RowBlocks, Rows
from sim.engine.serving import Serving
from sim.interface.host import Stream, Ticket
from sim.interface.request import Request
from sim.interface.work import Chunk, Kind, Work
from sim.policies.continuous import Flight, Pause, Step, draft_of, engine
from sim.policies.options import EngineLimits, Method

EASED_SHARE = 0.9
"""Of memory: `continuous` hands back where those who run need no more for their whole lives. Each change of hands takes
as long as some steps."""


def can_be_lazy(serving: Serving, limits: EngineLimits) -> bool:
    """Whether no row can be trimmed or held up by the budget, and prompts complete in order."""
    if limits.long_prefill_token_threshold or limits.method is Method.NGRAM:
        return False
    most_rows = min(limits.max_num_seqs, len(serving.requests), serving.max_concurrency or limits.max_num_seqs)
    return (serving.controller.draft_tokens_max + 1) * most_rows <= limits.max_num_batched_tokens


def coroutines(
    serving: Serving, limits: EngineLimits, luck: RoundLuck, *, names_requests: bool = False
) -> list[Coroutine[Any, None, None]]:
    """With `names_requests` works carry their requests, whatever that costs in large batches."""
    return [_engine(serving, limits, luck, serving.host.stream("gpu"), names_requests)]


class _Partial(NamedTuple):
    """The one prompt that is admitted and not wholly planned. The budget has room for all seats' rows, so it always
    gets a chunk in the next plan."""

    request: Request
    tokens: int
    """Of the prompt, planned so far."""


class _Plan(NamedTuple):
    """The prompts of a step, oldest first, and one chunk of each."""

    prompts: list[Request]
    chunks: tuple[Chunk, ...]
    completed: list[Request]
    """Those whose last chunk this is: all but perhaps the last one."""
    partial: _Partial | None
    """What is left for later plans."""
    at_s: float


async def _engine(
    serving: Serving, limits: EngineLimits, luck: RoundLuck, stream: Stream, names_requests: bool
) -> None:
    host, kv, gaps = serving.host, serving.kv, serving.gaps
    draft_tokens = _length(serving)
    tokens_per_row = draft_tokens + 1
    is_async = limits.async_scheduling
    lookahead = serving.controller.draft_tokens_max
    is_sharing = serving.paged.is_sharing
    blocks = RowBlocks(serving.paged, draft_tokens, lookahead, is_async=is_async) if is_sharing else None
    rows = Rows(luck, draft_tokens, serving.first_measured, blocks)
    plan: _Plan | None = None
    partial: _Partial | None = None
    last_step_s = 0.0
    while True:
        num_rows = rows.num_rows
        if plan is None or not (num_rows or plan.chunks):
            if serving.inbox and not _has_room(serving, limits, num_rows, partial):
                running = _with_tables(serving, rows, partial, last_step_s)
                rows, plan, last_step_s = await _by_tables(serving, limits, stream, rows, running)
                partial = None
                continue
            if blocks is not None:
                blocks.take(rows.step, [])
            plan = _fill(serving, partial, limits, num_rows, limits.max_num_batched_tokens - num_rows * tokens_per_row)
            partial = plan.partial
            if not (num_rows or plan.chunks):
                await host.wait(serving.intake)
                continue
        step, plan = plan, None
        chunks, completed = step.chunks, step.completed
        started_s = host.now_s
        named = rows.requests if names_requests else None
        target, last = _submit(serving, rows, step, stream, limits.method, named)
        if is_async:
            if serving.inbox and not _has_room(serving, limits, num_rows + len(completed), partial):
                running, under_way = _under_way(serving, rows, step, last_step_s)
                flight = Flight(under_way.step, target, last, draft_tokens, started_s, under_way.accepted)
                rows, plan, last_step_s = await _by_tables(serving, limits, stream, rows, running, flight)
                partial = None
                continue
            if blocks is not None:
                blocks.take(rows.step + 1, completed)
            num_going_on = num_rows - rows.num_ending() + sum([request.output_tokens > 1 for request in completed])
            budget = limits.max_num_batched_tokens - num_going_on * tokens_per_row
            plan = _fill(serving, partial, limits, num_rows + len(completed), budget)
            partial = plan.partial
        await last
        now_s = host.now_s
        if num_rows:
            if rows.num_measured:
                gaps.add(now_s - last_step_s, rows.num_measured)
            leaving = rows.advance()
            if leaving is not None:
                for request in leaving:
                    request.last_token_s = now_s
                    request.emitted_tokens = request.output_tokens
                    request.kv_tokens = 0
                    serving.release(request)
        if chunks:
            for request, chunk in zip(step.prompts, chunks, strict=True):
                request.prefilled_tokens += chunk.new_tokens
            for request in completed:
                request.first_token_s = request.last_token_s = now_s
                request.emitted_tokens = 1
                if request.output_tokens == 1:
                    serving.release(request)
                else:
                    rows.join(request)
        held = rows.context_tokens + rows.num_rows * tokens_per_row
        if step.partial is not None:
            held += step.partial.request.prefilled_tokens
        if blocks is not None:
            held -= kv.num_shared * kv.block_size
            if plan is not None:
                held += sum([chunk.history_tokens for chunk in plan.chunks[0 if step.partial is None else 1 :]])
        kv.held.set(held, now_s)
        rows.step += 1
        last_step_s = now_s


def _length(serving: Serving) -> int:
    """The draft length; where it is 0 and longer ones might be, the drafter is loaded and kept up to date."""
    length = serving.controller.constant_length
    assert length is not None, "a lazy account needs one draft length"
    return length


def _submit(
    serving: Serving, rows: Rows, step: _Plan, stream: Stream, method: Method, named: Sequence[Request] | None
) -> tuple[Ticket, Ticket]:
    """The target pass of a step, and the drafts that follow it; their tickets. Requests are those `named`, and the
    prompts'; None where works need not carry them."""
    host, draft_tokens = serving.host, _length(serving)
    num_rows, context_tokens, chunks, completed = rows.num_rows, rows.context_tokens, step.chunks, step.completed
    row_tokens = num_rows * (draft_tokens + 1)
    target = last = host.run(
        Work(
            kind=Kind.STEP,
            requests=() if named is None else (*named, *step.prompts),
            rows=num_rows,
            row_tokens=row_tokens,
            context_tokens=context_tokens,
            chunks=chunks,
            head_rows=row_tokens + len(completed),
            ahead_s=host.now_s - step.at_s,
        ),
        stream,
    )
    if serving.controller.draft_tokens_max:
        num_drafted = num_rows + len(completed)
        last = host.run(
            draft_of(
                method,
                num_drafted,
                row_tokens,
                context_tokens + sum([request.prompt_tokens for request in completed]),
                chunks,
                draft_tokens,
                () if named is None else (*named, *completed, *step.prompts),
            ),
            stream,
        )
    return target, last


def _has_room(serving: Serving, limits: EngineLimits, num_seated: int, partial: _Partial | None) -> bool:
    """Whether all who could be admitted now, while `num_seated` and `partial` hold seats, fit for their whole lives;
    else reservations no longer tell who fits. No more than a step's tokens of prompts are admitted at once, but of
    shared ones, which others may have computed."""
    free_blocks, tokens = serving.kv.free_blocks, 0
    most_tokens = inf if serving.paged.is_sharing else limits.max_num_batched_tokens
    num_seats = limits.max_num_seqs - num_seated - (partial is not None)
    for request in islice(serving.inbox, max(0, num_seats)):
        free_blocks -= serving.kv.blocks_for(request)
        if free_blocks < 0:
            return False
        tokens += request.prompt_tokens
        if tokens >= most_tokens:
            break
    return True


def _fill(serving: Serving, partial: _Partial | None, limits: EngineLimits, num_seated: int, budget: int) -> _Plan:
    """Chunks within `budget`: of `partial` first, then of new prompts while `num_seated` others leave seats."""
    if partial is None and not serving.inbox:
        return _Plan([], (), [], None, serving.host.now_s)
    serving.take_in()
    pool, lookahead = serving.paged, serving.controller.draft_tokens_max
    prompts: list[Request] = []
    chunks: list[Chunk] = []
    completed: list[Request] = []
    while budget > 0:
        if partial is not None:
            request, history_tokens = partial
            chunk = Chunk(min(request.prompt_tokens - history_tokens, budget), history_tokens)
            if pool.is_sharing:
                pool.grow(request, history_tokens + chunk.new_tokens, lookahead)
        else:
            if not serving.inbox or num_seated + len(prompts) >= limits.max_num_seqs:
                break
            request, chunk = _admit(serving, budget)
        planned_tokens = chunk.history_tokens + chunk.new_tokens
        prompts.append(request)
        chunks.append(chunk)
        budget -= chunk.new_tokens
        if planned_tokens == request.prompt_tokens:
            partial = None
            completed.append(request)
        else:
            partial = _Partial(request, planned_tokens)
    return _Plan(prompts, tuple(chunks), completed, partial, serving.host.now_s)


def _admit(serving: Serving, most_tokens: int) -> tuple[Request, Chunk]:
    """The oldest waiting request, for which there is room, and its first chunk."""
    if not serving.paged.is_sharing:
        request = serving.admit_now()
        assert request is not None
        return request, Chunk(min(request.prompt_tokens, most_tokens), 0)
    serving.kv.reserve(serving.inbox[0])
    seated = serving.seat_now(most_tokens)
    assert seated is not None
    return seated


# -- where memory runs out: everything as `continuous` holds it, and back


async def _by_tables(
    serving: Serving,
    limits: EngineLimits,
    stream: Stream,
    rows: Rows,
    running: list[Request],
    flight: Flight | None = None,
) -> tuple[Rows, _Plan | None, float]:
    """`continuous` serves until memory is at ease; then the account, the step that is planned, and when the last ended.

    With prefixes in common it goes on to the end: of tables that share blocks the account knows their growth alone.
    """
    is_sharing = serving.paged.is_sharing
    may_stop = None if is_sharing else lambda pause: _is_eased(serving, pause)
    pause = await engine(serving, limits, stream, running, flight, may_stop)
    for request in pause.running:
        has_room = serving.paged.reserve_again(request)
        assert has_room, "whoever is at ease has room"
    plan = None
    if pause.planned is not None and not pause.planned.is_empty:
        plan = _Plan([], (), [], None, pause.planned_at_s)
    last_step_s = pause.running[0].last_token_s if pause.running else serving.host.now_s
    return rows.read_in(pause.running), plan, last_step_s


def _is_eased(serving: Serving, pause: Pause) -> bool:
    """Whether nobody waits, all who run decode, and their whole lives fit into EASED_SHARE of memory."""
    pool, running = serving.paged, pause.running
    most_blocks = int(EASED_SHARE * pool.num_blocks)
    if serving.inbox or pool.num_held > most_blocks:
        return False
    num_blocks = 0
    for request in running:
        num_blocks += pool.blocks_for(request)
        if num_blocks > most_blocks or request.prefilled_tokens < request.prefill_goal:
            return False
    return True


def _with_tables(serving: Serving, rows: Rows, partial: _Partial | None, last_step_s: float) -> list[Request]:
    """Between two steps: reservations become tables; returns the running requests, oldest first."""
    running = []
    for member in rows.write_out(last_step_s):
        running.append(member.request)
        rows.assign_planned(member, rows.step - member.first_step)
        serving.paged.unreserve(member.request, member.request.context_tokens)
    if partial is not None:
        request = partial.request
        request.kv_tokens = request.prefilled_tokens
        serving.paged.unreserve(request, request.prefilled_tokens)
        running.append(request)
    return running


class _UnderWay(NamedTuple):
    step: Step
    accepted: list[int]


def _under_way(serving: Serving, rows: Rows, plan: _Plan, last_step_s: float) -> tuple[list[Request], _UnderWay]:
    """While `plan`, which was made ahead if there are rows, is under way: tables as they were planned; the running
    requests, oldest first, and the step with what its rows are going to accept."""
    lookahead = serving.controller.draft_tokens_max
    tokens_per_row = _length(serving) + 1
    step = Step([], [], plan.prompts, plan.chunks)
    accepted = []
    for member in rows.write_out(last_step_s):
        request = member.request
        planned_at = request.context_tokens
        rows.assign_planned(member, rows.step - member.first_step + 1)
        if member.first_step < rows.step:
            planned_at += tokens_per_row - (member.accepted_in(rows.step - 1) + 1)
        serving.paged.unreserve(request, planned_at + tokens_per_row + lookahead)
        request.in_flight = tokens_per_row
        step.rows.append(request)
        step.row_tokens.append(tokens_per_row)
        accepted.append(member.accepted_in(rows.step))
    for request, chunk in zip(plan.prompts, plan.chunks, strict=True):
        request.kv_tokens = request.prefilled_tokens
        request.in_flight = chunk.new_tokens
        ahead = lookahead if chunk.history_tokens else 0
        serving.paged.unreserve(request, chunk.history_tokens + chunk.new_tokens + ahead)
    return [*step.rows, *plan.prompts], _UnderWay(step, accepted)
