"""Fit of the compact form to measured passes, with the simulator's cost model doing the predicting.

Passes are timed whole, so that several fixed times (of a GEMM, of attention, of elementwise kernels) can only be told
apart by how they scale; each constant is drawn weakly to its start value, which settles what the points do not. Noisy
points weigh less; held-out ones not at all. Not here: measuring (calibrate.measure).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import msgspec
import numpy as np
from scipy.optimize import least_squares

from calibrate.fit.fit_errors import Array, compare_points, not_judged, summary
from calibrate.fit.point_works import timed_pass_of, work_of
from sim.costs.compact_kernels import (
    CompactKernels,
    DecodeAttention,
    Elementwise,
    Gemm,
    Head,
    Measured,
    PrefillAttention,
    VerifyAttention,
)
from sim.costs.forms.build import build_costs
from sim.costs.profile import KindError, MeasuredPoint, Profile
from sim.costs.profile_files import round_constant

PULL = 0.02
"""Weight of a constant's log distance from its start value: e times off weighs like 2 % of error at one point."""
MIN_ERROR = 0.02
"""No point is trusted better than this, relative; see the noise floor of public tables."""
OUTLIER = 1.5
"""Errors of more than so many standard deviations count linearly."""
MAX_EVALUATIONS = 60
CPU_START_S, CUDA_START_S = 3e-5, 3e-6
"""Length of a kernel that does nothing, to start the fit from."""
NOT_TIMED_ALONE = "passes are timed whole: GEMMs, attention and the head are not separated"


class Free(NamedTuple):
    """A constant to fit, by its group and name in CompactKernels, and its bounds."""

    group: str
    field: str
    low: float
    high: float


COMMON = (
    Free("gemm", "compute_share", 1e-2, 1.5),
    Free("gemm", "bandwidth_share", 1e-2, 4.0),
    Free("gemm", "fixed_s", 1e-8, 1e-3),
    Free("gemm", "sharpness", 1.0, 12.0),
    Free("prefill_attention", "fixed_s", 1e-8, 1e-2),
    Free("prefill_attention", "compute_share", 1e-3, 1.5),
    Free("prefill_attention", "extra_keys", 1.0, 1e4),
    Free("prefill_attention", "kv_bandwidth_share", 1e-3, 4.0),
    Free("elementwise", "bandwidth_share", 1e-2, 4.0),
    Free("elementwise", "kernel_s", 1e-8, 1e-3),
    Free("verify_attention", "kv_slowdown", 1.0, 10.0),
    Free("head", "sampler_s", 1e-8, 1e-2),
    Free("head", "sampler_passes", 1e-2, 1e3),
)
DECODE = (
    Free("", "fixed_s", 1e-8, 1e-2),
    Free("", "row_head_s", 1e-10, 1e-3),
    Free("", "bandwidth_share", 1e-3, 4.0),
    Free("", "sharpness", 1.0, 8.0),
    Free("", "key_head_s", 1e-13, 1e-6),
)
"""Constants of attention by head layout. Bandwidth shares may exceed 1: small weights and short contexts are cached."""
ON_CUDA = (Free("gemm", "tile_share", 1e-3, 0.85),)


def start_constants(is_cpu: bool, multiprocessors: int, attention: str, kv_layout: str) -> CompactKernels:
    kernel_s = CPU_START_S if is_cpu else CUDA_START_S
    decode = DecodeAttention(
        fixed_s=4 * kernel_s, row_head_s=1e-7, bandwidth_share=0.5, sharpness=1.5, key_head_s=1e-10
    )
    gemm = Gemm(
        compute_share=0.7, bandwidth_share=0.7, fixed_s=kernel_s, depth_s=0.0, sharpness=2.0, extra_depth=0.0,
        tile_share=0.0 if is_cpu else 0.4, wave_share=0.0, long_kernel_change=0.0, long_kernel_s=1e-3,
        tile_tokens=16 if is_cpu else 128, small_tile_tokens=1 if is_cpu else 64, tile_columns=16 if is_cpu else 128,
        multiprocessors=multiprocessors,
    )  # fmt: skip
    prefill = PrefillAttention(
        fixed_s=4 * kernel_s, compute_share=0.3, extra_keys=64.0, tile_share=0.0, block_s=0.0, kv_bandwidth_share=0.3,
        small_head_change=0.0,
    )  # fmt: skip
    return CompactKernels(
        gemm=gemm, decode_attention=decode, multi_head_decode_attention=decode, prefill_attention=prefill,
        verify_attention=VerifyAttention(kv_slowdown=1.2),
        elementwise=Elementwise(bandwidth_share=0.5, kernel_s=kernel_s, kernels_per_layer=4),
        head=Head(sampler_s=10 * kernel_s, sampler_passes=3.0), all_reduce=None, attention_implementation=attention,
        kv_layout=kv_layout, measured=Measured(tokens=1, rows=1, row_context_tokens=1, chunk_tokens=1),
    )  # fmt: skip


