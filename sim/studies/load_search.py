"""The highest load that one policy serves within its SLOs, and the fewest replicas for a rate.

The load is found by bisection of the mean curve: the share of requests that meet the SLOs, averaged over replications.
Each replication has the same requests at every load. Replications searched one by one would end higher on average.

In a variation of cost one replication is searched near the answer, as with costs as given. The ratio of the two loads
is what the variation does. Replicas are simulated rather than divided, under the scenario's routing.
Not here: what is said of both (attainment).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from math import ceil, inf, isinf, sqrt
from statistics import stdev
from typing import NamedTuple

import msgspec

from sim.compare.capacity import Saturation
from sim.compare.point_runs import Point, attained_share, on_points
from sim.compare.pool import Runner
from sim.draws import child_seed
from sim.files.json_values import Json
from sim.metrics.stats import interval_95, t_975
from sim.run.resolve import Resolved
from sim.run.scenario import Scenario, Window
from sim.workload.generate import Workload, at_most, is_trace, num_requests

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
"""Of the requests that come first and do not count; more of sessions, which find nothing in memory at first."""
PILOT_KEY, FRESH_KEY, FLEET_KEY = 1_000_031, 1_000_033, 1_000_037
"""Children of the scenario's seed."""
CONFIDENCE = 0.9
"""Chance that the recommended replicas are enough: of n draws m hold, and a further one holds with m / (n + 1)."""
MAX_REPLICAS = 1024
REQUESTS_PER_REPLICA = 800
"""Requests of a fleet's run, per replica."""


class Limit(StrEnum):
    SLO = "slo"
    """The load beyond which too few requests meet the SLOs."""
    THROUGHPUT = "throughput"
    """The SLOs hold up to the saturated throughput."""
    NEVER = "never"
    """Too few requests meet them even alone."""
    UNBOUNDED = "unbounded"
    """The SLOs bound no waiting, and hold with every request at once."""


class Highest(NamedTuple):
    limit: Limit
    load: float
    """0 for never, and the most that is tried if that holds."""
    pseudo: list[float]
    """[replications] jackknife pseudo-values, whose mean is the load and whose spread is its doubt."""
    seeds: list[int]


Curve = dict[float, list[float]]
"""Shares of requests that meet all SLOs, [replications] by load."""
Ends = tuple[float, float, float]
"""The least load that is tried, the saturated rate, and the most load."""


