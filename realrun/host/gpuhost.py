"""The real host: policies on threads, works on streams of a device, the same rules as in simulation
(sim.interface.host).

The keeper is the thread that calls `run_until`. It owns the wake order (sim.hosts.clock): it takes in what the issuers
report, fires what the clock has due, and lends the baton to one policy thread at a time, in the order in which their
waits were posted. What issuers report is taken in between turns only, so between two awaits nothing else happens.
On the wall clock this is a real run; on a virtual clock with an executor that only takes time it is exact.
Not here: what a work computes (realrun.replay.pair_executor), the threads' loops (realrun.host.threads).
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Sequence
from math import floor, inf
from typing import Any

from realrun.host.clocks import NOTHING, HostClock
from realrun.host.executor import Executor, SubmittedWork
from realrun.host.threads import Baton, Done, HostStuck, StreamThreads, ThreadFailed
from realrun.host.ticket import GpuTicket, Reactions
from sim.hosts.clock import POLL_GRID_SLACK, Callback, TaskHost
from sim.hosts.simulated import RunLength
from sim.interface.host import Stream
from sim.interface.wait import HostWait, Signal, Task, Wait
from sim.interface.work import NO_RESULT, Kind, Result, Work

WATCHDOG_S = 300.0
"""Longest time without any event while works are in flight: beyond one pass of a large model even on a CPU."""
CLOSING_GRACE_S = 10.0
"""Time a thread gets to finish what it has in hand when the host closes."""
SWITCH_INTERVAL_S = 0.0005
"""Seconds that a running thread may keep the interpreter from the others; Python's 5 ms exceeds a small pass."""
_MIN_WAIT_S = 0.01


