"""The highest load of one policy by bisection: a replication's own, on the same requests at every load, so that only
the load moves its answers.

Under a draw of costs and acceptance the search begins where it ended as given, on the requests of one replication, and
ends earlier: the two answers' ratio is what the draw does, whatever those requests were.
Not here: how many replications, how many replicas, what is said of them (attainment).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from math import ceil, exp, inf, isinf, log, sqrt
from typing import NamedTuple

import msgspec

from sim.compare.capacity import Saturation
from sim.compare.point_runs import Point, run_point, run_points
from sim.compare.pool import Runner, given
from sim.compare.verdict import Interval
from sim.costs.profile import Profile
from sim.draws import child_seed
from sim.engine.fleet import Routing
from sim.files.json_values import Json
from sim.metrics.stats import interval_95
from sim.metrics.summary import Run
from sim.run.resolve import resolve, with_keys
from sim.run.scenario import Scenario
from sim.studies.cost_draws import Draw
from sim.studies.precision import replications_for
from sim.workload.generate import at_most, is_trace, trace_length

PILOTS = 5
MAX_REPLICATIONS = 20
NARROW = 0.02
"""Half of the interval over the answer, from which on it is narrow."""
BISECTED, BISECTED_IN_DRAW = 0.008, 0.03
"""Relative width to which a replication's own answer is bisected, without bias; small beside NARROW, and beside what
draws differ by."""
ALONE = 1e-3
"""Share of the saturated throughput at which requests hardly ever meet."""
REQUESTS = 2000
"""Requests of a run with its length left open; a tenth more come first and do not count."""
SPAN_IN_BOUNDS, MAX_REQUESTS = 50.0, 20_000
"""Length of such a run: mean rate times the tightest bound on waiting, and a limit."""
WARMUP_SHARE = 0.1
PILOT_KEY, FRESH_KEY = 1_000_031, 1_000_033
"""Children of the scenario's seed."""

REQUESTS_PER_REPLICA = 800
"""Requests of a fleet's run, per replica."""
FLEET_KEY = 1_000_037
"""Child of the scenario's seed."""


class Limit(StrEnum):
    """What ends the load that can be served."""

    SLO = "slo"
    """The load beyond which too few requests meet the SLOs."""
    THROUGHPUT = "throughput"
    """The SLOs hold up to the saturated throughput."""
    NEVER = "never"
    """Too few requests meet them even alone."""
    UNBOUNDED = "unbounded"
    """The SLOs bound no waiting, and hold with every request at once."""


class OwnLoads(NamedTuple):
    """The highest load of each replication of an answer."""

    limit: Limit
    loads: list[float]
    seeds: list[int]


