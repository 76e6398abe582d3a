"""Seconds that serving adds to passes, on the threaded host.

A session (calibrate.measure.session) times passes one after the other in a loop. A policy's works take longer: they
wait for threads to wake up, and share interpreter and cores with whatever else the host does. A few requests served by
bare lanes (calibrate.measure.lanes), one to three of them at once, beside workers that poll, and with pauses, say how
much.
Not here: a profile's other constants (calibrate.measure.fits), replaying a scenario (realrun.replay.replays).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log
from statistics import fmean, median
from typing import NamedTuple

import msgspec
from msgspec import structs

from calibrate.measure.fits.overlap_fit import TURNS_S
from calibrate.measure.lanes import DRAFT_TOKENS, REQUESTS_PER_LANE, SEED, LaneSetting, ServedLanes, serve, simulate
from calibrate.measure.pauses import idle_ramp
from realrun.host.garbage_collector import frozen_heap
from realrun.kernels.pair_kernels import PairKernels
from realrun.kernels.pair_options import decoding_shapes
from realrun.replay.machine_speed import probe
from realrun.replay.measured_costs import MeasuredWork, mean
from realrun.replay.pair_executor import PairExecutor
from sim.costs.forms.build import build_costs
from sim.costs.in_service import kind_in_service
from sim.costs.profile import IdleRamp, Profile
from sim.costs.profile_files import round_constant

LANES = (1, 2, 3)
MANY = (1, 2, 4)
"""Requests at once on one lane, each alone or all together: as many as there are slots for."""
POLLERS = 2
STRIDE = 5
"""Stride of the first look at TURNS_S."""
REPEATS = 5
PAUSES_S = (0.01, 0.04, 0.16)
"""Pauses of the device before every other request, to see what the first works after one lose."""


class Waits(NamedTuple):
    """Seconds that serving adds to a work."""

    prepare_s: float
    """Seconds from the moment when nothing but the threads kept it from being issued to its issue."""
    result_s: float
    """Seconds from its end to the act of the coroutine that awaited it."""


class ServingCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that serving adds."""

    works: Waits
    """All works; where passes are captured, those that are: decoding ones."""
    prompts: Waits | None = None
    """Works with prompt chunks, launched kernel by kernel, where the others are captured."""
    look_s: float
    """Seconds that the work under way loses per look of an idle worker."""
    probed_s: tuple[float, ...]
    """Seconds of fixed passes between the runs, by realrun.replay.machine_speed."""
    served: dict[str, float] = {}
    """Ratios by kind: how many times as long a pass lasts as the profile says."""
    tau_s: float | None = None
    """Seconds per kernel while another work runs; None where the device has streams, or there is one lane."""
    idle_ramp: IdleRamp | None = None
    how: str = ""
    """Runs that this is made of."""


def measure_serving(profile: Profile, kernels: PairKernels, repeats: int = REPEATS) -> ServingCosts:
    """Costs of serving on `kernels`, the pair that `profile` was measured on.

    Raises ValueError where slots are too short for the requests served.
    """
    executor = PairExecutor(kernels, seed=SEED)
    return on_cpu(profile, executor, repeats) if kernels.device.type == "cpu" else on_gpu(executor, repeats)


def on_gpu(executor: PairExecutor, repeats: int) -> ServingCosts:
    """Decoding passes are captured first, as a replay's are; prompts are launched kernel by kernel on both."""
    kernels = executor.kernels
    alone, many = _alone(kernels)
    busy = [alone, alone._replace(coroutines=many), alone._replace(rows=many)]
    polled = alone._replace(num_pollers=POLLERS)
    for setting in busy:
        serve(executor, setting)
    if kernels.options.cuda_graphs:
        longest = kernels.options.padded_rows(many)
        shapes = decoding_shapes(kernels.options, [alone.draft_tokens], has_draft=alone.draft_tokens > 0)
        for issuer in executor.issuers:
            kernels.warm(issuer, [shape for shape in shapes if shape.rows <= longest])
        for setting in busy:
            serve(executor, setting)
    rounds = _rounds(executor, [*busy, polled], repeats)
    of_busy = [[each.runs[setting] for each in rounds] for setting in busy]
    return ServingCosts(
        works=waits(of_busy, lambda work: not work.record.chunk_tokens),
        prompts=waits(of_busy, lambda work: work.record.chunk_tokens > 0),
        look_s=look_s([(each.runs[alone], each.runs[polled]) for each in rounds]),
        probed_s=_probed_s(rounds),
        how=_how(rounds),
    )


