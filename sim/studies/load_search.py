"""The highest load of one policy, by bisection of the mean curve: the share of requests that meet the SLOs, averaged
over replications, each of which has the same requests at every load.

Replications that are searched one by one would end higher on average: far below its own load a run meets the SLOs
nearly always, and above it the share falls fast. Under a draw of costs and acceptance one replication is searched about
the answer, and ends earlier: the two answers' ratio is what the draw does, whatever those requests were.
Not here: how many replications, how many replicas, what is said of them (attainment).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from math import ceil, exp, inf, isinf, log, sqrt
from statistics import stdev
from typing import NamedTuple

import msgspec

from sim.compare.capacity import Saturation
from sim.compare.point_runs import Point, attained_share, on_points
from sim.compare.pool import Runner
from sim.compare.verdict import Interval
from sim.draws import child_seed
from sim.engine.fleet import Routing
from sim.files.json_values import Json
from sim.metrics.stats import interval_95, t_975
from sim.metrics.summary import Run
from sim.run.resolve import Resolved
from sim.run.scenario import Scenario, Window
from sim.workload.generate import Workload, at_most, is_trace, trace_length

PILOTS = 5
MAX_REPLICATIONS = 20
NARROW = 0.02
"""Half of the interval over the answer, from which on it is narrow."""
BISECTED, BISECTED_BRIEF, BISECTED_IN_DRAW = 0.004, 0.015, 0.03
"""Relative width to which an answer is bisected; small beside NARROW, and beside what draws differ by."""
AT_ONCE_PER_S = 1e6
"""Requests per second from which on all of them come at once, and the most that a scenario takes."""
ALONE = 1e-3
"""Share of the saturated throughput at which requests hardly ever meet."""
REQUESTS = 2000
"""Requests of a run with its length left open; a tenth more come first and do not count."""
SPAN_IN_BOUNDS, MAX_REQUESTS = 50.0, 20_000
"""Length of such a run: mean rate times the tightest bound on waiting, and a limit."""
WARMUP_SHARE, SESSIONS_WARMUP_SHARE = 0.1, 0.5
"""Share of the requests that come first and do not count. Of sessions, because what was said before the run is in no
memory."""
PILOT_KEY, FRESH_KEY = 1_000_031, 1_000_033
"""Children of the scenario's seed."""

REQUESTS_PER_REPLICA = 800
"""Requests of a fleet's run, per replica."""
FLEET_KEY = 1_000_037
"""Child of the scenario's seed."""


class Limit(StrEnum):
    """Reason why no more load can be served."""

    SLO = "slo"
    """The load beyond which too few requests meet the SLOs."""
    THROUGHPUT = "throughput"
    """The SLOs hold up to the saturated throughput."""
    NEVER = "never"
    """Too few requests meet them even alone."""
    UNBOUNDED = "unbounded"
    """The SLOs bound no waiting, and hold with every request at once."""


class Highest(NamedTuple):
    """The highest load over replications."""

    limit: Limit
    load: float
    """0 for never; the most that is tried, if that holds."""
    pseudo: list[float]
    """[replications] jackknife pseudo-values, whose mean is the load and whose spread is its doubt."""
    seeds: list[int]


Curve = dict[float, list[float]]
"""Shares of requests that meet all SLOs, [replications] by load."""


