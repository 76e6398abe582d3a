"""The choices of the lane policies, and that an overloaded run is called so."""

from __future__ import annotations

import pytest

from sim.policies.choices import batch_for, is_atomic, may_prefill, verify_goes_first
from sim.policies.options import BatchBy
from sim.policies.registry import PolicyOptions

PAIR = "h100-sxm/llama-2-7b+tinyllama-1.1b"


@pytest.mark.parametrize(("decode", "verify", "is_first"), [(0, 2, False), (0, 3, True), (5, 7, False), (5, 8, True)])
def test_verify_goes_first_when_its_queue_leads_by_more_than_two(decode: int, verify: int, is_first: bool) -> None:
    assert verify_goes_first(decode, verify) is is_first


@pytest.mark.parametrize(("queue", "may"), [(0, True), (11, True), (12, False)])
def test_unified_takes_prompts_while_fewer_than_its_factor_decode(queue: int, may: bool) -> None:
    assert may_prefill(queue, 10) is may


def test_one_active_request_is_served_atomically() -> None:
    assert [is_atomic(number, 1) for number in (0, 1, 2)] == [True, True, False]


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


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"poll_s": 1e-12}, "poll_s=1e-12 must be 0 or at least"),
        ({"stream_priorities": "high"}, "stream_priorities='high' must be true, false or preemptive"),
    ],
)
def test_options_are_checked_at_construction(changes: dict[str, object], wanted: str) -> None:
    with pytest.raises(ValueError, match=wanted):
        PolicyOptions(**changes)  # type: ignore[arg-type]
