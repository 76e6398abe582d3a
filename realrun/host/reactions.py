"""How a worker looks for work by polling, and how long the host takes to act on what it has been told.

Both belong to the threaded host (realrun.host.gpuhost); the delays are what a simulation on measured times needs
besides the works' own (realrun.replay.measured_host).
"""

from __future__ import annotations

from math import floor, inf
from typing import Any, Protocol

from realrun.host.ticket import GpuTicket
from sim.hosts.clock import POLL_GRID_SLACK, Callback, FirstWait
from sim.interface.wait import HostWait


class LookingHost(Protocol):
    """What polling needs of its host."""

    num_polls: int
    num_looks: int

    @property
    def now_s(self) -> float: ...
    def at(self, time_s: float, callback: Callback) -> None: ...
    def go_on(self, wait: HostWait[None], *, is_polled: bool, due_s: float) -> None: ...


class Reactions:
    """Delays between a wait's completion and the act of the coroutine that waited."""

    def __init__(self) -> None:
        self.wake_latencies_s: dict[bool, list[float]] = {False: [], True: []}
        """Seconds from a signal, plain or polled, until the coroutine that waited had submitted a work, if it did."""
        self._for_first: list[GpuTicket] = []
        """Arrived, and waited for by a `first` whose coroutine has not had its turn yet."""
        self._reacting: list[GpuTicket] = []
        """What the present turn reacts to."""
        self._due_s: dict[HostWait[None], tuple[bool, float]] = {}
        """Signals' waits that are done: was it polled, and when its coroutine should go on."""
        self._due: tuple[bool, float] | None = None

    def arrived(self, ticket: GpuTicket) -> None:
        """The result of `ticket` is on the host, and its waiters are about to be woken."""
        if ticket.watchers:
            self._for_first.append(ticket)

    def due(self, wait: HostWait[None], is_polled: bool, due_s: float) -> None:
        """Whoever waits for `wait` should go on at `due_s`."""
        self._due_s[wait] = is_polled, due_s

    def turn_begins(self, waited_for: HostWait[Any] | None) -> None:
        """A coroutine is about to run that stopped at `waited_for`."""
        if isinstance(waited_for, GpuTicket):
            self._reacting = [waited_for]
        elif isinstance(waited_for, FirstWait):
            self._reacting, self._for_first = self._for_first, []
        self._due = self._due_s.pop(waited_for, None) if waited_for is not None else None

    def acted(self, now_s: float) -> None:
        """It has submitted a work, notified somebody who waits, or come to its next wait."""
        for ticket in self._reacting:
            ticket.reacted_s = now_s
        self._reacting = []

    def submitted(self, now_s: float) -> None:
        """It has submitted a work: it did not wake in vain."""
        self.acted(now_s)
        if self._due is not None:
            is_polled, due_s = self._due
            self.wake_latencies_s[is_polled].append(now_s - due_s)
            self._due = None


class Looks:
    """A worker that really looks every `poll_s`, on the grid of rule 4."""

    __slots__ = ("_grid", "_host", "_is_notified", "_is_over", "_looked_s", "_poll_s", "_start_s", "_wait")

    def __init__(self, host: LookingHost, wait: HostWait[None], poll_s: float) -> None:
        self._host, self._wait, self._poll_s = host, wait, poll_s
        self._start_s, self._looked_s = host.now_s, -inf
        self._grid = 0
        self._is_notified = self._is_over = False
        self._plan(1)

    def notified(self) -> None:
        """The next look will see it, or one of this very instant has."""
        self._is_notified = True
        self._host.num_looks -= 1
        if self._host.now_s - self._looked_s <= POLL_GRID_SLACK * self._poll_s:
            self._is_over = True
            self._host.go_on(self._wait, is_polled=True, due_s=self._host.now_s)

    def _plan(self, grid: int) -> None:
        self._grid = grid
        self._host.num_looks += 1
        self._host.at(self._start_s + grid * self._poll_s, self._look)

    def _look(self, _: Any) -> None:
        if self._is_over:
            return
        host = self._host
        host.num_polls += 1
        if self._is_notified:
            host.go_on(self._wait, is_polled=True, due_s=self._start_s + self._grid * self._poll_s)
            return
        host.num_looks -= 1
        self._looked_s = host.now_s
        self._plan(max(self._grid, floor((host.now_s - self._start_s) / self._poll_s)) + 1)
