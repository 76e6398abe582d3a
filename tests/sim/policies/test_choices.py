"""Sizes of batches, and options that are refused; other choices are in the logs of their policies."""

from __future__ import annotations

import pytest

from sim.policies.choices import batch_for
from sim.policies.options import BatchBy


@pytest.mark.parametrize(
    ("by", "num_active", "free_tokens", "size"),
    [
        (BatchBy.MOST, 3, 0, 12),
        (BatchBy.QUEUE, 7, 0, 4),
        (BatchBy.QUEUE, 100, 0, 12),
        (BatchBy.QUEUE, 0, 0, 1),
        (BatchBy.MEMORY, 7, 24, 4),
        (BatchBy.MEMORY, 7, 1000, 12),
        (BatchBy.MEMORY, 7, 4, 1),
    ],
)
def test_a_batch_is_as_large_as_its_limit_its_queue_or_its_memory_allows(
    by: BatchBy, num_active: int, free_tokens: int, size: int
) -> None:
    """Two lanes, at most 12, drafts of 4: five tokens each."""
    found = batch_for(by, 12, num_active=num_active, num_lanes=2, free_tokens=free_tokens, draft_tokens=4)
    assert found == size
