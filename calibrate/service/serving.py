"""A pair measured whole: its passes, and what serving adds to them on the threaded host.

`calibrate.measure` times passes one after the other in a loop. A policy's works take longer: they wait for threads to
wake up, and share interpreter and cores with whatever else the host does. A few requests served by bare lanes
(calibrate.service.lanes), one to three of them at once, beside workers that poll, and with pauses, say how much.
Not here: a profile's other constants (calibrate.fit), replaying a scenario (realrun.replay.run).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from statistics import fmean, median
from typing import Literal

import msgspec

from calibrate.fit.measured_table import TooFewPoints
from calibrate.fit.overlap import TURNS_S
from calibrate.measure.pair import DEFAULTS, PairSpec
from calibrate.measure.session import Session, Step
from calibrate.points import file as points_file
from calibrate.service.lanes import DRAFT_TOKENS, REQUESTS_PER_LANE, SEED, Served, Setting, serve, simulate
from calibrate.service.pauses import idle_ramp
from realrun.host.quiet import frozen_heap
from realrun.kernels.pair_kernels import PairKernels
from realrun.replay.measured import MeasuredWork, mean
from realrun.replay.pair_executor import PairExecutor
from realrun.replay.probe import probe
from sim.costs.forms.build import build_costs
from sim.costs.history import kind_in_service
from sim.costs.profile import IdleRamp, Profile
from sim.costs.profile_files import round_constant

LANES = (1, 2, 3)
MANY = (1, 2, 4)
"""Requests at once on one lane, each on its own or all together: as many as there are slots for."""
POLLERS = 2
STRIDE = 5
"""Of the first look at TURNS_S."""
REPEATS = 5
PAUSES_S = (0.01, 0.04, 0.16)
"""Of the device before every other request, to see what the first works after one lose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingCosts:
    """Seconds that serving adds."""

    prepare_s: float
    """From the moment when nothing but the threads kept a work from being issued to its issue."""
    result_s: float
    """From the end of a work to the act of the coroutine that awaited it."""
    served: dict[str, float]
    """By kind, how many times as long a pass lasts as the profile says."""
    look_s: float
    """Of the work under way, per look of an idle worker."""
    tau_s: float | None
    """Per kernel while another work runs; None where the device has its own streams, or one lane is all there is."""
    idle_ramp: IdleRamp | None
    probed_s: tuple[float, ...]
    """As realrun.replay.probe gives it, between the runs."""


def measure_pair(
    spec: PairSpec,
    points_path: Path,
    budget_s: float,
    *,
    form: Literal["compact", "table"] | None = None,
    is_serving: bool = True,
    repeats: int = REPEATS,
    on_step: Step = lambda stage, done, total: None,
    say: Callable[[str], None],
) -> Profile:
    """Time a pair, alone and in service. Goes on where an earlier measurement was killed.

    What nobody asked for by name and cannot be is told to `say` and left: a table of too few points, of which there
    is a compact profile, and serving in slots too short for its requests. Raises ValueError for the rest.
    """
    with points_file.alone(points_path):
        session = Session(spec, points_path, budget_s, on_step)
        if spec.device == "cuda":
            say(session.driver.said)
        try:
            profile = session.run(form or DEFAULTS[spec.device]["form"])
        except TooFewPoints as error:
            if form is not None:
                raise
            say(f"this profile is compact: {error}")
            profile = session.run("compact")
        if is_serving:
            try:
                return with_serving_costs(profile, session.bench.kernels, repeats=repeats)
            except ValueError as error:
                say(f"what serving adds was not measured: {error}")
        return profile


