"""Fits the rule for verify rows to mixed passes: rows of one query beside a prefill chunk, in the same kernels.

With FlashAttention-2 such a row loses query packing and split-KV as a verify row does, and every head computes a whole
tile of queries (docs/adr/008). Within one table a slowdown alone fits as well as slowdown and tile; the tile says what
other head layouts and several queries cost. Mean error of mixed attention in LLMServingSim's four dense tables, one
slowdown of 1.6 for all: 23 % (RTX 4090, 4 query heads per KV head), 18 % and 21 % (RTX PRO 6000, whole and halved) and
34 % (8 per KV head); a tile of 64 and a slowdown of 1.4 for all: 20 %, 18 %, 20 %, 17 %.
Not here: what the rule means (sim.costs.kernels.VerifyAttention).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrate.fit import Array
from sim.costs.kernels import VerifyAttention

ROWS_SHARE = 0.3
"""Only mixed passes are used in which the same rows alone take at least this share of the attention."""
SLOWDOWNS = np.round(np.arange(1.0, 3.001, 0.02), 2)
AS_GOOD = 1.02
"""The least slowdown whose error is within this factor of the best one's is taken: the fit is flat."""
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
        return (
            f"by the rule of rows beside a chunk: kv_slowdown {self.rule.kv_slowdown:g} and tiles of "
            f"{self.rule.query_tile} queries fit {self.points} mixed passes within a mean of "
            f"{100 * self.mean_error:.0f} %, kv_slowdown {self.untiled.kv_slowdown:g} alone within "
            f"{100 * self.untiled_mean_error:.0f} %"
        )


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

    untiled, untiled_error = _best(error, 1)
    rule, mean_error = (untiled, untiled_error) if query_tile == 1 else _best(error, query_tile)
    if mean_error > TILE_MARGIN * untiled_error:
        rule, mean_error = untiled, untiled_error
    return VerifyFit(rule, mean_error, untiled, untiled_error, len(points.rows))


def _best(error: Callable[[VerifyAttention], float], query_tile: int) -> tuple[VerifyAttention, float]:
    rules = [VerifyAttention(kv_slowdown=float(slowdown), query_tile=query_tile) for slowdown in SLOWDOWNS]
    errors = [error(rule) for rule in rules]
    least = next(i for i, value in enumerate(errors) if value <= AS_GOOD * min(errors))
    return rules[least], errors[least]
