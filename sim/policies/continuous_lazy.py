"""`continuous` with lazy accounting: the same decisions at a cost per step that does not grow with the batch.

A request's luck is known when it joins, so the step in which it leaves and the tokens it adds to the context in every
step until then are written down at once; each step only adds up totals. Requires that nothing can change a row's fate
meanwhile: a fixed draft length, a budget that always has room for every row, whole prompts before the next ones (no
threshold), and no look at the rows from outside (no work records, no cut window).
With asynchronous scheduling a step's prompts are chosen while the one before it is under way: rows that may go on count
against the budget, rows that must end (one token left) do not, and all hold their seats and memory.
Memory is reserved for whole lives: as long as all reservations fit no block can run out. With the first that does not,
every row's state is written out and `continuous` goes on from there, with the step that is under way. A property test
holds it to `continuous`.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, NamedTuple, Protocol

import numpy as np

from sim.engine.serving import Serving
from sim.policies.continuous import Flight, Step, draft_row_tokens, engine
from sim.policies.options import EngineLimits, Method
from sim.seam.host import Stream, Ticket
from sim.seam.request import Request
from sim.seam.work import Chunk, Kind, Model, Work

_GROWTH_STEPS = 4096

Accepted = np.ndarray[Any, np.dtype[np.int8]]


class RoundLuck(Protocol):
    """Luck, asked for all rounds of a request at once."""

    def rounds(self, index: int, emitted_tokens: int, output_tokens: int, draft_tokens: int) -> Accepted: ...


def can_be_lazy(serving: Serving, limits: EngineLimits) -> bool:
    """Whether no row can be trimmed or held up by the budget, and prompts complete in order."""
    if limits.long_prefill_token_threshold or limits.method is Method.NGRAM:
        return False
    most_rows = min(limits.max_num_seqs, len(serving.requests), serving.max_concurrency or limits.max_num_seqs)
    return (serving.controller.draft_tokens_max + 1) * most_rows <= limits.max_num_batched_tokens


def coroutines(serving: Serving, limits: EngineLimits, luck: RoundLuck) -> list[Coroutine[Any, None, None]]:
    return [_engine(serving, limits, luck, serving.host.stream("gpu"))]


class _Member(NamedTuple):
    """A decoding row: the step of its first round, and what each of its rounds accepts."""

    request: Request
    first_step: int
    accepted: Accepted | None

    def accepted_in(self, step: int) -> int:
        """Drafted tokens that its round in `step` accepts."""
        return 0 if self.accepted is None else int(self.accepted[step - self.first_step])


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


class _Rows:
    """The decoding rows as totals, and when each leaves. `step` is the one under way, or else the next one."""

    __slots__ = (
        "_advance",
        "_draft_tokens",
        "_ending",
        "_first_measured",
        "_leaving",
        "_luck",
        "_members",
        "context_tokens",
        "num_measured",
        "num_rows",
        "step",
    )

    def __init__(self, luck: RoundLuck, draft_tokens: int, first_measured: int) -> None:
        self._luck = luck
        self._first_measured = first_measured
        self._draft_tokens = draft_tokens
        self._leaving: dict[int, list[Request]] = {}
        self._ending: dict[int, int] = {}
        """Step -> rows that begin it with one token left, so that they must end with it."""
        self._members: dict[int, _Member] = {}
        self._advance = np.zeros(_GROWTH_STEPS, dtype=np.int64)
        """[steps] context tokens that all rows together gain in a step."""
        self.step = 0
        self.num_rows = 0
        self.num_measured = 0
        """Rows whose gaps count: those after the warm-up."""
        self.context_tokens = 0

    def join(self, request: Request) -> None:
        """`request` has its first token and decodes from the next step on."""
        accepted = None
        last = 0
        if self._draft_tokens == 0:
            num_rounds = request.output_tokens - 1
            gained = num_rounds
        else:
            accepted = self._luck.rounds(request.index, 1, request.output_tokens, self._draft_tokens)
            num_rounds = len(accepted)
            total = int(accepted.sum())
            last = int(accepted[-1])
            gained = total + num_rounds
            request.num_rounds = num_rounds
            request.drafted_tokens = num_rounds * self._draft_tokens
            request.accepted_tokens = total
            start = self.step + 1
            if start + num_rounds > len(self._advance):
                self._advance = np.concatenate([self._advance, np.zeros(len(self._advance) + num_rounds, np.int64)])
            self._advance[start : start + num_rounds] += accepted
        request.kv_tokens = request.prompt_tokens + gained
        self.num_rows += 1
        self.num_measured += request.index >= self._first_measured
        self.context_tokens += request.prompt_tokens
        last_step = self.step + num_rounds
        self._leaving.setdefault(last_step, []).append(request)
        if gained - last == request.output_tokens - 1:
            self._ending[last_step] = self._ending.get(last_step, 0) + 1
        self._members[request.index] = _Member(request, self.step + 1, accepted)

    def num_ending(self) -> int:
        """Rows that must end with this step, whatever it accepts."""
        return self._ending.get(self.step, 0)

    def advance(self) -> list[Request] | None:
        """Account for the step that just ended; returns the requests that leave with it."""
        self.context_tokens += self.num_rows
        if self._draft_tokens and self.step < len(self._advance):
            self.context_tokens += int(self._advance[self.step])
        leaving = self._leaving.pop(self.step, None)
        if leaving is not None:
            self._ending.pop(self.step, None)
            self.num_rows -= len(leaving)
            for request in leaving:
                self.context_tokens -= request.kv_tokens
                self.num_measured -= request.index >= self._first_measured
                del self._members[request.index]
        return leaving

    def write_out(self, last_step_s: float) -> list[_Member]:
        """Every row as `continuous` would hold it before `step`, in order of admission."""
        drafted = self._draft_tokens
        for request, first_step, accepted in self._members.values():
            num_rounds = self.step - first_step
            gained = num_rounds
            if accepted is not None:
                total = int(accepted[:num_rounds].sum())
                request.num_rounds, request.accepted_tokens = num_rounds, total
                request.drafted_tokens = num_rounds * drafted
                request.needs_catch_up = num_rounds > 0 and int(accepted[num_rounds - 1]) == drafted
                gained += total
            request.emitted_tokens = 1 + gained
            request.last_token_s = last_step_s
            request.drafted = drafted
            request.kv_tokens = request.context_tokens + drafted + 1
        return sorted(self._members.values(), key=lambda member: member.request.index)


async def _engine(serving: Serving, limits: EngineLimits, luck: RoundLuck, stream: Stream) -> None:
    host, kv, gaps = serving.host, serving.kv, serving.gaps
    draft_tokens = _length(serving)
    tokens_per_row = draft_tokens + 1
    rows = _Rows(luck, draft_tokens, serving.first_measured)
    plan: _Plan | None = None
    partial: _Partial | None = None
    last_step_s = 0.0
    while True:
        num_rows = rows.num_rows
        if plan is None or not (num_rows or plan.chunks):
            plan = _fill(serving, partial, limits, num_rows, limits.max_num_batched_tokens - num_rows * tokens_per_row)
            if plan is None:
                await engine(serving, limits, stream, _with_tables(serving, rows, partial, last_step_s))
                return
            partial = plan.partial
            if not (num_rows or plan.chunks):
                await host.wait(serving.intake)
                continue
        step, plan = plan, None
        chunks, completed = step.chunks, step.completed
        started_s = host.now_s
        target, last = _submit(serving, rows, step, stream, limits.method)
        if limits.async_scheduling:
            num_going_on = num_rows - rows.num_ending() + sum([request.output_tokens > 1 for request in completed])
            budget = limits.max_num_batched_tokens - num_going_on * tokens_per_row
            plan = _fill(serving, partial, limits, num_rows + len(completed), budget)
            if plan is None:
                running, under_way = _under_way(serving, rows, step, last_step_s)
                flight = Flight(under_way.step, target, last, draft_tokens, started_s, under_way.accepted)
                await engine(serving, limits, stream, running, flight)
                return
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
        kv.held.set(held, now_s)
        rows.step += 1
        last_step_s = now_s


def _length(serving: Serving) -> int:
    """The draft length; where it is 0 and longer ones might be, the drafter is loaded and kept up to date."""
    length = serving.controller.constant_length
    assert length is not None, "a lazy account needs one draft length"
    return length


def _submit(serving: Serving, rows: _Rows, step: _Plan, stream: Stream, method: Method) -> tuple[Ticket, Ticket]:
    """The target pass of a step, and the drafts that follow it; their tickets."""
    host, draft_tokens = serving.host, _length(serving)
    num_rows, context_tokens, chunks, completed = rows.num_rows, rows.context_tokens, step.chunks, step.completed
    row_tokens = num_rows * (draft_tokens + 1)
    target = last = host.run(
        Work(
            kind=Kind.STEP,
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
            Work(
                kind=Kind.DRAFT,
                model=Model.DRAFT,
                rows=num_drafted,
                row_tokens=draft_row_tokens(method, num_drafted, row_tokens),
                context_tokens=context_tokens + sum([request.prompt_tokens for request in completed]),
                chunks=chunks,
                head_rows=num_drafted if draft_tokens else 0,
                draft_tokens=draft_tokens if num_drafted else 0,
            ),
            stream,
        )
    return target, last


def _fill(
    serving: Serving, partial: _Partial | None, limits: EngineLimits, num_seated: int, budget: int
) -> _Plan | None:
    """Chunks within `budget`: of `partial` first, then of new prompts while `num_seated` others leave seats.

    None, and nothing is admitted, where somebody waits for memory: then reservations no longer tell who fits.
    """
    serving.take_in()
    prompts: list[Request] = []
    chunks: list[Chunk] = []
    completed: list[Request] = []
    num_partial = 0 if partial is None else 1
    while budget > 0:
        if partial is not None:
            request, history_tokens = partial
        else:
            if not serving.inbox or num_seated + len(prompts) >= limits.max_num_seqs:
                break
            admitted = serving.admit_now()
            if admitted is None:
                for request in reversed(prompts[num_partial:]):
                    serving.put_back(request)
                return None
            request, history_tokens = admitted, 0
        chunk = Chunk(min(request.prompt_tokens - history_tokens, budget), history_tokens)
        planned_tokens = history_tokens + chunk.new_tokens
        prompts.append(request)
        chunks.append(chunk)
        budget -= chunk.new_tokens
        if planned_tokens == request.prompt_tokens:
            partial = None
            completed.append(request)
        else:
            partial = _Partial(request, planned_tokens)
    return _Plan(prompts, tuple(chunks), completed, partial, serving.host.now_s)


# -- where memory runs out: everything as `continuous` holds it


def _with_tables(serving: Serving, rows: _Rows, partial: _Partial | None, last_step_s: float) -> list[Request]:
    """Between two steps: reservations become tables; returns the running requests, oldest first."""
    running = [member.request for member in rows.write_out(last_step_s)]
    for request in running:
        serving.paged.unreserve(request, request.context_tokens)
    if partial is not None:
        request = partial.request
        request.kv_tokens = request.prefilled_tokens
        serving.paged.unreserve(request, request.prefilled_tokens)
        running.append(request)
    return running


class _UnderWay(NamedTuple):
    step: Step
    accepted: list[int]


def _under_way(serving: Serving, rows: _Rows, plan: _Plan, last_step_s: float) -> tuple[list[Request], _UnderWay]:
    """While `plan`, which was made ahead if there are rows, is under way: tables as they were planned; the running
    requests, oldest first, and the step with what its rows are going to accept."""
    lookahead = serving.controller.draft_tokens_max
    tokens_per_row = _length(serving) + 1
    step = Step([], [], plan.prompts, plan.chunks)
    accepted = []
    for member in rows.write_out(last_step_s):
        request = member.request
        planned_at = request.context_tokens
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
