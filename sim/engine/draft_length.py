"""Draft-length controllers: how many tokens to draft next, from what the rounds have shown.

Not here: acceptance itself (sim.acceptance.forms). The draft length chosen rides with the draft.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

WINDOW_ROUNDS = 100
"""Rounds and drafts that `feedback` looks back on (seed 000: a window of 100)."""
ROUNDS_PER_DECISION = 10
"""Updates between two decisions: one per request and verify round."""
MIN_DRAFT_TOKENS = 2
MAX_DRAFT_TOKENS = 8
SHRINK_QUEUE = 10
GROW_QUEUE = 1
SHRINK_P95_S = 0.050
GROW_P95_S = 0.045
SHRINK_ACCEPTANCE = 0.4
GROW_ACCEPTANCE = 0.7


class Controller(Protocol):
    """Chooses the next draft length and is told what happens."""

    @property
    def draft_tokens(self) -> int: ...
    @property
    def draft_tokens_max(self) -> int: ...
    def saw_round(self, drafted: int, accepted: int) -> None: ...
    def saw_draft(self, latency_s: float, verify_queue: int) -> None: ...


class Fixed:
    """Always the same draft length."""

    def __init__(self, draft_tokens: int) -> None:
        self.draft_tokens = draft_tokens
        self.draft_tokens_max = draft_tokens

    def saw_round(self, drafted: int, accepted: int) -> None:
        pass

    def saw_draft(self, latency_s: float, verify_queue: int) -> None:
        pass


class Feedback:
    """The seeds' acceptance-aware controller: +-1 after every 10 updates, within 2..8; an update is one
    request's verify round.

    Shrinks if the verify queue exceeds 10, the p95 of draft latency exceeds 50 ms, or acceptance is below 0.4; grows if
    the queue is at most 1, p95 below 45 ms and acceptance above 0.7. Source: design, section 5.
    """

    def __init__(self, draft_tokens: int) -> None:
        self.draft_tokens = min(max(draft_tokens, MIN_DRAFT_TOKENS), MAX_DRAFT_TOKENS)
        self.draft_tokens_max = MAX_DRAFT_TOKENS
        self._rounds: deque[tuple[int, int]] = deque(maxlen=WINDOW_ROUNDS)
        self._latencies_s: deque[float] = deque(maxlen=WINDOW_ROUNDS)
        self._verify_queue = 0
        self._updates = 0

    def saw_round(self, drafted: int, accepted: int) -> None:
        self._rounds.append((drafted, accepted))
        self._updates += 1
        if self._updates % ROUNDS_PER_DECISION == 0:
            change = choose_change(self._acceptance(), self._verify_queue, self._p95_s())
            self.draft_tokens = min(max(self.draft_tokens + change, MIN_DRAFT_TOKENS), MAX_DRAFT_TOKENS)

    def saw_draft(self, latency_s: float, verify_queue: int) -> None:
        self._latencies_s.append(latency_s)
        self._verify_queue = verify_queue

    def _acceptance(self) -> float:
        """Accepted share of the drafted tokens in the window."""
        return sum(accepted for _, accepted in self._rounds) / sum(drafted for drafted, _ in self._rounds)

    def _p95_s(self) -> float:
        """95th percentile (nearest rank) of draft latency; 0 before the first."""
        latencies_s = sorted(self._latencies_s)
        return latencies_s[-(-len(latencies_s) * 95 // 100) - 1] if latencies_s else 0.0


def choose_change(acceptance: float, verify_queue: int, draft_p95_s: float) -> int:
    """-1, 0 or +1 on the draft length; shrinking has precedence."""
    if verify_queue > SHRINK_QUEUE or draft_p95_s > SHRINK_P95_S or acceptance < SHRINK_ACCEPTANCE:
        return -1
    if verify_queue <= GROW_QUEUE and draft_p95_s < GROW_P95_S and acceptance > GROW_ACCEPTANCE:
        return 1
    return 0


CONTROLLERS = ("fixed", "feedback")


def build_controller(name: str, draft_tokens: int) -> Controller:
    """The controller called `name`, starting at `draft_tokens`. Raises ValueError for an unknown name."""
    if name == "fixed" or draft_tokens == 0:
        return Fixed(draft_tokens)
    if name == "feedback":
        return Feedback(draft_tokens)
    raise ValueError(f"controller {name!r} is not one of {', '.join(CONTROLLERS)}")
