"""Continuous batching as in vLLM v1: every step one target pass of verify rows and prefill chunks under a token budget.

Drafting follows the target pass on the same stream and the step is over when both are: then tokens are emitted. N-grams
are looked up on the host once the sampled tokens are there, as vLLM proposes after sampling, so that nothing hides
them, asynchronous scheduling neither. Without speculation this is `autoregressive`. With asynchronous scheduling the
next step is planned while the last one is under way, without its results: what arrives meanwhile waits one step longer,
and the host's preparation is hidden behind the device.

Two loops decide the same. `by_rows` looks at every row in every step. `by_totals` costs no more for a larger batch: a
request's draws are known when it joins, so the step in which it leaves and the tokens it adds to the context in every
step until then are written down at once (totals). Requires that nothing can change a row's fate meanwhile: a fixed
draft length, a budget with room for all rows that are there, whole prompts before the next ones (no threshold), and no
look at a row's state from outside (no cut window). Where prompts are not mixed with rows, a step of prompts alone is
none of the rows', which go on in the next one, and all who may be seated must fit.

With asynchronous scheduling a step's prompts are chosen while the one before it is under way: rows that may go on count
against the budget, rows that must end (one token left) do not, and all hold their seats and memory. Memory is reserved
for whole lives: as long as all reservations fit no block can run out. Where one of those who could be admitted next
does not, every row's state is written out and `by_rows` goes on from there, with the step that is under way, until
nobody waits and all who run, and some more, would fit: then `by_totals` goes on. Where requests have content in common,
prompts take their blocks at admission, as in `by_rows`, and what the rows' tables gain in each plan is taken by number:
what is shared and what is lost depends on no more than that. A property test holds one loop to the other. Not here:
what a step carries (plan).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from heapq import nlargest
from math import inf
from typing import NamedTuple

from sim.costs.engine_costs import installed_engine
from sim.engine.serving import RoundDraws, Serving
from sim.interface.host import Stream, Ticket
from sim.interface.request import Request
from sim.interface.wait import Task
from sim.interface.work import Work
from sim.policies.continuous.apart import Apart
from sim.policies.continuous.plan import (
    Partial,
    PromptPlan,
    Step,
    StepLoad,
    begin_step,
    commit_step,
    draft_work,
    has_room,
    later_drafts,
    load_of,
    plan_prompts,
    plan_step,
    step_work,
)
from sim.policies.continuous.totals import RowBlocks, Rows
from sim.policies.options import EngineLimits
from sim.policies.policy import Policy

EASED_SHARE = 0.9
"""Share of memory: `by_rows` hands back where those who run need no more for their whole lives. Each change of hands
takes as long as some steps."""


def coroutines(serving: Serving, _: object, limits: EngineLimits) -> list[Task]:
    stream = serving.host.stream("gpu")
    if limits.scheduler is not None:
        return [installed_engine(limits.scheduler).serve(serving, limits, stream)]
    if serving.draws is not None and can_be_totals(serving, limits):
        return [by_totals(serving, limits, stream, serving.draws)]
    return [_by_rows(serving, limits, stream)]


def can_be_totals(serving: Serving, limits: EngineLimits) -> bool:
    """True where no row can be trimmed or held up by the budget, prompts complete in order, and where these are not
    mixed with rows, all who may be seated fit for their whole lives."""
    if serving.controller.constant_length is None or serving.intake.group is not None:
        return False
    if limits.long_prefill_token_threshold or limits.prefill_schedule_interval > 1:
        return False
    draft_tokens = serving.controller.draft_tokens_max
    if draft_tokens and serving.requests:
        longest = max([request.prompt_tokens + request.output_tokens for request in serving.requests])
        if longest + 3 * draft_tokens >= serving.paged.max_tokens:
            return False
    if limits.no_evict and serving.paged.is_sharing:
        return False
    max_rows = min(limits.max_num_seqs, len(serving.requests), serving.max_concurrency or limits.max_num_seqs)
    if not limits.mixes_prompts:
        # Where memory is short, prompts that go first may take a block that a table holds and a reservation does not.
        kv = serving.kv
        spare = 0
        if limits.retracts:
            # Who has finished keeps the seat for a plan: as many may leave at once as run.
            if min(len(serving.requests), 2 * (serving.max_concurrency or limits.max_num_seqs)) > limits.max_num_seqs:
                return False
            spare = 1
        largest = nlargest(max_rows, (kv.blocks_for(request) for request in serving.requests))
        return not serving.paged.is_sharing and (limits.no_evict or sum(largest) + spare <= kv.num_blocks)
    if not (limits.no_evict or serving.paged.is_sharing):
        max_rows = 1  # More hand over to `by_rows` when they are there.
    return (draft_tokens + 1 + limits.slots_per_request) * max_rows <= limits.max_num_scheduled_tokens


def _submit(
    serving: Serving,
    load: StepLoad,
    stream: Stream,
    limits: EngineLimits,
    draft_tokens: int,
    ahead_s: float,
    group_tokens: int = 0,
) -> tuple[Ticket, Ticket]:
    """The target pass of a step that was planned `ahead_s` before now, and a model's drafts that follow it; tickets of
    the former, and of the last work."""
    run, method = serving.host.run, limits.method
    if limits.drafts_before_verify and method.runs_per_token:
        draft_tokens = min(1, draft_tokens)
        if load.max_drafted > 1:
            run(later_drafts(load, ahead_s), stream)
            ahead_s = inf
    target = last = run(step_work(load, ahead_s, group_tokens), stream)
    if serving.controller.draft_tokens_max and not method.looks_up:
        last = run(draft_work(load, draft_tokens, method), stream)
    return target, last


def _lookup(load: StepLoad, draft_tokens: int, limits: EngineLimits) -> Work | None:
    """The search for n-grams that goes on from the tokens which the step samples."""
    is_due = limits.method.looks_up and draft_tokens and (load.num_rows or load.completed)
    return draft_work(load, draft_tokens, limits.method) if is_due else None


# -- row by row


class Flight(NamedTuple):
    """A step under way."""

    step: Step
    target: Ticket
    last: Ticket
    """Ticket of its last work: the draft where one follows the target pass."""
    lengths: Mapping[int, int]
    """Draft lengths by arrival index."""
    started_s: float
    lookup: Work | None = None
    accepted: Sequence[int] | None = None
    """Accepted drafted tokens of each row where they are known already; None = as the target's ticket tells."""


