"""An exact and repeatable run of the threaded host: works that only take time, on a clock that its threads share.

The clock stands still while any thread runs and jumps to the next deadline once all of them block. Of several
deadlines at one instant the keeper's comes last, so that everything that completes at that instant has completed
before a policy runs (rule 1 of sim.interface.host). Not here: the host (realrun.host), real devices.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from realrun.host.clocks import NOTHING, HostClock, Mailbox
from realrun.host.executor import ExecutorLane, Handle, SubmittedWork, check_whole
from sim.interface.host import Stream
from sim.interface.work import Kind


class VirtualClock(HostClock):
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


class _VirtualMailbox(Mailbox):
    def __init__(self, clock: VirtualClock, is_keeper: bool) -> None:
        self._virtual = clock
        self.is_keeper = is_keeper
        self.items: deque[Any] = deque()
        self.is_woken = threading.Semaphore(0)
        self.until_s: float | None = None

    def put(self, item: Any) -> None:
        self._virtual.put(self, item)

    def get(self, until_s: float | None = None) -> Any:
        return self._virtual.get(self, until_s)


class ConstantExecutor:
    """Every kind of work takes a fixed time and computes nothing.

    `is_async` issues in no time and takes the seconds on the device; otherwise issuing takes them, as on a CPU. Unless
    `is_one_gpu` there are as many GPUs and links as streams ask for.
    """

    def __init__(self, device_s: Mapping[Kind, float], *, is_async: bool = False, is_one_gpu: bool = False) -> None:
        self._device_s = device_s
        self._is_async = is_async
        self._is_one_gpu = is_one_gpu

    def check(self, stream: Stream) -> None:
        if self._is_one_gpu:
            check_whole(stream)

    def lane(self, stream: Stream, clock: HostClock) -> ExecutorLane:
        return _ConstantLane(self._device_s, clock, self._is_async)

    def submitted(self, job: SubmittedWork) -> None: ...

    def ended(self, job: SubmittedWork) -> None: ...

    def ran(self) -> None: ...


class _ConstantLane:
    def __init__(self, device_s: Mapping[Kind, float], clock: HostClock, is_async: bool) -> None:
        self.is_async = is_async
        self._device_s = device_s
        self._clock = clock
        self._free_s = 0.0

    def enter(self) -> None: ...

    def issue(self, job: SubmittedWork, after: Sequence[Handle]) -> Handle:
        work = job.work
        lasts_s = work.host_s if work.kind is Kind.HOST else self._device_s.get(work.kind, 0.0)
        ends_s = [handle.end_s for handle in after if isinstance(handle, _ConstantHandle)]
        start_s = max([self._clock.now_s, self._free_s, *ends_s])
        self._free_s = start_s + lasts_s
        handle = _ConstantHandle(self._clock, start_s, self._free_s)
        if not self.is_async:
            handle.finish()
        return handle


class _ConstantHandle:
    def __init__(self, clock: HostClock, start_s: float, end_s: float) -> None:
        self._clock = clock
        self.start_s, self.end_s = start_s, end_s

    def finish(self) -> tuple[int, ...]:
        left_s = self.end_s - self._clock.now_s
        if isinstance(self._clock, VirtualClock) and left_s > 0.0:
            self._clock.sleep_until(self.end_s)
        elif left_s > 0.0:
            time.sleep(left_s)
        return ()

    def times_s(self) -> tuple[float, float]:
        return self.start_s, self.end_s
