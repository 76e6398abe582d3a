"""Errors of a profile, point by point and by kind: measured beside predicted, summarised as a profile states it.

Not here: which points a fit leaves out (calibrate.fit.pass_fit).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrate.fit.point_works import error_kind, timed_pass_of, work_of
from sim.costs.forms.build import build_costs
from sim.costs.profile import KindError, MeasuredPoint, Profile

Array = NDArray[np.float64]
DRAFT_KINDS = {"decode": "draft", "body": "draft_body", "prefill": "draft_prefill"}
"""Kinds of errors of a model -> the same of a pair's draft."""


def kind_error(errors: Array, held_out: str) -> KindError:
    """Summary of relative `errors` [points]."""
    if len(errors) == 0:
        return not_judged(held_out)
    percent = 100.0 * np.abs(errors)
    return KindError(
        mean_error_pct=round(float(percent.mean()), 2),
        max_error_pct=round(float(percent.max()), 2),
        points=len(errors),
        held_out=held_out,
    )


def not_judged(why: str) -> KindError:
    """The error of a kind of which nothing was measured, and why."""
    return KindError(mean_error_pct=None, max_error_pct=None, points=0, held_out=why)


def errors_of_draft(errors: Mapping[str, KindError]) -> dict[str, KindError]:
    """A draft's errors under the names that a pair's profile has for them."""
    return {name: errors[kind] for kind, name in DRAFT_KINDS.items()}


class PointError(NamedTuple):
    kind: str
    measured_s: float
    fitted_s: float

    @property
    def relative_error(self) -> float:
        return self.fitted_s / self.measured_s - 1.0


def compare_points(profile: Profile, points: Sequence[MeasuredPoint]) -> list[PointError]:
    costs = build_costs(profile)
    return [
        PointError(error_kind(timed), point.device_s, costs.cost(work_of(timed)).device_s)
        for point in points
        for timed in (timed_pass_of(point),)
    ]


def summary(comparisons: Sequence[PointError], held_out: str) -> dict[str, KindError]:
    """Errors per kind, in order of first appearance."""
    by_kind: dict[str, list[float]] = {}
    for comparison in comparisons:
        by_kind.setdefault(comparison.kind, []).append(comparison.relative_error)
    return {kind: kind_error(np.array(errors), held_out) for kind, errors in by_kind.items()}