class Pause(NamedTuple):
    """The time between two steps, none of which is under way."""

    running: list[Request]
    """Seated requests, oldest first."""
    planned: Step | None
    """The next step, where it was planned ahead."""
    planned_at_s: float
    after_rows: bool
    """The step before it carried rows alone."""


async def _by_rows(serving: Serving, limits: EngineLimits, stream: Stream) -> None:
    await by_rows(serving, limits, stream, [])


async def by_rows(
    serving: Serving,
    limits: EngineLimits,
    stream: Stream,
    running: list[Request],
    flight: Flight | None = None,
    may_stop: Callable[[Pause], bool] | None = None,
    *,
    after_rows: bool = False,
) -> Pause:
    """Serve until `may_stop` at a pause, for ever without it; `running` requests are seated already, oldest first, and
    `flight` is under way, or the last step was one of rows alone (`after_rows`)."""
    host, group = serving.host, serving.intake.group
    apart = Apart(serving, limits) if limits.retracts else None
    plan = partial(plan_step, serving, limits=limits) if apart is None else apart.plan
    planned: Step | None = None
    planned_at_s = 0.0
    while True:
        if flight is None:
            if may_stop is not None and may_stop(pause := Pause(running, planned, planned_at_s, after_rows)):
                return pause
            if planned is None or planned.is_empty:
                if group is not None:
                    await group.between()
                planned = plan(running, drafting=None, after_rows=after_rows and bool(running))
                planned_at_s = host.now_s
                if planned.is_empty:
                    await host.wait(serving.intake.changed)
                    continue
            step, planned = begin_step(serving, planned), None
            if step.is_empty:
                continue
            group_tokens = 0 if group is None else await group.begin(step.tokens)
            flight = start_step(serving, step, stream, limits, host.now_s - planned_at_s, group_tokens)
        after_rows = not flight.step.prompts
        if limits.async_scheduling:
            planned = plan(running, drafting=flight.lengths, after_rows=after_rows)
            planned_at_s = host.now_s
        await flight.last
        if flight.lookup is not None:
            await host.run(flight.lookup, stream)
        if group is not None:
            await group.end()
        step, lengths = flight.step, flight.lengths
        if any(lengths.values()) and (step.rows or step.completed):
            serving.controller.saw_draft(host.now_s - flight.started_s, 0)
        accepted = flight.accepted if flight.accepted is not None else (await flight.target).accepted
        if apart is not None:
            step, accepted = apart.kept(step, accepted)
        serving.open_rounds(commit_step(serving, step, accepted), lengths)
        running = [request for request in running if request.emitted_tokens < request.output_tokens]
        flight = None


