"""The threads of the real host: one per policy coroutine, which runs only while it holds the baton, and per stream an
issuer with, where the device works on its own, a collector of results.

The keeper (realrun.host.gpuhost) lends the baton and gets it back with the wait that the coroutine stopped at. Issuers
and collectors never hold it: they talk to the keeper through its mailbox. Not here: who is next, and time.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from realrun.host.clocks import HostClock, Mailbox
from realrun.host.executor import ExecutorLane, SubmittedWork
from realrun.host.ticket import LOOK_AGAIN, GpuTicket, Reactions
from sim.interface.host import Stream
from sim.interface.wait import HostWait, Task

CLOSE = object()
"""Last message to a thread."""


class HostStuck(RuntimeError):
    """Nothing has happened for too long; the message names who waits for what."""


class Baton:
    """A coroutine in a separate thread. The keeper's `send` lends it the baton and blocks until it is back."""

    def __init__(self, task: Task, name: str, reactions: Reactions, clock: HostClock, watchdog_s: float) -> None:
        self.name = name
        self.waits_for: HostWait[Any] | None = None
        """The wait it stopped at; None before the start and after the end."""
        self._task, self._reactions, self._clock, self._watchdog_s = task, reactions, clock, watchdog_s
        self._turns: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[HostWait[Any] | BaseException] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"policy {name}", daemon=True)
        self._thread.start()

    def send(self, _: None) -> HostWait[Any]:
        """One turn, as `coroutine.send`. Raises what the coroutine raises, and HostStuck if it keeps the baton."""
        self._reactions.turn_begins(self.waits_for)
        self._turns.put(True)
        try:
            reply = self._replies.get(timeout=self._watchdog_s)
        except queue.Empty:
            raise HostStuck(f"policy coroutine {self.name} has held the baton for {self._watchdog_s:g} s") from None
        if isinstance(reply, BaseException):
            self.waits_for = None
            raise reply
        self.waits_for = reply
        return reply

    def close(self, grace_s: float) -> None:
        """End the coroutine where it waits, and its thread."""
        self._turns.put(False)
        self._thread.join(grace_s)

    def _run(self) -> None:
        while self._turns.get():
            try:
                reply = self._task.send(None)
            except BaseException as error:
                self._replies.put(error)
                return
            self._reactions.acted(self._clock.now_s)
            self._replies.put(reply)
        self._task.close()


class Done(NamedTuple):
    """Message to the keeper: `ticket` is over."""

    ticket: GpuTicket


class ThreadFailed(NamedTuple):
    """Message to the keeper: a thread died of `error`."""

    error: BaseException


class StreamThreads:
    """The issuer of one stream, and its collector if its lane works on its own."""

    def __init__(
        self,
        stream: Stream,
        lane: ExecutorLane,
        clock: HostClock,
        keeper: Mailbox,
        ended: Callable[[SubmittedWork], None],
    ) -> None:
        self.stream, self._lane, self._clock, self._keeper, self._ended = stream, lane, clock, keeper, ended
        self.mailbox = clock.mailbox()
        self._to_collect = clock.mailbox()
        self._backlog: deque[GpuTicket] = deque()
        self._free_s = 0.0
        self._is_closing = False
        self._threads = [threading.Thread(target=self._guard, args=(self._issue_all,), name=f"issuer {stream.name}")]
        if lane.is_async:
            collector = threading.Thread(target=self._guard, args=(self._collect_all,), name=f"collector {stream.name}")
            self._threads.append(collector)
        for thread in self._threads:
            thread.daemon = True
            clock.enrol()
            thread.start()

    def close(self, grace_s: float) -> None:
        """The work in hand is finished, the rest dropped."""
        self._is_closing = True
        self.mailbox.put(CLOSE)
        self._to_collect.put(CLOSE)
        for thread in self._threads:
            thread.join(grace_s)

    def _guard(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except BaseException as error:
            self._keeper.put(ThreadFailed(error))

    def _issue_all(self) -> None:
        self._lane.enter()
        while self._receive(lambda: bool(self._backlog)):
            ticket = self._backlog.popleft()
            if not self._receive(ticket.may_be_issued):
                return
            if self._is_closing:
                return
            if ticket.claim():
                self._issue(ticket)

    def _receive(self, is_enough: Callable[[], bool]) -> bool:
        """Take messages until there is enough; False once the host closes."""
        while not is_enough():
            message = self.mailbox.get()
            if isinstance(message, GpuTicket):
                self._backlog.append(message)
            elif message is not LOOK_AGAIN:
                return False
        return True

    def _issue(self, ticket: GpuTicket) -> None:
        ticket.eligible_s = max([ticket.submitted_s, self._free_s, *(other.issued_s for other in ticket.after)])
        ticket.issue_start_s = self._clock.now_s
        handles = [other.handle for other in ticket.after if other.handle is not None]
        ticket.after = ()
        ticket.handle = self._lane.issue(ticket.job, handles)
        self._free_s = self._clock.now_s
        ticket.mark_issued(self._free_s)
        if not self._lane.is_async:
            self._finish(ticket)
            return
        self._to_collect.put(ticket)

    def _collect_all(self) -> None:
        while isinstance(ticket := self._to_collect.get(), GpuTicket):
            self._finish(ticket)

    def _finish(self, ticket: GpuTicket) -> None:
        assert ticket.handle is not None
        ticket.accepted = ticket.handle.finish()
        ticket.start_s, ticket.end_s = ticket.handle.times_s()
        self._ended(ticket.job)
        self._keeper.put(Done(ticket))
