"""The clock of the threaded host, and mailboxes: the only thing on which its threads block.

Both are the machine's time; tests have subclasses whose time moves only when every thread blocks.
Not here: what the threads do (realrun.host.threads, realrun.host.gpuhost).
"""

from __future__ import annotations

import queue
import time
from typing import Any


class Nothing:
    """Message of a mailbox whose deadline comes first."""


NOTHING = Nothing()


class HostClock:
    """The machine's monotonic clock: seconds since `start`, 0 before it."""

    is_virtual = False

    def __init__(self) -> None:
        self._origin_s: float | None = None

    @property
    def now_s(self) -> float:
        return 0.0 if self._origin_s is None else time.perf_counter() - self._origin_s

    def start(self) -> None:
        """Time 0 is now, unless it was before. The calling thread is the keeper."""
        if self._origin_s is None:
            self._origin_s = time.perf_counter()

    def mailbox(self, *, is_keeper: bool = False) -> Mailbox:
        return Mailbox(self)

    def enrol(self) -> None:
        """A thread that may block on this clock is about to start. Real time passes whoever runs."""

    def close(self) -> None:
        """Let blocked threads go. On real time the host's last message does."""


class Mailbox:
    """Messages for one thread, in the order of putting. One thread at a time calls `get`."""

    def __init__(self, clock: HostClock) -> None:
        self._clock = clock
        self._items: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def put(self, item: Any) -> None:
        self._items.put(item)

    def get(self, until_s: float | None = None) -> Any:
        """The oldest message, or NOTHING at `until_s`; a virtual clock's keeper also when no thread can put any."""
        try:
            if until_s is None:
                return self._items.get()
            left_s = until_s - self._clock.now_s
            return self._items.get(timeout=left_s) if left_s > 0.0 else self._items.get_nowait()
        except queue.Empty:
            return NOTHING
