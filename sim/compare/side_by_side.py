"""Policies side by side on the same draws: runs, means with intervals, paired differences, and what they rest on.

Replication r of a seed draws from child r of it, for every policy, so that differences are taken draw by draw. Where
overlap of streams was not measured, the first run of policies with several streams on a GPU is simulated at both ends
of phi's bracket, too, and an order of two policies is stated only if all agree. Where the kind of prompts is open, so
are those of least and of most acceptance. Not here: one run (sim.run.simulate), its length (sim.compare.run_length).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import isclose
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from sim.compare.capacity import load_after
from sim.compare.point_runs import Point, PointRun, on_points, run_point
from sim.compare.pool import OnDone, Runner, lasting
from sim.compare.run_length import Length, choose_run_length, lockstep_note, settled, transient_note
from sim.compare.verdict import STATED, Interval, Order, Paired, PolicySummary, hull, judged, order_of, verdict
from sim.costs.profile import ASSUMED_PHI, Phi, Profile
from sim.devices.contention import BRACKET, PhiLevel, Regime, phi_at
from sim.draws import child_seed
from sim.files.json_values import Json
from sim.metrics.load import Load, Verdict
from sim.metrics.records import RunRecord
from sim.metrics.stats import interval_95
from sim.metrics.summary import LATENCIES, Run, number
from sim.names import in_words
from sim.run.compiled import IN_PYTHON, PYTHON
from sim.run.resolve import Resolved
from sim.run.scenario import PlainScenario, to_plain

RESULT_SCHEMA = 2
PAIRED_METRICS = (
    *(f"{statistic}_{name}_ms" for name in LATENCIES if name != "e2el" for statistic in ("mean", "p99")),
    *("mean_e2el_ms", "p95_e2el_ms", "p99_e2el_ms"),
    *("request_throughput", "output_throughput", "steady_output_throughput"),
)
OVER_PROMPTS = (*PAIRED_METRICS, "spec_decode_acceptance_length")
LABELS = ("policy", "seed", "replication", "load", "unstable", "engine", "async_scheduling", "partition")
"""Keys of a run that say which run it is and how it went, rather than measure it."""
MIN_FOR_P99 = 10_000
"""Independent requests (`effective_requests`) over all replications that an interval of a 99th percentile needs."""
TAIL_SHARE = 0.85
"""Share of capacity from which a 99th percentile without an interval is too low: E2EL by 6 % at 0.90 and by 9 % at 0.95
of capacity, by 1 to 2 % at 0.80 (H100, Llama-3.1-8B, azure-conv, against runs of 60,000 requests)."""
Key = tuple[str, str]
"""A policy, and a level of phi or the kind of prompts."""
ROUNDING = 1e-12
"""Share by which sums of the same terms may differ."""
PHI_STEPS, PHI_DIGITS = 250, 4
"""Parts of phi's bracket, at the ends of which an order may flip."""


