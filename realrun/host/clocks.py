"""The two clocks of the threaded host, and mailboxes: the only thing on which its threads block.

`WallClock` is the machine's own time. `VirtualClock` is shared by threads that do no real work: it stands still while
any of them runs and jumps to the next deadline once all of them block, so a run on it is exact and repeatable.
Not here: what the threads do (realrun.host.threads, realrun.host.gpuhost).

Rule of the virtual clock: of several deadlines at one instant the keeper's comes last, so that everything that
completes at that instant has completed before a policy runs (rule 1 of sim.seam.host).
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from typing import Any, Protocol


class Nothing:
    """What a mailbox gives when its deadline comes first."""


NOTHING = Nothing()


class Mailbox(Protocol):
    """Messages for one thread, in the order of putting. One thread at a time calls `get`."""

    def put(self, item: Any) -> None: ...

    def get(self, until_s: float | None = None) -> Any:
        """The oldest message, or NOTHING once the clock reaches `until_s`; without it waits for as long as it takes.

        On the virtual clock the keeper gets NOTHING as well when no thread can ever put a message.
        """
        ...


class Clock(Protocol):
    """Seconds since `start`, and mailboxes that know them."""

    is_virtual: bool

    @property
    def now_s(self) -> float: ...

    def start(self) -> None:
        """Time 0 is now, unless it was before. The calling thread is the keeper."""
        ...

    def mailbox(self, *, is_keeper: bool = False) -> Mailbox: ...

    def enrol(self) -> None:
        """A thread that may block on this clock is about to start; called by the one that starts it."""
        ...

    def sleep_until(self, time_s: float) -> None: ...

    def close(self) -> None:
        """Let every blocked thread go, and let none block again."""
        ...


class WallClock:
    """The machine's monotonic clock; stands at 0 until started."""

    is_virtual = False

    def __init__(self) -> None:
        self._origin_s: float | None = None

    @property
    def now_s(self) -> float:
        return 0.0 if self._origin_s is None else time.perf_counter() - self._origin_s

    def start(self) -> None:
        if self._origin_s is None:
            self._origin_s = time.perf_counter()

    def mailbox(self, *, is_keeper: bool = False) -> Mailbox:
        return _WallMailbox(self)

    def enrol(self) -> None:
        """Real time passes whoever runs."""

    def sleep_until(self, time_s: float) -> None:
        time.sleep(max(0.0, time_s - self.now_s))

    def close(self) -> None:
        """A thread blocks on real work or on its mailbox only, and the host puts its last message there."""


class _WallMailbox:
    def __init__(self, clock: WallClock) -> None:
        self._clock = clock
        self._items: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def put(self, item: Any) -> None:
        self._items.put(item)

    def get(self, until_s: float | None = None) -> Any:
        try:
            if until_s is None:
                return self._items.get()
            left_s = until_s - self._clock.now_s
            return self._items.get(timeout=left_s) if left_s > 0.0 else self._items.get_nowait()
        except queue.Empty:
            return NOTHING


class VirtualClock:
    """A clock that moves only when every thread on it blocks."""

    is_virtual = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now_s = 0.0
        self._num_running = 0
        self._blocked: dict[_VirtualMailbox, None] = {}
        """Mailboxes that a thread waits at, in the order in which they began to."""
        self._is_closed = False

    @property
    def now_s(self) -> float:
        return self._now_s

    def start(self) -> None:
        if self._num_running == 0:
            self.enrol()

    def mailbox(self, *, is_keeper: bool = False) -> Mailbox:
        return _VirtualMailbox(self, is_keeper)

    def enrol(self) -> None:
        with self._lock:
            self._num_running += 1

    def sleep_until(self, time_s: float) -> None:
        self.mailbox().get(time_s)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            for mailbox in list(self._blocked):
                self._wake(mailbox)

    def put(self, mailbox: _VirtualMailbox, item: Any) -> None:
        with self._lock:
            mailbox.items.append(item)
            if mailbox in self._blocked:
                self._wake(mailbox)

    def get(self, mailbox: _VirtualMailbox, until_s: float | None) -> Any:
        with self._lock:
            if mailbox.items or self._is_closed:
                return mailbox.items.popleft() if mailbox.items else NOTHING
            mailbox.until_s = until_s
            self._blocked[mailbox] = None
            self._num_running -= 1
            if self._num_running == 0:
                self._advance()
        mailbox.is_woken.acquire()
        with self._lock:
            return mailbox.items.popleft() if mailbox.items else NOTHING

    def _wake(self, mailbox: _VirtualMailbox) -> None:
        del self._blocked[mailbox]
        self._num_running += 1
        mailbox.is_woken.release()

    def _advance(self) -> None:
        """Everybody blocks: wake the next, at its deadline; the keeper if nobody has one."""
        timed = [
            (mailbox.until_s, mailbox.is_keeper, order, mailbox)
            for order, mailbox in enumerate(self._blocked)
            if mailbox.until_s is not None
        ]
        if timed:
            until_s, _, _, mailbox = min(timed, key=lambda entry: entry[:3])
            self._now_s = max(self._now_s, until_s)
            self._wake(mailbox)
        else:
            for mailbox in [mailbox for mailbox in self._blocked if mailbox.is_keeper]:
                self._wake(mailbox)


class _VirtualMailbox:
    __slots__ = ("_clock", "is_keeper", "is_woken", "items", "until_s")

    def __init__(self, clock: VirtualClock, is_keeper: bool) -> None:
        self._clock = clock
        self.is_keeper = is_keeper
        self.items: deque[Any] = deque()
        self.is_woken = threading.Semaphore(0)
        self.until_s: float | None = None

    def put(self, item: Any) -> None:
        self._clock.put(self, item)

    def get(self, until_s: float | None = None) -> Any:
        return self._clock.get(self, until_s)
