"""A comparison with all that it rests on: draws of costs and acceptance, the nearest measured cells, levels.

In a draw every policy serves the requests of a replication. What it takes there, over what it takes with costs as
given, is a factor on its mean. An order stays only if nine in ten of the differences in draws have its sign, with the
noise of replications added, at every phi. Not here: the runs (sim.compare.side_by_side), the draws (cost_draws).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice
from math import hypot
from typing import Any, NamedTuple

import msgspec
import numpy as np

from sim.compare.point_runs import Point, on_points, run_point
from sim.compare.pool import OnDone, Runner
from sim.compare.run_length import settled
from sim.compare.side_by_side import Comparison, Drawn, compare, open_phis, restated
from sim.compare.verdict import METRIC, STATED, Interval, Order, Paired, PolicySummary, hull, order_of, sign_of
from sim.devices.contention import BRACKET
from sim.draws import Floats, child_seed
from sim.metrics.summary import Run, number
from sim.run.resolve import Resolved
from sim.run.scenario import Scenario
from sim.studies.cost_draws import cost_draws, covers, interval_90
from sim.studies.evidence import as_replayed, asked_of_comparison, evidence, levels
from sim.workload.generate import num_requests

COMPARED_DRAWS = 10
FEWEST_OF_90 = 19
"""Draws from which on their interval is less than their range."""
LEAST_PROMPTS, LEAST_PER_SLOT = 50, 3
"""Requests of a run in a draw: at least, and for each that a closed loop has in flight."""
ONLY_IF = "An order is named only if it is the same in"
"""Beginning of the note on draws, which the sentence sums up."""
ORDERED = (*STATED, Order.OVERLAP)


def compared(
    policies: Sequence[Resolved],
    *,
    form: str | None = None,
    draws: int | None = None,
    workers: int | None = None,
    on_done: OnDone = lambda stage, done, total: None,
    **how: Any,
) -> Comparison:
    """`policies` side by side, in that form of the simulator (None: the fastest) and in `draws` (None: ten where
    policies are ordered; 0: none), further arguments as `side_by_side.compare` has them. Raises ValueError."""
    policies = [replace(one, form=form) for one in policies]
    result = compare(policies, workers=workers, on_done=on_done, **how)
    policies = [settled(one, result.length) for one in policies]
    if draws != 0:
        result = over_draws(result, policies, draws, workers=workers, on_done=on_done)
    result = as_replayed(result, policies)
    by_costs = dict[tuple[str, str], list[tuple[PolicySummary, Resolved]]]()
    for row, one in zip(result.policies, policies, strict=True):
        by_costs.setdefault((one.profile.name, one.engine.name), []).append((row, one))
    near, distances = [], []
    for alike in by_costs.values():
        rows, ours = map(list, zip(*alike, strict=True))
        part = msgspec.structs.replace(result, policies=rows)
        near += evidence(ours[0].profile, asked_of_comparison(part, ours))
        distances += levels(part, ours)
    return msgspec.structs.replace(result, evidence=list(dict.fromkeys(near)), levels=distances)


def over_draws(
    result: Comparison,
    policies: Sequence[Resolved],
    draws: int | None = None,
    *,
    workers: int | None = None,
    on_done: OnDone = lambda stage, done, total: None,
) -> Comparison:
    """`result` of `policies`, at its length, with differences in `draws` draws, and without the orders that do not hold
    there. Left open, there are COMPARED_DRAWS of policies with steady means, if `result` orders any, in runs so short
    that all of them serve no more requests than those of `result` did."""
    scenario, phi = policies[0].scenario, policies[0].profile.phi
    drawn, shown = scenario, result.policies
    if draws is None:
        shown = [row for row in result.policies if row.load.is_steady]
        is_ordered = any(row.order in ORDERED and row.metric == METRIC for row in result.paired)
        if not is_ordered or scenario.speculation.drafts:
            return result
        drawn = _shortened(scenario, result, len(shown))
    elif draws < 2:
        raise ValueError(f"draws={draws!r} must be at least 2, or 0 for none: one draw says nothing of others")
    count = draws or COMPARED_DRAWS
    named = {one.label: one for one in policies}
    ran = [named[row.policy] for row in shown]
    in_draws = _in_draws(result, ran, drawn, count, Runner(workers, on_done))
    differences, paired = [], []
    for row in result.paired:
        difference = in_draws.difference(row)
        if difference is None:
            paired.append(row)
            continue
        mean, intervals, alone = difference
        orders = [sign_of(interval) or Order.DRAWS for interval in intervals]
        middle = len(intervals) // 2
        differences.append(
            Drawn(a=row.a, b=row.b, metric=row.metric, mean=mean, interval=intervals[middle], order=orders[middle])
        )
        if row.order in STATED:
            order, interval = row.order, hull(intervals)
            if set(orders) != {order}:
                is_theirs = any(sign_of(each) is not order for each in alone)
                order = Order.DRAWS if is_theirs else order_of(interval, in_draws.lower_mean(row))
            row = msgspec.structs.replace(row, order=order, interval=interval)
        elif row.break_even_phi is not None:
            open_at = open_phis((phi.low, phi.value, phi.high), intervals)
            row = msgspec.structs.replace(row, break_even_ci95=open_at or row.break_even_ci95)
        paired.append(row)
    which = f"{'all' if count < FEWEST_OF_90 else '90 %'} of {count}"
    length = "" if drawn is scenario else f". Each variation is a run of {num_requests(drawn.workload)} requests"
    note = f"{ONLY_IF} {which} {covers(policies[0])}{length}"
    return restated(result, policies, paired, drawn=differences, notes=[*result.notes, note])


def _shortened(scenario: Scenario, result: Comparison, num_policies: int) -> Scenario:
    """`scenario` with so many requests that COMPARED_DRAWS of it, and its replications, take what `result` took; itself
    if it has no more."""
    count, workload, replications = num_requests(scenario.workload), scenario.workload, scenario.replications
    num_runs = replications * sum(len(row.by_overlap) or 1 for row in result.policies) / num_policies
    if num_runs >= COMPARED_DRAWS:
        return scenario
    least = max(LEAST_PROMPTS, LEAST_PER_SLOT * (workload.max_concurrency or 0))
    shorter = max(least, int(count * num_runs / (COMPARED_DRAWS + replications)))
    if shorter >= count:
        return scenario
    warmups, cooldowns = (shorter * left_out // count for left_out in (workload.num_warmups, workload.num_cooldowns))
    return msgspec.structs.replace(scenario, workload=workload.sized(shorter, warmups, cooldowns))


def _in_draws(
    result: Comparison, policies: Sequence[Resolved], drawn: Scenario, count: int, runner: Runner
) -> _InDraws:
    """Runs of `policies` at the length of `drawn` in `count` draws, the requests those of the replications in turn; and
    with costs as given where that is not the length of `result`."""
    scenario, is_shorter = policies[0].scenario, drawn is not policies[0].scenario
    seeds = [child_seed(scenario.seed, replication) for replication in range(min(count, scenario.replications))]
    ran = [one.changed(workload=drawn.workload) if is_shorter else one for one in policies]
    given = [Point(resolved=one, seed=seed) for one in ran for seed in seeds if is_shorter]
    points = [
        Point(resolved=draw, seed=seed)
        for one in ran
        for draw, seed in zip(cost_draws(one, count, scenario.seed), cycle(seeds), strict=False)
    ]
    outcomes = (outcome.run for outcome in on_points(run_point, [*given, *points], runner, "draws"))
    as_given = {one.label: [run for run in result.runs if run["policy"] == one.label] for one in policies}
    as_given |= {one.label: list(islice(outcomes, len(seeds))) for one in policies if is_shorter}
    runs = {
        one.label: list(zip(islice(outcomes, count), cycle(as_given[one.label][: len(seeds)]), strict=False))
        for one in policies
    }
    return _InDraws({row.policy: row for row in result.policies}, runs)


class _InDraws(NamedTuple):
    """Means of a comparison in draws: a factor each, from two runs of the same requests, whose noise cancels."""

    policies: Mapping[str, PolicySummary]
    runs: Mapping[str, Sequence[tuple[Run, Run]]]
    """[draws] a run with costs as drawn and as given, by policy."""

    def lower_mean(self, row: Paired) -> float:
        return min((self.policies[name].mean[row.metric] or 0.0 for name in (row.a, row.b)), key=abs)

    def difference(self, row: Paired) -> tuple[float, list[Interval], list[Interval]] | None:
        """Mean over the draws, and the interval at each phi of the bracket with what the replications leave open and
        without, of `a` - `b`; None where some run has no value."""
        ours, theirs = ((self._means(policy, row), self._factors(policy, row.metric)) for policy in (row.a, row.b))
        if not ours[0] or not theirs[0] or ours[1] is None or theirs[1] is None:
            return None
        means = [
            (mine - other, mine * ours[1] - other * theirs[1]) for mine, other in zip(ours[0], theirs[0], strict=True)
        ]
        intervals, alone = ([_around(mean, drawn.tolist(), ci95) for mean, drawn in means] for ci95 in (row.ci95, None))
        return float(means[len(means) // 2][1].mean()), intervals, alone

    def _means(self, policy: str, row: Paired) -> list[float]:
        """[phi, or one] means of the replications; none where some run has no value."""
        summary = self.policies[policy]
        given = [means[row.metric] for means in summary.by_overlap.values()] or [summary.mean[row.metric]]
        means = [mean for mean in given if mean is not None] * (len(BRACKET) // len(given))
        if len(means) < len(BRACKET):
            return []
        return means if row.by_overlap else [means[len(BRACKET) // 2]]

    def _factors(self, policy: str, metric: str) -> Floats | None:
        pairs = [(number(drawn, metric), number(given, metric)) for drawn, given in self.runs.get(policy, ())]
        factors = [drawn / given for drawn, given in pairs if drawn is not None and given]
        return np.array(factors) if factors and len(factors) == len(pairs) else None


def _around(mean: float, drawn: Sequence[float], ci95: Interval | None) -> Interval:
    """Interval of nine draws in ten, with what the replications leave open of the mean."""
    low, high = interval_90(drawn)
    half = 0.0 if ci95 is None else (ci95[1] - ci95[0]) / 2.0
    return mean - hypot(max(0.0, mean - low), half), mean + hypot(max(0.0, high - mean), half)
