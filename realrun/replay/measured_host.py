"""The simulated host on a replay's measured times: of each work, of the reaction to it, and of waking after a signal.

Not here: how a work's time is found (realrun.replay.measured_costs).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import ceil, inf
from typing import Any, NamedTuple

from realrun.replay.measured_costs import MeasuredCosts
from sim.devices.contention import Contention
from sim.devices.ticket import SimTicket
from sim.hosts.clock import POLL_GRID_SLACK
from sim.hosts.simulated import RunLength, SimHost
from sim.interface.host import Stream
from sim.interface.wait import HostWait, Signal, Wait
from sim.interface.work import Work


class WakeLatency(NamedTuple):
    """Mean seconds from a notification until the coroutine that waited for it had acted on it."""

    plain_s: float
    polled_s: float
    """Mean seconds from the look that found the notification, where the coroutine polls."""


class MeasuredHost(SimHost):
    """The simulated host on measured times: of each work, of the reaction to it, and of waking up after a signal."""

    def __init__(self, costs: MeasuredCosts, draws: RunLength, wake: WakeLatency, **options: Any) -> None:
        super().__init__(costs, draws, contention=Contention(eta_compute=inf, eta_bandwidth=inf), **options)
        self._measured, self._wake = costs, wake
        self._reactions_s: dict[SimTicket, float] = {}

    def run(self, work: Work, stream: Stream, *, after: Sequence[Any] = ()) -> SimTicket:
        self._measured.now_s = self.now_s
        ticket = super().run(work, stream, after=after)
        reaction_s = self._measured.newest_reaction_s
        if ticket.ready_s == ticket.ready_s:
            ticket.ready_s += reaction_s
        else:
            self._reactions_s[ticket] = reaction_s
        return ticket

    def ended(self, ticket: SimTicket) -> None:
        """The result becomes ready: on a device with several streams only now."""
        reaction_s = self._reactions_s.pop(ticket, None)
        if reaction_s is not None:
            ticket.ready_s += reaction_s
            if ticket.posts or ticket.watchers:
                ticket.arm()
        super().ended(ticket)

    def wait(self, signal: Signal, *, poll_s: float | None = None) -> Wait[None]:
        wait: HostWait[None] = HostWait()
        signal.pending.append((wait, poll_s, self.now_s))
        return wait

    def notify(self, signal: Signal) -> None:
        signal.version += 1
        pending, signal.pending = signal.pending, []
        for wait, poll_s, since_s in pending:
            if poll_s:
                num_looks = max(1, ceil((self.now_s - since_s) / poll_s - POLL_GRID_SLACK))
                self.num_polls += num_looks
                wake_s = max(self.now_s, since_s + num_looks * poll_s) + self._wake.polled_s
            else:
                wake_s = self.now_s + self._wake.plain_s
            self.at(wake_s, partial(self._go_on, wait))

    def _go_on(self, wait: HostWait[None], _: Any) -> None:
        self.announce(wait)
