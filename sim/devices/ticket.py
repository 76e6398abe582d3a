"""A submitted work on a simulated device, and what devices ask of their host.

Not here: when anything happens (shared).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from math import nan
from typing import Any, Protocol

from sim.costs.cost import Cost
from sim.interface.host import Stream
from sim.interface.wait import HostWait
from sim.interface.work import DRAFT, HOST, NO_RESULT, Result, Work


class Clock(Protocol):
    """The part of a host that devices need."""

    @property
    def now_s(self) -> float: ...
    def at(self, time_s: float, callback: Callable[[Any], None], *, is_last: bool = False) -> Any: ...
    def complete(self, wait: HostWait[Any], value: Any = None) -> None: ...
    def ended(self, ticket: SimTicket) -> None:
        """Account for a work that has left its device."""
        ...


class Device(Protocol):
    """The device of a ticket."""

    clock: Clock

    def cancel(self, ticket: SimTicket) -> None: ...
    def poke(self) -> None: ...


class SimTicket(HostWait[Result]):
    """A submitted work and the times of its life, seconds; nan until known. Its device sets them; `ready_s` may lie in
    the future."""

    def __init__(self, device: Device, work: Work, stream: Stream, cost: Cost, now_s: float) -> None:
        self.is_completed = False
        self.posts = []
        self.watchers = []
        self.device = device
        self.work = work
        self.stream = stream
        self.cost = cost
        self.result = NO_RESULT
        self.submitted_s = now_s
        self.armed_s = nan
        self.is_cancelled = False
        self.dependents: list[Device] = []
        self.issue_start_s = self.prepared_s = self.issued_s = self.start_s = self.end_s = self.ready_s = nan

    @property
    def is_done(self) -> bool:
        return self.is_completed or self.ready_s <= self.device.clock.now_s

    def __await__(self) -> Generator[HostWait[Result], None, Result]:
        if not self.is_done:
            yield self
        return self.result

    def arm(self) -> None:
        """Have the clock complete this ticket at `ready_s`; while that is not known, its device will."""
        ready_s = self.ready_s
        if ready_s == ready_s and self.armed_s != ready_s:
            self.armed_s = ready_s
            self.device.clock.at(ready_s, self._arrived)

    def _arrived(self, _: Any) -> None:
        clock = self.device.clock
        if not self.is_completed and self.ready_s <= clock.now_s and (self.posts or self.watchers):
            clock.complete(self, self.result)

    def cancel(self) -> None:
        self.device.cancel(self)

    @property
    def device_s(self) -> float:
        """Seconds between the work's start and end on its device; 0 for HOST work."""
        return 0.0 if self.work.kind is HOST else self.end_s - self.start_s


def checkpoint_at(work: Work, share_done: float) -> float:
    """Share of `work` after which it can end, given that it is cancelled with `share_done` done."""
    if share_done <= 0.0:
        return 0.0
    if work.kind is not DRAFT or work.draft_tokens < 2:
        return 1.0
    return min(1.0, -(-share_done * work.draft_tokens // 1) / work.draft_tokens)
