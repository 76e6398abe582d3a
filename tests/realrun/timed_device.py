"""A device whose truth is known: how long passes take alone, what they do to each other, and how its clock is wrong.

Time is virtual on both sides. The host pays for every call, launches reach the device late, events are told in float32
milliseconds in steps of half a microsecond by a clock that drifts, and whoever waits wakes up late. Works that run at
once share the device as sim.devices.contention has it, on parts as sim.devices.partition does. Several threads may
issue at once: time goes on only when all that began together wait for it. Not here: the order of accesses
(tests.realrun.late_device).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

import numpy as np
import torch

from calibrate.measure.timing import AT_ONCE
from realrun.host.device import DeviceStream, Event, RealDevice
from sim.devices.contention import Contention, plain_rates

CALL_S, GRAPH_CALL_S, KERNEL_CALL_S = 1e-6, 8e-6, 5e-6
"""Of the host: to record, wait, hold or copy, to launch a graph, and each kernel of an eager pass."""
LATENCY_S, WAKE_S, COPY_S = 4e-6, 30e-6, 1.5e-6
"""From a launch to its start, from an event to whoever waits for it, and of a copy on the device."""
SLOW_CLOCK = 1.3
"""Times as long as asked for that a stream is held."""
STUCK_S = 60.0
"""Of the machine's own time, without an event."""
STEP_MS = 5e-4
"""Of CUDA's event times."""


class Lasts(NamedTuple):
    """A pass alone."""

    device_s: float
    num_kernels: int = 1
    demands: tuple[float, float] = (0.0, 0.0)


@dataclass(slots=True, eq=False)
class _Op:
    issued_s: float
    left_s: float = 0.0
    lasts: Lasts | None = None
    waits_for: TimedEvent | None = None
    events: list[TimedEvent] = field(default_factory=list)

    def may_start_s(self) -> float:
        if self.waits_for is not None and self.waits_for.true_s == inf:
            return inf
        return self.issued_s + LATENCY_S


class TimedDevice(RealDevice):
    is_async = True

    def __init__(self, *, drift_ppm: float = 50.0, contention: Contention | None = None, start_s: float = 0.0) -> None:
        self.rate = 1.0 - 1e-6 * drift_ppm
        self.contention = contention or Contention()
        self.host_s = self.device_s = start_s
        self.streams: list[TimedStream] = []
        self.is_replaying = False
        self.passes: list[Lasts] = []
        """That the work being issued launches."""
        self.run_now_s, self.wake_s = 20e-6, lambda: WAKE_S
        self.held_launches: int | None = None
        """Since a stream was held; None before."""
        self.max_held_launches = 0
        self.changed = threading.Condition(threading.RLock())
        self.waiting: list[TimedEvent] = []
        self.max_waiting = 0

    def now_s(self) -> float:
        return self.host_s

    def stream(self, priority: int = 0) -> DeviceStream:
        self.streams.append(TimedStream(self, priority))
        return self.streams[-1]

    def run_now(self, work: Callable[[], object]) -> None:
        with self.changed:
            work()
            self.host_s += self.run_now_s

    def synchronize(self) -> None:
        for stream in self.streams:
            stream.record().synchronize()

    def launch(self, lasts: Lasts) -> None:
        """A pass that the work being issued consists of."""
        self.host_s += GRAPH_CALL_S if self.is_replaying else KERNEL_CALL_S * lasts.num_kernels
        self.passes.append(lasts)
        if self.held_launches is not None:
            self.held_launches += 1 if self.is_replaying else lasts.num_kernels
            self.max_held_launches = max(self.max_held_launches, self.held_launches)

    def run_until(self, event: TimedEvent) -> None:
        """Wait until the device has passed `event`."""
        with self.changed:
            self.waiting.append(event)
            self.max_waiting = max(self.max_waiting, len(self.waiting))
            stuck_s = time.monotonic() + STUCK_S
            while event.true_s == inf:
                # One whose event has come by now is about to go on.
                still = [each for each in self.waiting if each.true_s == inf]
                # Not all threads there are: other tests leave some that end at any time.
                num_at_work = sum(thread.name.startswith(AT_ONCE) for thread in threading.enumerate())
                if len(still) == max(1, num_at_work):
                    self._go_on(still)
                    self.changed.notify_all()
                else:
                    # A thread that ends notifies nobody.
                    self.changed.wait(1e-3)
                    assert time.monotonic() < stuck_s, "threads wait for each other"
            self.waiting.remove(event)

    def _go_on(self, events: list[TimedEvent]) -> None:
        """Go on until the device has passed the first of `events`; the host waits, and what was held goes on."""
        self.held_launches = None
        while all(event.true_s == inf for event in events):
            running = [stream for stream in self.streams if stream.start(self.device_s)]
            if any(event.true_s < inf for event in events):
                return
            rates = self._rates(running)
            ends_s = [self.device_s + stream.todo[0].left_s / rate for stream, rate in zip(running, rates, strict=True)]
            idle = [stream for stream in self.streams if stream not in running and stream.todo]
            begins_s = [stream.todo[0].may_start_s() for stream in idle]
            next_s = min([*ends_s, *(begin_s for begin_s in begins_s if begin_s > self.device_s)])
            assert next_s < inf, "waits for what can never happen"
            for stream, rate, end_s in zip(running, rates, ends_s, strict=True):
                op = stream.todo[0]
                op.left_s = 0.0 if end_s <= next_s else op.left_s - rate * (next_s - self.device_s)
            self.device_s = next_s

    def _rates(self, running: list[TimedStream]) -> list[float]:
        """Passes contend; copies and what holds a stream are nobody's matter."""
        passes = {stream: lasts for stream in running if (lasts := stream.todo[0].lasts) is not None}
        if len(passes) < 2:
            return [1.0] * len(running)
        ones = [1.0] * len(passes)
        priorities = [stream.priority for stream in passes]
        per_s = [lasts.num_kernels / lasts.device_s for lasts in passes.values()]
        demands = [lasts.demands for lasts in passes.values()]
        rates = dict(zip(passes, plain_rates(ones, priorities, per_s, demands, self.contention), strict=True))
        return [rates.get(stream, 1.0) for stream in running]


