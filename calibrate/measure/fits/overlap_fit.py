"""Fit of sim.devices.contention to rates of passes beside each other, with the error on the rest. A GPU has a phi, and
a turn for prompts launched kernel by kernel. A CPU has a tau, because works take turns at the interpreter.

The simulated device's rates do the predicting, with the measured times alone as costs, so that the error is that of
the contention model alone. Not here: measuring rates (calibrate.measure.rates).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np

from calibrate.fit.fit_errors import Array, kind_error
from calibrate.fit.point_works import TimedPass, work_of
from calibrate.fit.points_file import Ran
from sim.costs.cost import CostModel, Demands
from sim.costs.forms.build import build_costs
from sim.costs.profile import ASSUMED_PHI, Overlap, Phi, Profile
from sim.costs.profile_files import round_constant
from sim.devices.contention import Contention, Regime, plain_rates

MIN_PAIRS = 4
PHIS = tuple(0.005 * step for step in range(201))
TURNS = tuple(0.02 * step for step in range(10, 51))
BRACKET_PCT, RESAMPLES = (5.0, 95.0), 400
"""Percentiles of phi over pairs that are drawn again."""
TURNS_S = tuple(1e-6 * 1.1**step for step in range(60))
"""1 us to 0.3 ms in steps of 10 %: what a turn at the interpreter may last, the tau of a CPU."""
THREE = "prefill, draft and verify beside each other, which no fit used; rates of all three"
HELD_OUT = "pairs of passes that the fit did not use; rates of both"


class BesidePasses(NamedTuple):
    """Passes beside each other, as the device knows them [sides]."""

    kernels_per_s: tuple[float, ...]
    """Alone, with all of them launched."""
    caps: tuple[float, ...]
    """Share of its time alone for which the device was busy, below 1 where its launches took longer."""
    demands: tuple[Demands, ...]
    rates: tuple[float, ...]
    """Device seconds per second."""
    is_launched: tuple[bool, ...]


def fit_overlap(profile: Profile, rates: Sequence[Ran], *, cores: float | None = None) -> Profile:
    """`profile` with `overlap` fitted to every other pair, kind by kind, its error on the rest under
    `errors.overlap`, and that on three passes at once, which no fit uses, under `errors.overlap_three`.

    `cores` of a CPU, per thread of a pass: works have one each and take turns at the interpreter. Fewer than MIN_PAIRS
    pairs fit nothing: the profile keeps its conservative default.
    """
    pairs = fitted_pairs(rates)
    if len(pairs) < MIN_PAIRS:
        return profile
    costs = build_costs(msgspec.structs.replace(profile, overlap=Overlap(demand_floor=0.0, phi=ASSUMED_PHI)))
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
        candidates = [Contention(regime=Regime.LEFTOVER, phi=phi) for phi in PHIS]
        contention = _best(used, candidates)
        # A prompt that is launched kernel by kernel, and a captured pass.
        mixed = [
            ran for ran in plain_pairs(rates) if {timed.launch for timed in ran.corun.passes} == {"eager", "graphed"}
        ]
        alone_s = {
            timed: one_s
            for ran in plain_pairs(rates)
            for timed, one_s in zip(ran.corun.passes, ran.alone_s, strict=True)
        }
        launched = [beside(costs, ran, alone_s) for ran in mixed]
        turn = min(TURNS, key=lambda turn: _loss(launched, contention, turn)) if launched else 1.0
        how = f"{how}; turn: {len(launched)} prompts beside captured rows"
        phi = _phi(contention.phi, [beside(costs, ran) for ran in pairs], candidates, turn, how)
        overlap = Overlap(phi=phi, source="phi of plain streams is measured")
    errors = profile.errors | {"overlap": kind_error(_errors(contention, held_out), HELD_OUT)}
    three = [beside(costs, ran) for ran in rates if len(ran.corun.passes) == 3]
    if three:
        errors["overlap_three"] = kind_error(_errors(contention, three), THREE)
    return msgspec.structs.replace(profile, overlap=overlap, errors=errors)


def fitted_pairs(rates: Sequence[Ran]) -> list[Ran]:
    """Pairs on the whole device that a fit may use: the captured ones, or all of a device that captures none."""
    pairs = plain_pairs(rates)
    return [ran for ran in pairs if ran.corun.is_captured] or pairs


def plain_pairs(rates: Sequence[Ran]) -> list[Ran]:
    return [ran for ran in rates if len(ran.corun.passes) == 2 and ran.corun.is_plain]


def halves(pairs: Sequence[Ran]) -> tuple[list[Ran], list[Ran]]:
    """Pairs to be fitted and held out: of equal kinds every other one, as few pairs alone tell some constants."""
    groups: dict[str, list[Ran]] = {}
    for ran in pairs:
        groups.setdefault(ran.corun.kinds, []).append(ran)
    used, held_out = ([ran for group in groups.values() for ran in group[first::2]] for first in (0, 1))
    return used, held_out


def beside(costs: CostModel, ran: Ran, whole_s: Mapping[TimedPass, float] | None = None) -> BesidePasses:
    """`whole_s` are seconds of passes alone, of which those of captured ones are the device's."""
    works, known_s = [work_of(timed) for timed in ran.corun.passes], whole_s or {}
    graphed = [timed._replace(launch="graphed") for timed in ran.corun.passes]
    devices_s = [min(alone_s, known_s.get(timed, alone_s)) for timed, alone_s in zip(graphed, ran.alone_s, strict=True)]
    caps = tuple(device_s / alone_s for device_s, alone_s in zip(devices_s, ran.alone_s, strict=True))
    return BesidePasses(
        tuple(costs.cost(work).num_kernels / device_s for work, device_s in zip(works, devices_s, strict=True)),
        caps,
        tuple(map(costs.demands, works)),
        tuple(rate * cap for rate, cap in zip(ran.rates, caps, strict=True)),
        tuple(timed.launch == "eager" for timed in ran.corun.passes),
    )


