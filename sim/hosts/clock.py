"""Driving coroutines on a virtual clock: the wake order of the interface.

A host built on this supplies the clock (`at`, `now_s`) and the works. Not here: devices and costs.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from typing import Any, TypeVar

from sim.interface.host import Stream
from sim.interface.wait import HostWait, Signal, Task, Wait

POLL_GRID_SLACK = 1e-9
"""A notification this share of a poll after a grid point still counts as on it (float rounding)."""

Callback = Callable[[Any], None]
"""A function that a clock calls when it is due, with an event that nobody reads."""
V = TypeVar("V")


class FirstWait(HostWait[int]):
    """Done as soon as one of several waits is."""

    def __init__(self, waits: Sequence[Any]) -> None:
        super().__init__()
        self._waits = waits
        for wait in waits:
            if wait.is_done:
                self.is_completed = True
                return
        for wait in waits:
            wait.arm()
            wait.watchers.append(self)

    def __await__(self) -> Generator[HostWait[int], None, int]:
        if not self.is_completed:
            yield self
        for index, wait in enumerate(self._waits):
            if wait.is_done:
                return index
        raise AssertionError("a first() woke with none of its waits done")


@contextmanager
def own_generators() -> Iterator[None]:
    """Async generators that begin within belong to no event loop: one that runs in this thread (Jupyter's) would close
    them, once they are dropped, by a task of its own, which fails."""
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, None)
    try:
        yield
    finally:
        sys.set_asyncgen_hooks(*hooks)


class TaskHost:
    """The part of a virtual-clock host that runs coroutines, sleeps and signals."""

    def __init__(self) -> None:
        self.streams: dict[str, Stream] = {}
        """Those that were made, by name."""
        self._ready: list[tuple[int, Task]] = []
        self._next_post = 0
        self._is_dispatching = False
        self._is_dispatch_due = False
        self.num_polls = 0
        """Polls that workers made while idle."""
        self._num_polling: dict[float, int] = {}
        """Simulated workers that poll at this moment, by their interval."""

    @property
    def looks_per_s(self) -> float:
        """Looks of all simulated workers that poll at this moment."""
        return sum(count / poll_s for poll_s, count in self._num_polling.items())

    # -- the clock, supplied by the subclass

    @property
    def now_s(self) -> float:
        raise NotImplementedError

    def at(self, time_s: float, callback: Callback, *, is_last: bool = False) -> Any:
        """Call `callback` at `time_s`, with what is returned here; `is_last` puts it after everything else of that
        instant."""
        raise NotImplementedError

    # -- the seam

    def sleep(self, duration_s: float) -> Wait[None]:
        if not duration_s >= 0:
            raise ValueError(f"sleep of {duration_s!r} s must be at least 0 s")
        return self.sleep_until(self.now_s + duration_s)

    def sleep_until(self, time_s: float) -> Wait[None]:
        wait: HostWait[None] = HostWait()
        self.at(max(time_s, self.now_s), lambda _: self.complete(wait))
        return wait

    def wait(self, signal: Signal, *, poll_s: float | None = None) -> Wait[None]:
        """A worker that looks every `poll_s` is simulated by the one look that finds something."""
        wait: HostWait[None] = HostWait()
        signal.pending.append((wait, poll_s, self.now_s))
        if poll_s:
            self._num_polling[poll_s] = self._num_polling.get(poll_s, 0) + 1
        return wait

    def notify(self, signal: Signal) -> None:
        signal.version += 1
        now_s, pending, signal.pending = self.now_s, signal.pending, []
        for wait, poll_s, since_s in pending:
            if not poll_s:
                self.wake(wait, now_s, is_polled=False)
                continue
            self._num_polling[poll_s] -= 1
            num_polls = max(1, ceil((now_s - since_s) / poll_s - POLL_GRID_SLACK))
            self.num_polls += num_polls
            self.wake(wait, max(now_s, since_s + num_polls * poll_s), is_polled=True)

    def wake(self, wait: HostWait[None], at_s: float, *, is_polled: bool) -> None:
        """Complete a wait on a signal at `at_s`, which is now unless its worker polls."""
        if is_polled:
            self.at(at_s, lambda _: self.complete(wait))
        else:
            self.complete(wait)

    def first(self, *waits: Any) -> Wait[int]:
        return FirstWait(waits)

    def _check_new(self, name: str, *, has_begun: bool) -> None:
        """Raise for a stream that there is already, or that comes after the first work."""
        if has_begun:
            raise RuntimeError(f"stream {name!r} must be made before the first work is submitted")
        if name in self.streams:
            raise ValueError(f"stream {name!r} exists already")

    # -- driving

    def spawn(self, task: Task) -> None:
        """Start a coroutine at this instant, after those spawned or woken before it."""
        heapq.heappush(self._ready, (self._next_post, task))
        self._next_post += 1
        if not self._is_dispatching:
            self._dispatch_at_end()

    def complete(self, wait: HostWait[V], value: V | None = None) -> None:
        """Mark `wait` done and wake its waiters at this instant."""
        wait.is_completed = True
        wait.value = value
        if wait.posts:
            for post in wait.posts:
                heapq.heappush(self._ready, post)
            wait.posts = []
        if wait.watchers:
            watchers, wait.watchers = wait.watchers, []
            for watcher in watchers:
                if not watcher.is_completed:
                    self.complete(watcher)
        if self._ready and not self._is_dispatching:
            self._dispatch_at_end()

    def _dispatch_at_end(self) -> None:
        """See to it that the ready coroutines run once everything of this instant has completed."""
        if not self._is_dispatch_due:
            self._is_dispatch_due = True
            self.at(self.now_s, self._dispatch, is_last=True)

    def _dispatch(self, _: object = None) -> None:
        self._is_dispatch_due = False
        self._is_dispatching = True
        ready = self._ready
        while ready:
            _, task = heapq.heappop(ready)
            try:
                wait = task.send(None)
            except StopIteration:
                continue
            wait.arm()
            wait.posts.append((self._next_post, task))
            self._next_post += 1
        self._is_dispatching = False


class SteppedHost(TaskHost):
    """A host whose clock goes from event to event of a list."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._events: list[tuple[float, bool, int, Callback]] = []
        """When each is due, whether it is the last of its instant, its number, and what it calls."""
        self._num_events = 0

    @property
    def now_s(self) -> float:
        return self._now_s

    def at(self, time_s: float, callback: Callback, *, is_last: bool = False) -> Any:
        event = (time_s, is_last, self._num_events, callback)
        heapq.heappush(self._events, event)
        self._num_events += 1
        return event

    def run_until(self, stop_s: float | None = None) -> None:
        """Advance until nothing more can happen, or to `stop_s`."""
        with own_generators():
            while self._events and (stop_s is None or self._events[0][0] < stop_s):
                event = heapq.heappop(self._events)
                self._now_s = event[0]
                event[3](event)
        if stop_s is not None:
            self._now_s = stop_s
