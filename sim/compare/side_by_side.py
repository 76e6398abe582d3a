"""Policies side by side on the same draws: runs, means with intervals, paired differences, and what they rest on.

Replication r of a seed draws from child r of it, for every policy, so that differences are taken draw by draw. Where
overlap of streams was not measured, policies with several streams on a GPU are simulated at both ends of phi's bracket,
too, and an order of two policies is stated only if all agree. Not here: one run (sim.run.simulate), its length
(sim.compare.run_length), files (sim.report.results), tables (sim.report.tables).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from math import inf
from pathlib import Path

import msgspec
import numpy as np

from sim.acceptance.forms import parse_quoted
from sim.compare.point_runs import Outcome, Point, at_phi, run_points, worth
from sim.compare.pool import OnDone, Runner, lasting
from sim.compare.run_length import Length, choose_run_length, load_after, lockstep_note, transient_note
from sim.compare.verdict import Interval, Order, Paired, PolicySummary, verdict
from sim.costs.profile import Phi, Profile
from sim.devices.contention import ASSUMED_PHI, BRACKET, PhiLevel, Regime, phi_at, phi_of
from sim.draws import child_seed
from sim.files.json_values import Json
from sim.metrics.load import Load, Verdict
from sim.metrics.records import RunRecord
from sim.metrics.stats import chance_of_none, holm, interval_95
from sim.metrics.summary import PERCENTILES, Run, number
from sim.policies.registry import find_policy
from sim.run.resolve import resolve_all
from sim.run.scenario import PlainScenario, Scenario, to_plain

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
PHI_STEPS, PHI_DIGITS = 250, 4
"""Parts of phi's bracket, at the ends of which an order may flip."""


class CostSource(msgspec.Struct, frozen=True, kw_only=True):
    """What a result says of the profile behind it."""

    name: str
    source: str
    overlap: str
    is_overlap_measured: bool
    phi: Phi | None = None
    """What stands in for a measurement of overlap; None where there is one."""
    errors: dict[str, float | None]
    """Mean held-out error per kind, percent; None where it was not validated."""


class Drawn(msgspec.Struct, frozen=True, kw_only=True):
    """`a` - `b` of one metric over draws that the evidence allows (sim.studies.precision)."""

    a: str
    b: str
    metric: str
    mean: float
    interval: Interval
    """5 to 95 % of the draws, of fewer than 19 all, and what the replications leave open."""
    order: Order


class DrawnLevel(msgspec.Struct, frozen=True, kw_only=True):
    """A policy's mean E2EL over draws that the evidence allows."""

    policy: str
    mean_e2el_ms: float
    """Mean with costs as given."""
    interval: Interval
    """Likewise."""


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """How far a policy's mean E2EL may be from a server's, by all that is known (sim.studies.evidence)."""

    policy: str
    mean_e2el_ms: float
    interval: Interval
    """95 %: draws, errors on measured cells, and pooled constants of the engine."""
    error_pct: float
    """Standard deviation of the simulator's error on cells of this GPU, target and method, and on served ones."""
    num_cells: int
    """The former."""
    engine_pct: float | None = None
    """What one standard deviation of the engine's pooled constants adds to the mean; None where they are its own, or
    what was measured had them."""
    elasticity: float | None = None
    """Percent of mean E2EL per percent of all step times, near saturation."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What `compare --json` holds."""

    schema: int = RESULT_SCHEMA
    scenario: PlainScenario
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
    """Differences in draws, where some were made."""
    drawn_levels: list[DrawnLevel] = []
    """Means in these draws."""
    levels: list[Level] = []
    """Intervals of levels, end to end, of policies with steady means."""
    evidence: list[str] = []
    """The nearest measured cells and the simulator's errors there."""

    @property
    def plain(self) -> dict[str, Json]:
        """The comparison as plain values, ready for JSON."""
        found: dict[str, Json] = msgspec.to_builtins(self)
        return found


