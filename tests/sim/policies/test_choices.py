"""The choices of the lane policies, and that an overloaded run is called so."""

from __future__ import annotations

import pytest

from sim.policies.choices import is_atomic, may_prefill, verify_goes_first

PAIR = "h100-sxm/llama-2-7b+tinyllama-1.1b"


@pytest.mark.parametrize(("decode", "verify", "is_first"), [(0, 2, False), (0, 3, True), (5, 7, False), (5, 8, True)])
def test_verify_goes_first_when_its_queue_leads_by_more_than_two(decode: int, verify: int, is_first: bool) -> None:
    assert verify_goes_first(decode, verify, 2) is is_first


@pytest.mark.parametrize(("queue", "may"), [(0, True), (11, True), (12, False)])
def test_unified_takes_prompts_while_fewer_than_its_factor_decode(queue: int, may: bool) -> None:
    assert may_prefill(queue, 10, 1.2) is may


def test_one_active_request_is_served_atomically() -> None:
    assert [is_atomic(number) for number in (0, 1, 2)] == [True, True, False]
