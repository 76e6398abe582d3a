"""Steps of continuous batching: what each carries.

As in vLLM v1 there are no phases: a step brings each request's computed tokens closer to all that it has (prompt,
output, drafts). RUNNING goes before WAITING, draft tokens consume budget, blocks are taken as tokens come, with
look-ahead slots for the next draft; where they run out the last running request is preempted, and nothing is admitted
in that step. Drafts of unfinished prompts are never made. Where an engine does not cut prompts (TensorRT-LLM), the
oldest one that does not fit what is left of the budget holds up those behind it.

The draft pass is padded to two tokens per row (the newest, and the one that is missing after full acceptance) because
the host submits it before it knows what was accepted; an EAGLE head takes all verified tokens of the row. Not here: the
order of steps (loop), steps of prompts alone (apart), blocks (sim.engine.paged).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sim.engine.paged import FirstChunk
from sim.engine.serving import Serving
from sim.interface.request import Request
from sim.interface.work import Chunk
from sim.policies.continuous.hooks import Hooks
from sim.policies.options import EngineLimits
from sim.policies.works import StepLoad


class Step(NamedTuple):
    """Content of one pass: `rows` decode or verify `row_tokens` each, `prompts` prefill one of `chunks` each."""

    rows: list[Request]
    row_tokens: list[int]
    prompts: list[Request]
    chunks: tuple[Chunk, ...]
    uses_drafts: bool = True
    """False where no request can use the drafts that are made behind it."""
    num_planned: int = 0
    """Requests of the plan, those included who had finished when it began."""

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
    hooks: Hooks | None = None,
    after_rows: bool = False,
) -> Step:
    """Fill one step's budget: `running` requests first, oldest first, then waiting ones, which join `running`.

    `drafting` has the draft lengths of the step under way by arrival index, whose results are not known yet; None where
    there is none. `after_rows`: the step before this one carries rows alone.
    """
    serving.intake.take_in(after_rows=after_rows, num_rows=len(running))
    num_running = len(running)
    step = _fill(serving, running, limits, drafting, hooks)
    if step.is_empty and len(running) < num_running and drafting is None:
        # The lowest priority gave way, was the first to be planned, and ended the step: the others come now.
        return plan_step(serving, running, limits, drafting, hooks=hooks, after_rows=after_rows)
    return step


def _fill(
    serving: Serving,
    running: list[Request],
    limits: EngineLimits,
    drafting: Mapping[int, int] | None,
    hooks: Hooks | None,
) -> Step:
    budget, slots = limits.max_num_scheduled_tokens, limits.slots_per_request
    longest = limits.long_prefill_token_threshold or budget
    if limits.spares_lone_prompt and len(running) + len(serving.inbox) == 1:
        longest = budget
    lookahead = limits.lookahead(serving.controller.draft_tokens_max)
    max_model_len = serving.paged.max_tokens
    is_deferred = limits.prefill_schedule_interval > 1 and _defers_prompts(serving, running, limits)
    grow = serving.paged.grow
    step = Step([], [], [], ())
    chunks: list[Chunk] = []
    has_preempted = carries_prompts = False
    uses_drafts = not (limits.skips_unused_drafts and lookahead)
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
        elif in_flight and not _may_go_on(request, 1):
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
        if hooks is not None:
            tokens = hooks.tokens(request, tokens, step.row_tokens, chunks)
            if not tokens:
                continue
        while not grow(request, held + tokens, lookahead):
            has_preempted = True
            if limits.preempts_by_priority and serving.intake.has_priorities:
                lowest = _lowest(running)
                index -= lowest < index
                victim = running.pop(lowest)
                budget += _taken_out(step, chunks, victim, slots)
                serving.preempt(victim, by_priority=True)
            else:
                victim = running.pop()
                serving.preempt(victim)
            if victim is request:
                break
        if request.is_preempted:
            if limits.goes_on_without and serving.intake.has_priorities:
                continue
            break
        budget -= tokens + slots
        if missing > 0:
            step.prompts.append(request)
            chunks.append(Chunk(tokens, held))
            carries_prompts = True
            uses_drafts |= tokens >= missing and _may_go_on(request, 1)
        else:
            step.rows.append(request)
            step.row_tokens.append(tokens)
            uses_drafts |= _may_go_on(request, 1 + (in_flight > 0))
    can_seat = not has_preempted and not (is_deferred and limits.defers_last_token)
    num_seats = limits.max_num_seqs if can_seat else 0
    first = FirstChunk(0 if step.prompts else limits.padded_tokens, bool(step.rows), is_deferred)
    while budget > slots and len(running) < num_seats and serving.intake.has_queued:
        chosen = serving.inbox[0] if hooks is None else hooks.next()
        if chosen is None or limits.holds_back(chosen.prompt_tokens + chosen.emitted_tokens, budget - slots):
            break
        if limits.no_evict and not serving.paged.fits_beside(running, chosen):
            break
        most = min(budget - slots, longest)
        if hooks is not None:
            most = hooks.first_tokens(chosen, most, step.row_tokens, chunks)
            if not most:
                break
        seated = serving.seat_now(most, lookahead if limits.seats_lookahead else 0, first, chosen)
        if seated is None:
            break
        request, chunk = seated
        running.append(request)
        step.prompts.append(request)
        chunks.append(chunk)
        budget -= chunk.new_tokens + slots
        end = chunk.history_tokens + chunk.new_tokens
        carries_prompts |= chunk.history_tokens < request.prefill_goal - 1
        uses_drafts |= end >= request.prefill_goal and _may_go_on(request, 1)
    if not is_deferred and not has_preempted:
        serving.intake.has_left_waiting = bool(serving.inbox)
    serving.intake.num_steps += not step.is_empty
    if carries_prompts:
        serving.intake.last_prompt_step = serving.intake.num_steps
    return step._replace(chunks=tuple(chunks), uses_drafts=uses_drafts)


def _may_go_on(request: Request, num_tokens: int) -> bool:
    """It may have more to come after `num_tokens` more."""
    return request.emitted_tokens + num_tokens < request.output_tokens + request.unforeseen_tokens


def _defers_prompts(serving: Serving, running: Sequence[Request], limits: EngineLimits) -> bool:
    """True where prompts wait for a later step: rows decode, and the last step with prompts left nobody waiting."""
    intake, interval = serving.intake, limits.prefill_schedule_interval
    if limits.counts_prompt_steps:
        is_due = intake.num_steps + 1 - intake.last_prompt_step >= interval
    else:
        is_due = (intake.num_plans - 1) % interval == 0
    if is_due or intake.has_left_waiting:
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
    num_planned = len(planned.rows) + len(planned.prompts)
    step = planned._replace(rows=[], row_tokens=[], num_planned=num_planned)
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


def load_of(step: Step) -> StepLoad:
    context_tokens = sum([request.context_tokens for request in step.rows])
    completed, rows, row_tokens = step.completed, step.rows, step.row_tokens
    longest = max(row_tokens, default=1) - 1
    return StepLoad(len(rows), sum(row_tokens), context_tokens, step.chunks, step.prompts, completed, rows, longest)
