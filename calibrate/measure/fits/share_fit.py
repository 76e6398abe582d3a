"""Fits the curve of shares of the multiprocessors (sim.devices.partition) to co-runs of two passes on shares.

Each pass was timed on the whole GPU, on its share alone, and there beside the other. Captured passes are fitted, by the
logarithms of all their slowdowns at once. Not here: measuring (calibrate.measure.rates), the shipped constants
(docs/validation/lanes.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import truediv
from statistics import median
from typing import NamedTuple

import msgspec
import numpy as np

from calibrate.fit.fit_errors import Array, kind_error
from calibrate.fit.point_works import TimedPass, work_of
from calibrate.fit.points_file import Ran
from sim.costs.cost import Demands
from sim.costs.forms.build import build_costs
from sim.costs.profile import Profile, ShareCurve
from sim.costs.profile_files import round_constant
from sim.devices import partition
from sim.devices.partition import MEASURED, rates_on_shares

ROOF, ROOF_BEGINS = "bandwidth_together", (0.7, 0.8, 0.9)
"""Fits begin at each, since it changes nothing above all that was read, nor below what one pass reads alone."""
BOUNDS = {
    "saturated_at": (0.01, 1.0),
    "queue_slowdown": (0.0, 30.0),
    ROOF: (0.3, 1.0),
}
"""Constants that are fitted, and between which values."""
MIN_SHARES = 3
"""Shares that must have been measured: the outer ones are fitted to say how far off those between are."""
HELD_OUT = "passes on shares between the outermost two, alone and side by side; fitted on those two"


class SharePair(NamedTuple):
    """Two passes on shares; slowdowns are times relative to the whole GPU alone, of each."""

    share_pct: int
    shares: tuple[float, ...]
    demands: tuple[Demands, ...]
    alone: tuple[float, ...]
    together: tuple[float, ...]


def fit_shares(profile: Profile, rates: Sequence[Ran]) -> Profile:
    """`profile` with the curve that was measured, and its error under `errors.partition`; as it was where too few
    shares were."""
    pairs = pairs_of(profile, rates)
    percents = sorted({pair.share_pct for pair in pairs})
    if len(percents) < MIN_SHARES:
        return profile
    outer = [pair for pair in pairs if pair.share_pct in (percents[0], percents[-1])]
    between = [pair for pair in pairs if pair not in outer]
    error = kind_error(np.expm1(_logs(fitted(outer), between)), HELD_OUT)
    curve = msgspec.structs.replace(
        fitted(pairs),
        source=f"measured: {len(pairs)} pairs of prefill and decode on green contexts, captured",
        errors_pct={"shares between": round(error.mean_error_pct or 0.0, 1)},
    )
    overlap = msgspec.structs.replace(profile.overlap, partition=curve)
    return msgspec.structs.replace(profile, overlap=overlap, errors=profile.errors | {"partition": error})


def fitted(pairs: Sequence[SharePair]) -> ShareCurve:
    """The constants of least squares, with their standard errors."""
    from scipy.optimize import least_squares

    def curve(values: Array) -> ShareCurve:
        return msgspec.structs.replace(MEASURED, **dict(zip(BOUNDS, map(float, values), strict=True)))

    others, bounds = (
        [getattr(MEASURED, name) for name in BOUNDS if name != ROOF],
        tuple(zip(*BOUNDS.values(), strict=True)),
    )
    solutions = [
        least_squares(lambda values: _logs(curve(values), pairs), [*others, roof], bounds=bounds)
        for roof in ROOF_BEGINS
    ]
    solution = min(solutions, key=lambda each: float(each.cost))
    variance = 2.0 * solution.cost / (len(solution.fun) - len(BOUNDS))
    errors = np.sqrt(variance * np.diag(np.linalg.pinv(solution.jac.T @ solution.jac)))
    return msgspec.structs.replace(
        MEASURED,
        **{name: round_constant(float(value)) for name, value in zip(BOUNDS, solution.x, strict=True)},
        standard_errors={
            name: round_constant(float(error)) for name, error in zip(BOUNDS, errors, strict=True) if error
        },
    )


def said(curve: ShareCurve) -> str:
    """The constants that were measured.

    >>> said(msgspec.structs.replace(MEASURED, standard_errors={"saturated_at": 0.02}))
    'saturated_at 0.3 ± 0.02'
    """
    return ", ".join(
        f"{name} {getattr(curve, name):.2g} ± {error:.1g}" for name, error in curve.standard_errors.items()
    )


def pairs_of(profile: Profile, rates: Sequence[Ran]) -> list[SharePair]:
    """Captured pairs of which each pass was timed on the whole GPU, too."""
    whole: dict[TimedPass, list[float]] = {}
    for ran in rates:
        if ran.corun.share_pct is None:
            for timed, alone_s in zip(ran.corun.passes, ran.alone_s, strict=True):
                whole.setdefault(timed, []).append(alone_s)
    costs = build_costs(
        msgspec.structs.replace(profile, overlap=msgspec.structs.replace(profile.overlap, demand_floor=0.0))
    )
    shared = []
    for ran in rates:
        share_pct, passes = ran.corun.share_pct, ran.corun.passes
        if share_pct is None or not ran.corun.is_captured or not {*passes} <= whole.keys():
            continue
        whole_s = [median(whole[timed]) for timed in passes]
        shared.append(
            SharePair(
                share_pct,
                ran.shares,
                tuple(costs.demands(work_of(timed)) for timed in passes),
                tuple(map(truediv, ran.alone_s, whole_s)),
                tuple(map(truediv, ran.together_s, whole_s)),
            )
        )
    return shared


def _logs(curve: ShareCurve, pairs: Sequence[SharePair]) -> Array:
    """Logarithms of predicted slowdowns relative to measured ones [pairs * 4]: alone, then together."""
    logs: list[float] = []
    for pair in pairs:
        portions = [partition.Portion(share, True) for share in pair.shares]
        alone = [curve.slowdown(*demands, share) for demands, share in zip(pair.demands, pair.shares, strict=True)]
        rates = rates_on_shares(portions, (1.0, 1.0), pair.demands, curve)
        predicted = [*alone, *(1.0 / rate for rate in rates)]
        logs += np.log(np.array(predicted) / np.array([*pair.alone, *pair.together])).tolist()
    return np.array(logs)
