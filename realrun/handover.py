"""What serving adds to the passes: threads handing over, and several issuers at once, measured on the threaded host.

`calibrate measure` times passes one after the other in a loop. A policy's works take longer: they wait for threads to
wake up, and share interpreter and cores with whatever else the host does. A few requests served by bare lanes
(realrun.lanes), one to three of them at once, beside workers that poll, and with pauses, say how much.
Not here: a profile's other constants (calibrate), replaying a scenario (realrun.replay).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import dist, expm1, log, log1p
from operator import mul
from statistics import fmean, median

import msgspec

from realrun.kernels import PairKernels
from realrun.lanes import DRAFT_TOKENS, REQUESTS_PER_LANE, SEED, Served, Setting, Simulated, serve, simulate
from realrun.pair import PairExecutor
from realrun.quiet import frozen_heap
from realrun.speed import probe
from sim.costs import Profile, build_costs
from sim.costs.history import SHORT_PAUSE_S, kind_in_service
from sim.costs.profile import IdleRamp

LANES = (1, 2, 3)
MANY = (1, 2, 4)
"""Requests at once on one lane, each on its own or all together: as many as there are slots for."""
POLLERS = 2
REPEATS = 5
PAUSES_S = (0.005, 0.025, 0.1)
"""Of the device between two requests, to see what the first works after one lose."""
PAUSE_SCALES_S = tuple(1e-3 * 1.2**step for step in range(36))
"""1 ms to 0.6 s."""
LEAST_PAUSE_S = 1e-3
"""Beyond the short ones that any two works have between them."""
LEAST_SHARE = 0.05
"""Of what is lost in all that the prompt is taken to lose, at least; and at most all but this."""
TAUS_S = tuple(1e-6 * 1.25**step for step in range(30))
"""1 us to 0.6 ms per kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
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
    """As realrun.speed gives it, between the runs."""


