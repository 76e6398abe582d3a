"""How sure a comparison is: with `--until-ci` as many replications as it takes for intervals of means to be as narrow
as asked for, with `--draws` the orders that hold in what costs and acceptance might as well be.

A pilot of ten replications says how many; then as many fresh ones are made, which share nothing with the pilot. Adding
until an interval is narrow would stop at lucky moments, and cover less than it says. What the fresh ones leave wider
is told. Over draws every policy runs in each of them, paired, at the length that the comparison has; an order that was
stated stays only if 5 to 95 % of the draws' differences lie on the same side of nothing.
Not here: how long runs must be for steady means (sim.compare.run_length), draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import ceil, sqrt
from statistics import stdev

import msgspec
import numpy as np

from sim.compare.point_runs import Point, run_points, with_keys
from sim.compare.pool import OnDone, Runner
from sim.compare.run_length import choose_run_length
from sim.compare.side_by_side import PAIRED_METRICS, Comparison, Drawn, drafting
from sim.compare.verdict import METRIC, STATED, Order, verdict
from sim.costs.profile import Profile
from sim.draws import child_seed
from sim.metrics.stats import t_975
from sim.metrics.summary import Run, number
from sim.run.resolve import resolve_all
from sim.run.scenario import Scenario, parse_scenario
from sim.studies.cost_draws import cost_draws, covers, interval_90
from sim.workload.generate import MAX_PROMPTS, is_trace

PILOTS = 10
SPREAD_MARGIN = 1.29
"""A pilot's spread times this is above the true one four times in five (chi-square with 9 degrees of freedom)."""
PILOT_KEY = 1_000_041
"""Child of the scenario's seed that the pilot draws from."""
MAX_REPLICATIONS = 64
"""Beyond it runs grow longer instead."""
MAX_TIMES_LONGER = 20
METRICS = ("mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms", "steady_output_throughput")


def sized(
    scenario: Scenario,
    profile: Profile,
    share: float,
    *,
    workers: int | None = None,
    on_done: OnDone = lambda stage, done, total: None,
) -> Scenario:
    """`scenario` with as many replications, at its settled length, as make half of the 95 % intervals of METRICS at
    most `share` of their means, for every policy; runs grow longer where more than MAX_REPLICATIONS would be needed.

    Raises ValueError for a share that no run can reach.
    """
    if not 0.001 <= share < 1.0:
        raise ValueError(f"--until-ci {share!r}: want a share of the mean from 0.001 to below 1, such as 0.05")
    resolve_all(scenario, profile)
    on_done("settling the length", 0, 1)
    settled, length = choose_run_length(scenario, profile)
    points = [
        Point(scenario=settled, policy=policy, seed=child_seed(scenario.seed, PILOT_KEY, replication), profile=profile)
        for policy in scenario.policy
        for replication in range(PILOTS)
    ]
    done = run_points(points, Runner(workers, on_done), "pilots")
    most = 2
    for place in range(len(scenario.policy)):
        runs = [outcome.run for outcome in done[place * PILOTS : (place + 1) * PILOTS]]
        for metric in METRICS:
            values = [value for run in runs if (value := number(run, metric)) is not None]
            if len(values) == PILOTS:
                most = max(most, replications_for(values, share / SPREAD_MARGIN))
    if most <= MAX_REPLICATIONS:
        return msgspec.structs.replace(scenario, replications=most)
    times = min(MAX_TIMES_LONGER, ceil(most / MAX_REPLICATIONS))
    if not is_trace(settled.workload):
        count = min(MAX_PROMPTS, length.num_prompts * times)
        settled = with_keys(settled, workload={"num_prompts": count})
    return with_keys(scenario, workload=settled.workload, replications=MAX_REPLICATIONS)


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


def wider_than(result: Comparison, share: float) -> list[str]:
    """A line per policy whose intervals are wider than asked for all the same, or that has none."""
    lines = []
    for row in result.policies:
        if not row.load.is_steady:
            lines.append(f"--until-ci: {row.policy} is {row.load.verdict.value}: no length makes its means steady")
            continue
        wide = []
        for metric in METRICS:
            mean, interval = row.mean.get(metric), row.ci95.get(metric)
            if mean and interval and (interval[1] - interval[0]) / 2.0 > share * abs(mean):
                wide.append(f"{metric} {100.0 * (interval[1] - interval[0]) / 2.0 / abs(mean):.1f} %")
        if wide:
            lines.append(
                f"--until-ci {share:g}: {row.policy} has wider ones all the same, since the pilot saw less spread: "
                + ", ".join(wide)
            )
    return lines


def over_draws(
    result: Comparison,
    profile: Profile,
    draws: int,
    *,
    workers: int | None = None,
    on_done: OnDone = lambda stage, done, total: None,
) -> Comparison:
    """`result` with the differences in `draws` draws, and without the orders that do not hold there."""
    if draws < 2:
        raise ValueError(f"draws={draws!r} must be at least 2: one draw says nothing of others")
    scenario = parse_scenario(result.scenario)
    drawn_costs = cost_draws(scenario, profile, draws, scenario.seed)
    points = [
        Point(scenario=draw.scenario(scenario), policy=policy, seed=draw.seed, profile=draw.profile)
        for policy in scenario.policy
        for draw in drawn_costs
    ]
    found = run_points(points, Runner(workers, on_done), "draws")
    runs = {
        policy: [outcome.run for outcome in found[place * draws : (place + 1) * draws]]
        for place, policy in enumerate(scenario.policy)
    }
    drawn = [
        row
        for first, second in combinations(scenario.policy, 2)
        for metric in PAIRED_METRICS
        if (row := _drawn(second, first, metric, runs[second], runs[first])) is not None
    ]
    orders = {(row.a, row.b, row.metric): row.order for row in drawn}
    paired = [
        msgspec.structs.replace(row, order=Order.DRAWS)
        if row.order in STATED and orders.get((row.a, row.b, row.metric)) is not row.order
        else row
        for row in result.paired
    ]
    note = f"an order is stated only if it holds from 5 to 95 % of {draws} {covers(scenario, profile)}"
    sentence = verdict(result.policies, paired, drafting(scenario))
    if any(row.order in STATED and row.metric == METRIC for row in paired):
        sentence += f"; what is ranked here is so in 90 % of {draws} draws of costs and acceptance"
    return msgspec.structs.replace(result, paired=paired, verdict=sentence, drawn=drawn, notes=[*result.notes, note])


def _drawn(a: str, b: str, metric: str, ours: list[Run], theirs: list[Run]) -> Drawn | None:
    """`a` - `b` draw by draw; None where some draw has none."""
    pairs = [(number(one, metric), number(other, metric)) for one, other in zip(ours, theirs, strict=True)]
    differences = [mine - other for mine, other in pairs if mine is not None and other is not None]
    if len(differences) < len(pairs):
        return None
    low, high = interval_90(differences)
    order = Order.LOWER if high < 0.0 else Order.HIGHER if low > 0.0 else Order.SAME
    return Drawn(a=a, b=b, metric=metric, mean=float(np.mean(differences)), interval=(low, high), order=order)
