"""A device with its streams: launching as a resource, rates of works side by side, in virtual time.

Rules (design, section 4; docs/adr/003):
- A stream's issuer prepares and launches its works one after the other. The issuers of a device share one
  interpreter: with n of them busy, each is slowed by the measured inflation of n.
- A work starts when it is prepared, the work before it on its stream has ended, and those it comes `after` have.
- While its launch goes on a work cannot outrun it: its rate is at most device time left / launch time left, and it
  ends no earlier than its launch; captured passes that are launched last (Cost.tail_s) run behind it.
- A lone work runs at rate 1, several at `rates_together`; on a reserved share a lone one does, too.
A rate that a change leaves as it was keeps its finish time bit for bit, so that sums by hand come out exact.
The clock is only requested instants at which something else depends on what happens then.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from sim.costs.cost import CostModel, prompt_result_s
from sim.devices.contention import Contention
from sim.devices.partition import Partition
from sim.devices.rates import rates_together
from sim.devices.ticket import Clock, Queue, SimTicket, checkpoint_at
from sim.interface.host import Stream
from sim.interface.work import HOST, Work


class SharedDevice:
    """Works of several streams on one device."""

    def __init__(
        self,
        clock: Clock,
        costs: CostModel,
        streams: Sequence[Stream],
        contention: Contention,
        *,
        partition: Partition | None = None,
        is_one_queue: bool = False,
    ) -> None:
        """A device whose streams have shares of the multiprocessors with a `partition`; `is_one_queue` puts all in one
        FIFO, as a link does."""
        self.clock = clock
        self._costs = costs
        self._result_s, self._prompt_result_s = costs.result_s, prompt_result_s(costs)
        self._contention = contention
        self._partition = partition
        if is_one_queue:
            self._order = [Queue(streams[0])]
            self._queues = {stream.name: self._order[0] for stream in streams}
        else:
            self._order = [Queue(stream) for stream in streams]
            self._queues = {queue.stream.name: queue for queue in self._order}
        self._shares_alone = partition is not None and not partition.only_together
        """A work that is alone has a share of the device."""
        self._issuing: list[SimTicket] = []
        inflations = [costs.host_inflation(count) for count in range(1, len(self._order) + 1)]
        self._slowdowns = [(1.0, False)] + [
            (inflation, any(inflation != less for less in inflations[:index]))
            for index, inflation in enumerate(inflations)
        ]
        """Slowdown of so many launches, and whether fewer would have another: by the time that one ends, others may
        have."""
        self._is_slowing = False
        """Fewer launches would have another slowdown."""
        self._running: list[SimTicket] = []
        self._timer: Any = None
        self._timer_s = inf
        self.busy_s = 0.0
        self._busy_since_s = -1.0

    def submit(self, work: Work, stream: Stream, after: Sequence[SimTicket]) -> SimTicket:
        now_s = self.clock.now_s
        queue = self._queues[stream.name]
        ticket = SimTicket(self, work, queue, stream, self._costs.cost(work), now_s)
        if after:
            ticket.after = [other for other in after if not other.end_s <= now_s]
            for other in ticket.after:
                if other.device is not self:
                    other.dependents.append(self)
        if not self._contention.has_priorities:
            ticket.priority = 0
        has_changed = self._note_launches(now_s)
        queue.to_issue.append(ticket)
        if work.kind is not HOST:
            queue.to_run.append(ticket)
        if len(queue.to_issue) == 1:
            self._begin_issue(ticket, now_s)
        if ticket.prepared_s <= now_s:
            self._update(has_changed)
        else:
            if has_changed:
                self._set_rates(now_s)
            self._arm_timer(now_s)
        return ticket

    def poke(self) -> None:
        """A work elsewhere that one of ours comes after has ended."""
        self._update()

    def count_busy(self, now_s: float) -> None:
        """Bring `busy_s`, seconds with at least one work, up to now."""
        if self._busy_since_s >= 0.0:
            self.busy_s += now_s - self._busy_since_s
            self._busy_since_s = now_s

    def cancel(self, ticket: SimTicket) -> None:
        now_s = self.clock.now_s
        if ticket.end_s <= now_s or ticket.is_cancelled:
            return
        ticket.is_cancelled = True
        self._note_launches(now_s)
        if ticket.queue.running is ticket:
            self._cut(ticket, now_s)
        else:
            self._drop(ticket, now_s)
        self._set_slowdowns(now_s)
        self._set_rates(now_s)
        self._update()

    def _cut(self, ticket: SimTicket, now_s: float) -> None:
        """End a running work at its next checkpoint; its launch shrinks with it."""
        left_s, total_s = ticket.left_at(now_s), ticket.cost.device_s
        done_s = total_s - left_s
        kept_s = checkpoint_at(ticket.work, done_s / total_s if total_s else 1.0) * total_s - done_s
        if not ticket.is_issued:
            share = kept_s / left_s if left_s else 0.0
            ticket.issued_s, ticket.tail_s = now_s + (ticket.issued_s - now_s) * share, ticket.tail_s * share
        ticket.left_s, ticket.since_s, ticket.rate, ticket.finish_s = max(0.0, kept_s), now_s, 0.0, inf

    def _drop(self, ticket: SimTicket, now_s: float) -> None:
        """Take a work that has not started out of its queues."""
        queue = ticket.queue
        if ticket in queue.to_run:
            queue.to_run.remove(ticket)
        if ticket in queue.to_issue:
            is_head = queue.to_issue[0] is ticket
            queue.to_issue.remove(ticket)
            if is_head:
                self._issuing.remove(ticket)
                if queue.to_issue:
                    self._begin_issue(queue.to_issue[0], now_s)
            ticket.is_issued, ticket.issued_s = True, now_s
        ticket.start_s = now_s
        self._end(ticket, now_s)

    # -- the event loop

    def _on_timer(self, event: Any) -> None:
        if event is self._timer:
            self._timer_s = inf
            self._update()

    def _update(self, has_changed: bool = False) -> None:
        """Do all that is due, then set the rates if the works or their launches changed, then the next timer."""
        now_s = self.clock.now_s
        is_due = True
        while is_due:
            is_due = False
            if self._issuing and (launched := self._end_launch(now_s)) is not None:
                has_changed |= launched.is_held_back
                is_due = True
            for ticket in self._running:
                if ticket.finish_s <= now_s and ticket.is_issued:
                    ticket.queue.running = None
                    self._running.remove(ticket)
                    self._end(ticket, now_s)
                    is_due = has_changed = True
                    break
            for queue in self._order:
                if queue.to_run and queue.running is None:
                    ticket = queue.to_run[0]
                    if not ticket.is_prepared or (ticket.after and not _are_over(ticket.after, now_s)):
                        continue
                    queue.running = queue.to_run.popleft()
                    ticket.start_s = ticket.since_s = now_s
                    ticket.after = ()
                    self._running.append(ticket)
                    has_changed = True
                    if ticket.left_s == 0.0:
                        ticket.finish_s = now_s
                        is_due = True
        if has_changed:
            self._set_rates(now_s)
        self._arm_timer(now_s)

    def _begin_issue(self, ticket: SimTicket, now_s: float) -> None:
        ticket.issue_start_s = now_s
        self._issuing.append(ticket)
        self._set_slowdowns(now_s)

    def _end_launch(self, now_s: float) -> SimTicket | None:
        """Note what is prepared by now, and end the first launch that is over; its work."""
        for ticket in self._issuing:
            if ticket.prepared_s <= now_s:
                ticket.is_prepared = True
            if ticket.issued_s <= now_s:
                self._finish_issue(ticket, now_s)
                return ticket
        return None

    def _note_launches(self, now_s: float) -> bool:
        """End the launches that were over before now, without timers; whether rates may change."""
        has_changed = False
        while self._issuing and (launched := self._end_launch(now_s)) is not None:
            has_changed |= launched.is_held_back
        return has_changed

    def _finish_issue(self, ticket: SimTicket, now_s: float) -> None:
        self._issuing.remove(ticket)
        ticket.queue.to_issue.popleft()
        ticket.is_issued = True
        if ticket.finish_s == ticket.issued_s + ticket.tail_s:
            # Its launch held it back: the tail is left to the last bit.
            ticket.left_s, ticket.since_s = ticket.tail_s, now_s
        if ticket.work.kind is HOST:
            ticket.start_s = now_s
            self._end(ticket, now_s)
        if ticket.queue.to_issue:
            self._begin_issue(ticket.queue.to_issue[0], now_s)
        else:
            self._set_slowdowns(now_s)

    def _set_slowdowns(self, now_s: float) -> None:
        """Set the slowdown of all launches that go on; a work that cannot outrun its own has another rate then."""
        slowdown, self._is_slowing = self._slowdowns[len(self._issuing)]
        is_bound = False
        for ticket in self._issuing:
            if ticket.slowdown != slowdown:
                is_running = ticket.queue.running is ticket
                is_bound |= is_running and ticket.launch_cap(now_s) < 1.0
                ticket.set_slowdown(slowdown, now_s)
                is_bound |= is_running and ticket.launch_cap(now_s) < 1.0
        if is_bound:
            self._set_rates(now_s)

    def _set_rates(self, now_s: float) -> None:
        running = self._running
        if not running:
            self.count_busy(now_s)
            self._busy_since_s = -1.0
            return
        if self._busy_since_s < 0.0:
            self._busy_since_s = now_s
        if len(running) == 1 and not self._shares_alone:
            ticket = running[0]
            cap = ticket.launch_cap(now_s)
            ticket.set_rate(cap, cap, now_s)
            return
        launch_caps = [ticket.launch_cap(now_s) for ticket in running]
        rates = rates_together(running, launch_caps, self._costs, self._contention, self._partition)
        for ticket, cap, rate in zip(running, launch_caps, rates, strict=True):
            ticket.set_rate(rate, cap, now_s)

    def _arm_timer(self, now_s: float) -> None:
        """Ask the clock for the next instant that matters.

        The end of a launch matters if it ends its work, lets the next work be issued, or changes a slowdown or a
        cap; that of preparing if the work could then start. What else is over is noted when something does.
        """
        next_s = inf
        for ticket in self._issuing:
            if (
                ticket.prepared_s < next_s
                and not ticket.is_prepared
                and ticket.queue.running is None
                and (not ticket.after or _are_over(ticket.after, now_s))
            ):
                next_s = ticket.prepared_s
            if ticket.issued_s < next_s and (
                len(ticket.queue.to_issue) > 1
                or self._is_slowing
                or (ticket.queue.running is ticket and self._is_capped(now_s))
                or ticket.finish_s <= ticket.issued_s + ticket.tail_s
                or ticket.work.kind is HOST
            ):
                next_s = ticket.issued_s
        for ticket in self._running:
            if ticket.finish_s < next_s:
                next_s = ticket.finish_s
        if next_s != self._timer_s:
            self._timer_s = next_s
            self._timer = self.clock.at(next_s, self._on_timer) if next_s < inf else None

    def _is_capped(self, now_s: float) -> bool:
        """True where a work's launch may bound its rate, beside others that run or are launched."""
        is_contended = len(self._running) > 1 or len(self._issuing) > 1
        return is_contended and any(ticket.launch_cap(now_s) < 1.0 for ticket in self._running)

    def _end(self, ticket: SimTicket, now_s: float) -> None:
        ticket.end_s = now_s
        is_free = ticket.work.kind is HOST or (ticket.is_cancelled and ticket.start_s == now_s)
        result_s = self._prompt_result_s if ticket.work.chunks else self._result_s
        ticket.ready_s = now_s if is_free else now_s + result_s
        self.clock.ended(ticket)
        if ticket.posts or ticket.watchers:
            ticket.arm()
        for device in ticket.dependents:
            device.poke()


def _are_over(tickets: Sequence[SimTicket], now_s: float) -> bool:
    return all(ticket.end_s <= now_s for ticket in tickets)
