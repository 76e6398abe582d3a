"""Policies side by side on the same draws: runs, means with intervals, and paired differences.

Replication r uses seed + r for every policy, so differences are taken seed by seed. Not here: one run
(sim.experiment.run), files (sim.report.results), tables (sim.report.tables).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

from sim.costs.profile import Profile
from sim.experiment.assemble import check
from sim.experiment.run import simulate
from sim.experiment.scenario import Scenario, to_plain
from sim.metrics.records import RunRecord
from sim.metrics.stats import interval_95
from sim.metrics.summary import PERCENTILES, detailed, summarise

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

Run = dict[str, Any]


def compare(
    scenario: Scenario,
    profile: Profile,
    *,
    percentiles: Sequence[float] = PERCENTILES,
    on_run: Callable[[RunRecord], None] | None = None,
    record_works: bool = False,
    is_detailed: bool = False,
) -> dict[str, Any]:
    """Run every policy with every seed; the result is what `compare --json` holds.

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
            runs.append(
                summarise(
                    record,
                    percentiles=percentiles,
                    goodput_ms=_goodput_ms(scenario),
                    num_warmups=scenario.workload.num_warmups,
                )
            )
            if is_detailed:
                runs[-1] |= detailed(record)
            if on_run is not None:
                on_run(record)
    runs.sort(key=lambda run: (scenario.policy.index(run["policy"]), run["seed"]))
    return {
        "schema": RESULT_SCHEMA,
        "scenario": to_plain(scenario),
        "scenario_hash": scenario.digest,
        "profile": {
            "name": profile.name,
            "source": profile.source,
            "overlap": profile.overlap.source,
            "errors": profile_errors(profile),
        },
        "policies": [_policy_summary(policy, runs) for policy in scenario.policy],
        "runs": runs,
        "paired": paired_differences(scenario.policy, runs),
    }


def profile_errors(profile: Profile) -> dict[str, float | None]:
    """Mean held-out error per kind, percent; None where it was not validated."""
    return {kind: error.mean_error_pct for kind, error in profile.errors.items()}


def _goodput_ms(scenario: Scenario) -> dict[str, float | None]:
    return {name: getattr(scenario.goodput, name) for name in ("ttft_ms", "tpot_ms", "e2el_ms")}


def _of_policy(policy: str, runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if run["policy"] == policy]


def _policy_summary(policy: str, runs: Sequence[Run]) -> dict[str, Any]:
    """Mean over replications of every numeric metric, with its interval where the runs were stable."""
    own = _of_policy(policy, runs)
    is_unstable = any(run["unstable"] for run in own)
    means: dict[str, float | None] = {}
    intervals: dict[str, list[float] | None] = {}
    for key, value in own[0].items():
        if key in ("policy", "seed", "unstable") or isinstance(value, dict | list):
            continue
        samples = [run[key] for run in own]
        if any(sample is None for sample in samples):
            means[key] = intervals[key] = None
            continue
        means[key] = sum(samples) / len(samples)
        interval = None if is_unstable else interval_95(samples)
        intervals[key] = list(interval) if interval else None
    return {"policy": policy, "unstable": is_unstable, "mean": means, "ci95": intervals}


def paired_differences(policies: Sequence[str], runs: Sequence[Run]) -> list[dict[str, Any]]:
    """`a` - `b` seed by seed for every pair of policies, `b` listed before `a`. Unstable pairs get no interval."""
    rows = []
    for first, second in combinations(policies, 2):
        pairs = list(zip(_of_policy(second, runs), _of_policy(first, runs), strict=True))
        is_unstable = any(run["unstable"] for pair in pairs for run in pair)
        for metric in PAIRED_METRICS:
            values = [(a[metric], b[metric]) for a, b in pairs]
            if any(a is None or b is None for a, b in values):
                difference, interval = None, None
            else:
                differences = [a - b for a, b in values]
                difference = sum(differences) / len(differences)
                interval = None if is_unstable else interval_95(differences)
            rows.append(
                {
                    "a": second,
                    "b": first,
                    "metric": metric,
                    "difference": difference,
                    "ci95": list(interval) if interval else None,
                    "unstable": is_unstable,
                }
            )
    return rows
