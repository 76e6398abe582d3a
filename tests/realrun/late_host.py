"""The real host's own threads on a late device: what their messages and locks order is all that passes rely on.

Not here: the order of the device (tests.realrun.late_device), the threads (realrun.host.threads).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from realrun.host.clocks import HostClock, Mailbox
from realrun.host.gpuhost import GpuHost
from realrun.host.threads import StreamThreads
from realrun.replay.pair_executor import PairExecutor
from tests.realrun.late_device import Accesses, LateDevice, VectorClock


class KnowingClock(HostClock):
    """A message tells what its sender knew."""

    def __init__(self, device: LateDevice) -> None:
        super().__init__()
        self._device = device

    def mailbox(self, *, is_keeper: bool = False) -> Mailbox:
        return KnowingMailbox(self._device, super().mailbox(is_keeper=is_keeper))


class KnowingMailbox:
    def __init__(self, device: LateDevice, plain: Mailbox) -> None:
        self._device, self._plain = device, plain

    def put(self, item: Any) -> None:
        self._plain.put((item, self._device.send()))

    def get(self, until_s: float | None = None) -> Any:
        found = self._plain.get(until_s)
        if not isinstance(found, tuple):
            return found
        item, told = found
        self._device.join(told)
        return item


class KnowingCondition:
    """The executor's lock: whoever has it knows what those knew who had it before."""

    def __init__(self, device: LateDevice) -> None:
        self._device, self._plain = device, threading.Condition()
        self._clock: VectorClock = {}

    def __enter__(self) -> None:
        self._plain.acquire()
        self._device.join(self._clock)

    def __exit__(self, *how: object) -> None:
        self._clock = self._device.send()
        self._plain.release()

    def wait(self, timeout_s: float) -> bool:
        self._clock = self._device.send()
        is_told = self._plain.wait(timeout_s)
        self._device.join(self._clock)
        return is_told

    def notify_all(self) -> None:
        self._plain.notify_all()


@contextmanager
def late_host(executor: PairExecutor, device: LateDevice) -> Iterator[GpuHost]:
    """A host whose issuers and collectors act under their own names, and what they touch is seen."""
    guard = StreamThreads._guard

    def watched(self: StreamThreads, loop: Any) -> None:
        with device.acting(threading.current_thread().name), Accesses(device):
            guard(self, loop)

    executor._lock = KnowingCondition(device)  # type: ignore[assignment]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StreamThreads, "_guard", watched)
        with GpuHost(executor, clock=KnowingClock(device), watchdog_s=120.0) as host:
            yield host
