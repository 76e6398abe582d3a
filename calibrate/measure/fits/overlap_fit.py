"""Fits what sim.devices.contention asks for to rates of passes beside each other, and states the error on the rest: phi
of a GPU's plain streams, tau of a CPU, where works take turns at the interpreter.

The simulated device's rates do the predicting, with the measured times alone as costs, so that the error is that of
the contention model alone. Not here: measuring rates (calibrate.measure.rates).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np

from calibrate.fit.fit_errors import Array, kind_error
from calibrate.fit.point_works import work_of
from calibrate.fit.points_file import Ran
from sim.costs.cost import CostModel, Demands
from sim.costs.forms.build import build_costs
from sim.costs.profile import Overlap, Phi, Profile
from sim.costs.profile_files import round_constant
from sim.devices.contention import Contention, Regime, plain_rates

MIN_PAIRS = 4
PHIS = tuple(0.005 * step for step in range(201))
BRACKET_PCT = 5.0, 95.0
"""Percentiles of the pairs' own phis."""
TURNS_S = tuple(1e-6 * 1.1**step for step in range(60))
"""1 us to 0.3 ms in steps of 10 %: what a turn at the interpreter may last, the tau of a CPU."""
THREE = "prefill, draft and verify beside each other, which no fit used; rates of all three"
HELD_OUT = "pairs of passes that the fit did not use; rates of both"


class Beside(NamedTuple):
    """Passes beside each other, as the device knows them [sides]."""

    kernels_per_s: tuple[float, ...]
    """Alone."""
    demands: tuple[Demands, ...]
    priorities: tuple[int, ...]
    rates: tuple[float, ...]


def fit_overlap(profile: Profile, rates: Sequence[Ran], *, cores: float | None = None) -> Profile:
    """`profile` with `overlap` fitted to every other pair, kind by kind, its error on the rest under
    `errors.overlap`, and that on three passes at once, which no fit uses, under `errors.overlap_three`.

    `cores` of a CPU, per thread of a pass: works have one each and take turns at the interpreter. Fewer than MIN_PAIRS
    pairs fit nothing: the profile keeps its conservative default.
    """
    pairs = fitted_pairs(rates)
    if len(pairs) < MIN_PAIRS:
        return profile
    costs = build_costs(msgspec.structs.replace(profile, overlap=Overlap(demand_floor=0.0)))
    used, held_out = ([beside(costs, ran) for ran in some] for some in halves(pairs))
    how = f"rates of {len(pairs)} pairs of passes on two streams, every other one of each kind fitted"
    if cores is not None:
        contention = _best(used, [_turns(cores, tau_s) for tau_s in TURNS_S])
        overlap = Overlap(
            eta_compute=contention.eta_compute,
            eta_bandwidth=contention.eta_bandwidth,
            tau_s=contention.tau_s,
            takes_turns=True,
            demand_floor=0.0,
            measured=True,
            source=f"measured: {how}",
        )
    else:
        contention = _best(used, [Contention(regime=Regime.LEFTOVER, phi=phi) for phi in PHIS])
        overlap = Overlap(phi=_phi(contention.phi, pairs, how), source="phi of plain streams is measured")
    errors = profile.errors | {"overlap": kind_error(_errors(contention, held_out), HELD_OUT)}
    three = [beside(costs, ran) for ran in rates if len(ran.corun.passes) == 3]
    if three:
        errors["overlap_three"] = kind_error(_errors(contention, three), THREE)
    return msgspec.structs.replace(profile, overlap=overlap, errors=errors)


def fitted_pairs(rates: Sequence[Ran]) -> list[Ran]:
    """Pairs on the whole device that a fit may use: the captured ones, or all of a device that captures none."""
    pairs = [ran for ran in rates if len(ran.corun.passes) == 2 and ran.corun.is_plain]
    return [ran for ran in pairs if ran.corun.is_captured] or pairs


def halves(pairs: Sequence[Ran]) -> tuple[list[Ran], list[Ran]]:
    """Pairs to be fitted and held out: of equal kinds every other one, beginning with the first. A few constants are
    told by few pairs alone, as the compute roof's eta by two long prefills."""
    groups: dict[str, list[Ran]] = {}
    for ran in pairs:
        groups.setdefault(ran.corun.kinds, []).append(ran)
    used, held_out = ([ran for group in groups.values() for ran in group[first::2]] for first in (0, 1))
    return used, held_out


def beside(costs: CostModel, ran: Ran) -> Beside:
    works = [work_of(timed) for timed in ran.corun.passes]
    return Beside(
        tuple(costs.cost(work).num_kernels / alone_s for work, alone_s in zip(works, ran.alone_s, strict=True)),
        tuple(map(costs.demands, works)),
        tuple(int(side == ran.corun.favoured) for side in range(len(works))),
        ran.rates,
    )


def predicted(contention: Contention, passes: Beside) -> list[float]:
    """Rates of all sides, as the simulated device has them."""
    ones = [1.0] * len(passes.rates)
    return plain_rates(ones, passes.priorities, passes.kernels_per_s, passes.demands, contention)


def _errors(contention: Contention, many: Sequence[Beside]) -> Array:
    """Errors of the time that each side of each takes, relative to the measured one [sides of all]."""
    return (
        np.array(
            [
                rate / predicted_rate
                for each in many
                for rate, predicted_rate in zip(each.rates, predicted(contention, each), strict=True)
            ]
        )
        - 1.0
    )


def _loss(many: Sequence[Beside], contention: Contention) -> float:
    """Mean absolute log error."""
    return float(np.mean(np.abs(np.log1p(_errors(contention, many)))))


def _best(used: Sequence[Beside], candidates: Sequence[Contention]) -> Contention:
    return min(candidates, key=partial(_loss, used))


def _turns(cores: float, tau_s: float) -> Contention:
    """Works that take turns on a CPU of so many cores."""
    return Contention(eta_compute=cores, eta_bandwidth=cores, tau_s=round_constant(tau_s), takes_turns=True)


def _phi(value: float, pairs: Sequence[Ran], how: str) -> Phi:
    """Phi with the bracket of the pairs' own: shares sum to 1, so a pair's is the sum of its rates less 1."""
    low, high = np.clip(np.percentile([sum(ran.rates) - 1.0 for ran in pairs], BRACKET_PCT), 0.0, 1.0).tolist()
    value, low, high = (round(each, 3) for each in (value, min(low, value), max(high, value)))
    return Phi(value=value, low=low, high=high, source=f"measured; {how}, nine of ten within the bracket")
