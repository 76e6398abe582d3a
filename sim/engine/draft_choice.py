"""Which of several draft models drafts, by the load: a controller of the draft length that also names the model.

Each has its own costs, KV and acceptance, and drafts at a length of its own. Not here: costs (sim.costs.drafters), what
a change costs the requests (sim.policies.rounds), controllers of one model (draft_length, adaptive_length).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

TokensPerSecond = Callable[[int, int], float]
"""(draft model, rows) -> expected tokens per second with so many requests in rounds."""


class DraftChoice:
    """The draft model with the most expected tokens per second at as many rows as the present round has; the present
    model stays unless another has more by the share `hysteresis`, since it must compute what it has missed.

    >>> by_rows = {1: (100.0, 120.0), 8: (800.0, 780.0), 64: (3000.0, 2000.0)}
    >>> choice = DraftChoice((2, 5), lambda drafter, rows: by_rows[rows][drafter], hysteresis=0.05)
    >>> [(choice.draft_tokens_for(rows, 0), choice.drafter) for rows in (1, 8, 64, 8, 1)]
    [(5, 1), (5, 1), (2, 0), (2, 0), (5, 1)]
    """

    constant_length = None

    def __init__(self, lengths: Sequence[int], tokens_per_s: TokensPerSecond, *, hysteresis: float = 0.0) -> None:
        """`lengths` [draft models] are what each drafts."""
        self._lengths = tuple(lengths)
        self._tokens_per_s = tokens_per_s
        self._hysteresis = hysteresis
        self._known: dict[int, list[float]] = {}
        self.draft_tokens_min, self.draft_tokens_max = min(lengths), max(lengths)
        self.drafter = 0
        """The model that was chosen last."""
        self.num_changes = 0
        self._has_chosen = False

    def drafter_for(self, rows: int) -> int:
        """Choose for rounds of so many rows."""
        rows = max(1, rows)
        rates = self._known.get(rows)
        if rates is None:
            rates = self._known[rows] = [self._tokens_per_s(drafter, rows) for drafter in range(len(self._lengths))]
        best = max(range(len(rates)), key=lambda drafter: (rates[drafter], -drafter))
        least = rates[self.drafter] * (1.0 + self._hysteresis)
        if best != self.drafter and (rates[best] > least or not self._has_chosen):
            self.num_changes += self._has_chosen
            self.drafter = best
        self._has_chosen = True
        return self.drafter

    def draft_tokens_for(self, batch: int, queue: int) -> int:
        """Of the model that is chosen for the round of `batch` rows."""
        return self._lengths[self.drafter_for(batch)]

    def saw_round(self, drafted: int, accepted: int) -> None:
        pass

    def saw_draft(self, latency_s: float, verify_queue: int) -> None:
        pass