class LoadSearch:
    """One policy and its loads, with costs and acceptance as given and as drawn."""

    def __init__(self, resolved: Resolved, share: float, runner: Runner, near: float | None = None) -> None:
        """`resolved` is one replica. With `near`, a load that is known to be close, the search looks about it, and is
        brief: the pilots alone, bisected less far, up to the saturated rate."""
        self.resolved, self.share, self.runner, self._near = resolved, share, runner, near
        self.saturated_per_s, self.saturated_ci95 = Saturation.of(resolved, self.scenario.seed).capacity
        self.least = ALONE * self.saturated_per_s
        # Without a bound on waiting the largest load that is tried is everything at once.
        self.most = self.saturated_per_s if self._bounds_ms or near is not None else inf

    def lengthen(self) -> None:
        """Let arrivals span many times what the SLOs let one wait, and of sessions twice what one lasts: a shorter run
        ends before a queue that grows has become too long."""
        sharing, spanned_s = self.scenario.workload.sharing, SPAN_IN_BOUNDS * min(self._bounds_ms, default=0.0) / 1e3
        spanned_s = max(spanned_s, 2.0 * (sharing.num_turns - 1) * sharing.turn_gap_s)
        count = min(MAX_REQUESTS, max(REQUESTS, ceil(spanned_s * self.saturated_per_s)))
        self.resolved = with_length(self.resolved, count)

    @property
    def _bounds_ms(self) -> list[float]:
        goodput = self.scenario.goodput
        return [bound for bound in (goodput.ttft_ms, goodput.e2el_ms) if bound is not None]

    @property
    def scenario(self) -> Scenario:
        return self.resolved.scenario

    @property
    def policy(self) -> str:
        return self.resolved.policy.name

    def point(self, load: float, seed: int) -> Point:
        return Point(resolved=self.resolved.changed(workload=at_rate(self.scenario.workload, load)), seed=seed)

    def highest(self) -> Highest:
        """The load over pilots, or over as many fresh replications as a narrow interval takes."""
        if self._near is None:
            # The first of the pilots looks everywhere, all of them near its load.
            first = self._over(PILOT_KEY, 1, None).load
            near = first if 0.0 < first < self.most else None
        else:
            near = min(self._near, 0.9 * self.most)
        pilots = self._over(PILOT_KEY, PILOTS, near)
        if self._near is not None or pilots.limit is not Limit.SLO:
            return pilots
        count = min(MAX_REPLICATIONS, max(PILOTS, replications_for(pilots.pseudo, NARROW)))
        found = self._over(FRESH_KEY, count, pilots.load)
        return found if found.limit is not Limit.SLO else found._replace(pseudo=as_wide(found.pseudo, pilots.pseudo))

    def _over(self, key: int, count: int, near: float | None) -> Highest:
        seeds = [child_seed(self.scenario.seed, key, index) for index in range(count)]
        load, _, curve = self._bisected(seeds, near, None, "pilots" if key == PILOT_KEY else "replications")
        limit = Limit.NEVER if load == 0.0 else Limit.SLO
        if load >= self.most:
            limit = Limit.UNBOUNDED if self.most == inf else Limit.THROUGHPUT
        pseudo = jackknifed(load, curve, self.share) if limit is Limit.SLO else [load] * count
        return Highest(limit, load, pseudo, seeds)

    def loads_under(self, draws: Sequence[Resolved], found: Highest) -> list[float]:
        """[draws] the highest load of each: that as given times what the draw makes of the first replication's."""
        load, seed = found.load, found.seeds[0]
        first = self.own_highest(seed, load) if 0.0 < load < inf else load
        in_draw = partial(_in_draw, self.share, self._near, seed, first, self.saturated_per_s)
        loads = self.runner.run(in_draw, draws, f"{self.policy}: draws", self.resolved.plugins)
        return loads if first == 0.0 or isinf(first) or isinf(load) else [load * value / first for value in loads]

    def own_highest(self, seed: int, near: float | None = None, closeness: float | None = None) -> float:
        """One replication's highest load: 0 where the least fails, the most where that holds."""
        low, high, _ = self._bisected([seed], near, closeness, "one replication")
        return sqrt(low * high)

    def _bisected(
        self, seeds: Sequence[int], near: float | None, closeness: float | None, stage: str
    ) -> tuple[float, float, Curve]:
        def shares_at(load: float) -> list[float]:
            points = [self.point(load, seed) for seed in seeds]
            return on_points(attained_share, points, self.runner, f"{self.policy}: {stage}")

        close = closeness or (BISECTED if self._near is None else BISECTED_BRIEF)
        ends = self.least, self.saturated_per_s, self.most
        return bisected(shares_at, self.share, ends, closeness=close, near=near)


def _in_draw(
    share: float, near: float | None, seed: int, first: float, saturated_per_s: float, draw: Resolved
) -> float:
    """The load of one replication in `draw`, looked for about `first`, where it was as given, times what the draw does
    to the saturated throughput."""
    search = LoadSearch(draw, share, Runner(1), near)
    about = first * search.saturated_per_s / saturated_per_s
    return search.own_highest(seed, about if 0.0 < about < inf else None, BISECTED_IN_DRAW)