@lasting()
def compare(
    scenario: Scenario,
    profile: Profile,
    *,
    percentiles: Sequence[float] = PERCENTILES,
    on_run: Callable[[RunRecord], None] | None = None,
    on_done: OnDone = lambda stage, done, total: None,
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
    settled, length = choose_run_length(scenario, profile, max_cpu_s=max_cpu_s, workers=workers)
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
    runner = Runner(workers, on_done)
    outcomes = run_points(points, worth(points, runner))
    if on_run is not None:
        for outcome in outcomes:
            assert outcome.record is not None
            on_run(outcome.record)
    by_policy = _by_policy(scenario, outcomes)
    loads = {policy: load_after(settled, profile, policy, own) for policy, own in by_policy.items()}
    lanes = _lanes(profile, by_policy)
    is_given = scenario.devices.is_overlap_given
    at_levels = {} if is_given else _levels(lanes, profile, by_policy, points, runner)
    levels = {
        policy: {level: [outcome.run for outcome in own] for level, own in by_level.items()}
        for policy, by_level in at_levels.items()
    }
    unsteady = {
        (policy, level)
        for policy, by_level in at_levels.items()
        if loads[policy].is_steady
        for level, own in by_level.items()
        if level is not PhiLevel.MIDDLE
        and not load_after(at_phi(settled, phi_at(profile.overlap, level)), profile, policy, own).is_steady
    }
    bounded = lanes if scenario.devices.overlap is Regime.ROOFS else []
    runs = [
        {"policy": policy, "seed": outcome.run["seed"], "replication": replication}
        | {"load": loads[policy].verdict.value, "unstable": loads[policy].verdict is Verdict.OVERLOADED}
        | outcome.run
        for policy, own in by_policy.items()
        for replication, outcome in enumerate(own)
    ]
    summaries = [_policy_summary(policy, runs, loads[policy], levels.get(policy, {})) for policy in scenario.policy]
    paired = paired_differences(scenario.policy, runs, loads, levels, phi_of(profile.overlap), bounded, unsteady)
    return Comparison(
        scenario=to_plain(settled),
        scenario_hash=scenario.digest,
        profile=cost_source(profile),
        length=length,
        policies=summaries,
        runs=runs,
        paired=paired,
        verdict=verdict(summaries, paired, drafting(scenario)),
        notes=[*length.notes, *_transients(settled, length, summaries), *_acceptance_notes(scenario)],
    )


def _by_policy(scenario: Scenario, outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    count = scenario.replications
    return {policy: list(outcomes[place * count : (place + 1) * count]) for place, policy in enumerate(scenario.policy)}


def _lanes(profile: Profile, by_policy: Mapping[str, Sequence[Outcome]]) -> list[str]:
    """Policies with several plain streams on a GPU whose overlap was not measured."""
    return [
        policy
        for policy, own in by_policy.items()
        if not profile.overlap.measured
        and own[0].run["partition"] is None
        and any(outcome.num_streams > 1 for outcome in own)
    ]


def _levels(
    lanes: Sequence[str],
    profile: Profile,
    by_policy: Mapping[str, Sequence[Outcome]],
    points: Sequence[Point],
    runner: Runner,
) -> dict[str, dict[PhiLevel, list[Outcome]]]:
    """What came of `lanes` at every phi of the bracket."""
    bare = [
        replace(point, is_detailed=False, record_works=False, keeps_record=False, rows_path=None)
        for point in points
        if point.policy in lanes
    ]
    more = [
        (level, replace(point, phi=phi_at(profile.overlap, level)))
        for level in BRACKET
        if level is not PhiLevel.MIDDLE
        for point in bare
    ]
    others = [point for _, point in more]
    levels: dict[str, dict[PhiLevel, list[Outcome]]] = {policy: {level: [] for level in BRACKET} for policy in lanes}
    for policy in lanes:
        levels[policy][PhiLevel.MIDDLE] += by_policy[policy]
    for (level, point), outcome in zip(more, run_points(others, worth(others, runner)) if more else (), strict=True):
        levels[point.policy][level].append(outcome)
    return levels


def drafting(scenario: Scenario) -> list[str]:
    """Policies that draft."""
    return [
        name
        for name in scenario.policy
        if scenario.speculation.num_speculative_tokens and find_policy(name).is_speculative
    ]


def cost_source(profile: Profile) -> CostSource:
    return CostSource(
        name=profile.name,
        source=profile.source,
        overlap=profile.overlap.source,
        is_overlap_measured=profile.overlap.measured,
        phi=None if profile.overlap.measured else phi_of(profile.overlap),
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
    policy: str, runs: Sequence[Run], load: Load, by_level: Mapping[PhiLevel, Sequence[Run]]
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
            level.value: {metric: _mean(runs_there, metric) for metric in PAIRED_METRICS}
            for level, runs_there in by_level.items()
        },
    )


def _numbers(runs: Sequence[Run], key: str) -> list[float] | None:
    """One number per run; None where some run has none."""
    samples = [value for run in runs if (value := number(run, key)) is not None]
    return samples if len(samples) == len(runs) else None


def _mean(runs: Sequence[Run], key: str) -> float | None:
    return mean_of(_numbers(runs, key) or [])


def paired_differences(
    policies: Sequence[str],
    runs: Sequence[Run],
    loads: Mapping[str, Load],
    levels: Mapping[str, Mapping[PhiLevel, Sequence[Run]]],
    phi: Phi = ASSUMED_PHI,
    bounded: Sequence[str] = (),
    unsteady: Collection[tuple[str, PhiLevel]] = (),
) -> list[Paired]:
    """`a` - `b` draw by draw for every pair of policies, `b` listed before `a`. Only steady pairs get an interval; no
    order is stated of a policy that is `bounded`, whose figures are an upper bound of overlap, or at a phi where either
    is `unsteady`. All orders of a metric hold together: of policies that are equal, one comparison in twenty states
    any."""
    pairs = list(combinations(policies, 2))
    steady = {pair for pair in pairs if all(loads[policy].is_steady for policy in pair)}
    stated = {
        level: [
            pair
            for pair in pairs
            if pair in steady and not any(policy in bounded or (policy, level) in unsteady for policy in pair)
        ]
        for level in BRACKET
    }
    own = {policy: _of_policy(policy, runs) for policy in policies}
    phis = phi.low, phi.value, phi.high
    rows: dict[tuple[str, str], list[Paired]] = {pair: [] for pair in pairs}
    for metric in PAIRED_METRICS:
        samples = {
            (policy, level): _numbers(levels[policy][level] if policy in levels else own[policy], metric) or []
            for policy in policies
            for level in BRACKET
        }
        orders = {
            level: dict(
                zip(stated[level], _orders([_both(samples, pair, level) for pair in stated[level]]), strict=True)
            )
            for level in BRACKET
        }
        for pair in pairs:
            first, second = pair
            differences = {level: _less(*_both(samples, pair, level)) for level in BRACKET}
            here = differences[PhiLevel.MIDDLE]
            shown = BRACKET if {first, second} & set(levels) else (PhiLevel.MIDDLE,)
            said = {orders[level].get(pair, Order.NONE) for level in shown}
            by_overlap = {level.value: mean_of(differences[level]) for level in shown} if len(shown) > 1 else {}
            flips_at = break_even(phis, [*by_overlap.values()]) if len(said) > 1 else None
            rows[pair].append(
                Paired(
                    a=second,
                    b=first,
                    metric=metric,
                    difference=mean_of(here),
                    ci95=interval_95(here) if pair in steady else None,
                    unstable=pair not in steady,
                    order=Order.OVERLAP if len(said) > 1 else said.pop(),
                    by_overlap=by_overlap,
                    break_even_phi=flips_at,
                    break_even_ci95=None
                    if flips_at is None
                    else open_phis(phis, [interval_95(each) for each in differences.values()]),
                )
            )
    return [row for pair in pairs for row in rows[pair]]


def break_even(phis: Sequence[float], differences: Sequence[float | None]) -> float | None:
    """The lowest phi at which differences change their sign, straight lines between neighbours; None where none does.

    >>> break_even((0.0, 0.07, 0.25), [3.0, 1.0, -1.0])
    0.16
    """
    for (low, before), (high, after) in pairwise(zip(phis, differences, strict=True)):
        if before is not None and after is not None and (before < 0.0) != (after < 0.0):
            return low + (high - low) * before / (before - after)
    return None


def open_phis(phis: Sequence[float], intervals: Sequence[Interval | None]) -> Interval | None:
    """The lowest and the highest phi at which the interval of a difference holds 0, straight lines between neighbours;
    None where some phi has no interval, or none holds 0.

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


Both = tuple[list[float], list[float]]


def _both(samples: Mapping[tuple[str, PhiLevel], list[float]], pair: tuple[str, str], level: PhiLevel) -> Both:
    """[draws] of the second and of the first of `pair`."""
    return samples[pair[1], level], samples[pair[0], level]


def _less(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """[draws] differences; none where some draw of either has no value."""
    return [one - other for one, other in zip(ours, theirs, strict=True)] if ours and theirs else []


def _orders(pairs: Sequence[Both]) -> list[Order]:
    """What may be said of each pair: the interval of its mean difference leaves out 0, and it is significant among all
    pairs. What is tested is the difference over the sum of both: near saturation a latency's spread grows with its
    mean, and in milliseconds three draws tell it from nothing."""
    intervals = [interval_95(_less(*pair)) for pair in pairs]
    clear = holm([chance_of_none([_share(*both) for both in zip(*pair, strict=True)]) for pair in pairs])
    return [_order(interval, is_clear) for interval, is_clear in zip(intervals, clear, strict=True)]


def _share(a: float, b: float) -> float:
    return 0.0 if a == b else (a - b) / (abs(a) + abs(b))


def _order(interval: Interval | None, is_clear: bool) -> Order:
    if interval is None:
        return Order.NONE
    low, high = interval
    if low <= 0.0 <= high or not is_clear:
        return Order.SAME
    return Order.LOWER if high < 0.0 else Order.HIGHER
