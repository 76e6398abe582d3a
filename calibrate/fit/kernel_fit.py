"""Fits the compact constants to kernel tables, and measures their error on what was left out.

Each fit minimises log errors with a loss that forgives outliers: kernels are chosen by heuristics and some points are
10 % off whatever the form. The formulas are the simulator's own (sim.costs.compact_kernels), evaluated on arrays.
Not here: where tables come from (calibrate.importers), composing them into models (calibrate.fit.kernel_tables).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from calibrate.fit.fit_errors import Array
from sim.costs.compact_kernels import (
    BLOCK_QUERIES,
    AllReduce,
    Charged,
    DecodeAttention,
    Gemm,
    PrefillAttention,
    Prompts,
    charged_tokens,
    chunk_pairs,
    decode_attention_s,
    gemm_s,
    prefill_attention_s,
)
from sim.costs.profile import Gpu
from sim.costs.profile_files import round_constant

Constants = TypeVar("Constants", Gemm, DecodeAttention, PrefillAttention, AllReduce)

OUTLIER = 0.01
"""Log error at which the loss turns from square to linear: the fit is nearly a median."""
DTYPE_BYTES = 2.0
"""bf16."""
MODEL_TILES = {"tile_tokens": 128, "small_tile_tokens": 64, "tile_columns": 128}
"""Tile of the usual large cuBLAS kernels; the fitted shares say how much of its rounding shows."""
LONG_KERNEL_S = 1e-3
"""Kernels longer than about this see sustained rather than boost clocks."""


class Body(NamedTuple):
    """GEMM time of one layer: `seconds` [tokens] for each of the `tokens`."""

    gemms: Sequence[tuple[int, int]]
    tokens: Sequence[int]
    seconds: Array


class DecodeRows(NamedTuple):
    """Decode attention of one layer, one entry per measured point."""

    row_heads: Array
    kv_bytes: Array
    seconds: Array


class PrefillRows(NamedTuple):
    """Attention of `sequences` whole prompts of `tokens` each, one layer, one entry per measured point."""

    sequences: Array
    tokens: Array
    head_size: Array
    is_small_head: Array
    kv_bytes: Array
    seconds: Array


def fit_gemm(bodies: Sequence[Body], gpu: Gpu, multiprocessors: int) -> Gemm:
    """Constants that fit all `bodies` best, each model weighing the same."""
    start = Gemm(
        compute_share=0.85,
        bandwidth_share=0.85,
        fixed_s=3e-6,
        depth_s=1e-6,
        sharpness=2.5,
        extra_depth=100.0,
        tile_share=0.5,
        wave_share=0.05,
        long_kernel_change=0.01,
        long_kernel_s=LONG_KERNEL_S,
        multiprocessors=multiprocessors,
        **MODEL_TILES,
    )
    bounds = {
        "compute_share": (0.2, 1.4),
        "bandwidth_share": (0.2, 1.2),
        "fixed_s": (0.0, 5e-5),
        "depth_s": (0.0, 5e-5),
        "sharpness": (1.0, 14.0),
        "extra_depth": (0.0, 6000.0),
        "tile_share": (0.0, 0.85),
        "wave_share": (0.0, 0.15),
        "long_kernel_change": (-0.6, 2.0),
    }
    charged = [_charged(start, body) for body in bodies]
    weights = [1.0 / np.sqrt(len(body.tokens)) for body in bodies]
    typical = np.sqrt(np.mean([len(body.tokens) for body in bodies]))

    def residuals(constants: Gemm) -> Array:
        return np.concatenate(
            [
                np.log(_body_s(constants, gpu, body, tokens) / body.seconds) * weight * typical
                for body, tokens, weight in zip(bodies, charged, weights, strict=True)
            ]
        )

    return _least_squares(start, bounds, residuals)


def body_s(constants: Gemm, gpu: Gpu, body: Body) -> Array:
    """Predicted GEMM seconds of one layer [tokens]."""
    return _body_s(constants, gpu, body, _charged(constants, body))


def _charged(constants: Gemm, body: Body) -> list[Charged]:
    """Each GEMM's three charged token counts as arrays [tokens]."""
    columns_each = []
    for columns, _ in body.gemms:
        rows = np.array([charged_tokens(constants, tokens, columns) for tokens in body.tokens], dtype=float)
        columns_each.append(Charged(*rows.T))
    return columns_each


def _body_s(constants: Gemm, gpu: Gpu, body: Body, charged: Sequence[Charged]) -> Array:
    total = np.zeros(len(body.tokens))
    for (columns, depth), tokens in zip(body.gemms, charged, strict=True):
        total = total + gemm_s(
            constants, gpu.peak_flops, gpu.bandwidth_bytes_per_s, tokens, columns, depth, DTYPE_BYTES
        )
    return total


