"""Requests per second that a policy can serve when its queue never empties, and a load in relation to that.

Where the load is light, a short closed loop tells enough: what few requests in flight get through per second, many do.
Not here: what a saturated run says of a load (sim.metrics.load).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from math import inf
from typing import Any

import msgspec
import numpy as np

from sim.compare.point_runs import PointRun
from sim.draws import child_seed
from sim.engine.paged import PagedPool
from sim.interface.request import Request
from sim.interface.request_columns import Requests
from sim.metrics.load import Load, Verdict, judge, saturated_throughput, trace_rate
from sim.run.resolve import Resolved
from sim.run.scenario import Window
from sim.run.simulate import simulate
from sim.workload.classes import Goodput
from sim.workload.generate import TraceArrivals, at_most, is_trace, trace_stamp

GENERATIONS = 6
"""A saturated run serves this many times what can be in flight: one generation fills the batch, one drains it."""
FEWEST, MOST = 120, 12_000
SOON_PER_S = 1e6
"""Requests per second that are as good as all at once."""
LOAD_SEED = 0
"""Seed of the saturated runs that loads are judged by: points that differ in their seed alone share them."""
CAPACITY_KEY = 1_000_003
"""Child of that seed that saturated runs draw from: they share nothing with the runs they judge."""
LOOPS = ((8, 48), (64, 256))
"""Requests in flight and in all of the short closed loops that bound capacity from below, the shortest first."""
FLOOR_SHARE = 0.7
"""Share of the short loop's throughput that is trusted as a bound: its requests are few, and their lengths vary."""
NEAR_SATURATION = 0.7
"""Share of capacity from which latency answers to step times by more than their share."""
ANY_RUN: dict[str, Any] = {"replications": 1, "window": Window(), "goodput": Goodput(), "energy": False}
ANY_LOAD: dict[str, Any] = {
    "num_prompts": FEWEST, "num_warmups": 0, "num_cooldowns": 0, "request_rate": inf, "burstiness": 1.0,
    "max_concurrency": None,
}  # fmt: skip
"""Keys that saturated runs do not depend on."""
MOST_KEPT = 16
"""Saturations that a process keeps for further loads, the newest."""
Capacity = tuple[float, tuple[float, float]]
"""Requests per second that may be sent, rejected ones among them, and its 95 % interval."""


class Saturation:
    """One policy with a queue that never empties, whatever the rate of its scenario. Each run is made once, when it is
    wanted. Of several replicas one is saturated: they serve as many times that, since none is ever idle then."""

    def __init__(self, resolved: Resolved, seed: int = LOAD_SEED) -> None:
        self._seed, self._count, workload = seed, resolved.scenario.devices.count, dict(ANY_LOAD)
        if resolved.scenario.workload.sharing.num_turns > 1:
            # Turns come in the order in which they do at the scenario's rate.
            workload["request_rate"] = resolved.scenario.workload.request_rate
        # All forms of the simulator serve as many.
        self._given = replace(resolved.changed(workload=workload, seed=seed, **ANY_RUN), form=None)
        self._trace = trace_stamp(resolved.scenario.workload)
        self._loops: dict[int, float] = {}

    @classmethod
    def of(cls, resolved: Resolved, seed: int = LOAD_SEED) -> Saturation:
        """The one of all loads of a setting."""
        wanted = cls(resolved, seed)
        if known := [each for each in _kept if each._setting == wanted._setting]:
            return known[0]
        _kept.appendleft(wanted)
        return wanted

    @property
    def _setting(self) -> tuple[object, ...]:
        """All that its runs depend on, which a file may have changed."""
        one = self._given
        return one.scenario, one.policy, one.options, one.quoted, one.engine, one.profile, self._trace

    @cached_property
    def capacity(self) -> Capacity:
        rate, (low, high) = self._throughput(self._burst)
        return self._count * rate, (self._count * low, self._count * high)

    def floor(self, rate_per_s: float = 0.0) -> float:
        """Requests per second that capacity surely exceeds: throughput rises with the requests in flight, so those of
        closed loops of a few, and of more until one exceeds `rate_per_s`. 0 where no more can be in flight at all."""
        floor, rate_per_s, (most, _) = 0.0, rate_per_s / self._count, self._sent
        for in_flight, num_prompts in LOOPS:
            has_prompts = at_most(self._given.scenario.workload, num_prompts) == num_prompts
            if most >= 2 * in_flight and floor <= rate_per_s and has_prompts:
                if in_flight not in self._loops:
                    loop = {"num_prompts": num_prompts, "max_concurrency": in_flight}
                    self._loops[in_flight], _ = self._throughput(self._burst.changed(workload=loop))
                floor = max(floor, FLOOR_SHARE * self._loops[in_flight])
        return self._count * floor

    def _throughput(self, resolved: Resolved) -> Capacity:
        """Throughput of the whole run, in the stretch in which as many are in flight as ever."""
        seed = child_seed(self._seed, CAPACITY_KEY)
        record = simulate(resolved, seed)
        in_flight = resolved.scenario.workload.max_concurrency or peak_in_flight(record.requests)
        mean = resolved.served.mean_tokens(seed)
        rate, (low, high) = saturated_throughput(record.requests, in_flight, (mean.prompt, mean.output))
        # Rejected requests take nothing, and count as those that are sent do.
        return rate / mean.served_share, (low / mean.served_share, high / mean.served_share)

    @cached_property
    def _one(self) -> Resolved:
        return self._given if self._count == 1 else self._given.changed(devices={"count": 1})

    @cached_property
    def _sent(self) -> tuple[int, float]:
        """Requests that can be in flight, and the share of those that are sent which are served."""
        one = self._one.changed(workload={"request_rate": inf})
        sent, pool = one.served.sample(child_seed(self._seed, CAPACITY_KEY)), one.new_pool()
        num_blocks = sum(pool.blocks_for(request) for request in sent.requests)
        if isinstance(pool, PagedPool) and pool.is_caching:
            # What several have in common is in memory once.
            contents = [request.content for request in sent.requests]
            num_blocks -= sum(map(len, contents)) - len(set(chain.from_iterable(contents)))
        blocks = num_blocks / len(sent.requests)
        return min(one.max_seated, max(1, int(pool.num_blocks / blocks))), sent.served_share

    @cached_property
    def _burst(self) -> Resolved:
        workload, (in_flight, served_share) = self._one.scenario.workload, self._sent
        num_prompts = min(MOST, max(FEWEST, int(GENERATIONS * in_flight / served_share)))
        changes: dict[str, Any] = {
            "num_prompts": at_most(workload, num_prompts),
            "trace_arrivals": workload.trace_arrivals.at_rate,
        }
        if workload.request_rate < inf:
            gap_s = workload.sharing.turn_gap_s * workload.request_rate / SOON_PER_S
            sharing = msgspec.structs.replace(workload.sharing, turn_gap_s=gap_s)
            changes |= {"request_rate": SOON_PER_S, "sharing": sharing}
        return self._one.changed(workload=changes)


