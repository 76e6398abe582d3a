"""Policies side by side on the same draws: runs, means with intervals, paired differences, and what they rest on.

Replication r of a seed draws from child r of it, for every policy, so that differences are taken draw by draw. Where
overlap of streams was not measured, policies with several streams on a GPU are simulated under all three regimes, and
an order of two policies is stated only if all three agree. Not here: one run (sim.run.simulate), its length
(sim.compare.run_length), files (sim.report.results), tables (sim.report.tables).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from itertools import combinations
from math import inf
from pathlib import Path
from typing import Any

import msgspec

from sim.acceptance.forms import parse_quoted
from sim.compare.points import Outcome, Point, run_points
from sim.compare.run_length import Length, choose_run_length, load_of, lockstep_note, transient_note
from sim.compare.verdict import Pair, Served, verdict
from sim.costs.profile import Profile
from sim.devices.contention import BRACKET, Regime
from sim.draws import child_seed
from sim.metrics.load import Load, Verdict
from sim.metrics.records import RunRecord
from sim.metrics.stats import interval_95
from sim.metrics.summary import PERCENTILES, Run, number
from sim.policies.registry import find_policy
from sim.run.resolve import resolve_all
from sim.run.scenario import Scenario, to_plain
from sim.workload.generate import num_requests

RESULT_SCHEMA = 2
PAIRED_METRICS = (
    "mean_ttft_ms",
    "p99_ttft_ms",
    "mean_tpot_ms",
    "p99_tpot_ms",
    "mean_itl_ms",
    "p99_itl_ms",
    "mean_e2el_ms",
    "p95_e2el_ms",
    "p99_e2el_ms",
    "request_throughput",
    "output_throughput",
    "steady_output_throughput",
)
LABELS = ("policy", "seed", "replication", "load", "unstable", "engine", "async_scheduling", "partition")
"""Keys of a run that say which run it is and how it went, rather than measure it."""
MIN_FOR_P99 = 10_000
"""Independent requests (`effective_requests`) over all replications that an interval of a 99th percentile needs."""
WORTH_A_POOL = 4_000
"""Requests in all from which several processes pay."""

Interval = tuple[float, float]


class CostSource(msgspec.Struct, frozen=True, kw_only=True):
    """What a result says of the profile behind it."""

    name: str
    source: str
    overlap: str
    is_overlap_measured: bool
    errors: dict[str, float | None]
    """Mean held-out error per kind, percent; None where it was not validated."""


class PolicySummary(msgspec.Struct, frozen=True, kw_only=True):
    """One policy over its replications."""

    policy: str
    load: Load
    unstable: bool
    """Requests arrive faster than they are served."""
    mean: dict[str, float | None]
    """Of every numeric metric, under the run's keys; None where a run has none."""
    ci95: dict[str, Interval | None]
    """None where a longer run would not repeat the mean, or too few samples are in a tail."""
    by_overlap: dict[str, dict[str, float | None]]
    """Means under each regime of overlap, least overlap first; empty where it was measured or nothing overlaps."""


class Order(StrEnum):
    """What may be said of two policies on one metric."""

    LOWER = "lower"
    """`a` is lower than `b`, under every regime."""
    HIGHER = "higher"
    SAME = "same"
    """No difference shows."""
    OVERLAP = "depends on overlap"
    DRAWS = "depends on draws"
    """One shows, but not in all that costs and acceptance might as well be."""
    NONE = "none"
    """Nothing can be said: one replication, or a load without steady means."""


class Paired(msgspec.Struct, frozen=True, kw_only=True):
    """`a` - `b` of one metric, taken draw by draw."""

    a: str
    b: str
    metric: str
    difference: float | None
    ci95: Interval | None
    unstable: bool
    order: Order
    by_overlap: dict[str, float | None]
    """The difference under each regime of overlap, where that matters."""


