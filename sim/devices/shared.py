"""A device whose streams contend: launching as a resource, rates under two roofs, in virtual time.

Rules (design, section 4; docs/adr/003):
- A stream's issuer prepares and launches its works one after the other. The issuers of a device share one
  interpreter: with n of them busy, each is slowed by the measured inflation of n.
- A work starts when it is prepared, the work before it on its stream has ended, and those it comes `after` have.
- While its launch goes on a work cannot outrun it: its rate is at most device time left / launch time left, and it
  ends no earlier than its launch.
- A lone work runs at rate 1. Several get `fill_rates`, and each pays tau per kernel.
A rate that a change leaves as it was keeps its finish time bit for bit, so that sums by hand come out exact.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Any

from sim.costs.cost import CostModel
from sim.devices.contention import Contention, fill_rates
from sim.devices.ticket import Clock, SimTicket, checkpoint_at
from sim.host import HostWait, Stream
from sim.work import Kind, Work

LAUNCH_SLACK = 1e-9
"""Share of a work's device time within which it counts as ending with its launch (float rounding)."""


class _Op:
    """A work in flight: its ticket and what is left of its host and device parts."""

    __slots__ = (
        "after",
        "demands",
        "device_left_s",
        "finish_s",
        "host_finish_s",
        "host_left_s",
        "host_slowdown",
        "is_issued",
        "is_launching",
        "priority",
        "rate",
        "since_s",
        "ticket",
    )

    def __init__(self, ticket: SimTicket, after: Sequence[SimTicket]) -> None:
        self.ticket = ticket
        self.after = after
        self.priority = ticket.stream.priority
        self.is_launching = False
        self.is_issued = False
        self.host_left_s = ticket.cost.prepare_s
        self.host_finish_s = inf
        self.host_slowdown = 0.0
        self.device_left_s = ticket.cost.device_s
        self.rate = 0.0
        self.since_s = 0.0
        """When `device_left_s` and `rate` were last true together."""
        self.finish_s = inf
        self.demands: tuple[float, float] | None = None

    def set_slowdown(self, slowdown: float, now_s: float) -> None:
        if slowdown != self.host_slowdown:
            if self.host_finish_s < inf:
                self.host_left_s = (self.host_finish_s - now_s) / self.host_slowdown
            self.host_slowdown = slowdown
            self.host_finish_s = now_s + self.host_left_s * slowdown

    def set_rate(self, rate: float, now_s: float, *, by_launch: bool) -> None:
        """Run at `rate` from now; `by_launch` means that the end of the launch ends the work."""
        if rate != self.rate or by_launch or self.finish_s == inf:
            self.device_left_s = max(0.0, self.device_left_s - (now_s - self.since_s) * self.rate)
            self.since_s = now_s
            self.rate = rate
            if by_launch or (rate == 0.0 and self.device_left_s > 0.0):
                self.finish_s = inf
            else:
                self.finish_s = now_s + self.device_left_s / rate if self.device_left_s else now_s


class _Queue:
    """One stream: works still to be issued, and works issued or being issued that the device has not finished."""

    __slots__ = ("running", "stream", "to_issue", "to_run")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.to_issue: deque[_Op] = deque()
        self.to_run: deque[_Op] = deque()
        self.running: _Op | None = None


