"""Policies side by side on the same draws: runs, means with intervals, and paired differences.

Replication r uses seed + r for every policy, so differences are taken seed by seed. Not here: one run
(sim.experiment.run), files (sim.report.results), tables (sim.report.tables).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

import msgspec

from sim.costs.profile import Profile
from sim.experiment.assemble import check
from sim.experiment.run import simulate
from sim.experiment.scenario import Scenario, to_plain
from sim.metrics.records import RunRecord
from sim.metrics.stats import interval_95
from sim.metrics.summary import PERCENTILES, Run, detailed, number, summarise

RESULT_SCHEMA = 1
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
)
LABELS = ("policy", "seed", "unstable")
"""Keys of a run that say which run it is and how it went, rather than measure it."""

Interval = tuple[float, float]


class CostSource(msgspec.Struct, frozen=True, kw_only=True):
    """What a result says of the profile behind it."""

    name: str
    source: str
    overlap: str
    errors: dict[str, float | None]
    """Mean held-out error per kind, percent; None where it was not validated."""


class PolicySummary(msgspec.Struct, frozen=True, kw_only=True):
    """One policy over its replications."""

    policy: str
    unstable: bool
    """Some run was overloaded, so no mean has an interval."""
    mean: dict[str, float | None]
    """Of every numeric metric, under the run's keys; None where a run has none."""
    ci95: dict[str, Interval | None]


class Paired(msgspec.Struct, frozen=True, kw_only=True):
    """`a` - `b` of one metric, taken seed by seed."""

    a: str
    b: str
    metric: str
    difference: float | None
    ci95: Interval | None
    unstable: bool


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What `compare --json` holds."""

    schema: int = RESULT_SCHEMA
    scenario: dict[str, Any]
    """Resolved, as plain data."""
    scenario_hash: str
    profile: CostSource
    policies: list[PolicySummary]
    runs: list[Run]
    """One per policy and seed: `policy`, `seed`, and the keys of `vllm bench serve`."""
    paired: list[Paired]

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
    record_works: bool = False,
    is_detailed: bool = False,
) -> Comparison:
    """Run every policy with every seed.

    `on_run` gets each record as it is done. With `record_works` the first replication of each policy carries its
    works; with `is_detailed` every run carries per-request lists. Raises ValueError for input that cannot run.
    """
    check(scenario, profile)
    percentiles = sorted({*PERCENTILES, *percentiles})
    runs: list[Run] = []
    for replication in range(scenario.replications):
        for policy in scenario.policy:
            is_recorded = record_works and replication == 0
            record = simulate(scenario, policy, scenario.seed + replication, profile, record_works=is_recorded)
            run = summarise(
                record,
                percentiles=percentiles,
                goodput_ms=scenario.goodput.bounds_ms,
                num_warmups=scenario.workload.num_warmups,
            )
            runs.append(run | detailed(record) if is_detailed else run)
            if on_run is not None:
                on_run(record)
    place = {policy: place for place, policy in enumerate(scenario.policy)}
    runs.sort(key=lambda run: (place[str(run["policy"])], run["seed"]))
    return Comparison(
        scenario=to_plain(scenario),
        scenario_hash=scenario.digest,
        profile=cost_source(profile),
        policies=[_policy_summary(policy, runs) for policy in scenario.policy],
        runs=runs,
        paired=paired_differences(scenario.policy, runs),
    )


def cost_source(profile: Profile) -> CostSource:
    return CostSource(
        name=profile.name,
        source=profile.source,
        overlap=profile.overlap.source,
        errors={kind: error.mean_error_pct for kind, error in profile.errors.items()},
    )


def _of_policy(policy: str, runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if run["policy"] == policy]


def _policy_summary(policy: str, runs: Sequence[Run]) -> PolicySummary:
    """Mean over replications of every numeric metric, with its interval where the runs were stable."""
    own = _of_policy(policy, runs)
    is_unstable = any(run["unstable"] for run in own)
    means: dict[str, float | None] = {}
    intervals: dict[str, Interval | None] = {}
    for key, value in own[0].items():
        if key in LABELS or isinstance(value, Mapping | list):
            continue
        samples = _numbers(own, key)
        means[key] = None if samples is None else sum(samples) / len(samples)
        intervals[key] = None if samples is None or is_unstable else interval_95(samples)
    return PolicySummary(policy=policy, unstable=is_unstable, mean=means, ci95=intervals)


def _numbers(runs: Sequence[Run], key: str) -> list[float] | None:
    """One number per run; None where some run has none."""
    samples = [value for run in runs if (value := number(run, key)) is not None]
    return samples if len(samples) == len(runs) else None


def paired_differences(policies: Sequence[str], runs: Sequence[Run]) -> list[Paired]:
    """`a` - `b` seed by seed for every pair of policies, `b` listed before `a`. Unstable pairs get no interval."""
    rows = []
    for first, second in combinations(policies, 2):
        theirs, ours = _of_policy(first, runs), _of_policy(second, runs)
        is_unstable = any(run["unstable"] for run in (*theirs, *ours))
        for metric in PAIRED_METRICS:
            a, b = _numbers(ours, metric), _numbers(theirs, metric)
            difference, interval = None, None
            if a is not None and b is not None:
                differences = [one - other for one, other in zip(a, b, strict=True)]
                difference = sum(differences) / len(differences)
                interval = None if is_unstable else interval_95(differences)
            rows.append(
                Paired(a=second, b=first, metric=metric, difference=difference, ci95=interval, unstable=is_unstable)
            )
    return rows
