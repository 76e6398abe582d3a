"""The choices policies make: pure functions of queue lengths and limits. Waits are elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sim.interface.request import Request
from sim.policies.options import BatchBy

QUEUE, MEMORY = BatchBy.QUEUE, BatchBy.MEMORY


def verify_goes_first(decode_queue: int, verify_queue: int) -> bool:
    """PDV: decode has precedence unless the verify queue exceeds decode's by more than 2 (report 000)."""
    return verify_queue > decode_queue + 2


def may_prefill(num_decoding: int, decode_batch: int) -> bool:
    """Unified: take in a prompt only while fewer than 1.2 batches decode (report 002), the one in flight counted."""
    return num_decoding < 1.2 * decode_batch


LoadTable = tuple[tuple[int, str], ...]
"""(least load, policy), rising; the first row begins with 1."""


def row_for(table: LoadTable, load: int, present: int, hysteresis: float) -> int:
    """Index of the row that serves `load`: the present one, unless the load is beyond its edge by more than that share
    of the edge; then the row that the load is in.

    >>> table = ((1, "pd"), (32, "unified"))
    >>> [row_for(table, load, 0, 0.25) for load in (31, 39, 40)], [row_for(table, load, 1, 0.25) for load in (25, 23)]
    ([0, 0, 1], [1, 0])

    A load may go beyond several edges at once:

    >>> table = ((1, "pd"), (10, "pdv"), (20, "unified"))
    >>> [row_for(table, load, present, 0.2) for load, present in ((25, 0), (19, 2), (15, 2), (9, 1), (8, 1), (7, 1))]
    [2, 2, 1, 1, 0, 0]
    >>> [row_for(table, load, 0, 0.0) for load in (9, 10, 19, 20)]
    [0, 1, 1, 2]
    """
    row = max(index for index, (start, _) in enumerate(table) if index == 0 or load >= start)
    if row > present and load < table[present + 1][0] * (1.0 + hysteresis):
        return present
    if row < present and load > table[present][0] * (1.0 - hysteresis):
        return present
    return row


def is_atomic(num_active: int, hybrid_requests: int) -> bool:
    """PDV hybrid: with at most so many active requests draft and verify run as one (report 004: 1)."""
    return num_active <= hybrid_requests


def batch_for(
    by: BatchBy, at_most: int, *, num_active: int, num_lanes: int, free_tokens: int, draft_tokens: int
) -> int:
    """Requests that one of `num_lanes` lanes takes at once, 1 to `at_most`: all it may, an even share of the active
    ones, or as many as `free_tokens` of KV hold drafts and a token each for.

    >>> lanes = {"num_lanes": 2, "draft_tokens": 4}
    >>> batch_for(BatchBy.MOST, 12, num_active=3, free_tokens=0, **lanes)
    12
    >>> [batch_for(BatchBy.QUEUE, 12, num_active=count, free_tokens=0, **lanes) for count in (7, 100, 0)]
    [4, 12, 1]
    >>> [batch_for(BatchBy.MEMORY, 12, num_active=7, free_tokens=free, **lanes) for free in (24, 1000, 4)]
    [4, 12, 1]
    """
    if by is QUEUE:
        return max(1, min(at_most, -(-num_active // num_lanes)))
    if by is MEMORY:
        return max(1, min(at_most, free_tokens // (draft_tokens + 1)))
    return at_most


def group(requests: Sequence[Request], at_most: int) -> Iterable[Sequence[Request]]:
    """Slices of at most `at_most`, in order."""
    for start in range(0, len(requests), at_most):
        yield requests[start : start + at_most]