class TimedStream:
    def __init__(self, device: TimedDevice, priority: int) -> None:
        self.device, self.priority = device, priority
        self.todo: deque[_Op] = deque()

    def start(self, now_s: float) -> bool:
        """Pass what takes no time any more; whether something runs."""
        while self.todo and self.todo[0].may_start_s() <= now_s:
            op = self.todo[0]
            if op.left_s > 0.0:
                return True
            for event in op.events:
                event.true_s = now_s
            self.todo.popleft()
        return False

    def run(self, work: Callable[[], object]) -> None:
        with self.device.changed:
            self._run(work)

    def _run(self, work: Callable[[], object]) -> None:
        device = self.device
        device.passes, began_s = [], device.host_s
        device.host_s += CALL_S
        work()
        is_replay, passes = device.is_replaying, device.passes
        device.is_replaying = False
        device.host_s += CALL_S
        for lasts in passes:
            self._put(began_s, COPY_S)
            # Kernels that come one by one end no sooner than the last of them is there.
            min_s = 0.0 if is_replay else KERNEL_CALL_S * lasts.num_kernels
            self._put(began_s, max(lasts.device_s, min_s), lasts)
            self._put(began_s, COPY_S)

    def capture(self, work: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        def replay() -> torch.Tensor:
            self.device.is_replaying = True
            return work()

        return replay

    def record(self) -> Event:
        event = TimedEvent(self.device)
        with self.device.changed:
            self._put(self._call(), 0.0).events.append(event)
        return event

    def wait(self, event: Event) -> None:
        assert isinstance(event, TimedEvent)
        self._put(self._call(), 0.0).waits_for = event

    def hold(self, seconds: float) -> None:
        self.device.held_launches = self.device.held_launches or 0
        self._put(self._call(), SLOW_CLOCK * seconds)

    def _call(self) -> float:
        self.device.host_s += CALL_S
        return self.device.host_s

    def _put(self, issued_s: float, left_s: float, lasts: Lasts | None = None) -> _Op:
        self.todo.append(_Op(issued_s, left_s, lasts))
        return self.todo[-1]


class TimedEvent:
    def __init__(self, device: TimedDevice) -> None:
        self.device, self.true_s = device, inf

    def synchronize(self) -> None:
        self.device.run_until(self)
        self.device.host_s = max(self.device.host_s, self.true_s + self.device.wake_s())

    def seconds_after(self, earlier: Any) -> float:
        assert earlier.true_s <= self.true_s, "the other way round"
        ms = 1e3 * self.device.rate * (self.true_s - earlier.true_s)
        return 1e-3 * float(np.float32(round(ms / STEP_MS) * STEP_MS))