class LoadSearch:
    """One policy and its loads."""

    def __init__(
        self,
        resolved: Resolved,
        share: float,
        *,
        is_counted: bool = True,
        closeness: float = BISECTED,
        near: float | None = None,
        is_brief: bool = False,
    ) -> None:
        """`resolved` is one replica. `near` is where the first search begins; None: everywhere. A brief search is the
        pilots alone, and less close."""
        self.resolved, self.share = resolved, share
        self.is_counted, self.is_brief = is_counted, is_brief
        self.closeness = max(closeness, BISECTED_BRIEF) if is_brief else closeness
        self._near = near
        self.saturated_per_s, self.saturated_ci95 = Saturation(resolved, self.scenario.seed).capacity
        if not is_counted:
            self.resolved = with_length(resolved, self._long_enough())

    @property
    def scenario(self) -> Scenario:
        return self.resolved.scenario

    @property
    def policy(self) -> str:
        return self.resolved.policy.name

    def _long_enough(self) -> int:
        """Requests whose arrivals span many times what the SLOs let one wait: else a short run ends before a queue that
        grows has become too long. Of sessions so many that the first half lasts as long as they do."""
        goodput, sharing = self.scenario.goodput, self.scenario.workload.sharing
        bounds_ms = [bound for bound in (goodput.ttft_ms, goodput.e2el_ms) if bound is not None]
        spanned_s = SPAN_IN_BOUNDS * min(bounds_ms, default=0.0) / 1e3
        spanned_s = max(spanned_s, 2.0 * (sharing.num_turns - 1) * sharing.turn_gap_s)
        return min(MAX_REQUESTS, max(REQUESTS, ceil(spanned_s * self.saturated_per_s)))

    @property
    def most(self) -> float:
        """The largest load that is tried: with a bound on waiting, or of a brief search, the saturated rate, else
        everything at once."""
        goodput = self.scenario.goodput
        bounds_no_waiting = goodput.ttft_ms is None and goodput.e2el_ms is None
        return inf if bounds_no_waiting and not self.is_brief else self.saturated_per_s

    @property
    def least(self) -> float:
        return ALONE * self.saturated_per_s

    def point(self, load: float, seed: int) -> Point:
        """One run at that load."""
        workload: dict[str, Json] = {
            "request_rate": load,
            "max_concurrency": None,
            "trace_arrivals": self.scenario.workload.trace_arrivals.at_rate,
        }
        return Point(resolved=self.resolved.changed(workload=workload), seed=seed)

    def own_highest(self, seed: int, near: float | None = None) -> float:
        """One replication's highest load: 0 where the least fails, the most where that holds. It is looked for about
        `near` first."""
        low, high, _ = self._bisected([seed], near, Runner(1))
        return sqrt(low * high)

    def _bisected(
        self, seeds: Sequence[int], near: float | None, runner: Runner, stage: str = ""
    ) -> tuple[float, float, Curve]:
        def shares_at(load: float) -> list[float]:
            return on_points(attained_share, [self.point(load, seed) for seed in seeds], runner, stage)

        ends = self.least, self.saturated_per_s, self.most
        return bisected(shares_at, self.share, ends, closeness=self.closeness, near=near)

    def highest_under(self, draw: Resolved, seed: int, first: float) -> float:
        """The highest load where costs and acceptance are those of `draw`, looked for about `first`, where it was as
        given, times what the draw does to the saturated throughput."""
        search = LoadSearch(
            draw,
            self.share,
            closeness=BISECTED_IN_DRAW,
            is_brief=self.is_brief,
        )
        near = first * search.saturated_per_s / self.saturated_per_s
        return search.own_highest(seed, near if 0.0 < near < inf else None)

    def highest(self, runner: Runner) -> Highest:
        """The load over pilots, or over as many fresh replications as a narrow interval takes."""
        near = None if self._near is None else min(self._near, 0.9 * self.most)
        if near is None:
            # The first of the pilots looks everywhere, all of them near its load.
            first = self._over(PILOT_KEY, 1, None, runner).load
            near = first if 0.0 < first < self.most else None
        pilots = self._over(PILOT_KEY, PILOTS, near, runner)
        if self.is_brief or pilots.limit is not Limit.SLO:
            return pilots
        count = min(MAX_REPLICATIONS, max(PILOTS, replications_for(pilots.pseudo, NARROW)))
        found = self._over(FRESH_KEY, count, pilots.load, runner)
        return found if found.limit is not Limit.SLO else found._replace(pseudo=as_wide(found.pseudo, pilots.pseudo))

    def _limit(self, load: float) -> Limit:
        if load == 0.0:
            return Limit.NEVER
        if load < self.most:
            return Limit.SLO
        return Limit.UNBOUNDED if self.most == inf else Limit.THROUGHPUT

    def _over(self, key: int, count: int, near: float | None, runner: Runner) -> Highest:
        """The load that holds over so many replications."""
        seeds = [child_seed(self.scenario.seed, key, index) for index in range(count)]
        stage = f"{self.policy}: {'pilots' if key == PILOT_KEY else 'replications'}"
        load, _, curve = self._bisected(seeds, near, runner, stage)
        limit = self._limit(load)
        pseudo = jackknifed(load, curve, self.share) if limit is Limit.SLO else [load] * count
        return Highest(limit, load, pseudo, seeds)

    def loads_under(self, draws: Sequence[Resolved], found: Highest, runner: Runner) -> list[float]:
        """[draws] the highest load of each: that as given times what the draw makes of the first replication's."""
        load, seed = found.load, found.seeds[0]
        first = self.own_highest(seed, load) if 0.0 < load < inf else load
        highest = partial(self.highest_under, seed=seed, first=first)
        loads = runner.run(highest, draws, f"{self.policy}: draws", self.resolved.plugins)
        if first == 0.0 or isinf(first) or isinf(load):
            return loads
        return [load * value / first for value in loads]


