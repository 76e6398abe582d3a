"""A submitted work on a simulated device: the time it still needs and its speed, and the calls to the host.

Not here: when anything changes (shared), rates of works side by side (rates).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from math import inf, nan
from typing import Any, Protocol

from sim.costs.cost import Cost, CostModel
from sim.interface.host import Stream
from sim.interface.wait import HostWait
from sim.interface.work import DRAFT, HOST, NO_RESULT, Result, Work

SLACK = 1e-9
"""Share of a work's device time within which it counts as ending with its launch (float rounding)."""


class Clock(Protocol):
    """The part of a host that devices need."""

    @property
    def now_s(self) -> float: ...
    def at(self, time_s: float, callback: Callable[[Any], None], *, is_last: bool = False) -> Any: ...
    def complete(self, wait: HostWait[Any], value: Any = None) -> None: ...
    def ended(self, ticket: SimTicket) -> None:
        """Account for a work that has left its device; its result may be said to be ready later."""
        ...


class Device(Protocol):
    """The device of a ticket."""

    clock: Clock

    def cancel(self, ticket: SimTicket) -> None: ...
    def poke(self) -> None: ...


class SimTicket(HostWait[Result]):
    """A submitted work and the times of its life, seconds; nan until known. `ready_s` may lie in the future. Its device
    sets them, and what is left of its host and device parts."""

    def __init__(self, device: Device, work: Work, queue: Queue, stream: Stream, cost: Cost, now_s: float) -> None:
        super().__init__()
        self.device, self.work, self.queue, self.stream, self.cost = device, work, queue, stream, cost
        self.result = NO_RESULT
        self.submitted_s = now_s
        self.issue_start_s = self.start_s = self.end_s = self.ready_s = nan
        self.is_cancelled = False
        self.after: Sequence[SimTicket] = ()
        """Works that it waits for."""
        self.dependents: list[Device] = []
        """Other devices with works that wait for it."""
        self.priority = queue.stream.priority
        self.is_prepared = self.is_issued = False
        self.prepared_s = self.issued_s = inf
        """When preparing and launching are over, or will be at the present slowdown."""
        self.slowdown = 0.0
        self.host_done_s = self.host_since_s = 0.0
        """Host work done by the second of these, in seconds at no slowdown."""
        self.left_s = cost.device_s
        """Device time left at rate 1, as of `since_s`."""
        self.tail_s = cost.tail_s
        self.rate = self.since_s = 0.0
        self.finish_s = inf
        self.demands: tuple[float, float] | None = None
        self.kernels_per_s = cost.num_kernels / cost.device_s if cost.device_s else 0.0
        """Kernels per second at rate 1; beside others each kernel waits (contention.kernel_waits_s)."""

    @property
    def is_done(self) -> bool:
        return self.is_completed or self.ready_s <= self.device.clock.now_s

    def __await__(self) -> Generator[HostWait[Result], None, Result]:
        if not self.is_done:
            yield self
        return self.result

    def arm(self) -> None:
        """Have the clock complete this ticket at `ready_s`; while that is not known, its device will."""
        if self.ready_s == self.ready_s:
            self.device.clock.at(self.ready_s, self._arrived)

    def _arrived(self, _: Any) -> None:
        if not self.is_completed and (self.posts or self.watchers):
            self.device.clock.complete(self, self.result)

    def cancel(self) -> None:
        self.device.cancel(self)

    @property
    def device_s(self) -> float:
        """Seconds between the work's start and end on its device; 0 for HOST work."""
        return 0.0 if self.work.kind is HOST else self.end_s - self.start_s

    @property
    def is_held_back(self) -> bool:
        """True where it runs at less than its full rate: its launch may be why."""
        return self.queue.running is self and self.rate < 1.0

    def set_slowdown(self, slowdown: float, now_s: float) -> None:
        if self.slowdown:
            self.host_done_s += (now_s - self.host_since_s) / self.slowdown
        self.slowdown = slowdown
        self.host_since_s = now_s
        prepare_s, launch_s, *_ = self.cost
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
            self.demands = costs.demands(self.work)
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
            if self.left_s <= SLACK * self.cost.device_s:
                self.finish_s = now_s
            else:
                self.finish_s = now_s + self.left_s / rate if rate > 0.0 else inf


class Queue:
    """One stream: works still to be issued, and works that the device has not started."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.to_issue: deque[SimTicket] = deque()
        self.to_run: deque[SimTicket] = deque()
        self.running: SimTicket | None = None


def checkpoint_at(work: Work, share_done: float) -> float:
    """Share of `work` after which it can end, given that it is cancelled with `share_done` done."""
    if share_done <= 0.0:
        return 0.0
    if work.kind is not DRAFT or work.draft_tokens < 2:
        return 1.0
    return min(1.0, -(-share_done * work.draft_tokens // 1) / work.draft_tokens)