class ReplicaSearch:
    """Numbers of replicas at a rate, over runs with costs as given or in draws. Each number is simulated once."""

    def __init__(
        self, search: LoadSearch, rate_per_s: float, draws: Sequence[Resolved], loads: Sequence[float]
    ) -> None:
        """`loads` [draws] are the highest of one replica. 0 is never."""
        self.search, self.rate_per_s, self.num_draws = search, rate_per_s, len(draws)
        self._runs = [(draw, 0) for draw in draws] or [(search.resolved, index) for index in range(PILOTS)]
        self._shares: dict[tuple[int, int], float] = {}
        order = sorted(range(len(draws)), key=lambda index: loads[index], reverse=True)
        self._wanted = min(sum(each > 0.0 for each in loads), ceil(CONFIDENCE * (len(draws) + 1)))
        self._last = order[self._wanted - 1] if self._wanted else 0
        """The draw that is the last to hold, by the highest load of one: it is tried first."""
        self._least_load = loads[self._last] if draws else inf

    def shares(self, count: int, places: Sequence[int] | None = None) -> list[float]:
        """[draws, or runs; those at `places`] shares of requests that meet the SLOs with so many replicas."""
        asked = range(len(self._runs)) if places is None else places
        if missing := [place for place in asked if (count, place) not in self._shares]:
            points = [self._point(count, *self._runs[place]) for place in missing]
            shares = on_points(attained_share, points, self.search.runner, f"{self.search.policy}: {count} replicas")
            self._shares |= {(count, place): share for place, share in zip(missing, shares, strict=True)}
        return [self._shares[count, place] for place in asked]

    def num_meeting(self, count: int) -> int:
        return sum(share >= self.search.share for share in self.shares(count))

    def fewest(self, per_replica: float) -> int | None:
        """Replicas that are enough where one fewer is not, looked for from the sum of their rates on; None where the
        SLOs are never met, or in too few draws. Several may share more than that sum."""
        if per_replica == 0.0 or (self.num_draws and not self._wanted):
            return None
        count = max(1, ceil(self.rate_per_s / min(per_replica, self._least_load)))
        least = min(2, count)
        while count > MAX_REPLICAS or not self._holds(count):
            count = self._one_more(count)
        while count > least and self._holds(count - 1):
            count -= 1
        while self.num_draws and self.num_meeting(count) < self._wanted:
            count = self._one_more(count)
        return count

    def _holds(self, count: int) -> bool:
        """In the draw that is the last to hold, or surely over the runs as given."""
        interval = None if self.num_draws else interval_95(self.shares(count))
        share = self.shares(count, [self._last])[0] if interval is None else interval[0]
        return share >= self.search.share

    def _one_more(self, count: int) -> int:
        if count >= MAX_REPLICAS:
            given = f"target rate {self.rate_per_s:g}"
            raise ValueError(f"{given}: more than {MAX_REPLICAS} replicas. Give a lower rate")
        return count + 1

    def _point(self, count: int, one: Resolved, index: int) -> Point:
        """Run `index` of so many replicas; runs grow with the replicas, up to a trace's length."""
        workload = one.scenario.workload
        length = at_most(workload, max(num_requests(workload), REQUESTS_PER_REPLICA * count))
        sized = workload.sized(length, warmups_of(workload, length))
        loaded = msgspec.structs.replace(sized, **at_rate(workload, self.rate_per_s))
        fleet = one.changed(workload=loaded, devices={"count": count})
        return Point(resolved=fleet, seed=child_seed(one.scenario.seed, FLEET_KEY, index))


def bisected(
    shares_at: Callable[[float], list[float]], share: float, ends: Ends, *, closeness: float, near: float | None = None
) -> tuple[float, float, Curve]:
    """A load that holds, since `shares_at` it are at least `share` on average, a close one above it that fails, and the
    shares at all loads that were tried, each once. (0, 0) where the least of `ends` fails, twice the most where that
    holds. `near` is where to look first; None: everywhere."""
    curve: Curve = {}

    def holds(load: float) -> bool:
        if load not in curve:
            curve[load] = shares_at(load)
        return sum(curve[load]) / len(curve[load]) >= share

    low, high = _bracket(holds, *ends, near)
    while 0.0 < low < high and high / low - 1.0 > closeness:
        middle = sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high, curve


def _bracket(
    holds: Callable[[float], bool], least: float, saturated_per_s: float, most: float, near: float | None
) -> tuple[float, float]:
    """A load that holds and one that fails, or twice the end that says all."""
    factor, low, failed = 1.1, least if near is None else max(least, near / 1.05), 0.0
    while not holds(low):
        if low == least:
            return 0.0, 0.0
        low, factor, failed = max(least, low / factor), factor**2, low
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
    and their t-interval is that of the load (Tukey 1958). Straight lines between the loads that were tried.

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

    Bad runs are rare, and replications that have none look too much alike.

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


def at_rate(workload: Workload, rate_per_s: float) -> dict[str, Json]:
    """Keys of `workload` with arrivals at that rate, which nobody waits to send."""
    return {"request_rate": rate_per_s, "max_concurrency": None, "trace_arrivals": workload.trace_arrivals.at_rate}


def with_length(resolved: Resolved, auto: int) -> Resolved:
    """`resolved` with a length, `auto` where it is left open or was by this, and a warm-up; no window."""
    workload = resolved.scenario.workload
    is_open = workload.num_prompts in ("auto", REQUESTS) and not is_trace(workload)
    count = auto if is_open else num_requests(workload)
    warmups = warmups_of(workload, count) if is_open else workload.num_warmups or warmups_of(workload, count)
    return resolved.changed(workload=workload.sized(count, warmups), window=Window())


def warmups_of(workload: Workload, count: int) -> int:
    return int((SESSIONS_WARMUP_SHARE if workload.sharing.num_turns > 1 else WARMUP_SHARE) * count)


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