def on_cpu(profile: Profile, executor: PairExecutor, repeats: int) -> ServingCosts:
    """Issuing a pass is executing it there: also the delay of concurrent passes, which have no priorities, and what the
    first works after a pause lose."""
    kernels = executor.kernels
    alone, many = _alone(kernels)
    several = [alone._replace(lanes=number) for number in LANES[1:] if number <= kernels.options.slots]
    split = alone._replace(is_split=True)
    busy = [alone, alone._replace(coroutines=many), alone._replace(rows=many), split, split._replace(rows=many)]
    plain = [LaneSetting(), LaneSetting(coroutines=many), LaneSetting(rows=many)]
    polled = alone._replace(num_pollers=POLLERS)
    service_s = serve(executor, alone).span_s / REQUESTS_PER_LANE
    paused = [alone._replace(period_s=2.0 * service_s + pause_s, burst=2) for pause_s in PAUSES_S]
    rounds = _rounds(executor, [*busy, *several, *plain, polled, *paused], repeats)
    by_setting = {setting: [each.runs[setting] for each in rounds] for setting in rounds[0].runs}
    costs = ServingCosts(
        works=waits([by_setting[setting] for setting in dict.fromkeys(busy)]),
        look_s=look_s([(each.runs[alone], each.runs[polled]) for each in rounds]),
        probed_s=_probed_s(rounds),
        served=served(_started(profile, is_cpu=True), [by_setting[each] for each in dict.fromkeys((*busy, *plain))]),
        idle_ramp=idle_ramp([[each.runs[setting] for setting in (alone, *paused)] for each in rounds]),
        how=_how(rounds),
    )
    if several:
        pairs = [_typical([(each.runs[alone], each.runs[setting]) for each in rounds]) for setting in several]
        costs = structs.replace(costs, tau_s=best_tau(completed(profile, costs, is_cpu=True), pairs))
    return costs


def _alone(kernels: PairKernels) -> tuple[LaneSetting, int]:
    """One lane, and how many requests at once there are slots for."""
    drafted = DRAFT_TOKENS if kernels.draft_model is not None else 0
    return LaneSetting(draft_tokens=drafted), max(number for number in MANY if number <= kernels.options.slots)


class _Round(NamedTuple):
    runs: dict[LaneSetting, ServedLanes]
    probed_s: tuple[float, ...]


def _rounds(executor: PairExecutor, settings: Sequence[LaneSetting], repeats: int) -> list[_Round]:
    """Every setting once, then all again, so that a drift of the machine hits all alike."""
    with frozen_heap():
        return [
            _Round(
                {setting: serve(executor, setting) for setting in dict.fromkeys(settings)},
                probe(executor.kernels, executor.issuers),
            )
            for _ in range(repeats)
        ]


def _probed_s(rounds: Sequence[_Round]) -> tuple[float, ...]:
    return tuple(map(fmean, zip(*(each.probed_s for each in rounds), strict=True)))


def _how(rounds: Sequence[_Round]) -> str:
    times = [[each.runs[setting].length_s for each in rounds] for setting in rounds[0].runs]
    slowest = max(max(of_setting) / median(of_setting) for of_setting in times)
    return f"medians of {len(rounds)} runs each, the slowest took {slowest:.2f} times as long"


