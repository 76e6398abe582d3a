"""Seconds of one step of continuous batching, from the cost model alone: rows that verify, prompts beside them, and the
drafts that follow.

Good for what a run asks often: the `goodput` controller, and how an answer moves as its costs are drawn
(sim.studies). Not here: lanes (forecast), and runs, from which every figure that is shown comes (sim.experiment.run).
"""

from __future__ import annotations

from sim.costs.cost import CostModel
from sim.policies.continuous import draft_of
from sim.policies.options import EngineLimits, Method
from sim.seam.work import Chunk, Kind, Model, Work


class StepForecast:
    """Steps of rows of `context_tokens` each on `costs`; `has_draft` where a drafter is loaded, which a step without
    drafts brings up to date."""

    def __init__(self, costs: CostModel, limits: EngineLimits, context_tokens: float, *, has_draft: bool) -> None:
        self._costs, self._limits = costs, limits
        self._context_tokens = context_tokens
        self._has_draft = has_draft and limits.method is not Method.NGRAM

    def round_s(self, rows: int, draft_tokens: int) -> float:
        """A step of `rows` that each verify `draft_tokens` and draft as many anew."""
        return self.step_s(rows, draft_tokens, ())

    def step_s(
        self, rows: int, draft_tokens: int, prompts: tuple[int, ...], *, drafted_anew: int | None = None
    ) -> float:
        """The same with whole `prompts` of so many tokens beside them; `drafted_anew` in place of as many."""
        row_tokens = rows * (draft_tokens + 1)
        context_tokens = round(rows * self._context_tokens)
        chunks = tuple(Chunk(tokens, 0) for tokens in prompts)
        target = Work(
            kind=Kind.STEP,
            rows=rows,
            row_tokens=row_tokens,
            context_tokens=context_tokens,
            chunks=chunks,
            head_rows=row_tokens + len(chunks),
        )
        works = [target]
        anew = draft_tokens if drafted_anew is None else drafted_anew
        num_drafting = rows + len(chunks)
        if self._has_draft:
            method, in_kv = self._limits.method, context_tokens + sum(prompts)
            works.append(draft_of(method, num_drafting, row_tokens, in_kv, chunks, anew))
        elif anew:
            works.append(Work(kind=Kind.HOST, rows=num_drafting))
        return self._seconds(works)

    def lane_round_s(self, rows: int, draft_tokens: int, drafter: int) -> float:
        """A round of a lane: one of several draft models drafts for `rows`, then the target verifies."""
        context_tokens = round(rows * self._context_tokens)
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
        verified = rows * (draft_tokens + 1)
        verify = Work(
            kind=Kind.VERIFY, rows=rows, row_tokens=verified, context_tokens=context_tokens, head_rows=verified
        )
        return self._seconds([draft, verify])

    def _seconds(self, works: list[Work]) -> float:
        """Of works one after the other on one stream; with asynchronous scheduling the first was prepared while the
        step before it ran."""
        issuer_s = device_s = 0.0
        for work in works:
            prepare_s, launch_s, solo_s, _ = self._costs.cost(work)
            if work is works[0] and self._limits.async_scheduling:
                prepare_s = 0.0
            ready_s = issuer_s + prepare_s
            issuer_s = ready_s + launch_s
            device_s = max(max(device_s, ready_s) + solo_s, issuer_s)
        return device_s + self._costs.result_s