_kept: deque[Saturation] = deque(maxlen=MOST_KEPT)


def load_of(resolved: Resolved, *, is_in_doubt: bool, arrivals_s: Sequence[float] = ()) -> Load:
    """A policy's load in relation to its capacity, which is measured only where that `is_in_doubt`.

    `arrivals_s` of a trace's requests that are served, in order; the rate at which drawn ones are sent is known.
    """
    workload = resolved.scenario.workload
    if workload.max_concurrency is not None:
        return Load(verdict=Verdict.CLOSED, rate_per_s=None)
    rate, error_per_s = workload.request_rate, 0.0
    if is_trace(workload) and workload.trace_arrivals is not TraceArrivals.POISSON:
        rate, error_per_s = trace_rate(arrivals_s)
        served_share = resolved.served.mean_tokens(LOAD_SEED).served_share
        rate, error_per_s = rate / served_share, error_per_s / served_share
    if rate == inf:
        return Load(verdict=Verdict.BURST, rate_per_s=None)
    max_per_s, saturation = rate + error_per_s, Saturation.of(resolved)
    floor_per_s = saturation.floor(max_per_s / NEAR_SATURATION) if is_in_doubt else None
    if floor_per_s is None or max_per_s < floor_per_s:
        return Load(verdict=Verdict.STABLE, rate_per_s=rate, floor_per_s=floor_per_s)
    return judge(rate, error_per_s, *saturation.capacity)


def load_after(resolved: Resolved, runs: Sequence[PointRun]) -> Load:
    is_in_doubt = any(run.needs_capacity for run in runs)
    return load_of(resolved, is_in_doubt=is_in_doubt, arrivals_s=runs[0].arrivals_s)


def peak_in_flight(requests: Sequence[Request]) -> int:
    """The most requests that were admitted and unfinished at once.

    >>> spans = ((6.0, 9.0), (0.0, 2.0), (2.0, 5.0), (4.0, 6.0))  # What ends as the next begins is not beside it.
    >>> asked = {"arrival_s": 0.0, "prompt_tokens": 1, "output_tokens": 1}
    >>> peak_in_flight([Request(0, "", **asked, scheduled_s=start_s, last_token_s=end_s) for start_s, end_s in spans])
    2
    """
    begins, ends = (Requests.of(requests).column(name) for name in ("scheduled_s", "last_token_s"))
    changes = np.repeat((1, -1), len(begins))
    # At one instant who leaves goes first.
    return int(np.cumsum(changes[np.lexsort((changes, np.concatenate((begins, ends))))]).max(initial=0))