class Drawn(msgspec.Struct, frozen=True, kw_only=True):
    """`a` - `b` of one metric over draws that the evidence allows (sim.studies.precision)."""

    a: str
    b: str
    metric: str
    mean: float
    interval: Interval
    """5 to 95 % of the draws."""
    order: Order


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What `compare --json` holds."""

    schema: int = RESULT_SCHEMA
    scenario: dict[str, Any]
    """Resolved, as plain data."""
    scenario_hash: str
    profile: CostSource
    length: Length
    policies: list[PolicySummary]
    runs: list[Run]
    """One per policy and replication: `policy`, `seed`, `load`, and the keys of `vllm bench serve`."""
    paired: list[Paired]
    notes: list[str]
    """What a reader must know before believing a number."""
    verdict: str = ""
    """The sentence that it comes to."""
    drawn: list[Drawn] = []
    """Differences in draws, where they were asked for."""
    evidence: list[str] = []
    """The nearest measured cells and the simulator's errors there."""

    @property
    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


def compare(
    scenario: Scenario,
    profile: Profile,
    *,
    percentiles: Sequence[float] = PERCENTILES,
    on_run: Callable[[RunRecord], None] | None = None,
    on_done: Callable[[str, int, int], None] = lambda stage, done, total: None,
    record_works: bool = False,
    is_detailed: bool = False,
    workers: int | None = None,
    max_cpu_s: float = inf,
    rows_in: Path | None = None,
) -> Comparison:
    """Run every policy with every replication.

    Each run writes its requests into the directory `rows_in`, as Parquet files in the order of the runs.

    `on_run` gets each record, `on_done` hears how far it is. With `record_works` every run says where its time went,
    and the first replication of each policy carries its works; with `is_detailed` every run carries per-request lists.
    Raises ValueError for input that cannot run.
    """
    resolve_all(scenario, profile)
    on_done("settling the length", 0, 1)
    settled, length = choose_run_length(scenario, profile, max_cpu_s=max_cpu_s)
    points = [
        Point(
            scenario=settled,
            policy=policy,
            seed=child_seed(scenario.seed, replication),
            profile=profile,
            percentiles=tuple(sorted({*PERCENTILES, *percentiles})),
            is_detailed=is_detailed,
            record_works=record_works,
            keeps_works=replication == 0,
            keeps_record=on_run is not None,
            rows_path=None if rows_in is None else str(rows_in / f"{place:03}-{replication:06}.parquet"),
        )
        for place, policy in enumerate(scenario.policy)
        for replication in range(scenario.replications)
    ]
    outcomes = _run_all(points, workers, on_done)
    if on_run is not None:
        for outcome in outcomes:
            assert outcome.record is not None
            on_run(outcome.record)
    by_policy = _by_policy(scenario, outcomes)
    loads = {
        policy: load_of(
            settled,
            profile,
            policy,
            is_in_doubt=any(outcome.needs_capacity for outcome in own),
            arrivals_s=own[0].arrivals_s,
        )
        for policy, own in by_policy.items()
    }
    regimes = _regimes(settled, profile, by_policy, points, workers, on_done)
    runs = [
        {"policy": policy, "seed": outcome.run["seed"], "replication": replication}
        | {"load": loads[policy].verdict.value, "unstable": loads[policy].verdict is Verdict.OVERLOADED}
        | outcome.run
        for policy, own in by_policy.items()
        for replication, outcome in enumerate(own)
    ]
    summaries = [_policy_summary(policy, runs, loads[policy], regimes.get(policy, {})) for policy in scenario.policy]
    paired = paired_differences(scenario.policy, runs, loads, regimes)
    return Comparison(
        scenario=to_plain(settled),
        scenario_hash=scenario.digest,
        profile=cost_source(profile),
        length=length,
        policies=summaries,
        runs=runs,
        paired=paired,
        verdict=verdict_of(summaries, paired, scenario.speculation.num_speculative_tokens),
        notes=[*length.notes, *_transients(settled, length, summaries), *_acceptance_notes(scenario)],
    )


