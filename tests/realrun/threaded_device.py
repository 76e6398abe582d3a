"""tests.realrun.timed_device under several threads that issue at once. Not here: what its passes are."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from calibrate.measure.timing import AT_ONCE
from realrun.host.device import DeviceStream, Event
from sim.devices.contention import Contention
from tests.realrun.timed_device import TimedDevice, TimedEvent, TimedStream

STUCK_S = 60.0
"""Of the machine's own time, without an event."""


class ThreadedDevice(TimedDevice):
    """TimedDevice under several threads: its time goes on only once all that began at once wait for it."""

    def __init__(self, *, contention: Contention | None = None) -> None:
        super().__init__(contention=contention)
        self.changed = threading.Condition(threading.RLock())
        self.waiting: list[TimedEvent] = []
        self.max_waiting = 0

    def stream(self, priority: int = 0) -> DeviceStream:
        self.streams.append(ThreadedStream(self, priority))
        return self.streams[-1]

    def run_now(self, work: Callable[[], object]) -> None:
        with self.changed:
            super().run_now(work)

    def run_until(self, event: TimedEvent) -> None:
        with self.changed:
            self.waiting.append(event)
            self.max_waiting = max(self.max_waiting, len(self.waiting))
            stuck_s = time.monotonic() + STUCK_S
            while event.true_s == float("inf"):
                # One whose event has come by now is about to go on.
                still = [each for each in self.waiting if each.true_s == float("inf")]
                # Not all threads there are: other tests leave some that end at any time.
                num_at_work = sum(thread.name.startswith(AT_ONCE) for thread in threading.enumerate())
                if len(still) == max(1, num_at_work):
                    super().run_until(_First(still))  # type: ignore[arg-type]
                    self.changed.notify_all()
                else:
                    # A thread that ends notifies nobody.
                    self.changed.wait(1e-3)
                    assert time.monotonic() < stuck_s, "threads wait for each other"
            self.waiting.remove(event)


class _First:
    """The earliest of several events."""

    def __init__(self, events: list[TimedEvent]) -> None:
        self._events = events

    @property
    def true_s(self) -> float:
        return min(event.true_s for event in self._events)


class ThreadedStream(TimedStream):
    device: ThreadedDevice

    def run(self, work: Callable[[], object]) -> None:
        with self.device.changed:
            super().run(work)

    def record(self) -> Event:
        with self.device.changed:
            return super().record()
