"""Replicas of one policy that a rate takes, simulated rather than divided: the fewest that are enough.

In draws of costs and acceptance they are enough in so many that a further one holds with CONFIDENCE; without draws over
runs with costs as given. Not here: the highest load of one replica (load_search), what is said of them (attainment).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import msgspec

from sim.compare.point_runs import Point, attained_share, on_points
from sim.compare.pool import Runner
from sim.compare.verdict import Interval
from sim.draws import child_seed
from sim.metrics.stats import interval_95
from sim.run.resolve import Resolved
from sim.studies.load_search import PILOTS, LoadSearch, at_rate, num_prompts, warmups_of
from sim.workload.generate import at_most

CONFIDENCE = 0.9
"""Chance with which the recommended replicas are enough: of n draws m hold, and a further one holds with m / (n +
1)."""
MAX_REPLICAS = 1024
REQUESTS_PER_REPLICA = 800
"""Requests of a fleet's run, per replica."""
FLEET_KEY = 1_000_037
"""Child of the scenario's seed."""


class FleetAttainment(msgspec.Struct, frozen=True, kw_only=True):
    """Replicas at the target rate, over PILOTS runs with costs and acceptance as given."""

    replicas: int
    attainment: float
    ci95: Interval
    meets: bool
    """The interval lies at or above the share requested."""


class FleetSize:
    """Numbers of replicas at a rate, each simulated once; the routing is the scenario's."""

    def __init__(
        self,
        search: LoadSearch,
        target_rate: float,
        load: float,
        draws: Sequence[Resolved],
        draw_loads: Sequence[float],
        runner: Runner,
    ) -> None:
        """`load` is the highest of one replica, `draw_loads` that in each of `draws`, if there are any; 0 for never."""
        self._search, self._target_rate, self._draws, self._runner = search, target_rate, draws, runner
        self._runs = [(draw, 0) for draw in draws] or [(search.resolved, index) for index in range(PILOTS)]
        self._shares: dict[tuple[int, int], float] = {}
        order = sorted(range(len(draws)), key=lambda index: draw_loads[index], reverse=True)
        self._wanted = min(sum(each > 0.0 for each in draw_loads), ceil(CONFIDENCE * (len(draws) + 1)))
        self._last = order[self._wanted - 1] if self._wanted else 0
        """The draw that is the last to hold, by the highest load of one: it is tried first."""
        self.replicas: int | None = None
        """None where the SLOs are never met, or in too few draws."""
        if load > 0.0 and (self._wanted or not draws):
            self.replicas = self._fewest(min([load, *([draw_loads[self._last]] if draws else [])]))

    def shares(self, count: int) -> list[float]:
        """[draws, or runs] shares of requests that meet the SLOs with so many replicas."""
        return self._of(count, range(len(self._runs)))

    def num_meeting(self, count: int) -> int:
        """Draws in which so many are enough."""
        return sum(share >= self._search.share for share in self.shares(count))

    def as_given(self, count: int) -> FleetAttainment:
        """The share without draws."""
        shares, interval = self.shares(count), interval_95(self.shares(count))
        assert interval is not None
        mean, meets = sum(shares) / len(shares), interval[0] >= self._search.share
        return FleetAttainment(replicas=count, attainment=mean, ci95=interval, meets=meets)

    def _fewest(self, per_replica: float) -> int:
        """Replicas that are enough where one fewer is not, looked for from the sum of their rates on. Several may share
        more than that sum; one alone does not serve more than its own rate."""
        count = max(1, ceil(self._target_rate / per_replica))
        least = min(2, count)
        while count > MAX_REPLICAS or not self._holds(count):
            count = self._one_more(count)
        while count > least and self._holds(count - 1):
            count -= 1
        while self._draws and self.num_meeting(count) < self._wanted:
            count = self._one_more(count)
        return count

    def _holds(self, count: int) -> bool:
        """In the draw that is the last to hold, or over the runs as given."""
        return self._of(count, [self._last])[0] >= self._search.share if self._draws else self.as_given(count).meets

    def _one_more(self, count: int) -> int:
        if count >= MAX_REPLICAS:
            given = f"target rate {self._target_rate:g}"
            raise ValueError(f"{given}: more than {MAX_REPLICAS} replicas; want a lower one")
        return count + 1

    def _of(self, count: int, runs: Sequence[int]) -> list[float]:
        missing = [run for run in runs if (count, run) not in self._shares]
        if missing:
            resolved = self._search.resolved
            self._runner.on_done(f"{resolved.policy.name}: {count} replicas", 0, 1)
            points = [self._point(count, *self._runs[run]) for run in missing]
            shares = on_points(attained_share, points, Runner(self._runner.workers))
            self._shares |= {(count, run): share for run, share in zip(missing, shares, strict=True)}
        return [self._shares[count, run] for run in runs]

    def _point(self, count: int, one: Resolved, index: int) -> Point:
        """Run `index` of so many replicas; runs grow with the replicas, up to a trace's length."""
        workload = one.scenario.workload
        length = at_most(workload, max(num_prompts(one.scenario), REQUESTS_PER_REPLICA * count))
        sized = workload.sized(length, warmups_of(workload, length))
        loaded = msgspec.structs.replace(sized, **at_rate(workload, self._target_rate))
        fleet = one.changed(workload=loaded, devices={"count": count})
        return Point(resolved=fleet, seed=child_seed(one.scenario.seed, FLEET_KEY, index))
