"""Fits eta and tau of sim.devices.contention to pairs of passes that ran together, and states the error on the rest.

The simulated device does the predicting, with the measured solo times as costs, so that the error is that of the
contention model alone. Not here: timing pairs (calibrate.measure.overlap).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product

import msgspec
import numpy as np
import simpy
from scipy.optimize import minimize

from calibrate.fit.fit_errors import Array, kind_error
from calibrate.points.point_works import work_of
from calibrate.points.points_file import Ran
from sim.costs.cost import Cost, Demands
from sim.costs.forms.build import build_costs
from sim.costs.profile import Overlap, Profile
from sim.costs.profile_files import round_constant
from sim.devices.contention import Contention
from sim.devices.ticket import SimTicket
from sim.hosts.simulated import SimHost
from sim.interface.work import Work

ETAS = (0.15, 0.25, 0.4, 0.6, 0.8, 1.0, 1.4, 2.0)
COARSE_IN = 3
"""One pair in this many chooses where the fit begins."""
TAUS_S = (1e-8, 1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4)
"""Coarse grid that the search begins with: the loss has flat places and several minima."""
ETA = (0.05, 4.0)
TAU_S = (1e-9, 1e-2)
TURNS_S = tuple(1e-6 * 1.1**step for step in range(60))
"""1 us to 0.3 ms in steps of 10 %: what a turn at the interpreter may last, the tau of a CPU."""
STEPS = (0.3, -0.1)
"""First steps of the refinements, in logs: a simplex that has shrunk too soon is opened again."""
LAUNCH_BOUND = 0.9
"""Share of its solo time from which on a work's launch is taken for what it lasts."""
THREE = "prefill, draft and verify launched at once, which no fit used; durations of all three"
HELD_OUT = "pairs of passes that the fit did not use; durations of both"


class Costs:
    """A profile's costs, eager and graphed."""

    def __init__(self, profile: Profile) -> None:
        self.eager = build_costs(profile, cuda_graph=False)
        self.graphed = build_costs(profile)


class _SoloCosts:
    """The measured solo time of each work; launching, demands and kernels as the profile has them.

    A work that lasts no longer alone than its launch has the profile's device time: the rest of it is waiting. Captured
    ones were held until all were launched, so that nothing waits for the host.
    """

    result_s = 0.0

    def __init__(self, costs: Costs, works: Sequence[Work], run: Ran) -> None:
        are_graphed = [place.launch == "graphed" for place in run.what.places]
        self._demands = costs.eager.demands
        self._inflation = (costs.graphed if all(are_graphed) else costs.eager).host_inflation
        self._costs = {}
        for work, solo_s, is_graphed in zip(works, run.solo_s, are_graphed, strict=True):
            cost = (costs.graphed if is_graphed else costs.eager).cost(work)
            is_waiting = cost.launch_s >= LAUNCH_BOUND * solo_s and not is_graphed
            device_s = min(cost.device_s, solo_s) if is_waiting else solo_s
            launch_s = 0.0 if is_graphed else min(cost.launch_s, solo_s)
            self._costs[work] = Cost(0.0, launch_s, device_s, cost.num_kernels)

    def cost(self, work: Work) -> Cost:
        return self._costs[work]

    def demands(self, work: Work) -> Demands:
        return self._demands(work)

    def host_inflation(self, num_issuers: int) -> float:
        return self._inflation(num_issuers)


class _NoDraws:
    def run_length(self, index: int, position: int, most: int) -> int:
        return 0


