"""Lane policy by load: closed loops at every concurrency, and of them the table and the hysteresis that
`adaptive` goes by.

A row begins where another policy is surely better than the one before it: in the mean over the draws by MIN_GAIN or
more and beyond its interval, at every phi of the bracket where overlap was neither measured nor given. Where nothing
is, the policy stays; so the first candidate is what a table says that has nothing to say. Between two neighbouring rows
more concurrencies are simulated until they are close (CLOSE), and the hysteresis keeps a row until the load is one at
which the other was simulated to be better. Not here: switching (sim.policies.adaptive), draft lengths (tune).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import ceil, sqrt

import msgspec

from sim.compare.point_runs import Point
from sim.compare.pool import OnDone, Runner, lasting
from sim.compare.side_by_side import cost_source
from sim.compare.verdict import Interval
from sim.costs.profile import Profile
from sim.devices.contention import BRACKET, PhiLevel, phi_at
from sim.metrics.stats import interval_95
from sim.policies.choices import LoadTable
from sim.run.resolve import Resolved, resolve, resolve_all
from sim.run.scenario import Scenario, to_plain
from sim.studies.answer import Stated
from sim.studies.cost_draws import cost_draws, covers, seeds_of
from sim.studies.length_choice import MIN_GAIN
from sim.studies.tune import REQUESTS_PER_SLOT, concurrencies_of, looped, objective, objective_values, rising

CANDIDATES = ("pd", "unified", "pdv", "baseline")
"""Policies in the order in which they stay where none is surely better."""
DEFAULT_DRAWS = 4
CLOSE = 1.3
"""Ratio of two neighbouring concurrencies between which no other one is tried."""
Figures = Mapping[str, Mapping[PhiLevel, Sequence[float]]]
"""policy -> phi -> what is maximised, [draws]."""


class PolicyAt(msgspec.Struct, frozen=True, kw_only=True):
    """One policy at one concurrency, against the one that is chosen there."""

    policy: str
    value: float
    """Value of the objective, mean over draws at the middle phi, or with the scenario's overlap where it gives one."""
    gain: float
    """Relative, likewise."""
    by_overlap: dict[str, Interval]
    """95 % interval of the mean gain at each phi of the bracket."""


class LoadPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One concurrency that was simulated."""

    concurrency: int
    policy: str
    """Chosen there."""
    candidates: list[PolicyAt]


class PolicyTuning(Stated, frozen=True, kw_only=True):
    """A lane policy for each load."""

    objective: str
    adaptive_table: LoadTable
    """Table for policy_options.adaptive_table."""
    hysteresis: float
    """Value for policy_options.hysteresis."""
    points: list[LoadPoint]


@lasting()
def tune_policies(
    scenario: Scenario,
    profile: Profile,
    *,
    concurrencies: Sequence[int] | None = None,
    draws: int = DEFAULT_DRAWS,
    workers: int | None = None,
    on_done: OnDone = lambda stage, done, total: None,
) -> PolicyTuning:
    """The table of `adaptive` for the scenario's requests, engine and pair.

    `concurrencies` are 1, 2, 4 and so on up to the most requests that the engine seats, unless given; those between
    two rows are added. Raises ValueError for a scenario that cannot be tuned.
    """
    if draws < 2:
        raise ValueError(f"draws={draws!r} must be at least 2: a row begins where a gain is beyond its interval")
    resolve_all(scenario, profile)
    scenario = msgspec.structs.replace(scenario, policy=CANDIDATES)
    resolved = {policy: resolve(scenario, profile, policy) for policy in CANDIDATES}
    first = resolved[CANDIDATES[0]]
    tried = rising("concurrency", concurrencies_of(first) if concurrencies is None else concurrencies, 1)
    count, most = scenario.workload.num_prompts, tried[-1]
    least = REQUESTS_PER_SLOT * most
    if isinstance(count, int) and count < least:
        # A policy that gives all requests turns has many half done when a short run ends: their tokens count nowhere.
        raise ValueError(
            f"num_prompts={count} is too few to compare policies at {most} in flight: want at least {least}, or auto"
        )
    drawn = {policy: cost_draws(one, draws, scenario.seed) for policy, one in resolved.items()}
    figures: dict[int, Figures] = {}
    missing = list(tried)
    while missing:
        figures |= _simulated(drawn, missing, Runner(workers, on_done))
        known = sorted(figures)
        chosen = choices([figures[concurrency] for concurrency in known], CANDIDATES)
        missing = between(known, chosen)
    table, hysteresis = table_of(known, chosen)
    return PolicyTuning(
        scenario=to_plain(scenario),
        costs=cost_source(profile),
        objective=objective(scenario),
        draws=draws,
        covers=covers(first),
        verdict=_verdict(table, hysteresis),
        adaptive_table=table,
        hysteresis=hysteresis,
        points=[_point(each, policy, figures[each]) for each, policy in zip(known, chosen, strict=True)],
    )


# -- choosing, pure


def gain(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, Interval]:
    """Mean relative gain, draw by draw, and the 95 % interval of that mean.

    >>> round(gain([2.0, 2.2], [2.0, 2.0])[0], 3)
    0.05
    """
    gains = [one / other - 1.0 if other else 0.0 for one, other in zip(ours, theirs, strict=True)]
    mean = sum(gains) / len(gains)
    return mean, interval_95(gains) or (mean, mean)


def is_surely_better(ours: Mapping[PhiLevel, Sequence[float]], theirs: Mapping[PhiLevel, Sequence[float]]) -> bool:
    """Ours gain MIN_GAIN or more in the mean, and anything in the whole interval, at every phi."""
    gains = [gain(ours[level], theirs[level]) for level in ours]
    return all(mean >= MIN_GAIN and low > 0.0 for mean, (low, _) in gains)


def choices(figures: Sequence[Figures], candidates: Sequence[str]) -> list[str]:
    """[concurrencies] the policy at each, in rising order: the one before it unless another is surely better."""
    chosen, present = [], candidates[0]
    for at in figures:
        better = [policy for policy in candidates if is_surely_better(at[policy], at[present])]
        if better:
            present = max(better, key=lambda policy: sum(at[policy][PhiLevel.MIDDLE]))
        chosen.append(present)
    return chosen


def between(concurrencies: Sequence[int], chosen: Sequence[str]) -> list[int]:
    """Concurrencies to try beside the simulated ones: in the middle of two neighbours that differ and are not close."""
    pairs = zip(pairwise(concurrencies), pairwise(chosen), strict=True)
    middles = [
        (low, round(sqrt(low * high)), high)
        for (low, high), (before, after) in pairs
        if before != after and high > CLOSE * low
    ]
    return [middle for low, middle, high in middles if low < middle < high]


def table_of(concurrencies: Sequence[int], chosen: Sequence[str]) -> tuple[LoadTable, float]:
    """The rows, each from half-way (in ratio) between the last concurrency of one policy and the first of the next, and
    the share of such an edge by which both lie from it.

    >>> table_of((1, 8, 16, 20, 64), ("pd", "pd", "pd", "unified", "unified"))
    (((1, 'pd'), (18, 'unified')), 0.12)
    >>> table_of((1, 64), ("pd", "pd"))
    (((1, 'pd'),), 0.0)
    """
    rows, hysteresis = [(1, chosen[0])], 0.0
    for (low, high), (before, after) in zip(pairwise(concurrencies), pairwise(chosen), strict=True):
        if before != after:
            edge = max(low + 1, round(sqrt(low * high)))
            rows.append((edge, after))
            hysteresis = max(hysteresis, high / edge - 1.0, 1.0 - low / edge)
    return tuple(rows), ceil(100.0 * hysteresis) / 100.0


# -- running


def _simulated(
    draws: Mapping[str, Sequence[Resolved]], concurrencies: Sequence[int], runner: Runner
) -> dict[int, Figures]:
    """Every policy at every one of `concurrencies`, in every draw and at every phi."""
    one, *_ = draws[CANDIDATES[0]]
    overlap = one.profile.overlap
    is_given = overlap.measured or one.scenario.devices.is_overlap_given
    levels = (PhiLevel.MIDDLE,) if is_given else BRACKET
    points = [
        Point(resolved=looped(draw, concurrency), seed=seed, phi=None if is_given else phi_at(overlap, level))
        for concurrency in concurrencies
        for drawn in draws.values()
        for level in levels
        for draw, seed in zip(drawn, seeds_of(drawn), strict=True)
    ]
    stage = f"simulating {concurrencies[0]} to {concurrencies[-1]} in flight"
    remaining = iter(objective_values(points, stage, runner).tolist())
    return {
        concurrency: {
            policy: {level: [next(remaining) for _ in drawn] for level in levels} for policy, drawn in draws.items()
        }
        for concurrency in concurrencies
    }


def _point(concurrency: int, chosen: str, figures: Figures) -> LoadPoint:
    best, candidates = figures[chosen], []
    for policy, by_level in figures.items():
        values, gains = (
            by_level[PhiLevel.MIDDLE],
            {level: gain(values_at, best[level]) for level, values_at in by_level.items()},
        )
        candidates.append(
            PolicyAt(
                policy=policy,
                value=sum(values) / len(values),
                gain=gains[PhiLevel.MIDDLE][0],
                by_overlap={level.value: interval for level, (_, interval) in gains.items()},
            )
        )
    return LoadPoint(concurrency=concurrency, policy=chosen, candidates=candidates)


def _verdict(table: LoadTable, hysteresis: float) -> str:
    if len(table) == 1:
        return f"one policy: {table[0][1]} at every load; no other is clearly better"
    rows = ", ".join(f"{policy} from {start}" for start, policy in table)
    return f"a table: {rows} unfinished requests, left {100.0 * hysteresis:.0f} % beyond an edge"
