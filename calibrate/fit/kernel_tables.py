"""Kernel tables in memory: measured GEMM and attention latencies, and how a model's layers are composed of them.

A GEMM table is a full grid of (tokens, columns, depth). Models whose matrices lie between grid points are interpolated
linearly in columns and depth, in which latency is close to linear (leaving a grid point out costs 6-9 %); tokens are
never interpolated, because there the latency is a staircase: fits and errors use measured token counts only.
Not here: reading files (calibrate.importers), fitting (calibrate.fit.kernel_fit).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrate.fit.fit_errors import Array
from calibrate.fit.kernel_fit import Body, DecodeRows, PrefillRows
from sim.costs.shapes import ModelShape

KV_WINDOW = (0.1, 1.2)
"""Decode rows whose KV is between these multiples of the L2 cache are left out: the tables replay a batch without
flushing L2, so they are up to twice too fast there. Below, KV traffic hardly matters; above, it misses L2 anyway."""
UNBOUND_SHARE = 0.5
"""L2 is about twice as fast as memory; a kernel that reads KV at less than half the memory's rate waits for something
else, as a few rows of long contexts do for their few thread blocks."""
MIN_KV_HEADS = 2
MAX_GROUP = 16
"""Attention rows used for fits: at least 2 KV heads and at most 16 query heads on each, as in current models."""
MAX_ROWS = 1024
"""Decode rows used: the largest batch that an engine would run."""
MAX_TOKENS = 8192
"""Tokens of a pass used: four times vLLM's default budget."""


class GemmTable(NamedTuple):
    """`seconds` [tokens, columns, depths], nan where nothing was measured; axes rise."""

    tokens: NDArray[np.int64]
    columns: NDArray[np.int64]
    depths: NDArray[np.int64]
    seconds: Array

    def at(self, columns: int, depth: int) -> Array:
        """Seconds [tokens] of a [depth, columns] matrix, nan where a point that counts was not measured; more columns
        than the grid has cost in proportion."""
        from scipy.interpolate import RegularGridInterpolator

        most = int(self.columns[-1])
        if columns > most:
            return self.at(most, depth) * (columns / most)
        # Holes apart from times: at a neighbour of weight 0 nan would count, as 0 times nan is nan.
        is_hole = np.isnan(self.seconds)
        values = np.stack([np.where(is_hole, 0.0, self.seconds), is_hole], axis=-1)
        grid = RegularGridInterpolator(
            (self.columns, self.depths), np.moveaxis(values, 0, -1), bounds_error=False, fill_value=None
        )
        seconds, holes = grid((columns, depth))
        return np.asarray(np.where(holes != 0.0, np.nan, seconds))

    def body(self, shape: ModelShape, tensor_parallel: int) -> Body:
        """GEMM time of one layer of `shape` on one device, at measured token counts up to MAX_TOKENS."""
        gemms = shape.gemms(tensor_parallel)
        total = np.sum([self.at(columns, depth) for columns, depth in gemms], axis=0)
        use = (self.tokens <= MAX_TOKENS) & (total > 0.0)
        return Body(gemms, [int(tokens) for tokens in self.tokens[use]], total[use])

    def head(self, shape: ModelShape, tensor_parallel: int, max_tokens: int) -> Body:
        """The LM head of `shape` on one device, at measured counts of positions up to `max_tokens`."""
        columns, depth = shape.vocab // tensor_parallel, shape.hidden
        seconds = self.at(columns, depth)
        use = (self.tokens <= max_tokens) & (seconds > 0.0)
        return Body([(columns, depth)], [int(tokens) for tokens in self.tokens[use]], seconds[use])


class AttentionTable(NamedTuple):
    """Attention latencies, one entry per measured point; `tokens` per sequence: the prompt, or the context read."""

    sequences: Array
    tokens: Array
    heads: Array
    kv_heads: Array
    head_dim: Array
    seconds: Array

    def where(self, use: NDArray[np.bool_]) -> AttentionTable:
        return AttentionTable(*(column[use] for column in self))

    @property
    def kv_bytes(self) -> Array:
        return self.sequences * self.tokens * self.kv_heads * self.head_dim * 4.0

    def for_fits(self) -> NDArray[np.bool_]:
        """Points of current models' head layouts, multi-head included."""
        group = self.heads / self.kv_heads
        use: NDArray[np.bool_] = (self.kv_heads >= MIN_KV_HEADS) & (group <= MAX_GROUP) & (self.head_dim <= 128)
        return use

    def of(self, shape: ModelShape, tensor_parallel: int) -> NDArray[np.bool_]:
        """Points with `shape`'s heads on one device. Where the table lacks head dimension 64, half the heads at 128
        stand for it: the same bytes and FLOPs."""
        heads = shape.heads // tensor_parallel
        kv_heads = max(1, shape.kv_heads // tensor_parallel)
        exact = self._has(heads, kv_heads, shape.head_dim)
        if not exact.any() and shape.head_dim == 64 and kv_heads % 2 == 0:
            return self._has(heads // 2, kv_heads // 2, 128)
        return exact

    def _has(self, heads: int, kv_heads: int, head_dim: int) -> NDArray[np.bool_]:
        use: NDArray[np.bool_] = (self.heads == heads) & (self.kv_heads == kv_heads) & (self.head_dim == head_dim)
        return use

    def decode_rows(self) -> DecodeRows:
        return DecodeRows(self.sequences * self.kv_heads, self.kv_bytes, self.seconds)

    def prefill_rows(self) -> PrefillRows:
        return PrefillRows(
            self.sequences,
            self.tokens,
            self.heads * self.head_dim,
            (self.head_dim < 128).astype(float),
            self.kv_bytes,
            self.seconds,
        )

    @property
    def is_multi_head(self) -> NDArray[np.bool_]:
        return np.asarray(self.heads == self.kv_heads)


def outside_l2(table: AttentionTable, l2_bytes: float, bandwidth_bytes_per_s: float = 0.0) -> NDArray[np.bool_]:
    """Decode points that the L2 cache does not flatter: outside of KV_WINDOW, or with KV at less than UNBOUND_SHARE of
    the memory's `bandwidth_bytes_per_s`."""
    is_outside = (table.kv_bytes < KV_WINDOW[0] * l2_bytes) | (table.kv_bytes > KV_WINDOW[1] * l2_bytes)
    return is_outside | (table.kv_bytes < UNBOUND_SHARE * bandwidth_bytes_per_s * table.seconds)


def pass_points(
    table: AttentionTable, tokens: Sequence[int], *, is_decode: bool, max_context: int
) -> NDArray[np.bool_]:
    """Points of which a whole pass can be composed: its token count is one of the GEMM table's `tokens`."""
    total = table.sequences if is_decode else table.sequences * table.tokens
    limit = MAX_ROWS if is_decode else MAX_TOKENS
    use: NDArray[np.bool_] = np.isin(total, tokens) & (total <= limit) & (table.tokens <= max_context)
    return use
