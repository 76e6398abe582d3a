"""The threads of the real host: one per policy coroutine, which runs only while it holds the baton, and per stream an
issuer with, where the device works on its own, a collector of results.

The keeper (realrun.gpuhost) lends the baton and gets it back with the wait that the coroutine stopped at. Issuers and
collectors never hold it: they talk to the keeper through its mailbox. Not here: who is next, and time.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from math import nan
from typing import Any, NamedTuple, Protocol

from realrun.clocks import Clock, Mailbox
from realrun.executor import Handle, Job, Lane, Outcome
from sim.host import HostWait, Stream
from sim.tasks import Task
from sim.work import Result, Work

CLOSE = object()
"""Last message to a thread."""
LOOK_AGAIN = object()
"""Message to an issuer: a work that one of its own comes after has been issued."""


class HostStuck(RuntimeError):
    """Nothing has happened for too long; the message names who waits for what."""


class Keeper(Protocol):
    """What lends the baton."""

    watchdog_s: float

    def turn_begins(self, waited_for: HostWait[Any] | None) -> None: ...

    def reacted(self) -> None:
        """The coroutine whose turn it is has acted, or stopped at its next wait."""
        ...


class Baton:
    """A coroutine in a thread of its own. The keeper's `send` lends it the baton and blocks until it is back."""

    def __init__(self, task: Task, name: str, keeper: Keeper) -> None:
        self.name = name
        self.waits_for: HostWait[Any] | None = None
        """The wait it stopped at; None before the start and after the end."""
        self._task = task
        self._keeper = keeper
        self._turns: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"policy {name}", daemon=True)
        self._thread.start()

    def send(self, _: None) -> HostWait[Any]:
        """One turn, as `coroutine.send`. Raises what the coroutine raises, and HostStuck if it keeps the baton."""
        keeper = self._keeper
        keeper.turn_begins(self.waits_for)
        self._turns.put(True)
        try:
            reply = self._replies.get(timeout=keeper.watchdog_s)
        except queue.Empty:
            raise HostStuck(f"policy coroutine {self.name} has held the baton for {keeper.watchdog_s:g} s") from None
        if isinstance(reply, BaseException):
            self.waits_for = None
            raise reply
        self.waits_for = reply
        return reply  # type: ignore[no-any-return]

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
            self._keeper.reacted()
            self._replies.put(reply)
        self._task.close()


class GpuTicket(HostWait[Result]):
    """A submitted work and the times of its life, seconds on the host's clock; nan until known."""

    __slots__ = (
        "_claim",
        "_issued",
        "_on_cancel",
        "after",
        "dependents",
        "eligible_s",
        "end_s",
        "handle",
        "is_cancelled",
        "is_issued",
        "issue_start_s",
        "issued_s",
        "job",
        "outcome",
        "reacted_s",
        "ready_s",
        "start_s",
        "stream",
        "submitted_s",
    )

    def __init__(
        self,
        job: Job,
        stream: Stream,
        after: Sequence[GpuTicket],
        submitted_s: float,
        on_cancel: Callable[[GpuTicket], None],
    ) -> None:
        super().__init__()
        self.job, self.stream, self.submitted_s = job, stream, submitted_s
        self.after: Sequence[GpuTicket] = after
        self.dependents: list[Mailbox] = []
        """Issuers to tell when this has been issued."""
        self.eligible_s = self.issue_start_s = self.issued_s = nan
        """`eligible_s`: submitted, its issuer free, and everything it comes after issued."""
        self.start_s = self.end_s = self.ready_s = nan
        self.reacted_s = nan
        """When the coroutine that awaited this had acted on it; nan if none did."""
        self.handle: Handle | None = None
        self.outcome: Outcome | None = None
        self.is_cancelled = False
        self.is_issued = False
        self._issued: HostWait[None] | None = None
        self._claim = threading.Lock()
        self._on_cancel = on_cancel

    @property
    def work(self) -> Work:
        return self.job.work

    @property
    def issued(self) -> HostWait[None]:
        if self._issued is None:
            self._issued = HostWait()
            self._issued.is_done = self.is_issued or self.is_done
        return self._issued

    def may_be_issued(self) -> bool:
        """Everything it comes after has been issued."""
        return all(other.is_issued for other in self.after)

    def is_issue_watched(self) -> bool:
        return self._issued is not None and not self._issued.is_done

    def claim(self) -> bool:
        """Take the work, to issue or to drop it; True for the first who asks."""
        return self._claim.acquire(blocking=False)

    def cancel(self) -> None:
        """Drop the work if it has not been issued. Later it ends at its end: an issued pass cannot be called back."""
        if not self.is_done and not self.is_cancelled:
            self.is_cancelled = True
            self._on_cancel(self)

    def mark_issued(self, now_s: float) -> None:
        """The host part is over, or never was; lets those go on that come after."""
        self.issued_s = now_s
        self.is_issued = True
        for mailbox in tuple(self.dependents):
            mailbox.put(LOOK_AGAIN)


class Issued(NamedTuple):
    """To the keeper: the host part of `ticket` is over."""

    ticket: GpuTicket


class Done(NamedTuple):
    """To the keeper: `ticket` has its outcome."""

    ticket: GpuTicket


class Failed(NamedTuple):
    """To the keeper: a thread died of `error`."""

    error: BaseException


class StreamThreads:
    """The issuer of one stream, and its collector if its lane works on its own."""

    def __init__(self, stream: Stream, lane: Lane, clock: Clock, keeper: Mailbox, ended: Callable[[Job], None]) -> None:
        self.stream, self._lane, self._clock, self._keeper, self._ended = stream, lane, clock, keeper, ended
        self.mailbox = clock.mailbox()
        self._to_collect = clock.mailbox()
        self._backlog: deque[GpuTicket] = deque()
        self._free_s = 0.0
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
        self.mailbox.put(CLOSE)
        self._to_collect.put(CLOSE)
        for thread in self._threads:
            thread.join(grace_s)

    def _guard(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except BaseException as error:
            self._keeper.put(Failed(error))

    def _issue_all(self) -> None:
        self._lane.enter()
        while self._receive(lambda: bool(self._backlog)):
            ticket = self._backlog.popleft()
            if not self._receive(ticket.may_be_issued):
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
        if ticket.is_issue_watched():
            self._keeper.put(Issued(ticket))
        self._to_collect.put(ticket)

    def _collect_all(self) -> None:
        while isinstance(ticket := self._to_collect.get(), GpuTicket):
            self._finish(ticket)

    def _finish(self, ticket: GpuTicket) -> None:
        assert ticket.handle is not None
        outcome = ticket.outcome = ticket.handle.finish()
        ticket.start_s, ticket.end_s = outcome.start_s, outcome.end_s
        self._ended(ticket.job)
        self._keeper.put(Done(ticket))