class LoadSearch:
    """One policy and its loads."""

    def __init__(
        self,
        scenario: Scenario,
        policy: str,
        profile: Profile,
        share: float,
        *,
        is_concurrency: bool,
        is_counted: bool = True,
        closeness: float = BISECTED,
        near: float | None = None,
        is_brief: bool = False,
    ) -> None:
        """`near` is where the first search begins; None: everywhere. A brief search is the pilots
        alone, and as close as one in a draw."""
        self.scenario = with_keys(scenario, policy=(policy,), replications=1, devices={"count": 1})
        self.policy, self.profile, self.share = policy, profile, share
        self.is_concurrency, self.is_counted = is_concurrency, is_counted
        self.closeness = max(closeness, BISECTED_IN_DRAW) if is_brief else closeness
        self._near, self._is_brief = near, is_brief
        saturation = Saturation(resolve(self.scenario, profile, policy), self.scenario.seed)
        self.saturated_per_s, self.saturated_ci95 = saturation.capacity
        if not is_counted:
            self.scenario = with_length(self.scenario, self._long_enough())

    def _long_enough(self) -> int:
        """Requests whose arrivals span many times what the SLOs let one wait: else a short run ends before a queue that
        grows has become too long."""
        goodput = self.scenario.goodput
        bounds_ms = [bound for bound in (goodput.ttft_ms, goodput.e2el_ms) if bound is not None]
        spanned = ceil(SPAN_IN_BOUNDS * min(bounds_ms, default=0.0) / 1e3 * self.saturated_per_s)
        return min(MAX_REQUESTS, max(REQUESTS, spanned))

    @property
    def bounds_waiting(self) -> bool:
        goodput = self.scenario.goodput
        return goodput.ttft_ms is not None or goodput.e2el_ms is not None

    @property
    def most(self) -> float:
        """The largest load that is tried: with a bound on waiting the saturated rate, else everything at once."""
        if self.is_concurrency:
            return float(max(1, num_prompts(self.scenario) // 2))
        return self.saturated_per_s if self.bounds_waiting else inf

    @property
    def least(self) -> float:
        return 1.0 if self.is_concurrency else ALONE * self.saturated_per_s

    def point(self, load: float, seed: int) -> Point:
        """One run at that load."""
        changes: dict[str, Json] = {"request_rate": load, "max_concurrency": None}
        if self.is_concurrency:
            changes = {"request_rate": inf, "max_concurrency": round(load)}
        changes["trace_arrivals"] = self.scenario.workload.trace_arrivals.at_rate
        settled = with_keys(self.scenario, workload=changes)
        return Point(resolved=resolve(settled, self.profile, self.policy), seed=seed)

    def attains(self, load: float, seed: int) -> float:
        """Share of requests that meet all SLOs."""
        return joint_share(run_point(self.point(load, seed)).run)

    def own_highest(self, seed: int, near: float | None = None) -> float:
        """One replication's highest load: 0 where the least fails, the most where that holds. It is looked for about
        `near` first."""
        low, high = self._bracket(seed, near)
        if low == high or low == 0.0:
            return low
        while not self._is_close(low, high):
            middle = exp(0.5 * (log(low) + log(high)))
            middle = float(round(middle)) if self.is_concurrency else middle
            if middle in (low, high):
                middle = low + 1.0
            if self.attains(middle, seed) >= self.share:
                low = middle
            else:
                high = middle
        return low if self.is_concurrency else sqrt(low * high)

    def _bracket(self, seed: int, near: float | None) -> tuple[float, float]:
        """A load that holds and one that fails; (0, 0) where the least fails, twice the most where that holds."""
        factor, low, failed = 1.1, self.least if near is None else max(self.least, self._whole(near / 1.05)), 0.0
        while low > self.least and self.attains(low, seed) < self.share:
            low, factor, failed = max(self.least, self._whole(low / factor)), factor**2, low
        if low == self.least and self.attains(low, seed) < self.share:
            return 0.0, 0.0
        if failed:
            return low, failed
        if near is None and self.attains(self.most, seed) >= self.share:
            return self.most, self.most
        step, high = 1.1, 2.0 * self.saturated_per_s if self.most == inf else self.most
        if near is not None:
            high = min(self.most, self._whole(near * 1.05) + self.is_concurrency)
        while self.attains(high, seed) >= self.share:
            if high >= self.most:
                return self.most, self.most
            low, high, step = high, min(self.most, self._whole(high * step) + self.is_concurrency), step**2
        return low, high

    def _whole(self, load: float) -> float:
        """`load`, rounded down where it is a number of requests."""
        return float(int(load)) if self.is_concurrency else load

    def _is_close(self, low: float, high: float) -> bool:
        return high - low <= 1.0 if self.is_concurrency else high / low - 1.0 <= self.closeness

    def under(self, draw: Draw) -> LoadSearch:
        """The same question where costs and acceptance are those of `draw`."""
        return LoadSearch(
            draw.scenario(self.scenario),
            self.policy,
            draw.profile,
            self.share,
            is_concurrency=self.is_concurrency,
            closeness=BISECTED_IN_DRAW,
        )

    def own_loads(self, runner: Runner) -> OwnLoads:
        """Loads of pilots, and of as many fresh replications as a narrow interval takes."""
        near = None if self._near is None else min(self._near, 0.9 * self.most)
        if near is None:
            # The first of the pilots looks everywhere, the others where it found something.
            first = self._replications(PILOT_KEY, 1, None, runner).loads[0]
            near = first if 0.0 < first < self.most else None
        found = self._replications(PILOT_KEY, PILOTS, near, runner)
        if not self._is_brief and max(found.loads) > 0.0 and min(found.loads) < self.most:
            mean = sum(found.loads) / len(found.loads)
            count = min(MAX_REPLICATIONS, max(PILOTS, replications_for(found.loads, NARROW)))
            found = self._replications(FRESH_KEY, count, mean, runner)
        return found._replace(limit=self._limit(sorted(found.loads)[len(found.loads) // 2]))

    def _limit(self, load: float) -> Limit:
        if load == 0.0:
            return Limit.NEVER
        if load < self.most:
            return Limit.SLO
        return Limit.UNBOUNDED if self.most == inf or self.is_concurrency else Limit.THROUGHPUT

    def _replications(self, key: int, count: int, near: float | None, runner: Runner) -> OwnLoads:
        seeds = [child_seed(self.scenario.seed, key, index) for index in range(count)]
        stage = f"{self.policy}: {'pilots' if key == PILOT_KEY else 'replications'}"
        loads = runner.run(_own_highest, seeds, stage, self._uses, search=self, near=near)
        return OwnLoads(Limit.SLO, loads, seeds)

    def loads_under(self, draws: Sequence[Draw], own: OwnLoads, load: float | None, runner: Runner) -> list[float]:
        """[draws] the highest load of each: that as given, which is `load` over all replications, times what the draw
        makes of the first replication's own."""
        first = own.loads[0]
        stage = f"{self.policy}: draws"
        found = runner.run(_own_highest_under, draws, stage, self._uses, search=self, seed=own.seeds[0], own=first)
        if load is None or first == 0.0 or isinf(first):
            return found
        return [load * value / first for value in found]

    @property
    def _uses(self) -> set[str]:
        return {self.policy, self.scenario.speculation.acceptance_name}


def _own_highest(seed: int) -> float:
    """A replication's own highest load, found in a worker."""
    search: LoadSearch = given("search")
    return search.own_highest(seed, given("near"))


def _own_highest_under(draw: Draw) -> float:
    """The highest load under a draw, found in a worker: looked for where it was as given, times what the draw does to
    the saturated throughput."""
    as_given: LoadSearch = given("search")
    search, own = as_given.under(draw), given("own")
    near = own if as_given.is_concurrency else own * search.saturated_per_s / as_given.saturated_per_s
    return search.own_highest(given("seed"), near if 0.0 < near < inf else None)


def with_length(scenario: Scenario, auto: int) -> Scenario:
    """The scenario with a length, `auto` where it is left open or was by this, and a warm-up; no window."""
    workload = scenario.workload
    is_open = workload.num_prompts in ("auto", REQUESTS) and not is_trace(workload)
    count = auto if is_open else num_prompts(scenario)
    warmups = int(WARMUP_SHARE * count) if is_open else workload.num_warmups or int(WARMUP_SHARE * count)
    return with_keys(scenario, workload=workload.sized(count, warmups), window=type(scenario.window)())


def num_prompts(scenario: Scenario) -> int:
    """Requests of a run."""
    workload = scenario.workload
    if isinstance(workload.num_prompts, int):
        return workload.num_prompts
    return trace_length(workload) if is_trace(workload) else REQUESTS


def joint_share(run: Run) -> float:
    """Share of requests that meet all SLOs."""
    shares = run["slo_attainment"]
    assert isinstance(shares, dict)
    joint = shares["all"]
    return 0.0 if joint is None else float(joint)


# -- fleets


class FleetAttainment(msgspec.Struct, frozen=True, kw_only=True):
    """Replicas at the target rate."""

    replicas: int
    attainment: float
    ci95: Interval
    meets: bool
    """The interval lies at or above the share asked for."""


class SharesInDraws:
    """The share of requests that meet the SLOs, by replicas and draw, each simulated once."""

    def __init__(self, search: LoadSearch, draws: Sequence[Draw], routing: Routing, target_rate: float) -> None:
        self._search, self._draws, self.routing, self._target_rate = search, draws, routing, target_rate
        self._known: dict[tuple[int, int], float] = {}

    def one(self, count: int, draw: int) -> float:
        if (count, draw) not in self._known:
            self._known[count, draw] = joint_share(run_point(self._point(count, draw)).run)
        return self._known[count, draw]

    def all(self, count: int, workers: int | None) -> list[float]:
        """[draws]"""
        missing = [draw for draw in range(len(self._draws)) if (count, draw) not in self._known]
        found = run_points([self._point(count, draw) for draw in missing], Runner(workers))
        self._known |= {(count, draw): joint_share(one.run) for draw, one in zip(missing, found, strict=True)}
        return [self._known[count, draw] for draw in range(len(self._draws))]

    def _point(self, count: int, draw: int) -> Point:
        return fleet_point(self._search, self.routing, count, self._target_rate, 0, self._draws[draw])


def attainment_of(
    search: LoadSearch, routing: Routing, count: int, target_rate: float, workers: int | None
) -> FleetAttainment:
    """The share that meets the SLOs with so many replicas."""
    points = [fleet_point(search, routing, count, target_rate, index) for index in range(PILOTS)]
    shares = [joint_share(outcome.run) for outcome in run_points(points, Runner(workers))]
    interval = interval_95(shares)
    assert interval is not None
    mean = sum(shares) / len(shares)
    return FleetAttainment(replicas=count, attainment=mean, ci95=interval, meets=interval[0] >= search.share)


def fleet_point(
    search: LoadSearch, routing: Routing, count: int, target_rate: float, index: int, draw: Draw | None = None
) -> Point:
    """Run `index` of so many replicas, as given or in a draw; runs grow with the replicas, up to a trace's length."""
    scenario = search.scenario if draw is None else draw.scenario(search.scenario)
    workload = scenario.workload
    length = at_most(workload, max(num_prompts(scenario), REQUESTS_PER_REPLICA * count))
    sized = with_keys(scenario, workload=workload.sized(length, int(WARMUP_SHARE * length)))
    at_rate = {
        "request_rate": target_rate,
        "max_concurrency": None,
        "trace_arrivals": workload.trace_arrivals.at_rate,
    }
    fleet = with_keys(sized, workload=at_rate, devices={"count": count, "routing": routing})
    return Point(
        resolved=resolve(fleet, search.profile if draw is None else draw.profile, search.policy),
        seed=child_seed(scenario.seed, FLEET_KEY, index),
    )
