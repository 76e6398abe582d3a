"""Fitting the verify rule to mixed passes: the law behind them is found again."""

from __future__ import annotations

import numpy as np
import pytest

from calibrate.verify_fit import MixedPoints, fit_verify_rule
from sim.costs.kernels import VerifyAttention

KV_TOKEN_S, PAIR_S = 2e-9, 5e-11


def added_s(rule: VerifyAttention, rows: int, kv_tokens: int) -> float:
    """Memory, slowed down, or padded tiles, whichever takes longer; a row of one query costs 10 us at least."""
    tile_s = PAIR_S * rule.padded_queries(1.0) if rule.query_tile > 1 else 0.0
    return 1e-5 + kv_tokens * max(rule.kv_slowdown * KV_TOKEN_S, tile_s) + 1e-7 * rows


def mixed_points(slowdown: float, query_tile: int, chunk_s: float = 5e-5) -> MixedPoints:
    rows, context = (grid.ravel() for grid in np.meshgrid([1, 4, 16, 64, 128], [64, 256, 1024, 4096]))
    law = VerifyAttention(kv_slowdown=slowdown, query_tile=query_tile)
    added = np.array([added_s(law, int(r), int(r * c)) for r, c in zip(rows, context, strict=True)])
    alone = 1e-5 + rows * context * KV_TOKEN_S
    return MixedPoints(rows, context, np.full(len(rows), chunk_s), alone, chunk_s + added)


def test_a_slowdown_without_a_tile_is_found_again() -> None:
    found = fit_verify_rule(mixed_points(1.9, 1), added_s, 128)
    assert found is not None
    assert found.rule.kv_slowdown == pytest.approx(1.9, abs=0.05)
    assert found.rule.query_tile == 1


def test_tiles_that_take_all_the_time_leave_the_least_slowdown() -> None:
    found = fit_verify_rule(mixed_points(1.0, 64), added_s, 64)
    assert found is not None
    assert found.rule == VerifyAttention(kv_slowdown=1.0, query_tile=64)
    assert found.mean_error == pytest.approx(0.0, abs=1e-9)
    assert found.untiled.kv_slowdown == pytest.approx(64 * PAIR_S / KV_TOKEN_S, abs=0.05)
    assert "tiles of 64 queries" in found.words


def test_passes_that_are_all_chunk_fit_nothing() -> None:
    assert fit_verify_rule(mixed_points(1.5, 1, chunk_s=1.0), added_s, 64) is None
