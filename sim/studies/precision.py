"""How sure a comparison is: the orders that hold in what costs and acceptance might as well be (draws).

In a draw every policy serves the requests of a replication; the ratio of what it takes to that with costs as given is a
factor on its mean. An order that was stated stays only if nine in ten of the differences that follow have its sign,
with the noise of replications, at every phi. Not here: how long runs must be for steady means
(sim.compare.run_length), draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import hypot, sqrt
from statistics import stdev
from typing import NamedTuple

import msgspec
import numpy as np

from sim.compare.point_runs import Point, run_points, worth
from sim.compare.pool import OnDone, Runner
from sim.compare.run_length import settled
from sim.compare.side_by_side import Comparison, Drawn, DrawnLevel, drafting, open_phis
from sim.compare.verdict import METRIC, STATED, Interval, Order, Paired, PolicySummary, verdict
from sim.devices.contention import BRACKET, phi_of
from sim.draws import child_seed
from sim.metrics.stats import Floats, t_975
from sim.metrics.summary import Run, number
from sim.run.resolve import Resolved
from sim.run.scenario import Scenario
from sim.studies.cost_draws import cost_draws, covers, interval_90
from sim.workload.generate import num_requests

COMPARED_DRAWS = 10
FEWEST_OF_90 = 19
"""Draws from which on their interval is less than their range."""
LEAST_PROMPTS, LEAST_PER_SLOT = 50, 3
"""Requests of a run in a draw: at least, and for each that a closed loop has in flight."""
ORDERED = (*STATED, Order.OVERLAP)


def replications_for(values: Sequence[float], share: float) -> int:
    """Replications whose 95 % interval has at most `share` of the mean on either side, by the spread of `values`.

    >>> replications_for([10.0, 10.0, 10.0], 0.05), replications_for([9.0, 10.0, 11.0], 0.05)
    (2, 18)
    """
    mean = sum(values) / len(values)
    if mean == 0.0:
        return 2
    least = stdev(values) / (share * abs(mean))
    count = max(2, int(least**2))
    while t_975(count - 1) * least > sqrt(count):
        count += 1
    return count


def over_draws(
    result: Comparison,
    policies: Sequence[Resolved],
    draws: int | None = None,
    *,
    workers: int | None = None,
    on_done: OnDone = lambda stage, done, total: None,
) -> Comparison:
    """`result` of `policies` with levels and differences in `draws` draws, and without the orders that do not hold
    there.

    Left open, there are COMPARED_DRAWS of the policies with steady means, if `result` orders any of them, in runs so
    short that all of them serve no more requests than those of `result` did.
    """
    policies = [settled(one, result.length) for one in policies]
    scenario, profile = policies[0].scenario, policies[0].profile
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
    named = {one.policy.name: one for one in policies}
    ran = [named[row.policy] for row in shown]
    worlds = _worlds(result, ran, drawn, count, Runner(workers, on_done))
    levels = [level for row in shown if (level := worlds.level(row)) is not None]
    differences, paired = [], []
    phi = phi_of(profile.overlap)
    for row in result.paired:
        found = worlds.difference(row)
        if found is None:
            paired.append(row)
            continue
        mean, intervals = found
        orders = [_order(interval) for interval in intervals]
        middle = len(intervals) // 2
        differences.append(
            Drawn(a=row.a, b=row.b, metric=row.metric, mean=mean, interval=intervals[middle], order=orders[middle])
        )
        if row.order in STATED and set(orders) != {row.order}:
            row = msgspec.structs.replace(row, order=Order.DRAWS)
        elif row.break_even_phi is not None:
            open_at = open_phis((phi.low, phi.value, phi.high), intervals)
            row = msgspec.structs.replace(row, break_even_ci95=open_at or row.break_even_ci95)
        paired.append(row)
    which = f"{'all' if count < FEWEST_OF_90 else '90 %'} of {count}"
    length = "" if drawn is scenario else f", in runs of {num_requests(drawn.workload)} requests each"
    note = f"an order is stated only if it holds in {which} {covers(scenario, profile)}{length}"
    sentence = verdict(result.policies, paired, drafting(policies))
    if any(row.order in STATED and row.metric == METRIC for row in paired):
        sentence += f"; every order stated holds in {which} draws of costs and acceptance"
    elif len(result.policies) == len(levels) == 1:
        low, high = (f"{end:,.0f}" if end >= 100.0 else f"{end:.3g}" for end in levels[0].interval)
        sentence += f", {low} to {high} ms in {which} draws of costs and acceptance"
    return msgspec.structs.replace(
        result,
        paired=paired,
        verdict=sentence,
        drawn=differences,
        drawn_levels=levels,
        notes=[*result.notes, note],
    )


def _shortened(scenario: Scenario, result: Comparison, num_policies: int) -> Scenario:
    """`scenario` with so many requests that COMPARED_DRAWS of it, and as many runs with costs as given as there are
    replications, take what `result` took; itself if it has no more."""
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


def _worlds(result: Comparison, policies: Sequence[Resolved], drawn: Scenario, count: int, runner: Runner) -> _Worlds:
    """Runs of `policies` at the length of `drawn` in `count` draws, the requests those of the replications in turn; and
    with costs as given where that is not the length of `result`."""
    scenario, profile = policies[0].scenario, policies[0].profile
    seeds = [child_seed(scenario.seed, replication) for replication in range(min(count, scenario.replications))]
    shorter = [one if drawn is scenario else one.changed(workload=drawn.workload) for one in policies]
    draws = cost_draws(scenario, profile, count, scenario.seed)
    points = [
        Point(resolved=draw.of(one), seed=seeds[index % len(seeds)])
        for one in shorter
        for index, draw in enumerate(draws)
    ]
    given = [Point(resolved=one, seed=seed) for one in shorter for seed in seeds if drawn is not scenario]
    found = [outcome.run for outcome in run_points([*points, *given], worth([*points, *given], runner), "draws")]
    names = [one.policy.name for one in policies]
    as_given = found[len(points) :] or [run for policy in names for run in result.runs if run["policy"] == policy]
    per_policy = len(as_given) // len(policies)
    runs = {}
    for place, policy in enumerate(names):
        own = as_given[place * per_policy : (place + 1) * per_policy]
        worlds = found[place * count : (place + 1) * count]
        runs[policy] = [(world, own[index % len(seeds)]) for index, world in enumerate(worlds)]
    return _Worlds({row.policy: row for row in result.policies}, runs)


class _Worlds(NamedTuple):
    """What draws of costs and acceptance make of the means of a comparison: a factor each, from two runs of the same
    requests. So the noise of requests, which replications tell, is not in it twice."""

    policies: Mapping[str, PolicySummary]
    runs: Mapping[str, Sequence[tuple[Run, Run]]]
    """[draws] a run with costs as drawn and as given, by policy."""

    def level(self, row: PolicySummary) -> DrawnLevel | None:
        """The policy's mean E2EL; None where some run has none."""
        mean, factors = row.mean[METRIC], self._factors(row.policy, METRIC)
        if mean is None or factors is None:
            return None
        interval = _around(mean, (mean * factors).tolist(), row.ci95[METRIC])
        return DrawnLevel(policy=row.policy, mean_e2el_ms=mean, interval=interval)

    def difference(self, row: Paired) -> tuple[float, list[Interval]] | None:
        """Mean over the draws, and the interval at each phi of the bracket, of `a` - `b`; None where some run has no
        value, or was not made."""
        sides = [(self._means(policy, row), self._factors(policy, row.metric)) for policy in (row.a, row.b)]
        (ours, our_factors), (theirs, their_factors) = sides
        if not ours or not theirs or our_factors is None or their_factors is None:
            return None
        found = [mine * our_factors - other * their_factors for mine, other in zip(ours, theirs, strict=True)]
        intervals = [
            _around(mine - other, differences.tolist(), row.ci95)
            for mine, other, differences in zip(ours, theirs, found, strict=True)
        ]
        return float(found[len(found) // 2].mean()), intervals

    def _means(self, policy: str, row: Paired) -> list[float]:
        """[phi, or one] means of the replications; none where some run has no value."""
        own = self.policies[policy]
        by_phi = [means[row.metric] for means in own.by_overlap.values()] or [own.mean[row.metric]] * len(BRACKET)
        means = [mean for mean in by_phi if mean is not None]
        if len(means) < len(BRACKET):
            return []
        return means if row.by_overlap else [means[len(BRACKET) // 2]]

    def _factors(self, policy: str, metric: str) -> Floats | None:
        pairs = [(number(drawn, metric), number(given, metric)) for drawn, given in self.runs.get(policy, ())]
        factors = [drawn / given for drawn, given in pairs if drawn is not None and given]
        return np.array(factors) if factors and len(factors) == len(pairs) else None


def _around(mean: float, drawn: Sequence[float], ci95: Interval | None) -> Interval:
    """What nine draws in ten lie in, with what the replications leave open of the mean."""
    low, high = interval_90(drawn)
    half = 0.0 if ci95 is None else (ci95[1] - ci95[0]) / 2.0
    return mean - hypot(max(0.0, mean - low), half), mean + hypot(max(0.0, high - mean), half)


def _order(interval: Interval) -> Order:
    low, high = interval
    return Order.LOWER if high < 0.0 else Order.HIGHER if low > 0.0 else Order.SAME