def fit_passes(start: Profile, points: Sequence[MeasuredPoint]) -> Profile:
    """`start` with kernels fitted to `points`, their errors, and the points themselves."""
    used = [point for point in points if not point.is_held_out]
    if not used:
        raise ValueError("no points to fit: the budget was too small for a single pass. Raise measure.budget_s")
    free = _free(start)
    start = msgspec.structs.replace(start, kernels=msgspec.structs.replace(start.compact, measured=_measured(points)))
    kernels = _least_squares_of_logs(start, used, free)
    fitted = msgspec.structs.replace(start, kernels=_unmeasured_heads(start, kernels), points=tuple(points))
    return msgspec.structs.replace(fitted, errors=held_out_errors(fitted))


def held_out_errors(fitted: Profile) -> dict[str, KindError]:
    """Errors by kind, on the profile's held-out points."""
    held_out = compare_points(fitted, [point for point in fitted.points if point.is_held_out])
    errors = summary(held_out, "points of this machine that the fit did not use, noisy ones included")
    middles: dict[str, list[float]] = {}
    for comparison in held_out:
        middles.setdefault(comparison.kind, []).append(100.0 * abs(comparison.relative_error))
    errors = {
        kind: msgspec.structs.replace(error, held_out=f"{error.held_out}; median {median(middles[kind]):.1f} %")
        for kind, error in errors.items()
    }
    nothing = not_judged(NOT_TIMED_ALONE)
    order = ("prefill", "decode", "draft", "verify", "draft_prefill")
    return {"body": nothing} | {kind: errors[kind] for kind in order if kind in errors}


def _free(start: Profile) -> list[Free]:
    groups = {_decode_group(shape.heads == shape.kv_heads) for shape in start.models}
    free = [*COMMON, *(ON_CUDA if start.compact.gemm.tile_share > 0.0 else ())]
    return free + [one._replace(group=group) for group in sorted(groups) for one in DECODE]


def _decode_group(is_multi_head: bool) -> str:
    return "multi_head_decode_attention" if is_multi_head else "decode_attention"


def _unmeasured_heads(start: Profile, kernels: CompactKernels) -> CompactKernels:
    """The head layout that neither model has takes the constants of the other one."""
    measured = {shape.heads == shape.kv_heads for shape in start.models}
    if len(measured) == 2:
        return kernels
    has, lacks = _decode_group(measured.pop()), ""
    lacks = "decode_attention" if has.startswith("multi") else "multi_head_decode_attention"
    return msgspec.structs.replace(kernels, **{lacks: getattr(kernels, has)})


def _measured(points: Sequence[MeasuredPoint]) -> Measured:
    prefills = [point.tokens for point in points if point.kind == "prefill"]
    return Measured(
        tokens=max(point.rows * (1 if point.kind == "draft" else point.tokens) for point in points),
        rows=max(point.rows for point in points),
        row_context_tokens=max(1, *(point.context_tokens for point in points)),
        chunk_tokens=max(prefills, default=1),
    )


def _with_values(kernels: CompactKernels, free: Sequence[Free], values: Sequence[float]) -> CompactKernels:
    changes: dict[str, dict[str, float]] = {}
    for one, value in zip(free, values, strict=True):
        changes.setdefault(one.group, {})[one.field] = min(max(value, one.low), one.high)
    groups = {group: msgspec.structs.replace(getattr(kernels, group), **fields) for group, fields in changes.items()}
    return msgspec.structs.replace(kernels, **groups)


def _least_squares_of_logs(start: Profile, used: Sequence[MeasuredPoint], free: Sequence[Free]) -> CompactKernels:
    """Least squares on log errors, each in units of the point's uncertainty; logs of the constants are free."""
    first = np.array([getattr(getattr(start.compact, one.group), one.field) for one in free])
    low = np.log(np.array([one.low for one in free]) / first)
    high = np.log(np.array([one.high for one in free]) / first)
    works = [work_of(timed_pass_of(point)) for point in used]
    measured = np.log([point.device_s for point in used])
    trust = np.array([np.hypot(MIN_ERROR, point.half_width_pct / 100.0) for point in used])

    def residuals(logs: Array) -> Array:
        kernels = _with_values(start.compact, free, list(first * np.exp(logs)))
        costs = build_costs(msgspec.structs.replace(start, kernels=kernels))
        predicted = np.log([costs.cost(work).device_s for work in works])
        return np.concatenate([(predicted - measured) / trust, PULL / MIN_ERROR * logs])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        solution = least_squares(
            residuals,
            np.clip(np.zeros(len(free)), low + 1e-9, high - 1e-9),
            bounds=(low, high),
            loss="soft_l1",
            f_scale=OUTLIER,
            max_nfev=MAX_EVALUATIONS,
            diff_step=1e-4,
        )
    values = [round_constant(float(value)) for value in first * np.exp(solution.x)]
    return _with_values(start.compact, free, values)