def bisected(
    shares_at: Callable[[float], list[float]],
    share: float,
    ends: tuple[float, float, float],
    *,
    closeness: float,
    near: float | None = None,
) -> tuple[float, float, Curve]:
    """A load that holds, since `shares_at` it are at least `share` on average, a close one above it that fails, and the
    shares at all loads that were tried.

    `ends` are the least load, the saturated rate, and the most load: (0, 0) where the least fails, twice the most where
    that holds. `near` is where to look first; None: everywhere.
    """
    curve: Curve = {}
    least, saturated_per_s, most = ends

    def holds(load: float) -> bool:
        curve[load] = shares_at(load)
        return sum(curve[load]) / len(curve[load]) >= share

    low, high = _bracket(holds, least, saturated_per_s, most, near)
    while 0.0 < low < high and high / low - 1.0 > closeness:
        middle = exp(0.5 * (log(low) + log(high)))
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high, curve


def _bracket(
    holds: Callable[[float], bool], least: float, saturated_per_s: float, most: float, near: float | None
) -> tuple[float, float]:
    """A load that holds and one that fails, or twice the end that says all."""
    factor, low, failed = 1.1, least if near is None else max(least, near / 1.05), 0.0
    while low > least and not holds(low):
        low, factor, failed = max(least, low / factor), factor**2, low
    if low == least and not holds(low):
        return 0.0, 0.0
    if failed:
        return low, failed
    if near is None and holds(most):
        return most, most
    last, step = min(most, AT_ONCE_PER_S), 1.1
    high = 2.0 * saturated_per_s if most == inf else most
    if near is not None:
        high = min(last, near * 1.05)
    while holds(high):
        if high >= last:
            return most, most
        low, high, step = high, min(last, high * step), step**2
    return low, high


def jackknifed(load: float, curve: Curve, share: float) -> list[float]:
    """[replications] pseudo-values of `load`, at which the mean of `curve` falls below `share`: their mean is `load`,
    and their t-interval is that of the load. Straight lines between the loads that were tried.

    Source: Tukey 1958. With 12 replications or more it holds the load in 88 to 95 % near saturation, the interval of
    the replications' own loads in 56 to 94 % (three set-ups on an H100, resampled).

    >>> jackknifed(10.0, {8.0: [1.0, 0.75], 12.0: [0.5, 0.25]}, 0.625)
    [11.0, 9.0]
    """
    loads = sorted(curve)
    count = len(curve[loads[0]])
    if count == 1:
        return [load]
    without = [
        _crossing(loads, [(sum(shares) - shares[i]) / (count - 1) for shares in map(curve.__getitem__, loads)], share)
        for i in range(count)
    ]
    mean = sum(without) / count
    return [load + (count - 1) * (mean - each) for each in without]


