"""The machine that passes run on: streams, events, captured graphs, pinned buffers, memory, clocks, and its CPU.

Everything above is written against `RealDevice`: the CPU, which does at once what it is told, a GPU
(realrun.host.cuda), or in tests a fake that does it as late as the rules allow. Not here: torch.cuda, what is run
(realrun.kernels.issuer).

Rules: works of one stream run in the order of issue; streams know nothing of each other but by `record` and `wait`;
the host knows what is over only by `synchronize`; `wait` means what had been recorded when it was called.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple, Protocol

import torch

LOOKS = 10
"""Looks at an event and the host's clock at one instant; the closest counts."""
LOOK_EVERY_S = 10.0
"""CUDA gives times between events in float32 milliseconds: to 1 us over 10 s, to 60 us over 1,000 s."""
MARGIN_S = 1e-3
"""Margin by which an event is after a look for certain, however long ago the first one was."""
MIN_SPAN_S = 1.0
"""Span of looks that tell a drift: it is some 20 to 50 us per second, and a look is true to a few us."""


class Event(Protocol):
    """A place in the order of a stream."""

    def synchronize(self) -> None: ...
    def seconds_after(self, earlier: Event) -> float:
        """Seconds by the device's clock. `earlier` must be: whether CUDA tells times below 0 is not written down."""
        ...


class DeviceStream(Protocol):
    def run(self, work: Callable[[], object]) -> None:
        """Issue the kernels that `work` launches, nothing of it to be differentiated."""
        ...

    def capture(self, work: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        """The kernels of `work` as a graph: one launch, within `run` of this stream; the same tensor each time."""
        ...

    def record(self) -> Event: ...
    def wait(self, event: Event) -> None: ...
    def hold(self, seconds: float) -> None:
        """Keep the stream busy for so long, or up to twice as long; by one launch."""
        ...


class RealDevice:
    """A CPU, and the base of a GPU: issuing is executing, all memory counts as free, and no allocation is counted."""

    is_async = False
    """Works may still run when they have been issued. Where not, there are no graphs either."""

    def now_s(self) -> float:
        return perf_counter()

    def stream(self, priority: int = 0) -> DeviceStream:
        """A stream of its own; higher priorities go first. Raises ValueError where it would share another's queue."""
        return _CpuStream()

    def run_now(self, work: Callable[[], object]) -> None:
        """Run `work` beside all streams; it is over on return."""
        _CpuStream().run(work)

    def synchronize(self) -> None:
        """Wait until all streams are idle."""

    def pinned(self, *shape: int) -> torch.Tensor:
        """int64 zeros in the host's memory that works read and write."""
        return torch.zeros(shape, dtype=torch.int64)

    def free_bytes(self) -> int:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def num_allocations(self) -> int:
        """Times the allocator has gone to the driver: unchanged over a window that allocated nothing."""
        return 0


class _CpuStream:
    def run(self, work: Callable[[], object]) -> None:
        with torch.inference_mode():
            work()

    def capture(self, work: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        raise ValueError("passes cannot be captured on a CPU: graphs exist on CUDA only")

    def record(self) -> Event:
        return _CpuEvent(perf_counter())

    def wait(self, event: Event) -> None: ...
    def hold(self, seconds: float) -> None: ...


class _CpuEvent(NamedTuple):
    at_s: float

    def synchronize(self) -> None: ...

    def seconds_after(self, earlier: Event) -> float:
        assert isinstance(earlier, _CpuEvent)
        return self.at_s - earlier.at_s


class _Look(NamedTuple):
    """An event that was over between two looks at the host's clock."""

    event: Event
    device_s: float
    """Seconds after the first look."""
    host_s: float


class DeviceClock:
    """Times of a device's events by the host's clock: both are looked at together now and then, as they drift."""

    def __init__(self, device: RealDevice, now_s: Callable[[], float]) -> None:
        self._stream, self._now_s, self._lock = device.stream(), now_s, threading.Lock()
        self._looks: list[_Look] = []
        self.look()

    def look(self) -> None:
        """Look at both clocks; events after the last look are placed less well than those before it."""
        with self._lock:
            event, host_s, _ = min((self._glance() for _ in range(LOOKS)), key=lambda glance: glance[2])
            last = self._looks[-1] if self._looks else _Look(event, 0.0, host_s)
            self._looks.append(_Look(event, last.device_s + event.seconds_after(last.event), host_s))

    def look_if_due(self) -> None:
        if self._now_s() - self._looks[-1].host_s > LOOK_EVERY_S:
            self.look()

    def host_s(self, event: Event) -> float:
        """Seconds, by the host's clock, when the device passed `event`, which is over and came after the first look."""
        looks = tuple(self._looks)
        about_s = event.seconds_after(looks[0].event) - MARGIN_S
        number = sum(look.device_s < about_s for look in looks[1:])
        last, after_s = looks[number], event.seconds_after(looks[number].event)
        if number + 1 < len(looks):
            return last.host_s + after_s * _rate(last, looks[number + 1])
        # After the last look: a drift between looks close together would be noise.
        is_known = last.device_s >= MIN_SPAN_S
        return last.host_s + after_s * (_rate(looks[0], last) if is_known else 1.0)

    def _glance(self) -> tuple[Event, float, float]:
        before_s = self._now_s()
        event = self._stream.record()
        event.synchronize()
        after_s = self._now_s()
        return event, 0.5 * (before_s + after_s), 0.5 * (after_s - before_s)


def _rate(one: _Look, other: _Look) -> float:
    """Seconds of the host's clock per second of the device's."""
    device_s = other.device_s - one.device_s
    return (other.host_s - one.host_s) / device_s if device_s else 1.0