def _typical(pairs: Sequence[tuple[ServedLanes, ServedLanes]]) -> tuple[ServedLanes, ServedLanes]:
    """The pair, each of one round, in which the second took the middling number of times as long."""
    return sorted(pairs, key=lambda pair: pair[1].span_s / pair[0].span_s)[len(pairs) // 2]


def _started(profile: Profile, *, is_cpu: bool) -> Profile:
    """`profile` with the rules of its host: on a CPU a pass runs while it is issued, and none goes first; on a GPU real
    passes with prompt chunks are never captured (realrun.kernels.host_slots)."""
    if not is_cpu:
        return structs.replace(profile, host=structs.replace(profile.host, captures_chunks=False))
    return structs.replace(
        profile,
        host=structs.replace(profile.host, is_synchronous=True),
        overlap=structs.replace(profile.overlap, has_priorities=False, takes_turns=True),
    )


def completed(profile: Profile, costs: ServingCosts, *, is_cpu: bool) -> Profile:
    """`profile` in service."""
    profile = _started(profile, is_cpu=is_cpu)
    prompts, overlap = costs.prompts, profile.overlap
    said = f"works of the threaded host, {_told(costs.works)}"
    if prompts is not None:
        said = f"captured {said}; eager_step_s and eager_result_s: its works on prompts, eager, {_told(prompts)}"
    host = structs.replace(
        profile.host,
        step_s=round_constant(profile.host.step_s + costs.works.prepare_s),
        result_s=round_constant(costs.works.result_s),
        eager_step_s=None if prompts is None else round_constant(profile.host.step_s + prompts.prepare_s),
        eager_result_s=None if prompts is None else round_constant(prompts.result_s),
        idle_ramp=costs.idle_ramp,
        served=costs.served,
        look_s=round_constant(costs.look_s),
        probed_s=tuple(map(round_constant, costs.probed_s)),
        source=f"{profile.host.source}; step_s, result_s, served and look_s: {said}; {costs.how}",
    )
    if costs.tau_s is not None:
        overlap = structs.replace(
            overlap,
            tau_s=round_constant(costs.tau_s),
            measured=True,
            source=f"{overlap.source}; tau_s: {LANES[1]} and more lanes of the threaded host at once",
        )
    return structs.replace(profile, host=host, overlap=overlap)


def _told(waits: Waits) -> str:
    return (
        f"{waits.prepare_s * 1e6:.0f} us per work beside its pass and {waits.result_s * 1e6:.0f} us from its end to "
        "the next act"
    )


def waits(
    by_setting: Sequence[Sequence[ServedLanes]], counts: Callable[[MeasuredWork], bool] = lambda _: True
) -> Waits:
    """Means over the works that count of a run, nan left out; of the runs of one setting the median; of the settings
    the mean."""

    def typical_s(of: Callable[[MeasuredWork], float]) -> float:
        return fmean(
            median(mean([of(work) for work in run.works if counts(work)]) for run in runs) for runs in by_setting
        )

    return Waits(
        typical_s(lambda work: work.record.issue_start_s - work.eligible_s),
        typical_s(lambda work: work.reacted_s - work.record.end_s),
    )


def served(profile: Profile, by_setting: Sequence[Sequence[ServedLanes]]) -> dict[str, float]:
    """Ratios by kind, how many times as long the works of a run lasted in all as `profile` says: the median of the
    runs of one setting, the mean of the settings.

    Sums within a run: on a machine that others share some passes take much longer, and requests wait for these too.
    """
    costs = build_costs(profile, cuda_graph=False)
    by_kind: dict[str, list[float]] = {}
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
            by_kind.setdefault(kind, []).append(median(of_runs))
    return {kind: round_constant(fmean(each)) for kind, each in by_kind.items()}


def look_s(pairs: Sequence[tuple[ServedLanes, ServedLanes]]) -> float:
    """Seconds that a look takes from the work that is being issued, from runs without pollers and the same with, in
    pairs."""
    looks_s = [(_issuing_s(polled) / _issuing_s(plain) - 1.0) / polled.setting.looks_per_s for plain, polled in pairs]
    return max(0.0, median(looks_s))


def _issuing_s(run: ServedLanes) -> float:
    """Median seconds to issue a work, averaged over the kinds: a stall of the machine is none of the lanes' doing."""
    by_kind: dict[tuple[str, str], list[float]] = {}
    for work in run.works:
        record = work.record
        by_kind.setdefault((record.kind, record.model), []).append(record.issued_s - record.issue_start_s)
    return sum(len(times_s) * median(times_s) for times_s in by_kind.values()) / len(run.works)


def best_tau(profile: Profile, runs: Sequence[tuple[ServedLanes, ServedLanes]]) -> float:
    """The delay per kernel with which simulated lanes, and the works on them, take as many times as long as one lane
    alone as in `runs`: one lane and several, of one round each."""
    alone = {setting: simulate(profile, setting) for setting in {one.setting for one, _ in runs}}

    def loss(tau_s: float) -> float:
        overlap = structs.replace(profile.overlap, tau_s=tau_s, measured=True)
        candidate = structs.replace(profile, overlap=overlap)
        return sum(_misfit(pair, (alone[pair[0].setting], simulate(candidate, pair[1].setting))) for pair in runs)

    # Each is a simulation of every run: every few first, then those around the best.
    coarse = min(range(0, len(TURNS_S), STRIDE), key=lambda number: loss(TURNS_S[number]))
    return min(TURNS_S[max(0, coarse - STRIDE + 1) : coarse + STRIDE], key=loss)


def _misfit(runs: tuple[ServedLanes, ServedLanes], simulated: tuple[ServedLanes, ServedLanes]) -> float:
    """Squared logarithmic errors of how many times as long the second took, and each kind by its share of the works."""
    real_alone_s, real_s, alone_s, several_s = (run.times_s() for run in (*runs, *simulated))
    misfit = log(simulated[1].span_s / simulated[0].span_s * runs[0].span_s / runs[1].span_s) ** 2
    for kind, times_s in real_s.items():
        real = fmean(times_s) / fmean(real_alone_s[kind])
        misfit += len(times_s) / len(runs[1].works) * log(fmean(several_s[kind]) / fmean(alone_s[kind]) / real) ** 2
    return misfit
