"""Seconds that serving adds to passes, on the threaded host.

A session (calibrate.measure.session) times passes one after the other in a loop. A policy's works take longer: they
wait for threads to wake up, and share interpreter and cores with whatever else the host does. A few requests served by
a bare lane (calibrate.measure.lanes), one or more at once and beside workers that poll, say how much.
Not here: a profile's other constants (calibrate.measure.fits), replaying a scenario (realrun.replay.replays).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import NamedTuple

from calibrate.measure.fits.serving_costs import ServingCosts, Waits, started
from calibrate.measure.lanes import DRAFT_TOKENS, SEED, LaneSetting, ServedLane, serve
from realrun.host.garbage_collector import frozen_heap
from realrun.kernels.pair_kernels import PairKernels
from realrun.kernels.pair_options import decoding_shapes
from realrun.replay.machine_speed import probe
from realrun.replay.measured_costs import MeasuredWork, mean
from realrun.replay.pair_executor import PairExecutor
from sim.costs.forms.build import build_costs
from sim.costs.in_service import kind_in_service
from sim.costs.profile import Profile
from sim.costs.profile_files import round_constant

MANY = (1, 2, 4)
"""Requests at once on one lane, each alone or all together: as many as there are slots for."""
POLLERS = 2
REPEATS = 5


def measure_serving(profile: Profile, kernels: PairKernels, repeats: int = REPEATS) -> ServingCosts:
    """Costs of serving on `kernels`, the pair that `profile` was measured on.

    Raises ValueError where slots are too short for the requests served.
    """
    executor = PairExecutor(kernels, seed=SEED)
    return on_cpu(profile, executor, repeats) if kernels.device.type == "cpu" else on_gpu(executor, repeats)


def on_gpu(executor: PairExecutor, repeats: int) -> ServingCosts:
    """Decoding passes are captured first, as a replay's are; prompts are launched kernel by kernel on both."""
    kernels = executor.kernels
    busy, polled = _settings(kernels)
    for setting in busy:
        serve(executor, setting)
    if kernels.options.cuda_graphs:
        longest = kernels.options.padded_rows(max(setting.rows * setting.coroutines for setting in busy))
        drafted = polled.draft_tokens
        shapes = decoding_shapes(kernels.options, [drafted], has_draft=drafted > 0)
        for issuer in executor.issuers:
            kernels.warm(issuer, [shape for shape in shapes if shape.rows <= longest])
        for setting in busy:
            serve(executor, setting)
    rounds = _rounds(executor, [*busy, polled], repeats)
    of_busy = [[each.runs[setting] for each in rounds] for setting in busy]
    return ServingCosts(
        works=waits(of_busy, lambda work: not work.record.chunk_tokens),
        prompts=waits(of_busy, lambda work: work.record.chunk_tokens > 0),
        look_s=look_s([(each.runs[busy[0]], each.runs[polled]) for each in rounds]),
        probed_s=_probed_s(rounds),
        how=_how(rounds),
    )


def on_cpu(profile: Profile, executor: PairExecutor, repeats: int) -> ServingCosts:
    """Issuing a pass is executing it there: also how many times as long a pass lasts as in a loop."""
    busy, polled = _settings(executor.kernels)
    serve(executor, busy[0])
    every = dict.fromkeys((*busy, *(setting._replace(draft_tokens=0) for setting in busy)))
    rounds = _rounds(executor, [*every, polled], repeats)
    return ServingCosts(
        works=waits([[each.runs[setting] for each in rounds] for setting in busy]),
        look_s=look_s([(each.runs[busy[0]], each.runs[polled]) for each in rounds]),
        probed_s=_probed_s(rounds),
        served=served(started(profile, is_cpu=True), [[each.runs[setting] for each in rounds] for setting in every]),
        how=_how(rounds),
    )


def _settings(kernels: PairKernels) -> tuple[list[LaneSetting], LaneSetting]:
    """One request at once and, where there are slots for them, several, each alone or all together; the first beside
    workers that poll."""
    alone = LaneSetting(draft_tokens=DRAFT_TOKENS if kernels.draft_model is not None else 0)
    many = max(number for number in MANY if number <= kernels.options.slots)
    busy = [*dict.fromkeys((alone, alone._replace(coroutines=many), alone._replace(rows=many)))]
    return busy, alone._replace(num_pollers=POLLERS)


class _Round(NamedTuple):
    runs: dict[LaneSetting, ServedLane]
    probed_s: tuple[float, ...]


def _rounds(executor: PairExecutor, settings: Sequence[LaneSetting], repeats: int) -> list[_Round]:
    """Every setting once, then all again, so that a drift of the machine hits all alike."""
    with frozen_heap():
        return [
            _Round(
                {setting: serve(executor, setting) for setting in settings},
                probe(executor.kernels, executor.issuers),
            )
            for _ in range(repeats)
        ]


def _probed_s(rounds: Sequence[_Round]) -> tuple[float, ...]:
    return tuple(map(fmean, zip(*(each.probed_s for each in rounds), strict=True)))


def _how(rounds: Sequence[_Round]) -> str:
    times = [[each.runs[setting].span_s for each in rounds] for setting in rounds[0].runs]
    slowest = max(max(of_setting) / median(of_setting) for of_setting in times)
    return f"medians of {len(rounds)} runs each, the slowest took {slowest:.2f} times as long"


def waits(by_setting: Sequence[Sequence[ServedLane]], counts: Callable[[MeasuredWork], bool] = lambda _: True) -> Waits:
    """Means over the works that count of a run, nan left out; of the runs of one setting the median; of the settings
    the mean."""

    def typical_s(of: Callable[[MeasuredWork], float]) -> float:
        return fmean(
            median(mean([of(work) for work in run.works if counts(work)]) for run in runs) for runs in by_setting
        )

    return Waits(
        typical_s(lambda work: work.cost.prepare_s),
        typical_s(lambda work: work.reacted_s - work.record.end_s),
    )


def served(profile: Profile, by_setting: Sequence[Sequence[ServedLane]]) -> dict[str, float]:
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


def look_s(pairs: Sequence[tuple[ServedLane, ServedLane]]) -> float:
    """Seconds that a look takes from the work that is being issued, from runs without pollers and the same with, in
    pairs."""
    looks_s = [(_issuing_s(polled) / _issuing_s(plain) - 1.0) / polled.setting.looks_per_s for plain, polled in pairs]
    return max(0.0, median(looks_s))


def _issuing_s(run: ServedLane) -> float:
    """Median seconds to issue a work, averaged over the kinds: a stall of the machine is none of the lanes' doing."""
    by_kind: dict[tuple[str, str], list[float]] = {}
    for work in run.works:
        record = work.record
        by_kind.setdefault((record.kind, record.model), []).append(record.issued_s - record.issue_start_s)
    return sum(len(times_s) * median(times_s) for times_s in by_kind.values()) / len(run.works)
