"""How wrong a profile is, point by point and by kind: measured beside predicted, summarised as a profile states it.

Not here: which points a fit leaves out (held_out, table_form, passes), what is checked against what (calibrate.check).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrate.points.work import error_kind, place_of, work_of
from sim.costs.forms.build import build_costs
from sim.costs.profile import KindError, MeasuredPoint, Profile
from sim.costs.shapes import ModelShape
from sim.seam.work import Work

Array = NDArray[np.float64]


def relative_error(predicted: Array, measured: Array) -> Array:
    return np.asarray(predicted / measured - 1.0)


def kind_error(errors: Array, held_out: str) -> KindError:
    """Summary of relative `errors` [points]."""
    if len(errors) == 0:
        return KindError(mean_error_pct=None, max_error_pct=None, points=0, held_out=held_out)
    percent = 100.0 * np.abs(errors)
    return KindError(
        mean_error_pct=round(float(percent.mean()), 2),
        max_error_pct=round(float(percent.max()), 2),
        points=len(errors),
        held_out=held_out,
    )


class Comparison(NamedTuple):
    """One measured point and what the profile makes of it."""

    kind: str
    is_target: bool
    flops: float
    num_bytes: float
    measured_s: float
    fitted_s: float

    @property
    def relative_error(self) -> float:
        return self.fitted_s / self.measured_s - 1.0


def compare_points(profile: Profile, points: Sequence[MeasuredPoint]) -> list[Comparison]:
    """Every point of `points` with its FLOPs and least bytes."""
    costs = build_costs(profile)
    compared = []
    for point in points:
        place = place_of(point)
        work, is_target = work_of(place), place.model == "target"
        shape = profile.target if is_target or profile.draft is None else profile.draft
        flops, num_bytes = use_of(shape, work)
        fitted_s = costs.cost(work).device_s
        compared.append(Comparison(error_kind(place), is_target, flops, num_bytes, point.device_s, fitted_s))
    return compared


def use_of(shape: ModelShape, work: Work) -> tuple[float, float]:
    """Useful FLOPs and least bytes of `work`, all passes of a draft together: weights and KV read once per pass."""
    num_passes = max(1, work.draft_tokens)
    weights, head_weights = shape.layers * shape.layer_weights, shape.vocab * shape.hidden
    tokens = work.row_tokens + sum(chunk.new_tokens for chunk in work.chunks)
    pairs = work.row_tokens * (work.context_tokens + work.row_tokens) / max(1, work.rows)
    kv_tokens = work.context_tokens + work.row_tokens if work.rows else 0
    for new, history in work.chunks:
        pairs += new * (history + 0.5 * new)
        kv_tokens += new + history
    flops = 2.0 * tokens * weights + 2.0 * work.head_rows * head_weights
    flops += 4.0 * shape.layers * shape.heads * shape.head_dim * pairs
    num_bytes = shape.dtype_bytes * (weights + (head_weights if work.head_rows else 0))
    num_bytes += shape.kv_bytes_per_token * kv_tokens + tokens * shape.layers * shape.elementwise_bytes_per_token
    return num_passes * flops, float(num_passes * num_bytes)


def summary(comparisons: Sequence[Comparison], held_out: str) -> dict[str, KindError]:
    """Errors per kind, in order of first appearance."""
    from calibrate.fit.errors import kind_error

    by_kind: dict[str, list[float]] = {}
    for comparison in comparisons:
        by_kind.setdefault(comparison.kind, []).append(comparison.relative_error)
    return {kind: kind_error(np.array(errors), held_out) for kind, errors in by_kind.items()}


class Check(NamedTuple):
    """Errors per kind and, where there are any, the points behind them."""

    errors: dict[str, KindError]
    comparisons: list[Comparison]