def as_wide(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """`values` drawn away from their mean until they spread as much as `others`, if they do not already.

    Bad runs are rare, and replications that have none look too much alike: with the wider spread of pilots and fresh
    ones the interval held the load in 54 of 60 answers near saturation, without it in 52 (three set-ups on an H100).

    >>> as_wide([9.0, 11.0], [18.0, 22.0]), as_wide([9.0, 11.0], [3.0, 4.0])
    ([8.0, 12.0], [9.0, 11.0])
    """
    own, mean = stdev(values), sum(values) / len(values)
    factor = max(1.0, stdev(others) / own) if own > 0.0 else 1.0
    return [mean + factor * (each - mean) for each in values]


def _crossing(loads: Sequence[float], shares: Sequence[float], share: float) -> float:
    """The load at which `shares` first fall below `share`; an end of the loads where they do nowhere else."""
    above = next((place for place, each in enumerate(shares) if each < share), len(loads) - 1)
    if above == 0 or shares[above] >= share:
        return loads[above]
    low, high = loads[above - 1], loads[above]
    return low + (high - low) * (shares[above - 1] - share) / (shares[above - 1] - shares[above])


def with_length(resolved: Resolved, auto: int) -> Resolved:
    """`resolved` with a length, `auto` where it is left open or was by this, and a warm-up; no window."""
    workload = resolved.scenario.workload
    is_open = workload.num_prompts in ("auto", REQUESTS) and not is_trace(workload)
    count = auto if is_open else num_prompts(resolved.scenario)
    warmups = _warmups(workload, count) if is_open else workload.num_warmups or _warmups(workload, count)
    return resolved.changed(workload=workload.sized(count, warmups), window=Window())


def _warmups(workload: Workload, count: int) -> int:
    return int((SESSIONS_WARMUP_SHARE if workload.sharing.num_turns > 1 else WARMUP_SHARE) * count)


def num_prompts(scenario: Scenario) -> int:
    """Requests of a run."""
    workload = scenario.workload
    if isinstance(workload.num_prompts, int):
        return workload.num_prompts
    return trace_length(workload) if is_trace(workload) else REQUESTS


def joint_share(run: Run) -> float:
    """Share of the finished requests that meet all SLOs."""
    shares = run["slo_attainment"]
    assert isinstance(shares, dict)
    return float(shares["all"] or 0.0)


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


# -- fleets


class FleetAttainment(msgspec.Struct, frozen=True, kw_only=True):
    """Replicas at the target rate."""

    replicas: int
    attainment: float
    ci95: Interval
    meets: bool
    """The interval lies at or above the share requested."""


class FleetRuns:
    """Shares of requests that meet the SLOs with so many replicas at a rate, as given and by draw, each simulated
    once."""

    def __init__(
        self, search: LoadSearch, draws: Sequence[Resolved], routing: Routing, target_rate: float, runner: Runner
    ) -> None:
        self._search, self._draws, self._routing, self.target_rate = search, draws, routing, target_rate
        self._runner, self._in_draws = runner, dict[tuple[int, int], float]()
        self._as_given = dict[int, FleetAttainment]()

    def as_given(self, count: int) -> FleetAttainment:
        """The share with costs and acceptance as given, over PILOTS runs."""
        if count not in self._as_given:
            points = [self._point(self._search.resolved, count, index) for index in range(PILOTS)]
            shares = self._shares(points, count)
            interval = interval_95(shares)
            assert interval is not None
            mean, meets = sum(shares) / len(shares), interval[0] >= self._search.share
            self._as_given[count] = FleetAttainment(replicas=count, attainment=mean, ci95=interval, meets=meets)
        return self._as_given[count]

    def in_draw(self, count: int, draw: int) -> float:
        return self._of_draws(count, [draw])[0]

    def in_draws(self, count: int) -> list[float]:
        """[draws]"""
        return self._of_draws(count, range(len(self._draws)))

    def num_meeting(self, count: int) -> int:
        """Draws in which so many are enough."""
        return sum(share >= self._search.share for share in self.in_draws(count))

    def _of_draws(self, count: int, draws: Sequence[int]) -> list[float]:
        missing = [draw for draw in draws if (count, draw) not in self._in_draws]
        points = [self._point(self._draws[draw], count, 0) for draw in missing]
        shares = self._shares(points, count) if points else []
        self._in_draws |= {(count, draw): share for draw, share in zip(missing, shares, strict=True)}
        return [self._in_draws[count, draw] for draw in draws]

    def _shares(self, points: Sequence[Point], count: int) -> list[float]:
        self._runner.on_done(f"{self._search.policy}, {self._routing.value}: {count} replicas", 0, 1)
        return on_points(attained_share, points, Runner(self._runner.workers))

    def _point(self, one: Resolved, count: int, index: int) -> Point:
        """Run `index` of so many replicas; runs grow with the replicas, up to a trace's length."""
        workload = one.scenario.workload
        length = at_most(workload, max(num_prompts(one.scenario), REQUESTS_PER_REPLICA * count))
        at_rate = msgspec.structs.replace(
            workload.sized(length, _warmups(workload, length)),
            request_rate=self.target_rate,
            max_concurrency=None,
            trace_arrivals=workload.trace_arrivals.at_rate,
        )
        fleet = one.changed(workload=at_rate, devices={"count": count, "routing": self._routing})
        return Point(resolved=fleet, seed=child_seed(one.scenario.seed, FLEET_KEY, index))