def start_step(
    serving: Serving, step: Step, stream: Stream, limits: EngineLimits, ahead_s: float, group_tokens: int = 0
) -> Flight:
    """The works of `step`, planned `ahead_s` before now, among `group_tokens` of all ranks, are submitted; the draft is
    as long as the longest that the controller chooses."""
    requests = (*step.rows, *step.prompts)
    lengths = serving.controller.lengths_for(requests)
    load, longest = load_of(step), max(lengths)
    target, last = _submit(serving, load, stream, limits, longest, ahead_s, group_tokens)
    by_index = dict(zip([request.index for request in requests], lengths, strict=True))
    return Flight(step, target, last, by_index, serving.host.now_s, _lookup(load, longest, limits))


# -- rows as totals


async def by_totals(serving: Serving, limits: EngineLimits, stream: Stream, draws: RoundDraws) -> None:
    """Serve all requests, whose drafts are accepted as `draws` have it."""
    host, kv, gaps = serving.host, serving.kv, serving.gaps
    draft_tokens = _length(serving)
    tokens_per_row = draft_tokens + 1
    max_tokens = limits.max_num_scheduled_tokens
    budget_per_row = tokens_per_row + limits.slots_per_request if limits.mixes_prompts else 0
    """Tokens of a step that each of its rows takes from prompts."""
    is_async = limits.async_scheduling
    lookahead = limits.lookahead(serving.controller.draft_tokens_max)
    is_sharing = serving.paged.is_sharing
    blocks = RowBlocks(serving.paged, draft_tokens, lookahead, is_async=is_async) if is_sharing else None
    rows = Rows(draws, draft_tokens, serving.measured, blocks)
    plan: PromptPlan | None = None
    partial: Partial | None = None
    last_step_s = 0.0
    joined: list[tuple[float, int]] = []
    """Rows that have come since the last step of rows: when, and how many of them are measured."""
    after_rows = False
    while True:
        num_rows = rows.num_rows
        if plan is None or not (num_rows or plan.chunks):
            if serving.inbox and not has_room(serving, limits, num_rows, partial):
                running = _with_tables(serving, rows, partial, last_step_s)
                rows, plan, last_step_s, after_rows = await _until_eased(
                    serving, limits, stream, rows, running, after_rows=after_rows
                )
                partial, joined = None, _joined_since(rows, serving.measured, last_step_s)
                continue
            if blocks is not None:
                blocks.take(rows.step, [])
            budget = max_tokens - num_rows * budget_per_row
            plan = plan_prompts(
                serving, partial, limits, num_rows, budget, num_rows=num_rows, after_rows=after_rows and num_rows > 0
            )
            partial = plan.partial
            if not (num_rows or plan.chunks):
                await host.wait(serving.intake.changed)
                continue
        step, plan = plan, None
        chunks, completed = step.chunks, step.completed
        started_s = host.now_s
        is_apart = bool(chunks) and not limits.mixes_prompts
        num_going = 0 if is_apart else num_rows
        load = StepLoad(
            num_going,
            num_going * tokens_per_row,
            0 if is_apart else rows.context_tokens,
            chunks,
            step.prompts,
            completed,
            (() if is_apart else rows.requests) if serving.names_requests else None,
            draft_tokens if num_going else 0,
        )
        after_rows = not chunks
        target, last = _submit(serving, load, stream, limits, draft_tokens, started_s - step.at_s)
        lookup = _lookup(load, draft_tokens, limits)
        if is_async:
            if serving.inbox and not has_room(serving, limits, num_rows + len(completed), partial):
                running, under_way, accepted = _under_way(serving, limits, rows, step, last_step_s, is_apart=is_apart)
                lengths = {request.index: draft_tokens for request in running}
                flight = Flight(under_way, target, last, lengths, started_s, lookup, accepted)
                rows, plan, last_step_s, after_rows = await _until_eased(serving, limits, stream, rows, running, flight)
                partial, joined = None, _joined_since(rows, serving.measured, last_step_s)
                continue
            if blocks is not None:
                blocks.take(rows.step + 1, completed)
            num_going_on = num_rows - rows.num_ending() + sum([request.output_tokens > 1 for request in completed])
            budget = max_tokens - num_going_on * budget_per_row
            num_seated = num_rows + len(completed)
            plan = plan_prompts(
                serving, partial, limits, num_seated, budget, num_rows=num_going_on, after_rows=after_rows
            )
            partial = plan.partial
        await last
        if lookup is not None:
            await host.run(lookup, stream)
        now_s = host.now_s
        if num_going:
            num_older = rows.num_measured
            if joined:
                num_older -= sum([count for _, count in joined])
            if num_older:
                gaps.add(now_s - last_step_s, num_older)
            if joined:
                for since_s, count in joined:
                    gaps.add(now_s - since_s, count)
                joined = []
            for request in rows.advance():
                request.last_token_s = now_s
                request.emitted_tokens = request.output_tokens
                request.kv_tokens = 0
                serving.release(request)
        if chunks:
            if is_apart:
                rows.step -= 1
            num_before = rows.num_measured
            for request, chunk in zip(step.prompts, chunks, strict=True):
                request.prefilled_tokens = min(request.prompt_tokens, request.prefilled_tokens + chunk.new_tokens)
            for request in completed:
                request.first_token_s = request.last_token_s = now_s
                request.emitted_tokens = 1
                if request.output_tokens == 1:
                    serving.release(request)
                else:
                    rows.join(request)
            if is_apart and rows.num_measured > num_before:
                joined.append((now_s, rows.num_measured - num_before))
        held = rows.context_tokens + rows.num_rows * tokens_per_row
        if step.partial is not None:
            held += step.partial.request.prefilled_tokens
        if blocks is not None:
            held -= kv.num_shared * kv.block_size
            if plan is not None:
                held += sum([chunk.history_tokens for chunk in plan.chunks[0 if step.partial is None else 1 :]])
        kv.held.set(held, now_s)
        rows.step += 1
        if not is_apart:
            last_step_s = now_s


