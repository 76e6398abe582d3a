"""Which verdicts of a comparison survive what costs and acceptance might as well be.

Every policy runs in every draw, paired, at the length that the comparison settled on; an order that was stated stays
only if 5 to 95 % of the draws' differences lie on the same side of nothing. Not here: draws, the orders that
the runs' own luck allows (sim.experiment.compare).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import msgspec
import numpy as np

from sim.costs.profile import Profile
from sim.experiment.compare import PAIRED_METRICS, Comparison, Drawn, Order
from sim.experiment.points import Point, run_points
from sim.experiment.scenario import resolve
from sim.metrics.summary import Run, number
from sim.studies.draws import cost_draws, covers, interval_90

STATED = (Order.LOWER, Order.HIGHER)


def over_draws(
    result: Comparison,
    profile: Profile,
    draws: int,
    *,
    workers: int | None = None,
    on_done: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> Comparison:
    """`result` with the differences in `draws` draws, and without the orders that do not hold there."""
    if draws < 2:
        raise ValueError(f"draws={draws!r} must be at least 2: one draw says nothing of others")
    scenario = resolve(result.scenario)
    drawn_costs = cost_draws(scenario, profile, draws, scenario.seed)
    points = [
        Point(scenario=draw.scenario(scenario), policy=policy, seed=draw.seed, profile=draw.profile)
        for policy in scenario.policy
        for draw in drawn_costs
    ]
    on_done("draws", 0, len(points))
    found = dict(run_points(points, workers=workers, on_done=lambda done: on_done("draws", done, len(points))))
    runs = {
        policy: [found[place * draws + index].run for index in range(draws)]
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
    return msgspec.structs.replace(result, paired=paired, drawn=drawn, notes=[*result.notes, note])


def _drawn(a: str, b: str, metric: str, ours: list[Run], theirs: list[Run]) -> Drawn | None:
    """`a` - `b` draw by draw; None where some draw has none."""
    pairs = [(number(one, metric), number(other, metric)) for one, other in zip(ours, theirs, strict=True)]
    differences = [mine - other for mine, other in pairs if mine is not None and other is not None]
    if len(differences) < len(pairs):
        return None
    low, high = interval_90(differences)
    order = Order.LOWER if high < 0.0 else Order.HIGHER if low > 0.0 else Order.SAME
    return Drawn(a=a, b=b, metric=metric, mean=float(np.mean(differences)), interval=(low, high), order=order)
