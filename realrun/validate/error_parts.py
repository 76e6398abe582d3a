"""Errors of the simulator about a replay, and their parts: metrics side by side, and the error taken apart.

The same scenario and tape are simulated three times, with one thing more of the simulator's each time: mechanism
(every work given its measured time, contention and all: what is left is scheduling), cost (the profile's times, streams
alone), contention (streams together: the simulation proper, whose metrics are the headline). Not here: where schedules
part (realrun.validate.divergence), reading and writing (realrun.cli.replay). No torch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from operator import truediv
from statistics import fmean
from typing import Any

from realrun.replay.measured_costs import MeasuredCosts, MeasuredHost, MeasuredWork, RecordedDraws, WakeLatency
from realrun.validate.divergence import first_divergence
from sim.costs.cost import CostModel, Demands
from sim.costs.profile import HostCosts, Profile
from sim.devices.contention import Contention
from sim.hosts.simulated import RunLength, SimHost
from sim.interface.request import Request
from sim.interface.work import Work
from sim.metrics.compared import PERCENTILES, errors
from sim.metrics.records import RunRecord, WorkRecord
from sim.metrics.summary import Run, summarise
from sim.run.compiled import PYTHON
from sim.run.experiment import Experiment
from sim.run.simulate import OnWork, run_recorded

VALIDATION_SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One run of a replay, as read back."""

    experiment: Experiment
    run: Run
    """Its metrics (sim.metrics.summary.summarise)."""
    requests: list[Request]
    works: list[MeasuredWork]
    wake: WakeLatency
    probed_s: Sequence[Sequence[float]] = ()
    """Seconds that fixed passes took before and after it (realrun.replay.machine_speed)."""

    @property
    def records(self) -> list[WorkRecord]:
        return [work.record for work in self.works]

    def draws(self) -> RunLength:
        """Whose drafts are accepted: the tape that dictated it, or what the models were seen to accept.

        Raises ValueError where that was not recorded.
        """
        return self.experiment.draws() if self.experiment.is_dictated else RecordedDraws(self.works)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRun:
    """One run beside its simulations."""

    observed: Observed
    simulated: RunRecord
    """Simulated with the profile's times and contention: what `lanesim compare` would say."""
    verdict: dict[str, Any]
    """`metrics`, `decomposition`, `lookups`, `machine`, `divergence`, `works`, for JSON."""


def result_of(summary: Mapping[str, Any], profile: Profile, judged: Sequence[JudgedRun]) -> dict[str, Any]:
    """Content of `validate --json`: every run's verdict, and at the top that of the only or first one."""
    first = judged[0].verdict
    return {
        "schema": VALIDATION_SCHEMA,
        "scenario_hash": summary["scenario_hash"],
        "profile": {"name": profile.name, "source": profile.source},
        "replay": summary["replay"],
        "policy": first["policy"],
        "ran_in": PYTHON,
        "metrics": first["metrics"],
        "decomposition": first["decomposition"],
        "runs": [each.verdict for each in judged],
    }


class StreamsAlone:
    """A cost model whose works ask nothing of the device and whose issuers do not slow each other."""

    def __init__(self, costs: CostModel) -> None:
        self._costs = costs
        self.cost = costs.cost
        self.result_s = costs.result_s
        self.host: HostCosts | None = getattr(costs, "host", None)

    def demands(self, work: Work) -> Demands:
        return Demands(0.0, 0.0)

    def host_inflation(self, num_issuers: int) -> float:
        return 1.0


def judge(observed: Observed) -> JudgedRun:
    """Simulate the run in every way and compare. Raises ValueError where a cut replay lacks a kind of work."""
    experiment = observed.experiment
    profile = experiment.resolved.profile
    costs = experiment.resolved.costs
    together = experiment.resolved.contention
    alone = Contention(eta_compute=inf, eta_bandwidth=inf)
    measured = MeasuredCosts(observed.works)
    draws = observed.draws()

    def simulated_on(build: Callable[[OnWork], SimHost]) -> RunRecord:
        return run_recorded(experiment, experiment.requests(), build)

    mechanism = simulated_on(lambda on_work: MeasuredHost(measured, draws, observed.wake, on_work=on_work))
    cost = simulated_on(lambda on_work: SimHost(StreamsAlone(costs), draws, contention=alone, on_work=on_work))
    simulated = simulated_on(lambda on_work: SimHost(costs, draws, contention=together, on_work=on_work))
    workload = experiment.scenario.workload
    first, last = workload.num_warmups, workload.num_cooldowns
    decomposition = {
        name: errors(observed.run, summarise(record, percentiles=PERCENTILES, num_warmups=first, num_cooldowns=last))
        for name, record in (("mechanism", mechanism), ("cost", cost), ("contention", simulated))
    }
    verdict = {
        "policy": experiment.resolved.policy.name,
        "seed": experiment.seed,
        "metrics": decomposition["contention"],
        "decomposition": decomposition,
        "lookups": {"found": measured.num_hits, "missed": measured.num_misses},
        "machine": _machine(profile.host.probed_s, observed.probed_s),
        "divergence": first_divergence(observed.requests, observed.records, mechanism),
        "works": _work_times(observed.records, simulated.works),
    }
    return JudgedRun(observed=observed, simulated=simulated, verdict=verdict)


def _machine(profiled_s: Sequence[float], probed_s: Sequence[Sequence[float]]) -> list[float] | None:
    """Ratios by which fixed passes took longer before and after the run as when the profile was measured; None where
    either is unknown."""
    if not probed_s or any(len(times_s) != len(profiled_s) or not times_s for times_s in probed_s):
        return None
    return [fmean(map(truediv, times_s, profiled_s)) for times_s in probed_s]


def _work_times(real: Sequence[WorkRecord], simulated: Sequence[WorkRecord]) -> dict[str, dict[str, float | None]]:
    """Mean device time per kind, seconds: real and simulated works, those alone on the device and those together."""
    kinds = list(dict.fromkeys(f"{work.kind} {work.model}" for work in real))
    times = {}
    sides = {"real": real, "simulated": simulated}
    split = {name: _alone_and_together(works) for name, works in sides.items()}
    for kind in kinds:
        times[kind] = {
            f"{name}_{how}_s": _mean_s([work for work in works if f"{work.kind} {work.model}" == kind])
            for name, parts in split.items()
            for how, works in zip(("alone", "together"), parts, strict=True)
        }
    return times


def _alone_and_together(works: Sequence[WorkRecord]) -> tuple[list[WorkRecord], list[WorkRecord]]:
    """Works that overlapped with none, and with some, of another stream. Those of one stream never overlap."""
    streams: dict[str, list[WorkRecord]] = {}
    for work in sorted(works, key=lambda work: work.start_s):
        streams.setdefault(work.stream, []).append(work)
    starts_s = {name: [work.start_s for work in works_of_stream] for name, works_of_stream in streams.items()}
    alone: list[WorkRecord] = []
    together: list[WorkRecord] = []
    for work in works:
        overlaps = False
        for name, works_of_stream in streams.items():
            last = bisect_left(starts_s[name], work.end_s) - 1
            overlaps = overlaps or (name != work.stream and last >= 0 and works_of_stream[last].end_s > work.start_s)
        (together if overlaps else alone).append(work)
    return alone, together


def _mean_s(works: Sequence[WorkRecord]) -> float | None:
    return sum(work.end_s - work.start_s for work in works) / len(works) if works else None