def _joined_since(rows: Rows, measured: range, last_step_s: float) -> list[tuple[float, int]]:
    """(Time, 1) of each measured row whose first token came after `last_step_s`."""
    times = [request.last_token_s for request in rows.requests if request.index in measured]
    return [(time_s, 1) for time_s in times if time_s > last_step_s]


def _length(serving: Serving) -> int:
    """The draft length; where it is 0 and longer ones might be, the drafter is loaded and kept up to date."""
    length = serving.controller.constant_length
    assert length is not None, "rows as totals need one draft length"
    return length


# -- where memory runs out: everything as `by_rows` holds it, and back


async def _until_eased(
    serving: Serving,
    limits: EngineLimits,
    stream: Stream,
    rows: Rows,
    running: list[Request],
    flight: Flight | None = None,
    *,
    after_rows: bool = False,
) -> tuple[Rows, PromptPlan | None, float, bool]:
    """`by_rows` serves until memory is at ease; then the totals, the step that is planned, when the last ended, and
    whether it carried rows alone.

    With prefixes in common it goes on to the end: of tables that share blocks the totals know their growth alone.
    """
    is_sharing = serving.paged.is_sharing
    may_stop = None if is_sharing else lambda pause: _is_eased(serving, limits, pause)
    pause = await by_rows(serving, limits, stream, running, flight, may_stop, after_rows=after_rows)
    for request in pause.running:
        fits = serving.paged.reserve_again(request)
        assert fits, "whoever is at ease has room"
    plan = None
    if pause.planned is not None and not pause.planned.is_empty:
        plan = PromptPlan([], (), [], None, pause.planned_at_s)
    last_step_s = pause.running[0].last_token_s if pause.running else serving.host.now_s
    return rows.read_in(pause.running), plan, last_step_s, pause.after_rows