def verdict_of(summaries: Sequence[PolicySummary], paired: Sequence[Paired], num_speculative_tokens: int) -> str:
    """The sentence on mean E2EL (sim.compare.verdict)."""
    metric = "mean_e2el_ms"
    served = [
        Served(
            policy=row.policy,
            e2el_ms=row.mean[metric],
            load=row.load,
            drafts=find_policy(row.policy).is_speculative and num_speculative_tokens > 0,
            by_overlap_ms=[value for means in row.by_overlap.values() if (value := means[metric]) is not None],
        )
        for row in summaries
    ]
    pairs = [
        Pair(
            a=row.a,
            b=row.b,
            order=row.order.value,
            by_overlap_ms=[value for value in row.by_overlap.values() if value is not None],
            break_even_phi=getattr(row, "break_even_phi", None),
        )
        for row in paired
        if row.metric == metric
    ]
    return verdict(served, pairs)


def _run_all(points: Sequence[Point], workers: int | None, on_done: Callable[[str, int, int], None]) -> list[Outcome]:
    """The outcomes in the order of the points."""
    if workers is None:
        total = sum(num_requests(point.scenario.workload) for point in points)
        workers = None if total >= WORTH_A_POOL else 1
    on_done("simulating", 0, len(points))
    found = dict(run_points(points, workers=workers, on_done=lambda done: on_done("simulating", done, len(points))))
    return [found[index] for index in range(len(points))]


