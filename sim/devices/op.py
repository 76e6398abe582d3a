"""A work in flight on a shared device: what is left of its host and device parts, and how fast they go.

Not here: when anything changes (`shared`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf

import msgspec

from sim.costs.cost import CostModel
from sim.devices.contention import (
    Contention,
    Regime,
    add_leftover,
    fill_rates,
    plain_rates,
    share_time,
)
from sim.devices.partition import Partition, rates_on_shares
from sim.devices.ticket import SimTicket
from sim.interface.host import Stream

SLACK = 1e-9
"""Share of a work's device time within which it counts as ending with its launch (float rounding)."""


class Op:
    """A work in flight: its ticket, and what is left of its host and device parts."""

    def __init__(self, ticket: SimTicket, queue: Queue, after: Sequence[SimTicket]) -> None:
        self.ticket = ticket
        self.queue = queue
        self.after = after
        self.priority = queue.stream.priority
        self.is_prepared = False
        self.is_issued = False
        self.slowdown = 0.0
        self.host_done_s = 0.0
        """Host work done, in seconds at no slowdown, as of `host_since_s`."""
        self.host_since_s = 0.0
        self.prepared_s = inf
        self.issued_s = inf
        """When preparing and launching will be over at the present slowdown."""
        self.left_s = ticket.cost.device_s
        """Device time left at rate 1, as of `since_s`."""
        self.tail_s = ticket.cost.tail_s
        self.rate = 0.0
        self.since_s = 0.0
        self.finish_s = inf
        self.demands: tuple[float, float] | None = None
        device_s = ticket.cost.device_s
        self.kernels_per_s = ticket.cost.num_kernels / device_s if device_s else 0.0
        """Kernels per second at rate 1; beside others each kernel waits (contention.kernel_waits_s)."""

    @property
    def is_held_back(self) -> bool:
        """True where it runs at less than its full rate: its launch may be why."""
        return self.queue.running is self and self.rate < 1.0

    def set_slowdown(self, slowdown: float, now_s: float) -> None:
        if self.slowdown:
            self.host_done_s += (now_s - self.host_since_s) / self.slowdown
        self.slowdown = slowdown
        self.host_since_s = now_s
        prepare_s, launch_s, *_ = self.ticket.cost
        if self.prepared_s > now_s:
            self.prepared_s = now_s + max(0.0, prepare_s - self.host_done_s) * slowdown
            self.issued_s = self.prepared_s + launch_s * slowdown
        else:
            self.issued_s = now_s + max(0.0, prepare_s + launch_s - self.host_done_s) * slowdown

    def left_at(self, now_s: float) -> float:
        left_s = self.left_s - (now_s - self.since_s) * self.rate
        return left_s if left_s > 0.0 else 0.0

    def launch_cap(self, now_s: float) -> float:
        """The most this can run at: while it is being launched, its device time but the tail spread over the launch."""
        if self.is_issued:
            return 1.0
        launch_s = self.issued_s - now_s
        left_s = max(0.0, self.left_at(now_s) - self.tail_s)
        return left_s / launch_s if left_s < launch_s else 1.0

    def demands_of(self, costs: CostModel) -> tuple[float, float]:
        """Demands of the work on the device's roofs, priced once."""
        if self.demands is None:
            self.demands = costs.demands(self.ticket.work)
        return self.demands

    def set_rate(self, rate: float, cap: float, now_s: float) -> None:
        """Run at `rate` from now on. At a `cap` below 1 all but the tail ends with its launch."""
        if not self.is_issued and cap < 1.0 and rate >= cap * (1.0 - SLACK):
            self.left_s = self.left_at(now_s)
            self.since_s = now_s
            self.rate = rate
            self.finish_s = self.issued_s + self.tail_s
        elif rate != self.rate or self.finish_s == inf:
            self.left_s = self.left_at(now_s)
            self.since_s = now_s
            self.rate = rate
            if self.left_s <= SLACK * self.ticket.cost.device_s:
                self.finish_s = now_s
            else:
                self.finish_s = now_s + self.left_s / rate if rate > 0.0 else inf


def rates_together(
    running: Sequence[Op],
    launch_caps: Sequence[float],
    costs: CostModel,
    contention: Contention,
    partition: Partition | None = None,
) -> list[float]:
    """Rates [running] of works side by side: each on its share of the device where there is a partition, else their
    kernels wait, and all share the device as the regime has it."""
    priorities = [op.priority for op in running]
    if contention.is_preemptive and partition is None and len(set(priorities)) > 1:
        return _preemptive_rates(running, launch_caps, costs, contention)
    if partition is not None:
        portions = [partition.portions[op.queue.stream.name] for op in running]
        demands = [op.demands_of(costs) for op in running]
        return rates_on_shares(portions, launch_caps, demands, partition.curve)
    kernels_per_s = [op.kernels_per_s for op in running]
    demands = [op.demands_of(costs) for op in running] if contention.regime is Regime.ROOFS else []
    return plain_rates(launch_caps, priorities, kernels_per_s, demands, contention)


def _preemptive_rates(
    running: Sequence[Op], launch_caps: Sequence[float], costs: CostModel, contention: Contention
) -> list[float]:
    """Rates [running] where each priority has what the higher ones leave: of the device's time, or under both roofs."""
    rates = [0.0] * len(running)
    left, compute_left, bandwidth_left = 1.0, contention.eta_compute, contention.eta_bandwidth
    for priority in sorted({op.priority for op in running}, reverse=True):
        indices = [i for i, op in enumerate(running) if op.priority == priority]
        caps = [launch_caps[i] for i in indices]
        if contention.regime is Regime.ROOFS:
            roofs = msgspec.structs.replace(contention, eta_compute=compute_left, eta_bandwidth=bandwidth_left)
            demands = [running[i].demands_of(costs) for i in indices]
            shared = fill_rates(caps, demands, roofs)
            compute_left = max(0.0, compute_left - sum(r * d[0] for r, d in zip(shared, demands, strict=True)))
            bandwidth_left = max(0.0, bandwidth_left - sum(r * d[1] for r, d in zip(shared, demands, strict=True)))
        else:
            shared = share_time(caps, [1.0] * len(indices), left)
            left = max(0.0, left - sum(shared))
        for i, rate in zip(indices, shared, strict=True):
            rates[i] = rate
    return rates if contention.regime is Regime.ROOFS else add_leftover(rates, launch_caps, contention.phi)


class Queue:
    """One stream: works still to be issued, and works that the device has not started."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.to_issue: deque[Op] = deque()
        self.to_run: deque[Op] = deque()
        self.running: Op | None = None
