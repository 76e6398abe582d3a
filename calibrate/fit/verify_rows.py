"""Fits the rule for verify rows to mixed passes: rows of one query beside a prefill chunk, in the same kernels.

With FlashAttention-2 such a row loses query packing and split-KV as a verify row does, and every head computes a whole
tile of queries (docs/adr/008). One constant is fitted: the share of the peak at which tiles of 64 compute, nothing
slowed down. On LLMServingSim's four dense tables that beats each table's own best slowdown: mean error of mixed
attention 16.0 % against 17.2 % (RTX 4090, Llama-3.1-8B), 17.0 % against 18.3 % (RTX PRO 6000), 19.7 % against 21.1 %
(two of them) and 14.1 % against 16.4 % (Qwen3-32B on two, 8 query heads per KV head); and it carries over between head
layouts: shares are 0.50, 0.46 and 0.53 on the RTX PRO 6000 where slowdowns are 1.6, 1.6 and 2.8.
Not here: what the rule means (sim.costs.compact_kernels.VerifyAttention).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrate.fit.fit_errors import Array
from sim.costs.compact_kernels import VerifyAttention

ROWS_SHARE = 0.3
"""Only mixed passes are used in which the same rows alone take at least this share of the attention."""
SLOWDOWNS, TILE_SHARES = slice(1.0, 3.001, 0.02), slice(0.2, 1.001, 0.01)
"""First, end and step of what is tried; every value has two digits."""
TILE_MARGIN = 1.1
"""A padded tile is kept unless a slowdown alone fits better by more than this factor."""
QUERY_TILES = {"ampere": 128, "ada": 64, "blackwell": 64, "hopper": 1}
"""Queries of a thread block by GPU family: FlashAttention-2 at head dimension 128 has 128 on A100 and 64 on compute
capability 8.6, 8.9 and 12.0; FlashAttention-3 packs the queries of a KV group."""
ATTENTION = {"ampere": "FlashAttention-2", "ada": "FlashAttention-2", "blackwell": "FlashAttention-2"}
"""What vLLM runs there; FlashAttention-3 on all others."""


class MixedPoints(NamedTuple):
    """Attention of one layer, one entry per mixed pass: `chunk_s` of its chunk alone, `rows_alone_s` of its rows alone,
    `seconds` of all together. `context` is KV that a row reads, its own included."""

    rows: NDArray[np.int64]
    context: NDArray[np.int64]
    chunk_s: Array
    rows_alone_s: Array
    seconds: Array


class VerifyFit(NamedTuple):
    """The rule, its mean relative error, and that of the best rule without a tile."""

    rule: VerifyAttention
    mean_error: float
    untiled: VerifyAttention
    untiled_mean_error: float
    points: int

    @property
    def words(self) -> str:
        mean, untiled = 100 * self.mean_error, 100 * self.untiled_mean_error
        return (
            f"by the rule of rows beside a chunk, fitted to {self.points} mixed passes: {_words(self.rule)}, mean "
            f"error of their attention {mean:.1f} % ({_words(self.untiled)}: {untiled:.1f} %)"
        )


def _words(rule: VerifyAttention) -> str:
    if rule.query_tile == 1:
        return f"kv_slowdown {rule.kv_slowdown:g}"
    return f"tiles of {rule.query_tile} queries at {rule.tile_compute_share:g} of the peak"


RowsAdded = Callable[[VerifyAttention, int, int], float]
"""Seconds that (rule, rows, KV tokens of all rows) adds beside a chunk, one layer."""


def fit_verify_rule(points: MixedPoints, added_s: RowsAdded, query_tile: int) -> VerifyFit | None:
    """The rule that predicts mixed passes best; None where no pass has enough of its time in rows."""
    use = points.rows_alone_s >= ROWS_SHARE * points.seconds
    if not use.any():
        return None
    rows, context, chunk_s, _, seconds = points
    points = MixedPoints(rows[use], context[use], chunk_s[use], points.rows_alone_s[use], seconds[use])
    shapes, place = np.unique(np.stack([points.rows, points.context]), axis=1, return_inverse=True)
    place = place.ravel()

    def error(rule: VerifyAttention) -> float:
        added = np.array([added_s(rule, int(rows), int(rows * context)) for rows, context in shapes.T])
        return float(np.abs((points.chunk_s + added[place]) / points.seconds - 1.0).mean())

    untiled, untiled_error = _best(error, lambda slowdown: VerifyAttention(kv_slowdown=slowdown), SLOWDOWNS)
    rule, mean_error = untiled, untiled_error
    if query_tile > 1:
        tiled = partial(VerifyAttention, kv_slowdown=1.0, query_tile=query_tile)
        found, error_tiled = _best(error, lambda share: tiled(tile_compute_share=share), TILE_SHARES)
        if error_tiled <= TILE_MARGIN * untiled_error:
            rule, mean_error = found, error_tiled
    return VerifyFit(rule, mean_error, untiled, untiled_error, len(points.rows))


def _best(
    error: Callable[[VerifyAttention], float], rule: Callable[[float], VerifyAttention], values: slice
) -> tuple[VerifyAttention, float]:
    """The rule of least error, the first of equals, and that error."""
    from scipy.optimize import brute

    def error_at(value: Array) -> float:
        return error(rule(round(float(value[0]), 2)))

    value, least, *_ = brute(error_at, (values,), finish=None, full_output=True)
    return rule(round(float(value), 2)), float(least)