class CostSource(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    source: str
    overlap: str
    is_overlap_measured: bool
    phi: Phi | None = None
    """What is assumed of overlap where it was not measured."""
    errors: dict[str, float | None]
    """Mean held-out error per kind of pass, percent; None where it was not validated."""


class Drawn(msgspec.Struct, frozen=True, kw_only=True):
    """`a` - `b` of one metric over draws that the evidence allows (sim.studies.cost_draws)."""

    a: str
    b: str
    metric: str
    mean: float
    interval: Interval
    """5 to 95 % of the draws, of fewer than 19 all, and what the replications leave open."""
    order: Order


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """Distance of a policy's mean E2EL from a server's, by all that is known (sim.studies.evidence)."""

    policy: str
    mean_e2el_ms: float
    interval: Interval
    """95 %: draws of requests, errors on served cells, and pooled constants of the engine."""
    error_pct: Interval
    """Percent that a measured mean is below and above the simulated one, 95 % of served cells."""
    num_set_ups: int
    """Measured ones of this engine, GPU and target."""
    engine_pct: float | None = None
    """What a standard deviation of the engine's pooled constants adds to the mean; None where servers were measured."""
    elasticity: float | None = None
    wider: list[str] = []
    """Reasons for a wider interval: what no server of the engine was measured with."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Content of `compare --json`."""

    schema: int = RESULT_SCHEMA
    scenario: PlainScenario
    scenario_hash: str
    profile: CostSource
    length: Length
    policies: list[PolicySummary]
    runs: list[Run]
    """One per policy and replication: `policy`, `seed`, `load`, and the keys of `vllm bench serve`."""
    paired: list[Paired]
    notes: list[str]
    verdict: str = ""
    drawn: list[Drawn] = []
    levels: list[Level] = []
    evidence: list[str] = []

    @property
    def plain(self) -> dict[str, Json]:
        values: dict[str, Json] = msgspec.to_builtins(self)
        return values


@dataclass(frozen=True, slots=True)
class Frame:
    """Runs of a comparison, policy x phi x replication, and the load on each policy at each phi."""

    runs: Mapping[Key, Sequence[Run]]
    """[replications]; the first alone at the ends of the bracket and with prompts of other acceptance."""
    loads: Mapping[Key, Load]

    @property
    def policies(self) -> list[str]:
        return list(dict.fromkeys(policy for policy, _ in self.runs))

    def has_bracket(self, *policies: str) -> bool:
        """Some of `policies` ran at both ends of the bracket, too."""
        return any((policy, PhiLevel.LOW) in self.runs for policy in policies)

    def is_steady(self, *policies: str, level: str = PhiLevel.MIDDLE) -> bool:
        """All of `policies` have means that a longer run would repeat."""
        return all(self.loads[self._key(policy, level)].is_steady for policy in policies)

    def values(self, policy: str, metric: str, level: str = PhiLevel.MIDDLE) -> list[float]:
        """[replications] of a metric; none where some run has none. Those without a run at that phi change by as much,
        relative to the middle one, as the first does."""
        middle = self._at(policy, metric, PhiLevel.MIDDLE)
        values = self._at(policy, metric, level)
        if not values or not middle:
            return []
        ratio = values[0] / middle[0] if middle[0] else 1.0
        return values + [ratio * value for value in middle[len(values) :]]

    def _at(self, policy: str, metric: str, level: str) -> list[float]:
        runs = self.runs[self._key(policy, level)]
        values = [value for run in runs if (value := number(run, metric)) is not None]
        return values if len(values) == len(runs) else []

    def _key(self, policy: str, level: str) -> Key:
        return policy, level if (policy, level) in self.runs else PhiLevel.MIDDLE


@lasting()
def compare(
    policies: Sequence[Resolved],
    *,
    on_run: Callable[[RunRecord], None] | None = None,
    on_done: OnDone = lambda stage, done, total: None,
    record_works: bool = False,
    is_detailed: bool = False,
    workers: int | None = None,
    rows_in: Path | None = None,
) -> Comparison:
    """Run all of a scenario's resolved `policies` with every replication.

    Each run writes its requests into the directory `rows_in`, as Parquet files in the order of the runs. `on_run` gets
    each record, `on_done` hears how far it is. With `record_works` the first replication of each policy carries works
    of its first requests; with `is_detailed` every run carries per-request lists. Raises ValueError.
    """
    scenario_hash = policies[0].scenario.digest
    on_done("settling the length", 0, 1)
    length = choose_run_length(policies, workers)
    policies = [settled(one, length) for one in policies]
    scenario, profile = policies[0].scenario, policies[0].profile
    points = [
        Point(
            resolved=one,
            seed=child_seed(scenario.seed, replication),
            is_detailed=is_detailed,
            record_works=record_works and replication == 0,
            keeps_record=on_run is not None,
            rows_path=None if rows_in is None else str(rows_in / f"{index:03}-{replication:06}.parquet"),
        )
        for index, one in enumerate(policies)
        for replication in range(scenario.replications)
    ]
    runner = Runner(workers, on_done)
    done = on_points(run_point, points, runner)
    if on_run is not None:
        for one in done:
            assert one.record is not None
            on_run(one.record)
    asked: list[tuple[Key, Point]] = [((point.resolved.label, PhiLevel.MIDDLE), point) for point in points]
    lanes = {key[0] for (key, point), one in zip(asked, done, strict=True) if is_bracketed(point.resolved.profile, one)}
    firsts = [(point.resolved, point.seed) for point in points[:: scenario.replications]]
    ends: dict[Key, Point] = {
        (one.label, level): Point(resolved=one.at_phi(phi_at(one.profile.phi, level)), seed=seed)
        for level in (PhiLevel.LOW, PhiLevel.HIGH)
        for one, seed in firsts
        if one.label in lanes and not scenario.devices.is_overlap_given
    }
    others: dict[Key, Point] = {
        (one.label, f"{end.prompts} ({end.kind})"): Point(resolved=one.drawn(one.profile, end.quoted), seed=seed)
        for one, seed in firsts
        for end in one.prompts
    }
    for beside, stage in ((ends, "at both ends of phi's bracket"), (others, "at both ends of acceptance")):
        done += on_points(run_point, [*beside.values()], runner, stage)
        asked += beside.items()
    frame = _frame(asked, done)
    bounded = lanes if scenario.devices.overlap is Regime.ROOFS else set()
    paired = paired_differences(frame, profile.phi, bounded)
    by_policy = [(key[0], one.form) for (key, _), one in zip(asked, done, strict=True)]
    forms = {label: list(dict.fromkeys(form for name, form in by_policy if name == label)) for label in frame.policies}
    rows = [msgspec.structs.replace(_policy_summary(frame, label), ran_in=ran_in) for label, ran_in in forms.items()]
    summaries, draft_tokens = judged(rows, paired), scenario.speculation.num_speculative_tokens
    steady_ms = [row.mean["mean_e2el_ms"] for row in summaries if row.load.is_steady]
    slowest_ms = max((value for value in steady_ms if value is not None), default=None)
    names = [one.label for one in policies if not one.policy.is_built_in and PYTHON in forms[one.label]]
    in_python = f"{IN_PYTHON} {in_words(names)}: the compiled core has only built-in policies."
    return Comparison(
        scenario=to_plain(scenario),
        scenario_hash=scenario_hash,
        profile=cost_source(profile),
        length=length,
        policies=summaries,
        runs=[
            {"policy": row.policy, "seed": run["seed"], "replication": replication}
            | {"load": row.load.verdict.value, "unstable": row.unstable}
            | run
            for row in summaries
            for replication, run in enumerate(frame.runs[row.policy, PhiLevel.MIDDLE])
        ],
        paired=paired,
        verdict=verdict(summaries, paired, drafting(policies)),
        notes=[
            *[in_python] * bool(names),
            *dict.fromkeys(note for one in policies for note in one.assumed),
            *_rank_notes(policies[0]),
            *[note for note in (transient_note(scenario, length, slowest_ms), lockstep_note(policies)) if note],
            # What the quoted acceptance leaves open at the draft length in use.
            *(policies[0].quoted.notes([draft_tokens]) if draft_tokens else ()),
        ],
    )


def restated(result: Comparison, policies: Sequence[Resolved], paired: Sequence[Paired], **changes: Any) -> Comparison:
    rows = judged(result.policies, paired)
    said = verdict(rows, paired, drafting(policies))
    return msgspec.structs.replace(result, policies=rows, paired=list(paired), verdict=said, **changes)


def is_bracketed(profile: Profile, done: PointRun) -> bool:
    """Several plain streams ran on a GPU whose overlap was not measured."""
    return not profile.overlap.measured and done.run["partition"] is None and done.num_streams > 1


def _frame(asked: Iterable[tuple[Key, Point]], done: Iterable[PointRun]) -> Frame:
    """The runs by their keys. Loads beside the middle one are judged where that is steady."""
    groups: dict[Key, tuple[Resolved, list[PointRun]]] = {}
    for (key, point), run in zip(asked, done, strict=True):
        groups.setdefault(key, (point.resolved, []))[1].append(run)
    loads: dict[Key, Load] = {}
    for (policy, level), (resolved, runs) in groups.items():
        middle = loads.get((policy, PhiLevel.MIDDLE))
        loads[policy, level] = load_after(resolved, runs) if middle is None or middle.is_steady else middle
    return Frame({key: [each.run for each in runs] for key, (_, runs) in groups.items()}, loads)


def drafting(policies: Sequence[Resolved]) -> list[str]:
    """Policies, or settings of keys, that draft."""
    return [one.label for one in policies if one.lengths.given]


def cost_source(profile: Profile) -> CostSource:
    return CostSource(
        name=profile.name,
        source=profile.source,
        overlap=profile.overlap.source,
        is_overlap_measured=profile.overlap.measured,
        phi=None if profile.overlap.measured else profile.phi,
        errors=profile.mean_errors_pct,
    )


def _rank_notes(resolved: Resolved) -> list[str]:
    """A note on a deployment of which not all data-parallel ranks are simulated."""
    count, ranks = resolved.scenario.devices.count, resolved.profile.data_parallel
    part = (
        f"{resolved.profile.name} has {ranks} data-parallel ranks, of which {count} is simulated. Throughput, GPUs and"
    )
    return [f"{part} prices are of that part. --set devices.count={ranks} simulates all."] if count % ranks else []


def _policy_summary(frame: Frame, policy: str) -> PolicySummary:
    """Mean over replications of every numeric metric, with its interval where a longer run would repeat it."""
    runs, load = frame.runs[policy, PhiLevel.MIDDLE], frame.loads[policy, PhiLevel.MIDDLE]
    num_effective = sum(number(run, "effective_requests") or 0.0 for run in runs)
    samples = {
        key: frame.values(policy, key)
        for key, value in runs[0].items()
        if key not in LABELS and not isinstance(value, Mapping | list)
    }

    def has_interval(key: str) -> bool:
        return load.is_steady and not (key.startswith("p99") and num_effective < MIN_FOR_P99)

    by_overlap = {
        level.value: {metric: mean_of(frame.values(policy, metric, level)) for metric in PAIRED_METRICS}
        for level in BRACKET
    }
    return PolicySummary(
        policy=policy,
        load=load,
        unstable=load.verdict is Verdict.OVERLOADED,
        mean={key: mean_of(values) for key, values in samples.items()},
        ci95={key: interval_95(values) if has_interval(key) else None for key, values in samples.items()},
        by_overlap=by_overlap if frame.has_bracket(policy) else {},
        by_prompts={
            level: {
                metric: mean_of(frame.values(policy, metric, level) if is_steady else []) for metric in OVER_PROMPTS
            }
            for one, level in frame.runs
            if one == policy and level not in BRACKET and load.is_steady
            for is_steady in [frame.is_steady(policy, level=level)]
        },
        at_least=[
            key
            for key, values in samples.items()
            if key.startswith("p99") and values and load.is_steady and load.share > TAIL_SHARE and not has_interval(key)
        ],
    )


def paired_differences(frame: Frame, phi: Phi = ASSUMED_PHI, bounded: AbstractSet[str] = frozenset()) -> list[Paired]:
    """`a` - `b` draw by draw for every pair of policies, `b` listed before `a`. No order is stated of a policy that is
    `bounded`, whose figures are an upper bound of overlap, or at a phi where either is not steady."""
    pairs = combinations(frame.policies, 2)
    return [_paired(frame, metric, pair, bounded, phi) for pair in pairs for metric in PAIRED_METRICS]


def _paired(frame: Frame, metric: str, pair: tuple[str, str], bounded: AbstractSet[str], phi: Phi) -> Paired:
    first, second = pair
    both = [(frame.values(second, metric, level), frame.values(first, metric, level)) for level in BRACKET]
    differences, middle = [_less(*each) for each in both], BRACKET.index(PhiLevel.MIDDLE)
    has_bracket, is_steady = frame.has_bracket(*pair), frame.is_steady(*pair)
    orders = [
        _order(*each) if is_steady and frame.is_steady(*pair, level=level) and bounded.isdisjoint(pair) else Order.NONE
        for level, each in zip(BRACKET, both, strict=True)
    ]
    phis, intervals = (phi.low, phi.value, phi.high), [interval_95(each) for each in differences]
    interval = hull(intervals if has_bracket else intervals[middle : middle + 1])
    lower_mean = min((mean_of(values) or 0.0 for values in both[middle]), key=abs)
    order = _over_phi(orders, order_of(interval, lower_mean)) if has_bracket else orders[middle]
    by_overlap = dict(zip(BRACKET, map(mean_of, differences), strict=True)) if has_bracket else {}
    flips_at = break_even(phis, [*by_overlap.values()]) if order is Order.OVERLAP else None
    return Paired(
        a=second,
        b=first,
        metric=metric,
        difference=mean_of(differences[middle]),
        ci95=intervals[middle] if is_steady else None,
        unstable=not is_steady,
        interval=interval if is_steady else None,
        order=order,
        by_overlap={level.value: difference for level, difference in by_overlap.items()},
        break_even_phi=flips_at,
        break_even_ci95=None if flips_at is None else open_phis(phis, intervals),
    )


def _order(ours: Sequence[float], theirs: Sequence[float]) -> Order:
    less = _less(ours, theirs)
    if not less:
        return Order.NONE
    if all(isclose(*each, rel_tol=ROUNDING) for each in zip(ours, theirs, strict=True)):
        return Order.SAME
    return order_of(interval_95(less), min(mean_of(ours) or 0.0, mean_of(theirs) or 0.0, key=abs))


def _over_phi(orders: Sequence[Order], together: Order) -> Order:
    """The order at all phi: `together`, by the interval over all of them, unless an end has another than the middle."""
    middle = orders[BRACKET.index(PhiLevel.MIDDLE)]
    if len(set(orders)) == 1 and middle in (Order.SAME, Order.NONE):
        return middle
    is_flipping = any(order is not middle and (order in STATED or middle in STATED) for order in orders)
    return Order.OVERLAP if middle is not Order.FEW and is_flipping else together


def break_even(phis: Sequence[float], differences: Sequence[float | None]) -> float | None:
    """The lowest phi at which differences change their sign, straight lines between neighbours; None where none does.

    >>> break_even((0.0, 0.07, 0.25), [3.0, 1.0, -1.0]), break_even((0.0, 0.07, 0.25), [None, 2.0, -1.0])
    (0.16, 0.19)
    >>> break_even((0.0, 0.07, 0.25), [1.0, -1.0, 2.0]), break_even((0.0, 0.07, 0.25), [2.0, None, -1.0])
    (0.035, None)
    """
    for (low, before), (high, after) in pairwise(zip(phis, differences, strict=True)):
        if before is not None and after is not None and (before < 0.0) != (after < 0.0):
            return low + (high - low) * before / (before - after)
    return None


def open_phis(phis: Sequence[float], intervals: Sequence[Interval | None]) -> Interval | None:
    """The lowest and the highest phi at which the interval of a difference holds 0, straight lines between neighbours.

    >>> open_phis((0.0, 0.25), ((-1.01, -0.81), (0.79, 1.19)))
    (0.102, 0.14)
    """
    known = [interval for interval in intervals if interval is not None]
    at = np.linspace(phis[0], phis[-1], PHI_STEPS + 1)
    if len(known) < len(intervals):
        return None
    low, high = (np.interp(at, phis, ends) for ends in zip(*known, strict=True))
    open_at = at[(low <= 0.0) & (high >= 0.0)].round(PHI_DIGITS).tolist()
    return (open_at[0], open_at[-1]) if open_at else None


def mean_of(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _less(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """[draws] differences; none where either has no values."""
    return [one - other for one, other in zip(ours, theirs, strict=True)] if ours and theirs else []