def _is_eased(serving: Serving, limits: EngineLimits, pause: Pause) -> bool:
    """True where nobody waits, all who run decode, their rows fit into a step, and their whole lives into EASED_SHARE
    of memory."""
    tokens_per_row, max_tokens = serving.controller.draft_tokens_max + 1, limits.max_num_scheduled_tokens
    tokens_per_row = tokens_per_row + limits.slots_per_request if limits.mixes_prompts else 0
    pool, running = serving.paged, pause.running
    max_blocks = int(EASED_SHARE * pool.num_blocks)
    if serving.inbox or pool.num_held > max_blocks or len(running) * tokens_per_row > max_tokens:
        return False
    num_blocks = 0
    for request in running:
        num_blocks += pool.blocks_for(request)
        if num_blocks > max_blocks or request.prefilled_tokens < request.prefill_goal:
            return False
    return True


def _with_tables(serving: Serving, rows: Rows, partial: Partial | None, last_step_s: float) -> list[Request]:
    """Reservations become tables between two steps; returns the running requests, oldest first."""
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


def _under_way(
    serving: Serving, limits: EngineLimits, rows: Rows, plan: PromptPlan, last_step_s: float, *, is_apart: bool
) -> tuple[list[Request], Step, list[int]]:
    """Reservations become tables while `plan`, which was made ahead if there are rows, is under way, without them where
    it `is_apart`; returns the running requests, oldest first, the step, and what its rows are going to accept."""
    lookahead = limits.lookahead(serving.controller.draft_tokens_max)
    tokens_per_row = _length(serving) + 1
    step = Step([], [], plan.prompts, plan.chunks)
    accepted = []
    seated = _with_tables(serving, rows, None, last_step_s) if is_apart else []
    for member in [] if is_apart else rows.write_out(last_step_s):
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
        ahead = lookahead if chunk.history_tokens or limits.seats_lookahead else 0
        serving.paged.unreserve(request, chunk.history_tokens + chunk.new_tokens + ahead)
    return [*seated, *step.rows, *plan.prompts], step, accepted


AUTOREGRESSIVE = Policy(
    name="autoregressive",
    summary="continuous batching without speculation",
    is_built_in=True,
    source="vLLM",
    build=coroutines,
    is_speculative=False,
    is_continuous=True,
    takes=(),
)


CONTINUOUS = Policy(
    name="continuous",
    summary="verify rows and prefill chunks in one pass under a token budget, then drafting",
    is_built_in=True,
    source="vLLM v1",
    build=coroutines,
    is_continuous=True,
    takes=(),
)