def predicted(contention: Contention, passes: BesidePasses, turn: float = 1.0) -> list[float]:
    """Rates of all sides, as the simulated device has them; `turn` as of Phi."""
    sides = zip(passes.kernels_per_s, passes.is_launched, strict=True)
    kernels_per_s = [per_s / turn if is_launched else per_s for per_s, is_launched in sides]
    return plain_rates(passes.caps, [0] * len(passes.caps), kernels_per_s, passes.demands, contention)


def _errors(contention: Contention, many: Sequence[BesidePasses], turn: float = 1.0) -> Array:
    """Errors of the time that each side of each takes, relative to the measured one [sides of all]."""
    return (
        np.array(
            [
                rate / predicted_rate
                for each in many
                for rate, predicted_rate in zip(each.rates, predicted(contention, each, turn), strict=True)
            ]
        )
        - 1.0
    )


def _loss(many: Sequence[BesidePasses], contention: Contention, turn: float = 1.0) -> float:
    return float(np.mean(np.abs(np.log1p(_errors(contention, many, turn)))))


def _best(used: Sequence[BesidePasses], candidates: Sequence[Contention]) -> Contention:
    return min(candidates, key=partial(_loss, used))


def _turns(cores: float, tau_s: float) -> Contention:
    return Contention(eta_compute=cores, eta_bandwidth=cores, tau_s=round_constant(tau_s), takes_turns=True)


def _phi(value: float, pairs: Sequence[BesidePasses], candidates: Sequence[Contention], turn: float, how: str) -> Phi:
    """Phi with the range of what the pairs say when they are drawn again, each as often as it comes."""
    losses = np.array([[_loss([each], candidate) for each in pairs] for candidate in candidates])
    random = np.random.default_rng(0)
    drawn = random.integers(len(pairs), size=(RESAMPLES, len(pairs)))
    phis = [candidates[losses[:, some].mean(axis=1).argmin()].phi for some in drawn]
    low, high = np.percentile(phis, BRACKET_PCT).tolist()
    value, low, high = (round(each, 3) for each in (value, min(low, value), max(high, value)))
    return Phi(value=value, low=low, high=high, turn=round(turn, 2), source=f"measured; {how}; range by resampling")