def fit_decode_attention(rows: DecodeRows, gpu: Gpu) -> DecodeAttention:
    """Constants of decode attention. `rows` must leave out KV that fits the L2 cache but not noise (see tables)."""
    start = DecodeAttention(fixed_s=12e-6, row_head_s=3e-8, bandwidth_share=0.8, sharpness=2.0)
    bounds = {
        "fixed_s": (0.0, 6e-5),
        "row_head_s": (0.0, 1e-6),
        "bandwidth_share": (0.2, 1.0),
        "sharpness": (1.0, 8.0),
    }
    weights = _balance(rows.kv_bytes > np.median(rows.kv_bytes))
    return _least_squares(start, bounds, lambda c: np.log(decode_rows_s(c, gpu, rows) / rows.seconds) * weights)


def decode_rows_s(constants: DecodeAttention, gpu: Gpu, rows: DecodeRows) -> Array:
    """Predicted decode attention seconds of one layer [points]."""
    points: Any = rows  # the formula is plain arithmetic: arrays go through it as floats do
    seconds: Any = decode_attention_s(constants, gpu.bandwidth_bytes_per_s, points.row_heads, points.kv_bytes)
    return np.asarray(seconds)


def fit_prefill_attention(rows: PrefillRows, gpu: Gpu) -> PrefillAttention:
    """Constants of prefill attention."""
    start = PrefillAttention(
        fixed_s=11e-6,
        compute_share=0.65,
        extra_keys=400.0,
        tile_share=0.3,
        block_s=5e-7,
        kv_bandwidth_share=0.3,
        small_head_change=0.3,
    )
    bounds = {
        "fixed_s": (0.0, 6e-5),
        "compute_share": (0.1, 1.2),
        "extra_keys": (0.0, 5000.0),
        "tile_share": (0.0, 1.0),
        "block_s": (0.0, 5e-5),
        "kv_bandwidth_share": (0.02, 2.0),
        "small_head_change": (0.0, 3.0),
    }
    if not np.any(rows.is_small_head):
        start = msgspec.structs.replace(start, small_head_change=0.0)
        del bounds["small_head_change"]
    return _least_squares(start, bounds, lambda c: np.log(prefill_rows_s(c, gpu, rows) / rows.seconds))


def prefill_rows_s(constants: PrefillAttention, gpu: Gpu, rows: PrefillRows) -> Array:
    """Predicted prefill attention seconds of one layer [points]."""
    points: Any = rows  # arrays where the formula has floats
    padded = np.ceil(points.tokens / BLOCK_QUERIES) * BLOCK_QUERIES
    pairs = points.sequences * chunk_pairs(constants, points.tokens, padded, 0)
    prompts = Prompts(points.head_size, points.is_small_head, pairs, points.tokens, points.kv_bytes)
    seconds: Any = prefill_attention_s(constants, gpu.peak_flops, gpu.bandwidth_bytes_per_s, prompts)
    return np.asarray(seconds)


def fit_all_reduce(message_bytes: Array, seconds: Array) -> AllReduce:
    """Constants of one all-reduce."""
    start = AllReduce(fixed_s=1e-5, bytes_per_s=1e11)
    bounds = {"fixed_s": (1e-7, 1e-3), "bytes_per_s": (1e8, 1e13)}

    def residuals(constants: AllReduce) -> Array:
        predicted = constants.fixed_s + message_bytes / constants.bytes_per_s
        return np.asarray(np.log(predicted / seconds))

    return _least_squares(start, bounds, residuals)


def _balance(is_large: NDArray[np.bool_]) -> Array:
    """Weights that make the two halves count the same."""
    share = float(np.clip(is_large.mean(), 0.01, 0.99))
    return np.asarray(np.where(is_large, (2.0 * share) ** -0.5, (2.0 - 2.0 * share) ** -0.5))


def _least_squares(
    start: Constants, bounds: Mapping[str, tuple[float, float]], residuals: Callable[[Constants], Array]
) -> Constants:
    """`start` with the fields named in `bounds` fitted, each scaled by its start value, which draws none of them."""
    from scipy.optimize import least_squares

    names = list(bounds)
    first = np.array([getattr(start, name) for name in names])
    scale = np.where(first > 0.0, first, 1.0)
    low = np.array([bounds[name][0] for name in names]) / scale
    high = np.array([bounds[name][1] for name in names]) / scale

    def with_values(values: Array) -> Constants:
        fields = {name: float(value) for name, value in zip(names, values * scale, strict=True)}
        return msgspec.structs.replace(start, **fields)

    found = least_squares(
        lambda values: residuals(with_values(values)),
        first / scale,
        bounds=(low, high),
        loss="soft_l1",
        f_scale=OUTLIER,
    )
    rounded = {name: round_constant(value) for name, value in zip(names, found.x * scale, strict=True)}
    return msgspec.structs.replace(start, **rounded)
