"""`continuous` with lazy accounting: the same decisions at a cost per step that does not grow with the batch.

A request's luck is known when it joins, so the step in which it leaves and the tokens it adds to the context in every
step until then are written down at once; each step only adds up totals. Requires that nothing can change a row's fate
meanwhile: a fixed draft length, a budget that always has room for every row, plans made with all results known, whole
prompts before the next ones (no threshold), and no look at the rows from outside (no work records, no cut window).
Memory is reserved for whole lives: as long as all reservations fit no block can run out. With the first that does not,
every row's state is written out and `continuous` goes on from there. A property test holds it to `continuous`.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, NamedTuple, Protocol

import numpy as np

from sim.engine.serving import Serving
from sim.policies.continuous import draft_row_tokens, engine
from sim.policies.options import EngineLimits, Method
from sim.seam.host import Stream
from sim.seam.request import Request
from sim.seam.work import Chunk, Kind, Model, Work

_GROWTH_STEPS = 4096

Accepted = np.ndarray[Any, np.dtype[np.int8]]


class RoundLuck(Protocol):
    """Luck, asked for all rounds of a request at once."""

    def rounds(self, index: int, emitted_tokens: int, output_tokens: int, draft_tokens: int) -> Accepted: ...


def can_be_lazy(serving: Serving, limits: EngineLimits) -> bool:
    """Whether no row can be trimmed or held up by the budget, plans know all results, and prompts complete in order."""
    if limits.async_scheduling or limits.long_prefill_token_threshold or limits.method is Method.NGRAM:
        return False
    return (serving.controller.draft_tokens_max + 1) * limits.max_num_seqs <= limits.max_num_batched_tokens


def coroutines(serving: Serving, limits: EngineLimits, luck: RoundLuck) -> list[Coroutine[Any, None, None]]:
    return [_engine(serving, limits, luck, serving.host.stream("gpu"))]


class _Member(NamedTuple):
    """A decoding row: the step of its first round, and what each of its rounds accepts."""

    request: Request
    first_step: int
    accepted: Accepted | None


class _Rows:
    """The decoding rows as totals, and when each leaves."""

    __slots__ = (
        "_advance",
        "_draft_tokens",
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
        if self._draft_tokens == 0:
            num_rounds = request.output_tokens - 1
            gained = num_rounds
        else:
            accepted = self._luck.rounds(request.index, 1, request.output_tokens, self._draft_tokens)
            num_rounds = len(accepted)
            total = int(accepted.sum())
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
        self._leaving.setdefault(self.step + num_rounds, []).append(request)
        self._members[request.index] = _Member(request, self.step + 1, accepted)

    def advance(self) -> list[Request] | None:
        """Account for the step that just ended; returns the requests that leave with it."""
        self.context_tokens += self.num_rows
        if self._draft_tokens and self.step < len(self._advance):
            self.context_tokens += int(self._advance[self.step])
        leaving = self._leaving.pop(self.step, None)
        if leaving is not None:
            self.num_rows -= len(leaving)
            for request in leaving:
                self.context_tokens -= request.kv_tokens
                self.num_measured -= request.index >= self._first_measured
                del self._members[request.index]
        return leaving

    def write_out(self, last_step_s: float) -> list[Request]:
        """Every row as `continuous` would hold it between two steps, in order of admission."""
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
        return [member.request for member in sorted(self._members.values(), key=lambda m: m.request.index)]


async def _engine(serving: Serving, limits: EngineLimits, luck: RoundLuck, stream: Stream) -> None:
    host, kv, gaps, inbox = serving.host, serving.kv, serving.gaps, serving.inbox
    run = host.run
    draft_tokens = serving.controller.draft_tokens
    tokens_per_row = draft_tokens + 1
    rows = _Rows(luck, draft_tokens, serving.first_measured)
    prompts: list[Request] = []
    """Admitted and not wholly prefilled, oldest first."""
    last_step_s = 0.0
    while True:
        num_rows, context_tokens = rows.num_rows, rows.context_tokens
        row_tokens = num_rows * tokens_per_row
        chunks: tuple[Chunk, ...] = ()
        completed: list[Request] = []
        if prompts or inbox:
            filled = _fill(serving, prompts, limits, num_rows, limits.max_num_batched_tokens - row_tokens)
            if filled is None:
                await engine(serving, limits, stream, _hand_over(serving, rows, prompts, last_step_s))
                return
            chunks, completed = filled
        if num_rows == 0 and not chunks:
            await host.wait(serving.intake)
            continue
        num_completed = len(completed)
        ticket = run(
            Work(
                kind=Kind.STEP,
                rows=num_rows,
                row_tokens=row_tokens,
                context_tokens=context_tokens,
                chunks=chunks,
                head_rows=row_tokens + num_completed,
            ),
            stream,
        )
        if draft_tokens:
            num_drafted = num_rows + num_completed
            ticket = run(
                Work(
                    kind=Kind.DRAFT,
                    model=Model.DRAFT,
                    rows=num_drafted,
                    row_tokens=draft_row_tokens(limits.method, num_drafted, row_tokens),
                    context_tokens=context_tokens + sum([request.prompt_tokens for request in completed]),
                    chunks=chunks,
                    head_rows=num_drafted,
                    draft_tokens=draft_tokens if num_drafted else 0,
                ),
                stream,
            )
        await ticket
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
            for request, chunk in zip(prompts, chunks, strict=False):
                request.prefilled_tokens += chunk.new_tokens
        if completed:
            del prompts[:num_completed]
            for request in completed:
                request.first_token_s = request.last_token_s = now_s
                request.emitted_tokens = 1
                if request.output_tokens == 1:
                    serving.release(request)
                else:
                    rows.join(request)
        held = rows.context_tokens + rows.num_rows * tokens_per_row
        if prompts:
            held += sum(request.prefilled_tokens for request in prompts)
        kv.held.set(held, now_s)
        rows.step += 1
        last_step_s = now_s


def _fill(
    serving: Serving, prompts: list[Request], limits: EngineLimits, num_rows: int, budget: int
) -> tuple[tuple[Chunk, ...], list[Request]] | None:
    """Chunks for `prompts` in order, new ones admitted at their end; and the prompts that they complete.

    None, and nothing is admitted, where somebody waits for memory: then reservations no longer tell who fits.
    """
    serving.take_in()
    chunks: list[Chunk] = []
    completed: list[Request] = []
    num_before = len(prompts)
    taken = 0
    while budget > 0:
        if taken == len(prompts):
            if not serving.inbox or num_rows + taken >= limits.max_num_seqs:
                break
            admitted = serving.admit_now()
            if admitted is None:
                for request in reversed(prompts[num_before:]):
                    serving.put_back(request)
                del prompts[num_before:]
                return None
            prompts.append(admitted)
        request = prompts[taken]
        missing = request.prompt_tokens - request.prefilled_tokens
        chunk = Chunk(min(missing, budget), request.prefilled_tokens)
        chunks.append(chunk)
        budget -= chunk.new_tokens
        taken += 1
        if chunk.new_tokens == missing:
            completed.append(request)
    return tuple(chunks), completed


def _hand_over(serving: Serving, rows: _Rows, prompts: list[Request], last_step_s: float) -> list[Request]:
    """Write out everything and turn reservations into tables; returns the running requests, oldest first."""
    running = rows.write_out(last_step_s) + prompts
    for request in prompts:
        request.kv_tokens = request.prefilled_tokens
    for request in running:
        serving.paged.unreserve(request, request.context_tokens)
    return running
