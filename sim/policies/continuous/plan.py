"""Steps of continuous batching, row by row or with the rows as totals, and the works that they are.

As in vLLM v1 there are no phases: a step brings each request's computed tokens closer to all that it has (prompt,
output, drafts). RUNNING goes before WAITING, draft tokens consume budget, blocks are taken as tokens come, with
look-ahead slots for the next draft; where they run out the last running request is preempted, and nothing is admitted
in that step. Drafts of unfinished prompts are never made. Where an engine does not mix prompts with rows (SGLang), a
step carries prompts as long as there are any, and else all rows, whatever the budget. Where it does not cut prompts
(TensorRT-LLM), the oldest one that does not fit what is left of the budget holds up those behind it.

The draft pass is padded to two tokens per row (the newest, and the one that is missing after full acceptance) because
the host submits it before it knows what was accepted; an EAGLE head takes all verified tokens of the row. Not here: the
order of steps (loop), what rows as totals gain (totals), blocks (sim.engine.paged).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from math import inf
from typing import NamedTuple

from sim.drafters.drafter import Drafter
from sim.engine.paged import ANY_CHUNK, FirstChunk
from sim.engine.serving import Serving
from sim.interface.request import Request
from sim.interface.work import DRAFT, DRAFT_MODEL, STEP, Chunk, Work
from sim.policies.options import EngineLimits


class Step(NamedTuple):
    """Content of one pass: `rows` decode or verify `row_tokens` each, `prompts` prefill one of `chunks` each."""

    rows: list[Request]
    row_tokens: list[int]
    prompts: list[Request]
    chunks: tuple[Chunk, ...]

    @property
    def is_empty(self) -> bool:
        return not self.rows and not self.prompts

    @property
    def tokens(self) -> int:
        return sum(self.row_tokens) + sum([chunk.new_tokens for chunk in self.chunks])

    @property
    def completed(self) -> list[Request]:
        """Prompts whose last chunk this is."""
        return [
            request
            for request, chunk in zip(self.prompts, self.chunks, strict=True)
            if chunk.history_tokens + chunk.new_tokens >= request.prefill_goal
        ]


def plan_step(
    serving: Serving,
    running: list[Request],
    limits: EngineLimits,
    drafting: Mapping[int, int] | None,
    *,
    after_rows: bool = False,
) -> Step:
    """Fill one step's budget: `running` requests first, oldest first, then waiting ones, which join `running`.

    `drafting` has the draft lengths of the step under way by arrival index, whose results are not known yet; None where
    there is none. `after_rows`: the step before this one carries rows alone.
    """
    serving.intake.take_in(after_rows=after_rows, num_rows=len(running))
    if limits.mixes_prompts:
        num_running = len(running)
        step = _fill(serving, running, limits, drafting)
        if step.is_empty and len(running) < num_running and drafting is None:
            # The lowest priority gave way, was the first to be planned, and ended the step: the others come now.
            return plan_step(serving, running, limits, drafting, after_rows=after_rows)
        return step
    prompts = _fill(serving, running, limits, drafting, has_rows=False)
    return prompts if prompts.prompts else _fill(serving, running, limits, drafting, has_prompts=False)


def _fill(
    serving: Serving,
    running: list[Request],
    limits: EngineLimits,
    drafting: Mapping[int, int] | None,
    *,
    has_rows: bool = True,
    has_prompts: bool = True,
) -> Step:
    budget = limits.max_num_scheduled_tokens if has_prompts else sys.maxsize
    slots = limits.slots_per_request
    longest = limits.long_prefill_token_threshold or budget
    if limits.spares_lone_prompt and len(running) + len(serving.inbox) == 1:
        longest = budget
    lookahead = limits.lookahead(serving.controller.draft_tokens_max)
    max_model_len = serving.paged.max_tokens
    is_deferred = limits.prefill_schedule_interval > 1 and _defers_prompts(serving, running, limits)
    grow = serving.paged.grow
    step = Step([], [], [], ())
    chunks: list[Chunk] = []
    has_preempted = False
    index = 0
    while index < len(running) and budget > slots:
        request = running[index]
        index += 1
        in_flight = request.in_flight
        prefilled = request.prefilled_tokens
        missing = request.prefill_goal - prefilled - in_flight
        if missing > 0:
            if is_deferred:
                continue
            tokens, held = min(missing, longest, budget - slots), prefilled + in_flight
        elif not has_rows or (in_flight and request.emitted_tokens + 1 >= request.output_tokens):
            continue
        else:
            held = request.context_tokens + in_flight
            tokens = 1 + (drafting[request.index] if drafting is not None and in_flight else request.drafted)
            if tokens > longest:
                tokens = longest
            if tokens > budget - slots:
                tokens = budget - slots
            if tokens >= max_model_len - held:
                tokens = max_model_len - held - 1
                if tokens <= 0:
                    continue
        while not grow(request, held + tokens, lookahead):
            has_preempted = True
            if limits.preempts_by_priority and serving.intake.has_priorities:
                lowest = _lowest(running)
                index -= lowest < index - 1
                victim = running.pop(lowest)
                budget += _taken_out(step, chunks, victim, slots)
                serving.preempt(victim, by_priority=True)
            else:
                victim = running.pop()
                serving.preempt(victim)
            if victim is request:
                break
        if request.is_preempted:
            break
        budget -= tokens + slots
        if missing > 0:
            step.prompts.append(request)
            chunks.append(Chunk(tokens, held))
        else:
            step.rows.append(request)
            step.row_tokens.append(tokens)
    can_seat = has_prompts and not has_preempted and not (is_deferred and limits.defers_last_token)
    num_seats = limits.max_num_seqs if can_seat else 0
    first = FirstChunk(0 if step.prompts else limits.padded_tokens, bool(step.rows), is_deferred)
    while budget > slots and len(running) < num_seats and serving.intake.has_queued:
        oldest = serving.inbox[0]
        if limits.holds_back(oldest.prompt_tokens + oldest.emitted_tokens, budget - slots):
            break
        if limits.no_evict and not serving.paged.fits_beside(running, oldest):
            break
        seated = serving.seat_now(min(budget - slots, longest), lookahead if limits.seats_lookahead else 0, first)
        if seated is None:
            break
        request, chunk = seated
        running.append(request)
        step.prompts.append(request)
        chunks.append(chunk)
        budget -= chunk.new_tokens + slots
    if not is_deferred and not has_preempted:
        serving.intake.has_left_waiting = bool(serving.inbox)
    return step._replace(chunks=tuple(chunks))


def _defers_prompts(serving: Serving, running: Sequence[Request], limits: EngineLimits) -> bool:
    """True where prompts wait for a later step: rows decode, and the last step with prompts left nobody waiting."""
    if (serving.intake.num_plans - 1) % limits.prefill_schedule_interval == 0 or serving.intake.has_left_waiting:
        return False
    return any(request.prefill_goal <= request.prefilled_tokens + request.in_flight for request in running)


def _lowest(running: Sequence[Request]) -> int:
    """Index of the request that gives way where priorities say who: of the lowest ones the one that came last."""
    return max(range(len(running)), key=lambda index: (-running[index].priority, running[index].index))


def _taken_out(step: Step, chunks: list[Chunk], victim: Request, slots: int) -> int:
    """Tokens that the step has back, in which `victim` was already."""
    if victim in step.rows:
        index = step.rows.index(victim)
        del step.rows[index]
        return step.row_tokens.pop(index) + slots
    if victim in step.prompts:
        index = step.prompts.index(victim)
        del step.prompts[index]
        return chunks.pop(index).new_tokens + slots
    return 0


def begin_step(serving: Serving, planned: Step) -> Step:
    """`planned` as it is submitted: rows that have finished meanwhile left out, drafts cut to what had room and to what
    the controller would verify."""
    step = Step([], [], planned.prompts, planned.chunks)
    for request, tokens in zip(planned.rows, planned.row_tokens, strict=True):
        if request.emitted_tokens >= request.output_tokens:
            continue
        if request.drafted >= tokens:
            serving.trim_draft(request, tokens - 1)
        step.rows.append(request)
    verified = serving.controller.verify(step.rows)
    for request, tokens in zip(step.rows, verified, strict=True):
        if tokens < request.drafted:
            serving.trim_draft(request, tokens)
        request.in_flight = tokens + 1
    step.row_tokens.extend([tokens + 1 for tokens in verified])
    for request, chunk in zip(step.prompts, step.chunks, strict=True):
        request.in_flight = chunk.new_tokens
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


# -- rows as totals: prompts alone are planned


class Partial(NamedTuple):
    """The one prompt that is admitted and not wholly planned. The budget has room for all seats' rows, so it always
    gets a chunk in the next plan."""

    request: Request
    tokens: int
    """Planned so far of the prompt."""


class PromptPlan(NamedTuple):
    """The prompts of a step, oldest first, and one chunk of each."""

    prompts: list[Request]
    chunks: tuple[Chunk, ...]
    completed: list[Request]
    """Prompts whose last chunk this is: all but perhaps the last one."""
    partial: Partial | None
    """The prompt that is left for later plans."""
    at_s: float


def has_room(serving: Serving, limits: EngineLimits, num_seated: int, partial: Partial | None) -> bool:
    """True where all who could be admitted now, while `num_seated` and `partial` hold seats, fit for their whole lives,
    and their rows into a step's budget;
    else reservations no longer tell who fits, but where admission goes by them (no_evict). No more than a step's tokens
    of prompts are admitted at once, but of shared ones, which others may have computed."""
    if limits.no_evict:
        return True
    free_blocks, tokens = serving.kv.free_blocks, 0
    num_begun = num_seated + (partial is not None)
    tokens_per_row = serving.controller.draft_tokens_max + 1 + limits.slots_per_request if limits.mixes_prompts else 0
    max_tokens = inf if serving.paged.is_sharing else limits.max_num_scheduled_tokens
    for request in islice(serving.inbox, max(0, limits.max_num_seqs - num_begun)):
        num_begun += 1
        if num_begun * tokens_per_row > limits.max_num_scheduled_tokens:
            return False
        free_blocks -= serving.kv.blocks_for(request)
        if free_blocks < 0:
            return False
        tokens += request.prompt_tokens
        if tokens >= max_tokens:
            break
    return True


def plan_prompts(
    serving: Serving,
    partial: Partial | None,
    limits: EngineLimits,
    num_seated: int,
    budget: int,
    *,
    num_rows: int,
    after_rows: bool = False,
) -> PromptPlan:
    """Chunks within `budget` beside `num_rows`: of `partial` first, then of new prompts while `num_seated` others leave
    seats.
    `after_rows`: the step before this one carries rows alone."""
    serving.intake.take_in(after_rows=after_rows, num_rows=num_seated + (partial is not None))
    if partial is None and not serving.inbox:
        return PromptPlan([], (), [], None, serving.host.now_s)
    pool, slots = serving.paged, limits.slots_per_request
    lookahead = limits.lookahead(serving.controller.draft_tokens_max)
    first = FirstChunk(limits.padded_tokens, num_rows > 0) if partial is None else ANY_CHUNK
    prompts: list[Request] = []
    chunks: list[Chunk] = []
    completed: list[Request] = []
    while budget > slots:
        if partial is not None:
            request, history_tokens = partial
            chunk = Chunk(min(request.prompt_tokens - history_tokens, budget - slots), history_tokens)
            if pool.is_sharing:
                pool.grow(request, history_tokens + chunk.new_tokens, lookahead)
        else:
            if not serving.intake.has_queued or num_seated + len(prompts) >= limits.max_num_seqs:
                break
            if limits.holds_back(serving.inbox[0].prompt_tokens, budget - slots):
                break
            admitted = _admit(serving, budget - slots, lookahead if limits.seats_lookahead else 0, first)
            if admitted is None:
                break
            request, chunk = admitted
        planned_tokens = chunk.history_tokens + chunk.new_tokens
        prompts.append(request)
        chunks.append(chunk)
        budget -= chunk.new_tokens + slots
        if planned_tokens >= request.prompt_tokens:
            partial = None
            completed.append(request)
        else:
            partial = Partial(request, planned_tokens)
    return PromptPlan(prompts, tuple(chunks), completed, partial, serving.host.now_s)


def _admit(serving: Serving, max_tokens: int, lookahead: int, first: FirstChunk) -> tuple[Request, Chunk] | None:
    """The oldest waiting request and its first chunk; None where nothing is ever preempted and it does not fit, and
    where the chunk would be padded beyond `max_tokens`."""
    if not serving.paged.is_sharing:
        new_tokens = min(serving.inbox[0].prompt_tokens, max_tokens)
        if new_tokens == 1 == serving.inbox[0].prompt_tokens and first.padded_tokens and first.beside_rows:
            if first.padded_tokens > max_tokens:
                return None
            new_tokens = first.padded_tokens
        request = serving.admit_now()
        return None if request is None else (request, Chunk(new_tokens, 0))
    seated = serving.seat_now(max_tokens, lookahead, first)
    if seated is not None:
        serving.kv.reserve(seated[0])
    return seated


# -- works


class StepLoad(NamedTuple):
    """A step in numbers, and the requests that its works name."""

    num_rows: int
    row_tokens: int
    context_tokens: int
    """KV tokens of the rows."""
    chunks: tuple[Chunk, ...]
    prompts: Sequence[Request]
    completed: Sequence[Request]
    """Prompts whose last chunk this is."""
    rows: Sequence[Request] | None
    """None where works need not name their requests."""
    max_drafted: int = 0
    """Longest draft that its rows verify."""


def load_of(step: Step) -> StepLoad:
    context_tokens = sum([request.context_tokens for request in step.rows])
    completed, rows, row_tokens = step.completed, step.rows, step.row_tokens
    longest = max(row_tokens, default=1) - 1
    return StepLoad(len(rows), sum(row_tokens), context_tokens, step.chunks, step.prompts, completed, rows, longest)


def step_work(load: StepLoad, ahead_s: float, group_tokens: int = 0) -> Work:
    """The target pass, which could be prepared for `ahead_s`, among `group_tokens` of all ranks."""
    return Work(
        kind=STEP,
        requests=() if load.rows is None else (*load.rows, *load.prompts),
        rows=load.num_rows,
        row_tokens=load.row_tokens,
        context_tokens=load.context_tokens,
        chunks=load.chunks,
        group_tokens=group_tokens,
        head_rows=load.row_tokens + len(load.completed),
        ahead_s=ahead_s,
    )


def draft_work(load: StepLoad, draft_tokens: int, method: Drafter) -> Work:
    """Drafts for every row that sampled in this step, and the draft model's share of the prefill; a draft of 0 tokens
    only brings the draft model's KV up to date."""
    completed = load.completed
    num_rows = load.num_rows + len(completed)
    context_tokens = load.context_tokens
    for request in completed:
        context_tokens += request.prefill_goal
    requests = () if load.rows is None else (*load.rows, *completed, *load.prompts)
    return method.draft(num_rows, load.row_tokens, context_tokens, load.chunks, draft_tokens, requests)


def later_drafts(load: StepLoad, ahead_s: float) -> Work:
    """All passes of its rows' drafts but the first, which ended the step before; prepared for `ahead_s`."""
    return Work(
        kind=DRAFT,
        model=DRAFT_MODEL,
        requests=() if load.rows is None else tuple(load.rows),
        rows=load.num_rows,
        row_tokens=load.num_rows,
        context_tokens=load.context_tokens,
        head_rows=load.num_rows,
        draft_tokens=load.max_drafted - 1,
        goes_on=True,
        ahead_s=ahead_s,
    )
