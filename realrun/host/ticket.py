"""A work submitted to the threaded host: its times, who may still take it, whom to tell when it is issued, and how long
the host takes to act on it, which a simulation on measured times needs besides (realrun.replay.measured_costs).

Not here: the threads that carry it out (realrun.host.threads).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import Any

from realrun.host.clocks import Mailbox
from realrun.host.executor import Handle, SubmittedWork
from sim.hosts.clock import FirstWait
from sim.interface.host import Stream
from sim.interface.wait import HostWait
from sim.interface.work import Result, Work

LOOK_AGAIN = object()
"""Message to an issuer: the work that one of its works follows has been issued."""


@dataclass(slots=True, eq=False)
class GpuTicket(HostWait[Result]):
    """A submitted work and the times of its life, seconds on the host's clock; nan until known."""

    job: SubmittedWork
    stream: Stream
    after: Sequence[GpuTicket]
    submitted_s: float
    on_cancel: Callable[[GpuTicket], None]
    eligible_s: float = nan
    """Submitted, its issuer free, and everything it comes after issued."""
    issue_start_s: float = nan
    issued_s: float = nan
    start_s: float = nan
    end_s: float = nan
    ready_s: float = nan
    reacted_s: float = nan
    """When the coroutine that awaited this had acted on it; nan if none did."""
    handle: Handle | None = None
    accepted: tuple[int, ...] | None = None
    """Of `Handle.finish`; None before it."""
    is_cancelled: bool = False
    is_issued: bool = False
    dependents: list[Mailbox] = field(default_factory=list)
    """Issuers to tell when this has been issued."""
    _claim: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        HostWait.__init__(self)

    @property
    def work(self) -> Work:
        return self.job.work

    def may_be_issued(self) -> bool:
        """Everything it comes after has been issued."""
        return all(other.is_issued for other in self.after)

    def claim(self) -> bool:
        """Take the work, to issue or to drop it; True for the first who asks."""
        return self._claim.acquire(blocking=False)

    def cancel(self) -> None:
        """Drop the work if it has not been issued. Later it ends at its end: an issued pass cannot be called back."""
        if not self.is_done and not self.is_cancelled:
            self.is_cancelled = True
            self.on_cancel(self)

    def mark_issued(self, now_s: float) -> None:
        """The host part is over, or never was; lets those go on that come after."""
        self.issued_s = now_s
        self.is_issued = True
        for mailbox in tuple(self.dependents):
            mailbox.put(LOOK_AGAIN)


class Reactions:
    """Delays between a wait's completion and the act of the coroutine that waited."""

    def __init__(self) -> None:
        self.wake_latencies_s: dict[bool, list[float]] = {False: [], True: []}
        """Seconds from a signal, plain or polled, until the coroutine that waited had submitted a work, if it did."""
        self._for_first: list[GpuTicket] = []
        """Arrived, and waited for by a `first` whose coroutine has not had its turn yet."""
        self._reacting: list[GpuTicket] = []
        """Tickets that the present turn reacts to."""
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