class GpuHost(TaskHost):
    """Policies on real threads, ended on exit. Acceptance comes from `draws` (tape mode), or from the models."""

    def __init__(
        self,
        executor: Executor,
        draws: RunLength | None = None,
        *,
        clock: HostClock | None = None,
        watchdog_s: float = WATCHDOG_S,
    ) -> None:
        super().__init__()
        self.clock = clock or HostClock()
        self._executor, self._draws, self.watchdog_s = executor, draws, watchdog_s
        self._inbox = self.clock.mailbox(is_keeper=True)
        self._timers: list[tuple[float, bool, int, Callback]] = []
        self._num_timers = 0
        self.num_looks = 0
        """Timers that are only the next look of a poll that nobody has notified yet."""
        self._in_flight: dict[GpuTicket, None] = {}
        self.works: list[GpuTicket] = []
        """Works that are over, in the order in which their results came."""
        self._threads: dict[str, StreamThreads] = {}
        self._batons: list[Baton] = []
        self._last_event_s = 0.0
        self.reactions = Reactions()

    def __enter__(self) -> GpuHost:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the clock

    @property
    def now_s(self) -> float:
        return self.clock.now_s

    def at(self, time_s: float, callback: Callback, *, is_last: bool = False) -> None:
        heapq.heappush(self._timers, (time_s, is_last, self._num_timers, callback))
        self._num_timers += 1

    # -- the seam

    def stream(self, name: str, *, device: int | str = 0, priority: int = 0, sm_share: float | None = None) -> Stream:
        self._check_new(name, has_begun=bool(self._threads))
        stream = Stream(name=name, device=device, priority=priority, sm_share=sm_share)
        self._executor.check(stream)
        self.streams[name] = stream
        return stream

    def run(self, work: Work, stream: Stream, *, after: Sequence[Any] = ()) -> GpuTicket:
        if not self._threads:
            for each in self.streams.values():
                lane = self._executor.lane(each, self.clock)
                self._threads[each.name] = StreamThreads(each, lane, self.clock, self._inbox, self._executor.ended)
        self.reactions.submitted(self.now_s)
        job = SubmittedWork(
            work, tuple(work.checked()), tuple(request.emitted_tokens for request in work.requests), self._forced(work)
        )
        ticket = GpuTicket(job, stream, after, self.now_s, self._drop)
        issuer = self._threads[stream.name].mailbox
        for other in after:
            other.dependents.append(issuer)
        self._executor.submitted(job)
        self._in_flight[ticket] = None
        issuer.put(ticket)
        return ticket

    def wait(self, signal: Signal, *, poll_s: float | None = None) -> Wait[None]:
        """A wait. With `poll_s` the worker really looks that often, and skips looks that are late."""
        wait: HostWait[None] = HostWait()
        signal.pending.append(Looks(self, wait, poll_s) if poll_s else wait)
        return wait

    def notify(self, signal: Signal) -> None:
        signal.version += 1
        pending, signal.pending = signal.pending, []
        if pending:
            self.reactions.acted(self.now_s)
        for wait in pending:
            if isinstance(wait, Looks):
                wait.notified()
            else:
                self.go_on(wait, is_polled=False, due_s=self.now_s)

    def go_on(self, wait: HostWait[None], *, is_polled: bool, due_s: float) -> None:
        """Complete a wait on a signal whose coroutine should go on at `due_s`."""
        if wait.posts:
            self.reactions.due(wait, is_polled, due_s)
        self.complete(wait)

    def spawn(self, task: Task) -> None:
        name = getattr(task, "__qualname__", "coroutine")
        baton = Baton(task, f"{name}#{len(self._batons)}", self.reactions, self.clock, self.watchdog_s)
        self._batons.append(baton)
        super().spawn(baton)  # type: ignore[arg-type]

    # -- the keeper

    def run_until(self, stop_s: float | None = None) -> None:
        """Run until nothing more can happen, or to `stop_s`. Raises what any thread raised, and HostStuck."""
        self.clock.start()
        switch_interval_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        try:
            while self._is_anything_to_come() and not (stop_s is not None and self.now_s >= stop_s):
                self._take_in(self.now_s)
                if self._timers and self._timers[0][0] <= self.now_s:
                    _, _, _, callback = heapq.heappop(self._timers)
                    callback(None)
                elif self._is_anything_to_come():
                    self._take_in(self._next_instant_s(stop_s))
        finally:
            sys.setswitchinterval(switch_interval_s)
        self._executor.ran()
        for ticket in self.works:
            if ticket.handle is not None:
                ticket.start_s, ticket.end_s = ticket.handle.times_s()

    def close(self) -> None:
        """End every thread: passes in hand are finished, everything else is dropped."""
        self.clock.close()
        for threads in self._threads.values():
            threads.close(CLOSING_GRACE_S)
        for baton in self._batons:
            baton.close(CLOSING_GRACE_S)
        self._batons = []

    def _is_anything_to_come(self) -> bool:
        return bool(self._in_flight) or len(self._timers) > self.num_looks

    def _next_instant_s(self, stop_s: float | None) -> float | None:
        times_s = [time_s for time_s in (stop_s, self._timers[0][0] if self._timers else None) if time_s is not None]
        if self._in_flight and not self.clock.is_virtual:
            self._check_watchdog()
            times_s.append(self._last_event_s + self.watchdog_s + _MIN_WAIT_S)
        return min(times_s, default=None)

    def _take_in(self, until_s: float | None) -> None:
        """Take in what threads report: wait for the first of it until `until_s`, then take all there is."""
        message = self._inbox.get(until_s)
        if message is NOTHING and until_s is None:
            raise HostStuck(f"nothing can happen any more: {self._waiting()}")
        while message is not NOTHING:
            self._last_event_s = self.now_s
            if isinstance(message, ThreadFailed):
                raise message.error
            if isinstance(message, Done):
                self._arrived(message.ticket)
            message = self._inbox.get(self.now_s)

    def _arrived(self, ticket: GpuTicket) -> None:
        self._in_flight.pop(ticket, None)
        self.works.append(ticket)
        ticket.ready_s = self.now_s
        self.reactions.arrived(ticket)
        self.complete(ticket, self._result(ticket))

    def _drop(self, ticket: GpuTicket) -> None:
        """Cancelled: if nobody has taken the work it never runs, and is over now."""
        if ticket.claim():
            ticket.start_s = ticket.end_s = self.now_s
            ticket.mark_issued(self.now_s)
            self._executor.ended(ticket.job)
            self._inbox.put(Done(ticket))

    # -- draws and results

    def _forced(self, work: Work) -> tuple[int, ...] | None:
        if self._draws is None or work.kind not in (Kind.VERIFY, Kind.STEP):
            return None
        rows = work.requests if work.kind is Kind.VERIFY else work.requests[: work.rows]
        run_length = self._draws.run_length
        checked = work.checked()[: len(rows)]
        return tuple(
            run_length(r.index, r.emitted_tokens, most) if most else 0 for r, most in zip(rows, checked, strict=True)
        )

    def _result(self, ticket: GpuTicket) -> Result:
        if ticket.job.forced is not None:
            return Result(ticket.job.forced)
        return Result(ticket.accepted) if ticket.accepted is not None else NO_RESULT

    # -- the watchdog

    def _check_watchdog(self) -> None:
        oldest = next(iter(self._in_flight))
        quiet_s = self.now_s - max(self._last_event_s, oldest.submitted_s)
        if quiet_s > self.watchdog_s:
            raise HostStuck(f"no work has ended for {quiet_s:.1f} s: {_described(oldest)} first. {self._waiting()}")
        self._last_event_s = max(self._last_event_s, oldest.submitted_s)

    def _waiting(self) -> str:
        waits = [(baton.name, baton.waits_for) for baton in self._batons if baton.waits_for is not None]
        return ", ".join(f"{name} waits for {_described(wait)}" for name, wait in waits) or "No coroutine waits"


def _described(wait: HostWait[Any]) -> str:
    if isinstance(wait, GpuTicket):
        return f"{wait.work.kind.value} of {len(wait.work.requests)} requests on stream {wait.stream.name!r}"
    return "a signal, a time, or the first of several"


class Looks:
    """A worker that really looks every `poll_s`, on the grid of rule 4."""

    __slots__ = ("_grid", "_host", "_is_notified", "_is_over", "_looked_s", "_poll_s", "_start_s", "_wait")

    def __init__(self, host: GpuHost, wait: HostWait[None], poll_s: float) -> None:
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