class SharedDevice:
    """Works of several streams on one device."""

    def __init__(
        self,
        clock: Clock,
        costs: CostModel,
        streams: Sequence[Stream],
        contention: Contention,
        *,
        is_one_queue: bool = False,
    ) -> None:
        """`is_one_queue` puts all streams in one FIFO, as a link does."""
        self.clock = clock
        self._costs = costs
        self._contention = contention
        if is_one_queue:
            self._order = [_Queue(streams[0])]
            self._queues = {stream.name: self._order[0] for stream in streams}
        else:
            self._order = [_Queue(stream) for stream in streams]
            self._queues = {queue.stream.name: queue for queue in self._order}
        self._timer: Any = None
        self._timer_s = inf
        self.busy_s = 0.0
        """Seconds with at least one work on the device."""
        self._busy_since_s = -1.0

    def submit(self, work: Work, stream: Stream, after: Sequence[SimTicket]) -> SimTicket:
        now_s = self.clock.now_s
        ticket = SimTicket(self, work, stream, self._costs.cost(work), now_s)
        waits_for = [other for other in after if not other.end_s <= now_s]
        for other in waits_for:
            if other.device is not self:
                other.dependents = [*(other.dependents or ()), self]
        op = _Op(ticket, waits_for)
        queue = self._queues[stream.name]
        queue.to_issue.append(op)
        if work.kind is not Kind.HOST:
            queue.to_run.append(op)
        if len(queue.to_issue) == 1:
            self._update()
        return ticket

    def poke(self) -> None:
        self._update()

    def flush(self, now_s: float) -> None:
        """Works are reported when they end; only the busy time runs on."""
        if self._busy_since_s >= 0.0:
            self.busy_s += now_s - self._busy_since_s
            self._busy_since_s = now_s

    def arm(self, ticket: SimTicket) -> None:
        if ticket.ready_s == ticket.ready_s:
            ticket.announce_when_ready()

    def issued_wait(self, ticket: SimTicket) -> HostWait[None]:
        wait: HostWait[None] = HostWait()
        wait.is_done = ticket.issued_s <= self.clock.now_s
        return wait

    def cancel(self, ticket: SimTicket) -> None:
        queue = self._queues[ticket.stream.name]
        in_flight = (queue.running, *queue.to_issue, *queue.to_run)
        op = next((op for op in in_flight if op is not None and op.ticket is ticket), None)
        if op is None or ticket.is_cancelled:
            return
        ticket.is_cancelled = True
        now_s = self.clock.now_s
        if queue.running is op:
            left_s = max(0.0, op.device_left_s - (now_s - op.since_s) * op.rate)
            total_s = ticket.cost.device_s
            kept_s = checkpoint_at(ticket.work, 1.0 - left_s / total_s if total_s else 1.0) * total_s - (
                total_s - left_s
            )
            shrink = kept_s / left_s if left_s else 0.0
            op.device_left_s, op.since_s, op.rate, op.finish_s = max(0.0, kept_s), now_s, 0.0, inf
            if not op.is_issued:
                op.host_left_s = (op.host_finish_s - now_s) / op.host_slowdown * shrink
                op.host_finish_s, op.host_slowdown = inf, 0.0
        else:
            if op in queue.to_issue:
                queue.to_issue.remove(op)
                ticket.issued_s = now_s
                self._announce_issued(ticket)
            if op in queue.to_run:
                queue.to_run.remove(op)
            ticket.start_s = now_s
            self._end(ticket, now_s)
        self._update()

    # -- the event loop

    def _on_timer(self, event: Any) -> None:
        if event is self._timer:
            self._timer_s = inf
            self._update()

    def _update(self) -> None:
        """Finish what is due, start what can start, until nothing changes; then set rates and the next timer."""
        now_s = self.clock.now_s
        is_changed = True
        while is_changed:
            is_changed = False
            for queue in self._order:
                if queue.to_issue and self._issue(queue.to_issue[0], queue, now_s):
                    is_changed = True
                running = queue.running
                if running is not None:
                    if running.finish_s <= now_s and running.is_issued:
                        queue.running = None
                        self._end(running.ticket, now_s)
                        is_changed = True
                elif queue.to_run and self._can_start(queue.to_run[0], now_s):
                    op = queue.running = queue.to_run.popleft()
                    op.ticket.start_s = op.since_s = now_s
                    if op.device_left_s == 0.0:
                        op.finish_s = now_s
                    is_changed = True
            self._set_slowdowns(now_s)
            self._set_rates(now_s)
        next_s = min((op.host_finish_s for op in self._issuing()), default=inf)
        for queue in self._order:
            if queue.running is not None and queue.running.is_issued:
                next_s = min(next_s, queue.running.finish_s)
        if next_s != self._timer_s:
            self._timer_s = next_s
            self._timer = self.clock.at(next_s, self._on_timer) if next_s < inf else None

    def _issuing(self) -> list[_Op]:
        return [queue.to_issue[0] for queue in self._order if queue.to_issue]

    def _issue(self, op: _Op, queue: _Queue, now_s: float) -> bool:
        """Advance the head of an issue queue by the phases that are over; True if any was."""
        ticket = op.ticket
        if ticket.issue_start_s != ticket.issue_start_s:
            ticket.issue_start_s = now_s
        if op.host_left_s > 0.0 and op.host_finish_s > now_s:
            return False
        if not op.is_launching:
            ticket.prepared_s = now_s
            op.is_launching = True
            op.host_left_s = ticket.cost.launch_s
            op.host_finish_s, op.host_slowdown = inf, 0.0
            if op.host_left_s > 0.0:
                return True
        queue.to_issue.popleft()
        op.is_issued = True
        op.host_finish_s = inf
        ticket.issued_s = now_s
        self._announce_issued(ticket)
        if ticket.work.kind is Kind.HOST:
            ticket.start_s = ticket.issue_start_s
            self._end(ticket, now_s)
        elif queue.running is op and op.finish_s == inf and op.rate > 0.0:
            op.set_rate(op.rate, now_s, by_launch=False)
            if op.finish_s - now_s <= LAUNCH_SLACK * ticket.cost.device_s:
                op.finish_s = now_s
        return True

    def _can_start(self, op: _Op, now_s: float) -> bool:
        return op.is_launching and all(other.end_s <= now_s for other in op.after)

    def _set_slowdowns(self, now_s: float) -> None:
        issuing = self._issuing()
        if issuing:
            slowdown = self._costs.host_inflation(len(issuing))
            for op in issuing:
                op.set_slowdown(slowdown, now_s)

    def _set_rates(self, now_s: float) -> None:
        ops = [queue.running for queue in self._order if queue.running is not None]
        if not ops:
            if self._busy_since_s >= 0.0:
                self.busy_s += now_s - self._busy_since_s
                self._busy_since_s = -1.0
            return
        if self._busy_since_s < 0.0:
            self._busy_since_s = now_s
        caps = [_launch_cap(op, now_s) for op in ops]
        rates = caps if len(ops) == 1 else self._contended(ops, caps)
        for op, cap, rate in zip(ops, caps, rates, strict=True):
            is_at_cap = not op.is_issued and cap < 1.0 and rate >= cap * (1.0 - LAUNCH_SLACK)
            op.set_rate(rate, now_s, by_launch=is_at_cap)

    def _contended(self, ops: list[_Op], caps: list[float]) -> list[float]:
        compute, bandwidth = [], []
        for op in ops:
            if op.demands is None:
                op.demands = self._costs.demands(op.ticket.work)
            compute.append(op.demands[0])
            bandwidth.append(op.demands[1])
        rates = fill_rates(caps, compute, bandwidth, [op.priority for op in ops], self._contention)
        tau_s = self._contention.tau_s
        if tau_s:
            for i, op in enumerate(ops):
                device_s = op.ticket.cost.device_s
                if device_s:
                    rates[i] *= device_s / (device_s + op.ticket.cost.num_kernels * tau_s)
        return rates

    def _announce_issued(self, ticket: SimTicket) -> None:
        if ticket._issued is not None:
            self.clock.complete(ticket._issued)

    def _end(self, ticket: SimTicket, now_s: float) -> None:
        ticket.end_s = now_s
        is_free = ticket.work.kind is Kind.HOST or (ticket.is_cancelled and ticket.start_s == now_s)
        ticket.ready_s = now_s if is_free else now_s + self._costs.result_s
        if ticket.posts or ticket.watchers:
            ticket.announce_when_ready()
        self.clock.ended(ticket)
        if ticket.dependents:
            for device in ticket.dependents:
                device.poke()


def _launch_cap(op: _Op, now_s: float) -> float:
    """The most `op` can run at while it is being launched: its device time spread over the launch."""
    if op.is_issued:
        return 1.0
    launch_s = op.host_finish_s - now_s if op.host_finish_s < inf else op.host_left_s
    if launch_s <= 0.0:
        return 1.0
    device_left_s = max(0.0, op.device_left_s - (now_s - op.since_s) * op.rate)
    return min(1.0, device_left_s / launch_s)