def with_serving_costs(profile: Profile, kernels: PairKernels, *, repeats: int = REPEATS) -> Profile:
    """`profile` with what serving adds measured on `kernels`, the pair that it was measured on.

    On a CPU, where issuing a pass is executing it, also the delay of concurrent passes, which have no priorities there,
    and what the first works after a pause lose. Raises ValueError where slots are too short for the requests served.
    """
    is_cpu = kernels.device.type == "cpu"
    executor = PairExecutor(kernels, seed=SEED)
    drafted = DRAFT_TOKENS if kernels.draft_model is not None else 0
    alone = Setting(draft_tokens=drafted)
    lanes = [number for number in LANES if number <= kernels.options.slots] if is_cpu else [1]
    several = [Setting(number, drafted) for number in lanes[1:]]
    many = max(number for number in MANY if number <= kernels.options.slots)
    busy = [alone, alone._replace(coroutines=many), alone._replace(rows=many)]
    if is_cpu:
        busy += [alone._replace(is_split=True), alone._replace(is_split=True, rows=many)]
    plain = [Setting(), Setting(coroutines=many), Setting(rows=many)]
    polled = alone._replace(num_pollers=POLLERS)
    service_s = serve(executor, alone).span_s / REQUESTS_PER_LANE
    pairs_s = [2.0 * service_s + pause_s for pause_s in PAUSES_S] if is_cpu else []
    paused = [alone._replace(period_s=period_s, burst=2) for period_s in pairs_s]
    settings = dict.fromkeys([*busy, *several, *plain, polled, *paused])
    # Round after round, so that a drift of the machine hits all alike.
    rounds, probed_s = [], []
    with frozen_heap():
        for _ in range(repeats):
            rounds.append({setting: serve(executor, setting) for setting in settings})
            probed_s.append(probe(kernels, executor.issuers[0]))
    start = _synchronous(profile) if is_cpu else _eager_chunks(profile)
    by_setting = {setting: [each[setting] for each in rounds] for setting in settings}
    of_busy = [by_setting[setting] for setting in dict.fromkeys(busy)]
    of_all = [by_setting[setting] for setting in dict.fromkeys((*busy, *plain))]
    found = ServingCosts(
        prepare_s=_typical_s(of_busy, lambda work: work.record.issue_start_s - work.eligible_s),
        result_s=_typical_s(of_busy, lambda work: work.reacted_s - work.record.end_s),
        served=served(start, of_all) if is_cpu else {},
        look_s=look_s([(each[alone], each[polled]) for each in rounds]),
        tau_s=None,
        idle_ramp=idle_ramp([[each[setting] for setting in (alone, *paused)] for each in rounds]) if paused else None,
        probed_s=tuple(map(fmean, zip(*probed_s, strict=True))),
    )
    if several:
        pairs = [_typical([(each[alone], each[setting]) for each in rounds]) for setting in several]
        found = replace(found, tau_s=best_tau(_completed(start, found), pairs))
    spread = max(run.length_s / median(each.length_s for each in runs) for runs in by_setting.values() for run in runs)
    return _completed(start, found, f"medians of {repeats} runs each, the slowest took {spread:.2f} times as long")


