"""The highest load of one policy, by bisection of the mean curve: the share of requests that meet the SLOs, averaged
over replications, each of which has the same requests at every load.

Replications that are searched one by one would end higher on average: far below its own load a run meets the SLOs
nearly always, and above it the share falls fast. In a variation of cost one replication is searched about the answer,
and ends earlier: the ratio of the two is what the variation does, whatever those requests were.
Not here: how many replicas (fleet_size), what is said of them (attainment).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from math import ceil, inf, isinf, sqrt
from statistics import stdev
from typing import NamedTuple

from sim.compare.capacity import Saturation
from sim.compare.point_runs import Point, attained_share, on_points
from sim.compare.pool import Runner
from sim.draws import child_seed
from sim.files.json_values import Json
from sim.metrics.stats import t_975
from sim.run.resolve import Resolved
from sim.run.scenario import Scenario, Window
from sim.workload.generate import Workload, is_trace, trace_length

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

    def __init__(self, resolved: Resolved, share: float, *, is_counted: bool = True, near: float | None = None) -> None:
        """`resolved` is one replica. With `near`, a load that is known to be close, the search looks about it, and is
        brief: the pilots alone, bisected less far, up to the saturated rate."""
        self.resolved, self.share, self.is_counted, self._near = resolved, share, is_counted, near
        self.saturated_per_s, self.saturated_ci95 = Saturation(resolved, self.scenario.seed).capacity
        goodput = self.scenario.goodput
        bounds_ms = [bound for bound in (goodput.ttft_ms, goodput.e2el_ms) if bound is not None]
        self.least = ALONE * self.saturated_per_s
        # Without a bound on waiting the largest load that is tried is everything at once.
        self.most = self.saturated_per_s if bounds_ms or near is not None else inf
        if not is_counted:
            # Arrivals span many times what the SLOs let one wait: a shorter run ends before a queue that grows has
            # become too long. Of sessions the first half lasts as long as they do.
            sharing = self.scenario.workload.sharing
            spanned_s = SPAN_IN_BOUNDS * min(bounds_ms, default=0.0) / 1e3
            spanned_s = max(spanned_s, 2.0 * (sharing.num_turns - 1) * sharing.turn_gap_s)
            count = min(MAX_REQUESTS, max(REQUESTS, ceil(spanned_s * self.saturated_per_s)))
            self.resolved = with_length(resolved, count)

    @property
    def scenario(self) -> Scenario:
        return self.resolved.scenario

    @property
    def policy(self) -> str:
        return self.resolved.policy.name

    def point(self, load: float, seed: int) -> Point:
        """One run at that load."""
        return Point(resolved=self.resolved.changed(workload=at_rate(self.scenario.workload, load)), seed=seed)

    def highest(self, runner: Runner) -> Highest:
        """The load over pilots, or over as many fresh replications as a narrow interval takes."""
        if self._near is None:
            # The first of the pilots looks everywhere, all of them near its load.
            first = self._over(PILOT_KEY, 1, None, runner).load
            near = first if 0.0 < first < self.most else None
        else:
            near = min(self._near, 0.9 * self.most)
        pilots = self._over(PILOT_KEY, PILOTS, near, runner)
        if self._near is not None or pilots.limit is not Limit.SLO:
            return pilots
        count = min(MAX_REPLICATIONS, max(PILOTS, replications_for(pilots.pseudo, NARROW)))
        found = self._over(FRESH_KEY, count, pilots.load, runner)
        return found if found.limit is not Limit.SLO else found._replace(pseudo=as_wide(found.pseudo, pilots.pseudo))

    def _over(self, key: int, count: int, near: float | None, runner: Runner) -> Highest:
        """The load that holds over so many replications."""
        seeds = [child_seed(self.scenario.seed, key, index) for index in range(count)]
        stage = f"{self.policy}: {'pilots' if key == PILOT_KEY else 'replications'}"
        load, _, curve = self._bisected(seeds, near, runner, stage)
        limit = Limit.NEVER if load == 0.0 else Limit.SLO
        if load >= self.most:
            limit = Limit.UNBOUNDED if self.most == inf else Limit.THROUGHPUT
        pseudo = jackknifed(load, curve, self.share) if limit is Limit.SLO else [load] * count
        return Highest(limit, load, pseudo, seeds)

    def loads_under(self, draws: Sequence[Resolved], found: Highest, runner: Runner) -> list[float]:
        """[draws] the highest load of each: that as given times what the draw makes of the first replication's."""
        load, seed = found.load, found.seeds[0]
        first = self.own_highest(seed, load) if 0.0 < load < inf else load
        in_draw = partial(self._in_draw, seed=seed, first=first)
        loads = runner.run(in_draw, draws, f"{self.policy}: draws", self.resolved.plugins)
        return loads if first == 0.0 or isinf(first) or isinf(load) else [load * value / first for value in loads]

    def _in_draw(self, draw: Resolved, seed: int, first: float) -> float:
        """The load of one replication in `draw`, looked for about `first`, where it was as given, times what the draw
        does to the saturated throughput."""
        search = LoadSearch(draw, self.share, near=self._near)
        near = first * search.saturated_per_s / self.saturated_per_s
        return search.own_highest(seed, near if 0.0 < near < inf else None, BISECTED_IN_DRAW)

    def own_highest(self, seed: int, near: float | None = None, closeness: float | None = None) -> float:
        """One replication's highest load: 0 where the least fails, the most where that holds."""
        low, high, _ = self._bisected([seed], near, Runner(1), closeness=closeness)
        return sqrt(low * high)

    def _bisected(
        self, seeds: Sequence[int], near: float | None, runner: Runner, stage: str = "", closeness: float | None = None
    ) -> tuple[float, float, Curve]:
        def shares_at(load: float) -> list[float]:
            return on_points(attained_share, [self.point(load, seed) for seed in seeds], runner, stage)

        close = closeness or (BISECTED if self._near is None else BISECTED_BRIEF)
        return bisected(
            shares_at, self.share, (self.least, self.saturated_per_s, self.most), closeness=close, near=near
        )


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

    def holds(load: float) -> bool:
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


def at_rate(workload: Workload, rate_per_s: float) -> dict[str, Json]:
    """Keys of `workload` with arrivals at that rate, which nobody waits to send."""
    return {"request_rate": rate_per_s, "max_concurrency": None, "trace_arrivals": workload.trace_arrivals.at_rate}


def with_length(resolved: Resolved, auto: int) -> Resolved:
    """`resolved` with a length, `auto` where it is left open or was by this, and a warm-up; no window."""
    workload = resolved.scenario.workload
    is_open = workload.num_prompts in ("auto", REQUESTS) and not is_trace(workload)
    count = auto if is_open else num_prompts(resolved.scenario)
    warmups = warmups_of(workload, count) if is_open else workload.num_warmups or warmups_of(workload, count)
    return resolved.changed(workload=workload.sized(count, warmups), window=Window())


def warmups_of(workload: Workload, count: int) -> int:
    return int((SESSIONS_WARMUP_SHARE if workload.sharing.num_turns > 1 else WARMUP_SHARE) * count)


def num_prompts(scenario: Scenario) -> int:
    """Requests of a run."""
    workload = scenario.workload
    if isinstance(workload.num_prompts, int):
        return workload.num_prompts
    return trace_length(workload) if is_trace(workload) else REQUESTS


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
