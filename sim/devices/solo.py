"""A device while one stream alone has works on it: nothing contends, so all times are known at submission.

This is the exact closed form of `shared` for that case (a property test holds the two together) and costs no events. A
host with one stream has nothing else; one with several has `shared` take over as soon as a second stream has a work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from sim.costs.cost import Cost, CostModel, prompt_result_s
from sim.devices.ticket import Clock, Device, SimTicket, checkpoint_at
from sim.interface.host import Stream
from sim.interface.wait import HostWait
from sim.interface.work import HOST, Work

_MAX_FLYING = 32
"""Works after which those that have ended are reported; any number would do."""


class SoloDevice:
    """Works of one stream, first in, first out."""

    def __init__(self, clock: Clock, costs: CostModel, owner: Device | None = None) -> None:
        """Tickets are those of `owner`, if there is one: it takes over before it cancels any."""
        self.clock = clock
        self._owner: Device = owner or self
        self._costs = costs
        self._cost = costs.cost
        self._result_s, self._prompt_result_s = costs.result_s, prompt_result_s(costs)
        self.busy_s = 0.0
        self._issuer_free_s = 0.0
        self._device_free_s = 0.0
        self._flying: deque[SimTicket] = deque()
        """Works that may still be cut or moved, oldest first, and some that have ended."""
        self._settled = (0.0, 0.0)
        """Issuer and device free times before the oldest flying work."""

    def submit(self, work: Work, stream: Stream, after: Sequence[SimTicket]) -> SimTicket:
        """`after` needs no care: all works are on this stream, in order."""
        now_s = self.clock.now_s
        ticket = SimTicket(self._owner, work, stream, self._cost(work), now_s)
        self._time(ticket)
        flying = self._flying
        flying.append(ticket)
        if len(flying) > _MAX_FLYING:
            self.flush(now_s)
        return ticket

    def flush(self, now_s: float) -> None:
        """Report the works that have ended by `now_s`, in order."""
        flying, ended = self._flying, self.clock.ended
        issuer_free_s, device_free_s = self._settled
        busy_s = self.busy_s
        while flying and (end_s := flying[0].end_s) <= now_s:
            ticket = flying.popleft()
            issuer_free_s = ticket.issued_s
            if end_s > device_free_s:
                device_free_s = end_s
            busy_s += end_s - ticket.start_s
            ended(ticket)
        self._settled = (issuer_free_s, device_free_s)
        self.busy_s = busy_s

    @property
    def is_idle(self) -> bool:
        """True where no work was in flight at the last `flush`."""
        return not self._flying

    def release(self, now_s: float) -> list[SimTicket]:
        """The works that have not ended, oldest first: another device goes on with them."""
        self.flush(now_s)
        left = []
        for ticket in self._flying:
            if ticket.end_s <= now_s:
                self.clock.ended(ticket)
            else:
                left.append(ticket)
        self._flying.clear()
        self._issuer_free_s = self._device_free_s = 0.0
        self._settled = (0.0, 0.0)
        return left

    def _time(self, ticket: SimTicket) -> None:
        work, start_s = ticket.work, self._device_free_s
        prepare_s, launch_s, device_s, _, tail_s = ticket.cost
        issue_start_s = ticket.submitted_s
        if self._issuer_free_s > issue_start_s:
            issue_start_s = self._issuer_free_s
        ticket.issue_start_s = issue_start_s
        ticket.prepared_s = prepared_s = issue_start_s + prepare_s
        ticket.issued_s = self._issuer_free_s = issued_s = prepared_s + launch_s
        if work.kind is HOST:
            ticket.start_s = ticket.end_s = ticket.ready_s = issued_s
            return
        if prepared_s > start_s:
            start_s = prepared_s
        ticket.start_s = start_s
        end_s = start_s + device_s
        if issued_s + tail_s > end_s:
            end_s = issued_s + tail_s
        ticket.end_s = self._device_free_s = end_s
        ticket.ready_s = end_s + (self._prompt_result_s if work.chunks else self._result_s)

    def issued_wait(self, ticket: SimTicket) -> HostWait[None]:
        wait: HostWait[None] = HostWait()
        if ticket.issued_s <= self.clock.now_s:
            wait.is_completed = True
        else:
            self.clock.at(ticket.issued_s, lambda _: self.clock.complete(wait))
        return wait

    def poke(self) -> None:
        """Nothing here depends on works elsewhere."""

    def cancel(self, ticket: SimTicket) -> None:
        """Cut `ticket` at its next checkpoint and move every later work forward."""
        now_s = self.clock.now_s
        if ticket.is_cancelled or ticket.end_s <= now_s:
            return
        self.flush(now_s)
        ticket.is_cancelled = True
        prepare_s, launch_s, device_s, num_kernels, tail_s = ticket.cost
        length_s = ticket.end_s - ticket.start_s
        share = checkpoint_at(ticket.work, (now_s - ticket.start_s) / length_s if length_s else 0.0)
        if ticket.start_s >= now_s:
            prepare_s = min(prepare_s, max(0.0, now_s - ticket.issue_start_s))
        ticket.cost = Cost(prepare_s, launch_s * share, device_s * share, num_kernels, tail_s * share)
        self._issuer_free_s, self._device_free_s = self._settled
        for flying in self._flying:
            self._time(flying)
            if flying.posts or flying.watchers:
                flying.arm()
