"""Draft-length controllers: how many tokens to draft next, from what the rounds have shown.

The draft length chosen rides with the draft. Not here: acceptance itself (sim.acceptance.forms), and the controllers
that estimate it as they go (adaptive_length).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence

from sim.interface.request import Request

WINDOW_ROUNDS = 100
"""Rounds and drafts that `feedback` looks back on (report 000: a window of 100)."""
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

BatchTable = tuple[tuple[int, int, int], ...]
"""(first batch size, last one, draft length), as vLLM's `num_speculative_tokens_per_batch_size` has it."""


class Controller:
    """Chooses draft lengths, and what is verified, and is told what happens. Where it may choose 0, a round without
    drafts keeps the drafter's KV up to date all the same.

    Unless a subclass says otherwise all requests of a batch draft the same, one draft model drafts, all of a draft is
    verified, and what happens changes nothing.
    """

    draft_tokens_min: int
    draft_tokens_max: int
    """Look-ahead slots are held for so many, whatever is drafted."""
    constant_length: int | None
    """The length that it always chooses for everybody, and verifies; None where it may choose this or that."""
    drafter = 0
    """The draft model of the lengths that it chose last."""

    def length_for(self, num_requests: int) -> int:
        """The draft length of a batch of so many."""
        raise NotImplementedError

    def lengths_for(self, batch: Sequence[Request]) -> Sequence[int]:
        """[batch] draft lengths for the requests of a step or round, prompts included. Asked once per draft, which
        runs as long as the longest."""
        return [self.length_for(len(batch))] * len(batch)

    def lengths_planned(self, batch: Sequence[Request], num_planned: int) -> Sequence[int]:
        """The same for a step that was planned for `num_planned`, some of whom have finished since."""
        return self.lengths_for(batch)

    def verify(self, rows: Sequence[Request]) -> Sequence[int]:
        """[rows] how many tokens of each one's draft, `drafted` at most, the next pass verifies. Asked by continuous
        batching, once per step."""
        return [request.drafted for request in rows]

    def drafter_of_prompt(self, request: Request, num_active: int) -> int:
        """The draft model that computes the prompt of `request`, one of `num_active` unfinished requests."""
        return 0

    def take_over(self, requests: Sequence[Request]) -> Sequence[tuple[Request, int]]:
        """`drafter` drafts for `requests` from now on; those that had another one, and how many tokens of each are in
        its KV already."""
        return ()

    def drafters_of(self, requests: Sequence[Request]) -> Sequence[int]:
        """[requests] who drafted for each; none where there is one draft model."""
        return ()

    def saw_round(self, drafted: int, accepted: int) -> None:
        """A request's drafted tokens were verified."""

    def saw_draft(self, latency_s: float, verify_queue: int) -> None:
        """A draft took so long, with so many requests waiting to be verified behind it."""


class Fixed(Controller):
    """Always the same draft length."""

    def __init__(self, draft_tokens: int) -> None:
        self.draft_tokens_min = self.draft_tokens_max = draft_tokens
        self.constant_length = draft_tokens

    def length_for(self, num_requests: int) -> int:
        return self.draft_tokens_max


class Feedback(Controller):
    """The reports' acceptance-aware controller: +-1 after every 10 updates, within 2..8; an update is one
    request's verify round.

    Shrinks if the verify queue exceeds 10, the p95 of draft latency exceeds 50 ms, or acceptance is below 0.4; grows if
    the queue is at most 1, p95 below 45 ms and acceptance above 0.7. Source: design, section 5.
    """

    draft_tokens_min = MIN_DRAFT_TOKENS
    draft_tokens_max = MAX_DRAFT_TOKENS
    constant_length = None

    def __init__(self, draft_tokens: int) -> None:
        self.draft_tokens = min(max(draft_tokens, MIN_DRAFT_TOKENS), MAX_DRAFT_TOKENS)
        self._rounds: deque[tuple[int, int]] = deque(maxlen=WINDOW_ROUNDS)
        self._latencies_s: deque[float] = deque(maxlen=WINDOW_ROUNDS)
        self._verify_queue = 0
        self._updates = 0

    def length_for(self, num_requests: int) -> int:
        return self.draft_tokens

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
    """-1, 0 or +1 on the draft length; shrinking has precedence.

    >>> [choose_change(*each) for each in ((0.701, 1, 0.0449), (0.8, 2, 0.04), (0.8, 1, 0.045), (0.7, 1, 0.04))]
    [1, 0, 0, 0]
    >>> [choose_change(*each) for each in ((0.4, 10, 0.05), (0.399, 0, 0.01), (0.9, 11, 0.01), (0.9, 0, 0.0501))]
    [0, -1, -1, -1]
    """
    if verify_queue > SHRINK_QUEUE or draft_p95_s > SHRINK_P95_S or acceptance < SHRINK_ACCEPTANCE:
        return -1
    if verify_queue <= GROW_QUEUE and draft_p95_s < GROW_P95_S and acceptance > GROW_ACCEPTANCE:
        return 1
    return 0


class ByBatch(Controller):
    """vLLM's table of draft lengths by the requests of a step (`num_speculative_tokens_per_batch_size`).

    As there, sizes between two ranges and beyond the last one have the length of the range before, and slots are held
    for `draft_tokens_max` whatever the table says.

    >>> table = ByBatch(((1, 16, 5), (33, 64, 2)), 5)
    >>> [table.length_for(num_requests) for num_requests in (1, 16, 20, 33, 500)]
    [5, 5, 5, 2, 2]
    """

    def __init__(self, table: BatchTable, draft_tokens_max: int) -> None:
        check_table(table, draft_tokens_max)
        self._starts = [start for start, _, _ in table]
        self._lengths = [length for _, _, length in table]
        self.draft_tokens_min = min(self._lengths)
        self.constant_length = self.draft_tokens_min if len(set(self._lengths)) == 1 else None
        self.draft_tokens_max = draft_tokens_max

    def lengths_planned(self, batch: Sequence[Request], num_planned: int) -> Sequence[int]:
        """vLLM looks up the length when it plans the step (0.33.0, v1/core/sched/scheduler.py:1711)."""
        return [self.length_for(num_planned)] * len(batch)

    def length_for(self, num_requests: int) -> int:
        return self._lengths[max(0, bisect_right(self._starts, num_requests) - 1)]


def check_table(table: Sequence[Sequence[int]], draft_tokens_max: int) -> None:
    """Raise ValueError where vLLM would not take `table`: ranges rise from 1 without overlap, lengths are in
    0..`draft_tokens_max`."""
    key = "num_speculative_tokens_per_batch_size"
    if not table:
        raise ValueError(f"{key} must have at least one [first, last, draft length]")
    last = 0
    for row in table:
        if len(row) != 3:
            raise ValueError(f"{key}: {list(row)} must be [first, last, draft length]")
        start, end, length = row
        if last == 0 and start != 1:
            raise ValueError(f"{key}: {list(row)} must start at batch size 1, so that every size has a length")
        if not last < start <= end:
            raise ValueError(f"{key}: {list(row)} must be a range of batch sizes above {last}")
        if not 0 <= length <= draft_tokens_max:
            raise ValueError(
                f"{key}: draft length {length} of {list(row)} must be in 0..{draft_tokens_max}, num_speculative_tokens"
            )
        last = end
