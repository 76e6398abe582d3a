"""Seconds of one step of continuous batching, from the cost model and means alone, without a run.

The `goodput` controller asks for it often, and so do the studies that draw costs (sim.studies). Not here: runs (run).
"""

from __future__ import annotations

from sim.costs.cost import CostModel
from sim.interface.work import Chunk, Kind, Model, Work
from sim.policies.options import EngineLimits


class StepForecast:
    """Steps of rows of `context_tokens` each on `costs`; `has_draft` where a drafter is loaded, which a step without
    drafts brings up to date."""

    def __init__(self, costs: CostModel, limits: EngineLimits, context_tokens: float, *, has_draft: bool) -> None:
        self._costs, self._limits = costs, limits
        self._context_tokens = context_tokens
        self._has_draft = has_draft and not limits.method.looks_up

    def step_s(self, rows: int, draft_tokens: int, drafted_anew: int | None = None) -> float:
        """A step of `rows` that each verify `draft_tokens` and draft as many anew, or `drafted_anew`."""
        row_tokens = rows * (draft_tokens + 1)
        context_tokens = round(rows * self._context_tokens)
        works = [
            Work(kind=Kind.STEP, rows=rows, row_tokens=row_tokens, context_tokens=context_tokens, head_rows=row_tokens)
        ]
        anew = draft_tokens if drafted_anew is None else drafted_anew
        if self._has_draft:
            works.append(self._limits.method.draft(rows, row_tokens, context_tokens, (), anew))
        elif anew:
            works.append(Work(kind=Kind.HOST, rows=rows))
        return self._seconds(works)

    def lane_requests_per_s(
        self, rows: int, prompt_tokens: int, num_rounds: float, draft_tokens: int, drafter: int
    ) -> float:
        """Requests per second in a lane, `rows` at a time, with one of several draft models: what their times
        allow, and what the GPU does, of which each takes its prompt and its share of its rounds; whichever is less."""
        context_tokens = round(rows * self._context_tokens)
        verified = rows * (draft_tokens + 1)
        draft = Work(
            kind=Kind.DRAFT,
            model=Model.DRAFT,
            rows=rows,
            row_tokens=rows,
            context_tokens=context_tokens,
            head_rows=rows,
            draft_tokens=draft_tokens,
            drafter=drafter,
        )
        verify = Work(
            kind=Kind.VERIFY, rows=rows, row_tokens=verified, context_tokens=context_tokens, head_rows=verified
        )
        chunks = (Chunk(prompt_tokens, 0),)
        prompt = [
            Work(kind=Kind.PREFILL, chunks=chunks, head_rows=1),
            Work(kind=Kind.PREFILL, model=Model.DRAFT, chunks=chunks, drafter=drafter),
        ]
        own_s = self._seconds(prompt) + num_rounds * self._seconds([draft, verify])
        device_s = self._device_s(prompt) + num_rounds * self._device_s([draft, verify]) / rows
        return min(rows / own_s, 1.0 / device_s)

    def _device_s(self, works: list[Work]) -> float:
        """Seconds that they take of the GPU."""
        return sum(self._costs.cost(work).device_s for work in works)

    def _seconds(self, works: list[Work]) -> float:
        """Seconds of works one after the other on one stream; with asynchronous scheduling the first was prepared while
        the step before it ran. N-grams are looked up when its result is there."""
        issuer_s = device_s = lookup_s = 0.0
        for work in works:
            prepare_s, launch_s, solo_s, _, tail_s = self._costs.cost(work)
            if work.kind is Kind.HOST:
                lookup_s += prepare_s
                continue
            if work is works[0] and self._limits.async_scheduling:
                prepare_s = 0.0
            ready_s = issuer_s + prepare_s
            issuer_s = ready_s + launch_s
            device_s = max(max(device_s, ready_s) + solo_s, issuer_s + tail_s)
        return device_s + self._costs.result_s + lookup_s
