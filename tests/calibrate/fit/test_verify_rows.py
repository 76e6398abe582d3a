"""Fitting the verify rule to mixed passes: the law behind them is found again."""

from __future__ import annotations

import numpy as np
import pytest

from calibrate.fit.verify_rows import MixedPoints, fit_verify_rule
from sim.costs.compact_kernels import VerifyAttention

KV_TOKEN_S, HEAD_SIZE, PEAK_FLOPS = 2e-9, 4096.0, 4e14


def added_s(rule: VerifyAttention, rows: int, kv_tokens: int) -> float:
    """10 us, and memory slowed down or padded tiles, whichever takes longer."""
    tile_s = rule.tile_kv_token_s(1.0, HEAD_SIZE, PEAK_FLOPS)
    return 1e-5 + kv_tokens * max(rule.kv_slowdown * KV_TOKEN_S, tile_s) + 1e-7 * rows


def mixed_points(law: VerifyAttention, chunk_s: float = 5e-5) -> MixedPoints:
    rows, context = (grid.ravel() for grid in np.meshgrid([1, 4, 16, 64, 128], [64, 256, 1024, 4096]))
    added = np.array([added_s(law, int(r), int(r * c)) for r, c in zip(rows, context, strict=True)])
    alone = 1e-5 + rows * context * KV_TOKEN_S
    return MixedPoints(rows, context, np.full(len(rows), chunk_s), alone, chunk_s + added)


def test_a_slowdown_is_found_again_where_nothing_is_padded() -> None:
    found = fit_verify_rule(mixed_points(VerifyAttention(kv_slowdown=1.9)), added_s, 1)
    assert found is not None
    assert found.rule == found.untiled == VerifyAttention(kv_slowdown=1.9)
    assert found.mean_error == pytest.approx(0.0, abs=1e-9)


def test_the_rate_of_padded_tiles_is_found_again() -> None:
    law = VerifyAttention(kv_slowdown=1.0, query_tile=64, tile_compute_share=0.5)
    found = fit_verify_rule(mixed_points(law), added_s, 64)
    assert found is not None
    assert found.rule == law
    assert found.mean_error == pytest.approx(0.0, abs=1e-9)
    assert "tiles of 64 queries at 0.5 of the peak" in found.words


def test_a_tile_that_cannot_explain_the_passes_is_left_out() -> None:
    found = fit_verify_rule(mixed_points(VerifyAttention(kv_slowdown=1.0)), added_s, 128)
    assert found is not None
    assert found.rule == VerifyAttention(kv_slowdown=1.0)


def test_passes_that_are_all_chunk_fit_nothing() -> None:
    assert fit_verify_rule(mixed_points(VerifyAttention(kv_slowdown=1.5), chunk_s=1.0), added_s, 64) is None
