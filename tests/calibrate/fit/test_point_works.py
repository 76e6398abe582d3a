"""Measured points as works, and what is known of the cache that they were measured with."""

from __future__ import annotations

import pytest

from calibrate.fit.point_works import L2State, TimedPass, l2_state
from sim.costs.shapes import MODELS

SHAPE = MODELS["tinyllama-1.1b"]


@pytest.mark.parametrize(
    ("l2_bytes", "expected"),
    [(40_000_000, "cold"), (1_500_000_000, "unknown"), (3_000_000_000, "warm"), (None, "unknown")],
)
def test_a_pass_is_cold_where_its_weights_and_kv_leave_the_cache_twice_over(
    l2_bytes: int | None, expected: L2State
) -> None:
    assert l2_state(TimedPass("decode", "target", 1, 1, 32, "eager"), SHAPE, l2_bytes) == expected


def test_kv_counts_as_well_as_weights() -> None:
    weights = SHAPE.layers * SHAPE.layer_weights + SHAPE.vocab * SHAPE.hidden
    cache = weights * SHAPE.dtype_bytes + 1_000_000
    assert l2_state(TimedPass("decode", "target", 1, 1, 32, "eager"), SHAPE, cache) == "warm"
    assert l2_state(TimedPass("decode", "target", 64, 1, 2000, "eager"), SHAPE, cache) == "cold"
    prompt = TimedPass("prefill", "target", 1, 100_000, 0, "eager")
    assert l2_state(prompt, SHAPE, cache) == "cold"