def fit_overlap(profile: Profile, together: Sequence[Ran], *, cores: float | None = None) -> Profile:
    """`profile` with `overlap` fitted to every other pair, kind by kind, its error on the rest under
    `errors.overlap`, and that on three passes at once, which no fit uses, under `errors.overlap_three`.

    `cores` of a CPU, per thread of a pass: works have one each and take turns at the interpreter, so tau alone is
    fitted. Fewer than four pairs fit nothing: the profile keeps its conservative default.
    """
    runs = _by_kinds([run for run in together if len(run.what.places) == 2])
    if len(runs) < 4:
        return profile
    used, held_out = runs[::2], runs[1::2]
    costs = Costs(msgspec.structs.replace(profile, overlap=Overlap(demand_floor=0.0)))
    contention = _best_turn(costs, used, cores) if cores is not None else _grid_then_simplex(costs, used)
    error = kind_error(np.concatenate([_errors(costs, contention, run) for run in held_out]), HELD_OUT)
    overlap = Overlap(
        eta_compute=contention.eta_compute,
        eta_bandwidth=contention.eta_bandwidth,
        tau_s=contention.tau_s,
        takes_turns=contention.takes_turns,
        demand_floor=0.0,
        measured=True,
        source=f"measured: {len(runs)} ordered pairs of prefill, draft and verify on two streams, half of them fitted",
    )
    errors = profile.errors | {"overlap": error}
    three = [_errors(costs, contention, run) for run in together if len(run.what.places) == 3]
    if three:
        errors["overlap_three"] = kind_error(np.concatenate(three), THREE)
    return msgspec.structs.replace(profile, overlap=overlap, errors=errors)


def _by_kinds(runs: Sequence[Ran]) -> list[Ran]:
    """Runs of equal kinds together, so that of each some are fitted and some held out: a few constants are told by few
    pairs alone, as the compute roof's eta by two prefills."""
    groups: dict[tuple[str, ...], list[Ran]] = {}
    for run in runs:
        groups.setdefault(tuple(place.kind for place in run.what.places), []).append(run)
    return [run for group in groups.values() for run in group]


def predict_s(costs: Costs, contention: Contention, run: Ran) -> tuple[float, ...]:
    """Durations of all works, as the simulated device has them."""
    works = [work_of(place) for place in run.what.places]
    host = SimHost(_SoloCosts(costs, works, run), _NoDraws(), contention=contention)
    streams = [host.stream(f"side {side}", priority=priority) for side, priority in enumerate(run.what.priorities)]
    tickets: dict[int, SimTicket] = {}

    def submit(side: int, _: simpy.Event) -> None:
        tickets[side] = host.run(works[side], streams[side])

    begins_s = min(run.offsets_s)
    for side, offset_s in enumerate(run.offsets_s):
        host.at(offset_s - begins_s, partial(submit, side))
    host.run_until()
    return tuple(tickets[side].end_s - tickets[side].submitted_s for side in range(len(streams)))


def _errors(costs: Costs, contention: Contention, run: Ran) -> Array:
    return np.asarray(np.array(predict_s(costs, contention, run)) / np.array(run.together_s) - 1.0)


def _loss(costs: Costs, runs: Sequence[Ran], contention: Contention) -> float:
    """Mean absolute log error."""
    errors = np.concatenate([_errors(costs, contention, run) for run in runs])
    return float(np.mean(np.abs(np.log1p(errors))))


def _best_turn(costs: Costs, runs: Sequence[Ran], cores: float) -> Contention:
    """Works that take turns on a CPU of so many cores: the tau of least loss."""
    candidates = [
        Contention(eta_compute=cores, eta_bandwidth=cores, tau_s=round_constant(tau_s), takes_turns=True)
        for tau_s in TURNS_S
    ]
    return min(candidates, key=partial(_loss, costs, runs))


def _grid_then_simplex(costs: Costs, runs: Sequence[Ran]) -> Contention:
    """The constants of least loss: the best of a grid, refined."""

    def contention(logs: Array) -> Contention:
        eta_compute, eta_bandwidth = (float(np.clip(np.exp(value), *ETA)) for value in logs[:2])
        return Contention(
            eta_compute=round_constant(eta_compute),
            eta_bandwidth=round_constant(eta_bandwidth),
            tau_s=round_constant(float(np.clip(np.exp(logs[2]), *TAU_S))),
        )

    def loss(logs: Array, of: Sequence[Ran] = runs) -> float:
        return _loss(costs, of, contention(logs))

    starts = [np.log(np.array(start)) for start in product(ETAS, ETAS, TAUS_S)]
    best = min(starts, key=partial(loss, of=runs[::COARSE_IN]))
    for step in STEPS:
        simplex = np.vstack([best, best + step * np.eye(len(best))])
        best = minimize(loss, best, method="Nelder-Mead", options={"maxfev": 150, "initial_simplex": simplex}).x
    return contention(best)