def _by_policy(scenario: Scenario, outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    count = scenario.replications
    return {policy: list(outcomes[place * count : (place + 1) * count]) for place, policy in enumerate(scenario.policy)}


def _regimes(
    scenario: Scenario,
    profile: Profile,
    by_policy: Mapping[str, Sequence[Outcome]],
    points: Sequence[Point],
    workers: int | None,
    on_done: Callable[[str, int, int], None],
) -> dict[str, dict[Regime, list[Run]]]:
    """Runs under every regime of overlap, for the policies to which it matters: those with several plain streams on a
    GPU, where it was neither measured nor given."""
    if profile.overlap.measured or scenario.devices.overlap is not None:
        return {}
    lanes = [
        policy
        for policy, own in by_policy.items()
        if own[0].run["partition"] is None and any(outcome.num_streams > 1 for outcome in own)
    ]
    others = [regime for regime in BRACKET if regime is not Regime.SHARED]
    more = [
        Point(
            scenario=point.scenario,
            policy=point.policy,
            seed=point.seed,
            profile=profile,
            regime=regime,
            percentiles=point.percentiles,
        )
        for regime in others
        for point in points
        if point.policy in lanes
    ]
    found = iter(_run_all(more, workers, on_done)) if more else iter(())
    regimes: dict[str, dict[Regime, list[Run]]] = {policy: {} for policy in lanes}
    for regime in others:
        for policy in lanes:
            regimes[policy][regime] = [next(found).run for _ in by_policy[policy]]
    return {
        policy: {
            regime: [outcome.run for outcome in by_policy[policy]] if regime is Regime.SHARED else own[regime]
            for regime in BRACKET
        }
        for policy, own in regimes.items()
    }


def cost_source(profile: Profile) -> CostSource:
    return CostSource(
        name=profile.name,
        source=profile.source,
        overlap=profile.overlap.source,
        is_overlap_measured=profile.overlap.measured,
        errors={kind: error.mean_error_pct for kind, error in profile.errors.items()},
    )


def _transients(scenario: Scenario, length: Length, summaries: Sequence[PolicySummary]) -> list[str]:
    """The notes on a length that is too short, by the slowest policy that is stable, and on a loop in step."""
    slowest = [row.mean["mean_e2el_ms"] for row in summaries if row.load.is_steady]
    known = [value / 1e3 for value in slowest if value is not None]
    notes = transient_note(scenario, length, max(known, default=None)), lockstep_note(scenario)
    return [note for note in notes if note is not None]


def _acceptance_notes(scenario: Scenario) -> tuple[str, ...]:
    """What the quoted acceptance leaves open at the draft length in use."""
    speculation = scenario.speculation
    has_keys = speculation.synthetic_acceptance_length or speculation.synthetic_acceptance_rates
    if has_keys or not speculation.num_speculative_tokens:
        return ()
    return parse_quoted(speculation.acceptance).notes([speculation.num_speculative_tokens])


def _of_policy(policy: str, runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if run["policy"] == policy]


def _policy_summary(
    policy: str, runs: Sequence[Run], load: Load, by_regime: Mapping[Regime, Sequence[Run]]
) -> PolicySummary:
    """Mean over replications of every numeric metric, with its interval where a longer run would repeat it."""
    own = _of_policy(policy, runs)
    num_effective = sum(number(run, "effective_requests") or 0.0 for run in own)
    means: dict[str, float | None] = {}
    intervals: dict[str, Interval | None] = {}
    for key, value in own[0].items():
        if key in LABELS or isinstance(value, Mapping | list):
            continue
        samples = _numbers(own, key)
        means[key] = None if samples is None else sum(samples) / len(samples)
        is_tail = key.startswith("p99") and num_effective < MIN_FOR_P99
        intervals[key] = None if samples is None or is_tail or not load.is_steady else interval_95(samples)
    return PolicySummary(
        policy=policy,
        load=load,
        unstable=load.verdict is Verdict.OVERLOADED,
        mean=means,
        ci95=intervals,
        by_overlap={
            regime.value: {metric: _mean(runs_there, metric) for metric in PAIRED_METRICS}
            for regime, runs_there in by_regime.items()
        },
    )


def _numbers(runs: Sequence[Run], key: str) -> list[float] | None:
    """One number per run; None where some run has none."""
    samples = [value for run in runs if (value := number(run, key)) is not None]
    return samples if len(samples) == len(runs) else None


def _mean(runs: Sequence[Run], key: str) -> float | None:
    samples = _numbers(runs, key)
    return sum(samples) / len(samples) if samples else None


def paired_differences(
    policies: Sequence[str],
    runs: Sequence[Run],
    loads: Mapping[str, Load],
    regimes: Mapping[str, Mapping[Regime, Sequence[Run]]],
) -> list[Paired]:
    """`a` - `b` draw by draw for every pair of policies, `b` listed before `a`. Only steady pairs get an interval."""
    rows = []
    for first, second in combinations(policies, 2):
        theirs, ours = _of_policy(first, runs), _of_policy(second, runs)
        is_steady = loads[first].is_steady and loads[second].is_steady
        for metric in PAIRED_METRICS:
            difference, interval = _difference(ours, theirs, metric)
            by_overlap: dict[str, float | None] = {}
            orders = [_order(interval, is_steady)]
            if first in regimes or second in regimes:
                orders = []
                for regime in BRACKET:
                    one = regimes[second][regime] if second in regimes else ours
                    other = regimes[first][regime] if first in regimes else theirs
                    by_overlap[regime.value], there = _difference(one, other, metric)
                    orders.append(_order(there, is_steady))
            rows.append(
                Paired(
                    a=second,
                    b=first,
                    metric=metric,
                    difference=difference,
                    ci95=interval if is_steady else None,
                    unstable=not is_steady,
                    order=orders[0] if len(set(orders)) == 1 else Order.OVERLAP,
                    by_overlap=by_overlap,
                )
            )
    return rows


def _difference(ours: Sequence[Run], theirs: Sequence[Run], metric: str) -> tuple[float | None, Interval | None]:
    a, b = _numbers(ours, metric), _numbers(theirs, metric)
    if a is None or b is None:
        return None, None
    differences = [one - other for one, other in zip(a, b, strict=True)]
    return sum(differences) / len(differences), interval_95(differences)


def _order(interval: Interval | None, is_steady: bool) -> Order:
    if interval is None or not is_steady:
        return Order.NONE
    low, high = interval
    if high < 0.0:
        return Order.LOWER
    return Order.HIGHER if low > 0.0 else Order.SAME
