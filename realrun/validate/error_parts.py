"""Errors of the simulator about a replay, and their parts: metrics side by side, and the error taken apart.

The same scenario and tape are simulated three times, with one thing more of the simulator's each time: mechanism
(every work given its measured time, contention and all: what is left is scheduling), cost (the profile's times, streams
alone), contention (streams together: the simulation proper, whose metrics are the headline). Beside it stands the first
scheduling decision that differs. Not here: reading and writing (realrun.cli.replay). No torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from operator import truediv
from statistics import fmean
from typing import Any

from realrun.replay.measured_costs import MeasuredCosts, MeasuredHost, MeasuredWork, RecordedDraws, WakeLatency
from sim.costs.cost import CostModel, Demands
from sim.costs.profile import HostCosts, Profile
from sim.devices.contention import Contention
from sim.files.json_values import Json
from sim.hosts.simulated import RunLength, SimHost
from sim.interface.work import Work
from sim.metrics.compared import errors
from sim.metrics.records import RunRecord, WorkRecord
from sim.metrics.summary import Run, summarise
from sim.run.compiled import PYTHON
from sim.run.experiment import Experiment
from sim.run.simulate import OnWork, run_recorded

VALIDATION_SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    experiment: Experiment
    run: Run
    """Its metrics (sim.metrics.summary.summarise)."""
    works: list[MeasuredWork]
    wake: WakeLatency
    probed_s: Sequence[Sequence[float]] = ()
    """Seconds that fixed passes took before and after it (realrun.replay.machine_speed)."""

    def draws(self) -> RunLength:
        """Whose drafts are accepted: by the tape, or as the models were seen to. Raises ValueError if not recorded."""
        return self.experiment.draws() if self.experiment.is_dictated else RecordedDraws(self.works)


def result_of(summary: Mapping[str, Any], profile: Profile, verdicts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Content of `validate --json`: every run's verdict, and at the top that of the only or first one."""
    first = verdicts[0]
    return {
        "schema": VALIDATION_SCHEMA,
        "scenario_hash": summary["scenario_hash"],
        "profile": {"name": profile.name, "source": profile.source},
        "replay": summary["replay"],
        "policy": first["policy"],
        "ran_in": PYTHON,
        "metrics": first["metrics"],
        "decomposition": first["decomposition"],
        "runs": [*verdicts],
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


def judge(observed: Observed) -> dict[str, Any]:
    """The verdict on a run, for JSON. Raises ValueError where a cut replay lacks a kind of work."""
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
        name: errors(observed.run, summarise(record, num_warmups=first, num_cooldowns=last))
        for name, record in (("mechanism", mechanism), ("cost", cost), ("contention", simulated))
    }
    return {
        "policy": experiment.resolved.policy.name,
        "seed": experiment.seed,
        "metrics": decomposition["contention"],
        "decomposition": decomposition,
        "lookups": {"found": measured.num_hits, "missed": measured.num_misses},
        "machine": _machine(profile.host.probed_s, observed.probed_s),
        "divergence": first_divergence([work.record for work in observed.works], mechanism.works),
    }


def _machine(profiled_s: Sequence[float], probed_s: Sequence[Sequence[float]]) -> list[float] | None:
    """Times as long as with the profile that fixed passes took before and after the run; None where unknown."""
    if not probed_s or any(len(times_s) != len(profiled_s) or not times_s for times_s in probed_s):
        return None
    return [fmean(map(truediv, times_s, profiled_s)) for times_s in probed_s]


def first_divergence(works: Sequence[WorkRecord], simulated: Sequence[WorkRecord]) -> dict[str, Json] | None:
    """The first decision in which the two differ, by the real run's time; None if they scheduled alike throughout. A
    decision is which requests the next work of a stream carries, and what it does."""
    earliest: tuple[float, int, str] | None = None
    ours, theirs = _by_stream(works), _by_stream(simulated)
    for stream in ours:
        pairs = zip(ours[stream], theirs.get(stream, []), strict=False)
        differing = (number for number, (a, b) in enumerate(pairs) if _decision(a) != _decision(b))
        number = next(differing, min(len(ours[stream]), len(theirs.get(stream, []))))
        if number < len(ours[stream]) and (earliest is None or ours[stream][number].submitted_s < earliest[0]):
            earliest = ours[stream][number].submitted_s, number, stream
    if earliest is None:
        return None
    _, number, stream = earliest
    simulated_works = theirs.get(stream, [])
    other = simulated_works[number] if number < len(simulated_works) else None
    return {
        "stream": stream,
        "number": number,
        "real": _told(ours[stream][number]),
        "simulated": _told(other) if other is not None else None,
    }


def _by_stream(works: Sequence[WorkRecord]) -> dict[str, list[WorkRecord]]:
    streams: dict[str, list[WorkRecord]] = {}
    for work in sorted(works, key=lambda work: work.submitted_s):
        streams.setdefault(work.stream, []).append(work)
    return streams


def _decision(work: WorkRecord) -> tuple[str, str, tuple[int, ...], int, int]:
    return work.kind, work.model, tuple(sorted(work.requests)), work.draft_tokens, work.chunk_tokens


def _told(work: WorkRecord) -> dict[str, Json]:
    return {
        "time_s": work.submitted_s,
        "kind": work.kind,
        "model": work.model,
        "requests": list(work.requests),
        "draft_tokens": work.draft_tokens,
    }