def with_handover(profile: Profile, kernels: PairKernels, *, repeats: int = REPEATS) -> Profile:
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
    plain = [Setting(), Setting(rows=many)]
    polled = alone._replace(num_pollers=POLLERS)
    service_s = serve(executor, alone).span_s / REQUESTS_PER_LANE
    paused = [alone._replace(period_s=service_s + pause_s) for pause_s in PAUSES_S] if is_cpu else []
    settings = dict.fromkeys([*busy, *several, *plain, polled, *paused])
    # Round after round, so that a drift of the machine hits all alike.
    rounds, probed_s = [], []
    with frozen_heap():
        for _ in range(repeats):
            rounds.append({setting: serve(executor, setting) for setting in settings})
            probed_s.append(probe(kernels, executor.issuers[0]))
    middle = {
        setting: sorted((each[setting] for each in rounds), key=lambda run: run.length_s)[repeats // 2]
        for setting in settings
    }
    spread = max(each[setting].length_s / middle[setting].length_s for each in rounds for setting in settings)
    start = _synchronous(profile) if is_cpu else _eager_chunks(profile)
    found = HandOver(
        **_between_works([middle[each] for each in dict.fromkeys(busy)]),
        served=served(start, [middle[each] for each in dict.fromkeys((*busy, *plain))]) if is_cpu else {},
        look_s=look_s([(each[alone], each[polled]) for each in rounds]),
        tau_s=None,
        idle_ramp=idle_ramp([[each[setting] for setting in (alone, *paused)] for each in rounds]) if paused else None,
        probed_s=tuple(map(fmean, zip(*probed_s, strict=True))),
    )
    if several:
        found = replace(found, tau_s=best_tau(_completed(start, found), [middle[setting] for setting in several]))
    return _completed(start, found, f"middle of {repeats} runs each, the slowest took {spread:.2f} times as long")


def _synchronous(profile: Profile) -> Profile:
    return msgspec.structs.replace(
        profile,
        host=msgspec.structs.replace(profile.host, is_synchronous=True),
        overlap=msgspec.structs.replace(profile.overlap, has_priorities=False, tau_is_each=True),
    )


def _eager_chunks(profile: Profile) -> Profile:
    """Real passes with prompt chunks are never captured (realrun.rows)."""
    return msgspec.structs.replace(profile, host=msgspec.structs.replace(profile.host, captures_chunks=False))


def _completed(profile: Profile, found: HandOver, how: str = "") -> Profile:
    host = msgspec.structs.replace(
        profile.host,
        step_s=_rounded(profile.host.step_s + found.prepare_s),
        result_s=_rounded(found.result_s),
        idle_ramp=found.idle_ramp,
        served=found.served,
        look_s=_rounded(found.look_s),
        probed_s=tuple(map(_rounded, found.probed_s)),
        source=f"{profile.host.source}; step_s, result_s, served and look_s: works of the threaded host, "
        f"{found.prepare_s * 1e6:.0f} us per work beside its pass and {found.result_s * 1e6:.0f} us from its end to "
        f"the next act; {how}",
    )
    overlap = profile.overlap
    if found.tau_s is not None:
        overlap = msgspec.structs.replace(
            overlap,
            tau_s=_rounded(found.tau_s),
            source=f"{overlap.source}; tau_s: {LANES[1]} and more lanes of the threaded host at once",
        )
    return msgspec.structs.replace(profile, host=host, overlap=overlap)


def _between_works(runs: Sequence[Served]) -> dict[str, float]:
    """The first constants of HandOver."""
    works = [work for run in runs for work in run.works]
    reactions_s = [work.reacted_s - work.record.end_s for work in works if work.reacted_s == work.reacted_s]
    return {
        "prepare_s": fmean(work.record.issue_start_s - work.eligible_s for work in works),
        "result_s": fmean(reactions_s),
    }


def served(profile: Profile, runs: Sequence[Served]) -> dict[str, float]:
    """By kind, how many times as long its works lasted in all as `profile` says: the mean over `runs`.

    Sums, not medians: on a machine that others share few passes take much longer, and requests wait for these too.
    """
    costs = build_costs(profile, cuda_graph=False)
    found: dict[str, list[float]] = {}
    for run in runs:
        expected_s: dict[str, float] = {}
        for submitted in run.submitted:
            kind = kind_in_service(submitted)
            expected_s[kind] = expected_s.get(kind, 0.0) + costs.cost(submitted).device_s
        for kind, times_s in run.times_s().items():
            found.setdefault(kind, []).append(sum(times_s) / expected_s[kind])
    return {kind: _rounded(fmean(ratios)) for kind, ratios in found.items()}


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


def idle_ramp(rounds: Sequence[Sequence[Served]]) -> IdleRamp | None:
    """What works lose after a pause: each round a run of one lane without pauses, and the same with longer and longer
    ones before each request. Medians over the rounds of means over the requests that a pause went before; None if
    nothing is lost that could be told apart.
    """
    busy_ttft_s = median(ttft_s for busy, *_ in rounds for ttft_s in busy.ttfts_s)
    pauses_s, lost_s, lost_at_once_s = [], [], []
    for number in range(1, len(rounds[0])):
        pairs = [(each[0], each[number]) for each in rounds]
        pauses_s.append(
            median(
                max(LEAST_PAUSE_S, run.setting.period_s - e2el_s - SHORT_PAUSE_S)
                for _, run in pairs
                for e2el_s in run.e2els_s
            )
        )
        lost_s.append(median(_longer_s(pair, lambda run: run.e2els_s) for pair in pairs))
        lost_at_once_s.append(median(_longer_s(pair, lambda run: run.ttfts_s) for pair in pairs))
    grown = {scale_s: [-expm1(-pause_s / scale_s) for pause_s in pauses_s] for scale_s in PAUSE_SCALES_S}
    fitted = {
        scale_s: sum(map(mul, lost_s, shares)) / sum(map(mul, shares, shares)) for scale_s, shares in grown.items()
    }
    pause_s = min(fitted, key=lambda scale_s: dist(lost_s, [fitted[scale_s] * share for share in grown[scale_s]]))
    if fitted[pause_s] <= 0.0 or lost_s[-1] <= 0.0:
        return None
    share = min(max(lost_at_once_s[-1] / lost_s[-1], LEAST_SHARE), 1.0 - LEAST_SHARE)
    return IdleRamp(
        lost_s=_rounded(fitted[pause_s]),
        pause_s=_rounded(pause_s),
        work_s=_rounded(-busy_ttft_s / log1p(-share)),
    )


def _longer_s(pair: tuple[Served, Served], of: Callable[[Served], list[float]]) -> float:
    """By how much requests of the second run took longer than the same ones of the first, but for the first one."""
    one, other = map(of, pair)
    return fmean(second - first for first, second in zip(one[1:], other[1:], strict=True))


def best_tau(profile: Profile, runs: Sequence[Served]) -> float:
    """The delay per kernel with which simulated lanes, and the works on them, take as long as in `runs`."""

    def loss(tau_s: float) -> float:
        overlap = msgspec.structs.replace(profile.overlap, tau_s=tau_s)
        candidate = msgspec.structs.replace(profile, overlap=overlap)
        return sum(_misfit(run, simulate(candidate, run.setting)) for run in runs)

    return min(TAUS_S, key=loss)


def _misfit(run: Served, simulated: Simulated) -> float:
    """Squared logarithmic errors of the span, and of each kind's mean time by its share of the works."""
    misfit = log(simulated.span_s / run.span_s) ** 2
    for kind, times_s in run.times_s().items():
        misfit += len(times_s) / len(run.works) * log(simulated.mean_s[kind] / fmean(times_s)) ** 2
    return misfit


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