def _typical(pairs: Sequence[tuple[Served, Served]]) -> tuple[Served, Served]:
    """Of pairs of one round each, that in which the second took the middling number of times as long."""
    return sorted(pairs, key=lambda pair: pair[1].span_s / pair[0].span_s)[len(pairs) // 2]


def _synchronous(profile: Profile) -> Profile:
    return msgspec.structs.replace(
        profile,
        host=msgspec.structs.replace(profile.host, is_synchronous=True),
        overlap=msgspec.structs.replace(profile.overlap, has_priorities=False, takes_turns=True),
    )


def _eager_chunks(profile: Profile) -> Profile:
    """Real passes with prompt chunks are never captured (realrun.kernels.rows)."""
    return msgspec.structs.replace(profile, host=msgspec.structs.replace(profile.host, captures_chunks=False))


def _completed(profile: Profile, found: ServingCosts, how: str = "") -> Profile:
    host = msgspec.structs.replace(
        profile.host,
        step_s=round_constant(profile.host.step_s + found.prepare_s),
        result_s=round_constant(found.result_s),
        idle_ramp=found.idle_ramp,
        served=found.served,
        look_s=round_constant(found.look_s),
        probed_s=tuple(map(round_constant, found.probed_s)),
        source=f"{profile.host.source}; step_s, result_s, served and look_s: works of the threaded host, "
        f"{found.prepare_s * 1e6:.0f} us per work beside its pass and {found.result_s * 1e6:.0f} us from its end to "
        f"the next act; {how}",
    )
    overlap = profile.overlap
    if found.tau_s is not None:
        overlap = msgspec.structs.replace(
            overlap,
            tau_s=round_constant(found.tau_s),
            measured=True,
            source=f"{overlap.source}; tau_s: {LANES[1]} and more lanes of the threaded host at once",
        )
    return msgspec.structs.replace(profile, host=host, overlap=overlap)


def _typical_s(by_setting: Sequence[Sequence[Served]], of: Callable[[MeasuredWork], float]) -> float:
    """Mean over the works of a run, nan left out; of the runs of one setting the median; of the settings the mean."""
    return fmean(median(mean([of(work) for work in run.works]) for run in runs) for runs in by_setting)


def served(profile: Profile, by_setting: Sequence[Sequence[Served]]) -> dict[str, float]:
    """By kind, how many times as long the works of a run lasted in all as `profile` says: of the runs of one setting
    the median, of the settings the mean.

    Sums within a run: on a machine that others share some passes take much longer, and requests wait for these too.
    """
    costs = build_costs(profile, cuda_graph=False)
    found: dict[str, list[float]] = {}
    for runs in by_setting:
        ratios: dict[str, list[float]] = {}
        for run in runs:
            expected_s: dict[str, float] = {}
            for submitted in run.submitted:
                kind = kind_in_service(submitted)
                expected_s[kind] = expected_s.get(kind, 0.0) + costs.cost(submitted).device_s
            for kind, times_s in run.times_s().items():
                ratios.setdefault(kind, []).append(sum(times_s) / expected_s[kind])
        for kind, of_runs in ratios.items():
            found.setdefault(kind, []).append(median(of_runs))
    return {kind: round_constant(fmean(each)) for kind, each in found.items()}


def look_s(pairs: Sequence[tuple[Served, Served]]) -> float:
    """What a look takes from the work that is being issued, from runs without pollers and the same with, in pairs."""
    found = [(_issuing_s(polled) / _issuing_s(plain) - 1.0) / polled.setting.looks_per_s for plain, polled in pairs]
    return max(0.0, median(found))


def _issuing_s(run: Served) -> float:
    """Median seconds to issue a work, averaged over the kinds: a stall of the machine is none of the lanes' doing."""
    by_kind: dict[tuple[str, str], list[float]] = {}
    for work in run.works:
        record = work.record
        by_kind.setdefault((record.kind, record.model), []).append(record.issued_s - record.issue_start_s)
    return sum(len(times_s) * median(times_s) for times_s in by_kind.values()) / len(run.works)


def best_tau(profile: Profile, runs: Sequence[tuple[Served, Served]]) -> float:
    """The delay per kernel with which simulated lanes, and the works on them, take as many times as long as one lane
    alone as in `runs`: one lane and several, of one round each."""
    alone = {setting: simulate(profile, setting) for setting in {one.setting for one, _ in runs}}

    def loss(tau_s: float) -> float:
        overlap = msgspec.structs.replace(profile.overlap, tau_s=tau_s, measured=True)
        candidate = msgspec.structs.replace(profile, overlap=overlap)
        return sum(_misfit(pair, (alone[pair[0].setting], simulate(candidate, pair[1].setting))) for pair in runs)

    # Each is a simulation of every run: every few first, then those around the best.
    coarse = min(range(0, len(TURNS_S), STRIDE), key=lambda number: loss(TURNS_S[number]))
    return min(TURNS_S[max(0, coarse - STRIDE + 1) : coarse + STRIDE], key=loss)


def _misfit(runs: tuple[Served, Served], simulated: tuple[Served, Served]) -> float:
    """Squared logarithmic errors of how many times as long the second took, and each kind by its share of the works."""
    real_alone_s, real_s, alone_s, several_s = (run.times_s() for run in (*runs, *simulated))
    misfit = log(simulated[1].span_s / simulated[0].span_s * runs[0].span_s / runs[1].span_s) ** 2
    for kind, times_s in real_s.items():
        real = fmean(times_s) / fmean(real_alone_s[kind])
        misfit += len(times_s) / len(runs[1].works) * log(fmean(several_s[kind]) / fmean(alone_s[kind]) / real) ** 2
    return misfit
