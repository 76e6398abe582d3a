"""`continuous` with lazy accounting: the same decisions at a cost per step that does not grow with the batch.

A request's luck is known when it joins, so the step in which it leaves and the tokens it adds to the context in every
step until then are written down at once; each step only adds up totals. Requires that nothing can change a row's fate
meanwhile: a fixed draft length, a budget that always has room for every row, whole prompts before the next ones (no
threshold), and no look at a row's state from outside (no cut window). Works that are recorded name their requests.
With asynchronous scheduling a step's prompts are chosen while the one before it is under way: rows that may go on count
against the budget, rows that must end (one token left) do not, and all hold their seats and memory.
Memory is reserved for whole lives: as long as all reservations fit no block can run out. Where one of those who could
be admitted next does not, every row's state is written out and `continuous` goes on from there, with the step that is
under way. Where requests have content in common, prompts take their blocks at admission, as in `continuous`, and what
the rows' tables gain in each plan is taken by number: what is found and what is lost depends on no more than that. A
property test holds it to `continuous`.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from itertools import islice
from math import inf
from typing import Any, NamedTuple, Protocol

import numpy as np

from sim.engine.paged import PagedPool
from sim.engine.serving import Serving
from sim.policies.continuous import Flight, Step, draft_of, engine
from sim.policies.options import EngineLimits, Method
from sim.seam.host import Stream, Ticket
from sim.seam.request import Request
from sim.seam.work import Chunk, Kind, Work

_GROWTH_STEPS = 4096

Accepted = np.ndarray[Any, np.dtype[np.int8]]
Ints = np.ndarray[Any, np.dtype[np.int64]]


class RoundLuck(Protocol):
    """Luck, asked for all rounds of a request at once."""

    def rounds(self, index: int, emitted_tokens: int, output_tokens: int, draft_tokens: int) -> Accepted: ...


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


class _Member(NamedTuple):
    """A decoding row: the step of its first round, and what each of its rounds accepts."""

    request: Request
    first_step: int
    accepted: Accepted | None
    prompt_blocks: int = 0
    """In its table when it joined, where tables matter."""

    def accepted_in(self, step: int) -> int:
        """Drafted tokens that its round in `step` accepts."""
        return 0 if self.accepted is None else int(self.accepted[step - self.first_step])


def _grown(steps: Ints, length: int) -> Ints:
    """`steps` with zeros behind it where it lacks some for `length`."""
    if length <= len(steps):
        return steps
    return np.concatenate([steps, np.zeros(length, np.int64)])


class _RowBlocks:
    """What the tables of decoding rows gain, by the step that they are planned for."""

    __slots__ = ("_draft_tokens", "_gains", "_is_async", "_lookahead", "_pool")

    def __init__(self, pool: PagedPool, draft_tokens: int, lookahead: int, *, is_async: bool) -> None:
        self._pool = pool
        self._lookahead = lookahead
        self._draft_tokens = draft_tokens
        self._is_async = is_async
        self._gains = np.zeros(_GROWTH_STEPS, dtype=np.int64)
        """[steps] blocks, those of first rounds that are planned ahead left out."""

    @property
    def _reach(self) -> int:
        """Slots beyond a row's context that its plan holds: the round's own, and look-ahead for the next draft."""
        return self._draft_tokens + 1 + self._lookahead

    def of_plans(self, member: _Member, *, must_end: bool) -> Ints:
        """[plans] blocks of its table after each plan for it, its first round's first.

        Planned ahead, a row counts with all that the round under way can bring, and once more than it has rounds unless
        it `must_end` with the last one.
        """
        request, tokens_per_row = member.request, self._draft_tokens + 1
        if member.accepted is None:
            before = np.arange(request.output_tokens - 1)
        else:
            before = np.zeros(len(member.accepted), dtype=np.int64)
            np.cumsum(member.accepted[:-1] + np.int64(1), out=before[1:])
        held = request.prompt_tokens + self._reach + before
        if self._is_async:
            last = -1 if must_end else len(held)
            held = np.concatenate((held[:1], held[:last] + tokens_per_row))
        blocks: Ints = -(-held // self._pool.block_size)
        return blocks

    def first_gain(self, request: Request) -> int:
        """Blocks that the plan of its first round adds to the prompt's."""
        most = -(-(request.prompt_tokens + self._reach) // self._pool.block_size)
        return max(0, most - self._pool.length(request))

    def join(self, member: _Member, *, must_end: bool) -> _Member:
        """From now on its gains are taken by number; its table has in name what it will have in the end."""
        request, accepted, start = member.request, member.accepted, member.first_step
        block_size = self._pool.block_size
        num_blocks = self._pool.length(request)
        if accepted is None:
            end = start + request.output_tokens - 1
            self._gains = _grown(self._gains, end)
            first = -request.prompt_tokens % block_size
            if first == 0 and self._is_async:
                first = block_size
            self._gains[start + first : end : block_size] += 1
            self._pool.assign(request, -(-(request.prompt_tokens + request.output_tokens - 1) // block_size))
        else:
            blocks = self.of_plans(member, must_end=must_end)
            self._gains = _grown(self._gains, start + len(blocks))
            self._gains[start + 1 : start + len(blocks)] += blocks[1:] - blocks[:-1]
            if not self._is_async:
                self._gains[start] += blocks[0] - num_blocks
            self._pool.assign(request, int(blocks[-1]))
        return member._replace(prompt_blocks=num_blocks)

    def take(self, step: int, completed: Sequence[Request]) -> None:
        """Rows are planned for `step`, and so are first rounds of the `completed` prompts, of the step under way."""
        gain = 0
        if step < len(self._gains):
            gain, self._gains[step] = self._gains.item(step), 0
        for request in completed:
            if request.output_tokens > 1:
                gain += self.first_gain(request)
        if gain:
            self._pool.take(gain)

    def assign_planned(self, member: _Member, num_plans: int) -> None:
        """The table of `member` as it is after so many plans for it."""
        blocks = self.of_plans(member, must_end=False)
        self._pool.assign(member.request, int(blocks[num_plans - 1]) if num_plans else member.prompt_blocks)


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
        "_blocks",
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

    def __init__(self, luck: RoundLuck, draft_tokens: int, first_measured: int, blocks: _RowBlocks | None) -> None:
        self._luck = luck
        self._blocks = blocks
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
            self._advance = _grown(self._advance, start + num_rounds)
            self._advance[start : start + num_rounds] += accepted
        request.kv_tokens = request.prompt_tokens + gained
        self.num_rows += 1
        self.num_measured += request.index >= self._first_measured
        self.context_tokens += request.prompt_tokens
        last_step = self.step + num_rounds
        self._leaving.setdefault(last_step, []).append(request)
        must_end = gained - last == request.output_tokens - 1
        if must_end:
            self._ending[last_step] = self._ending.get(last_step, 0) + 1
        member = _Member(request, self.step + 1, accepted)
        if self._blocks is not None:
            member = self._blocks.join(member, must_end=must_end)
        self._members[request.index] = member

    @property
    def requests(self) -> list[Request]:
        """Of the rows, in order of admission."""
        return [member.request for member in self._members.values()]

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

    def assign_planned(self, member: _Member, num_plans: int) -> None:
        """The table of `member` as it is after so many plans for it, where tables matter."""
        if self._blocks is not None:
            self._blocks.assign_planned(member, num_plans)

    def write_out(self, last_step_s: float) -> list[_Member]:
        """Every row as `continuous` would hold it before `step`, in order of admission."""
        drafted = self._draft_tokens
        for request, first_step, accepted, _ in self._members.values():
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


async def _engine(
    serving: Serving, limits: EngineLimits, luck: RoundLuck, stream: Stream, names_requests: bool
) -> None:
    host, kv, gaps = serving.host, serving.kv, serving.gaps
    draft_tokens = _length(serving)
    tokens_per_row = draft_tokens + 1
    is_async = limits.async_scheduling
    lookahead = serving.controller.draft_tokens_max
    is_sharing = serving.paged.is_sharing
    blocks = _RowBlocks(serving.paged, draft_tokens, lookahead, is_async=is_async) if is_sharing else None
    rows = _Rows(luck, draft_tokens, serving.first_measured, blocks)
    plan: _Plan | None = None
    partial: _Partial | None = None
    last_step_s = 0.0
    while True:
        num_rows = rows.num_rows
        if plan is None or not (num_rows or plan.chunks):
            if serving.inbox and not _has_room(serving, limits, num_rows, partial):
                await engine(serving, limits, stream, _with_tables(serving, rows, partial, last_step_s))
                return
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
                await engine(serving, limits, stream, running, flight)
                return
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
    serving: Serving, rows: _Rows, step: _Plan, stream: Stream, method: Method, named: Sequence[Request] | None
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


# -- where memory runs out: everything as `continuous` holds it


def _with_tables(serving: Serving, rows: _Rows, partial: _Partial | None, last_step_s: float) -> list[Request]:
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
