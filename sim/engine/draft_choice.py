"""A choice among several draft models by the load: a controller of the draft length that also names the model.

Each has its own costs, KV and acceptance, and drafts at a length of its own. Not here: costs
(sim.run.drafters), what a change costs the requests (sim.policies.rounds), controllers of one model
(draft_length, adaptive_length).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from sim.engine.draft_length import Controller
from sim.interface.request import Request

HYSTERESIS = 0.05
"""Share by which another model must have more: the present one needs no KV computed."""
TokensPerSecond = Callable[[int, int], float]
"""(draft model, rows) -> expected tokens per second with so many requests in rounds."""


class DraftChoice(Controller):
    """The draft model with the most expected tokens per second at as many rows as the present round has; the present
    model stays unless another has more by the share `hysteresis`, since it must compute what it has missed.

    >>> by_rows = {1: (100.0, 120.0), 8: (800.0, 780.0), 64: (3000.0, 2000.0)}
    >>> choice = DraftChoice((2, 5), lambda drafter, rows: by_rows[rows][drafter], hysteresis=0.05)
    >>> [(choice.length_for(rows), choice.drafter) for rows in (1, 8, 64, 8, 1)]
    [(5, 1), (5, 1), (2, 0), (2, 0), (5, 1)]
    """

    constant_length = None

    def __init__(self, lengths: Sequence[int], tokens_per_s: TokensPerSecond, *, hysteresis: float = 0.0) -> None:
        """`lengths` [draft models] are what each drafts."""
        self._lengths = tuple(lengths)
        self._tokens_per_s = cache(tokens_per_s)
        self._hysteresis = hysteresis
        self.draft_tokens_min, self.draft_tokens_max = min(lengths), max(lengths)
        self.drafter = 0
        """The model that was chosen last."""
        self._has_chosen = False
        self._drafter_of: dict[int, int] = {}
        """Arrival index of a request -> the model that has its KV up to date: it drafted what is in flight."""
        self._left_behind: dict[int, dict[int, int]] = {}
        """Arrival index -> tokens in the KV of other models that have drafted for it."""

    def drafter_for(self, rows: int) -> int:
        """Choose for rounds of so many rows."""
        rates = [self._tokens_per_s(drafter, max(1, rows)) for drafter in range(len(self._lengths))]
        best = max(range(len(rates)), key=lambda drafter: (rates[drafter], -drafter))
        least = rates[self.drafter] * (1.0 + self._hysteresis)
        if best != self.drafter and (rates[best] > least or not self._has_chosen):
            self.drafter = best
        self._has_chosen = True
        return self.drafter

    def length_for(self, num_requests: int) -> int:
        """The draft length of the model that is chosen for the round of so many rows."""
        return self._lengths[self.drafter_for(num_requests)]

    def drafter_of_prompt(self, request: Request, num_active: int) -> int:
        drafter = self._drafter_of[request.index] = self.drafter_for(num_active)
        return drafter

    def take_over(self, requests: Sequence[Request]) -> list[tuple[Request, int]]:
        drafter, changed = self.drafter, []
        for request in requests:
            before = self._drafter_of.get(request.index, 0)
            if before == drafter:
                continue
            behind = self._left_behind.setdefault(request.index, {})
            behind[before] = request.context_tokens - request.needs_catch_up
            changed.append((request, behind.pop(drafter, 0)))
            self._drafter_of[request.index], request.needs_catch_up = drafter, False
        return changed

    def drafters_of(self, requests: Sequence[Request]) -> list[int]:
        return [self._drafter_of.get(request.index, 0) for request in requests]
