# ruff: noqa: E402
"""The real host's own threads on a late device: what their messages and locks order is all that passes rely on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from realrun.host.clocks import HostClock, Mailbox
from realrun.host.gpuhost import GpuHost
from realrun.host.threads import StreamThreads
from realrun.replay.pair_executor import PairExecutor
from sim.policies.options import EngineLimits
from sim.policies.registry import PolicyOptions
from tests.realrun.kernels.test_order import NUM_REQUESTS, TARGET, checked, requests, watched_pair
from tests.realrun.late_device import Accesses, LateDevice
from tests.realrun.late_host import KnowingLock
from tests.realrun.support import assert_greedy
from tests.sim.support import played


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


class KnowingCondition(KnowingLock):
    """The same between real threads."""

    def __init__(self, device: LateDevice) -> None:
        super().__init__(device)
        self._plain = threading.Condition()

    def __enter__(self) -> None:
        self._plain.acquire()
        super().__enter__()

    def __exit__(self, *how: object) -> None:
        super().__exit__(*how)
        self._plain.release()

    def wait(self, timeout_s: float) -> bool:
        super().__exit__()
        is_told = self._plain.wait(timeout_s)
        super().__enter__()
        return is_told

    def notify_all(self) -> None:
        self._plain.notify_all()


@contextmanager
def watched_threads(device: LateDevice) -> Iterator[None]:
    """Issuers and collectors act under their own names, and what they touch is seen."""
    guard = StreamThreads._guard

    def watched(self: StreamThreads, loop: Any) -> None:
        with device.acting(threading.current_thread().name), Accesses(device):
            guard(self, loop)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StreamThreads, "_guard", watched)
        yield


def run(policy: str, seed: int) -> None:
    with checked(seed) as device, watched_threads(device):
        executor = PairExecutor(watched_pair(device), seed=3)
        executor._lock = KnowingCondition(device)  # type: ignore[assignment]
        with GpuHost(executor, clock=KnowingClock(device), watchdog_s=20.0) as host:
            limits = EngineLimits(max_num_batched_tokens=16, max_num_seqs=2)
            served = requests()
            for each in served:
                each.arrival_s *= 1e-3
            serving = played(host, policy, served, PolicyOptions(poll_s=0.0), limits, draft_tokens=2, max_concurrency=2)
        assert serving.num_finished == NUM_REQUESTS
        executor.reset()
    assert_greedy(executor, TARGET, served)


@pytest.mark.parametrize("policy", ["pd", "pdv", "unified", "continuous"])
def test_passes_of_real_threads_are_ordered_where_they_meet(policy: str) -> None:
    run(policy, 0)
