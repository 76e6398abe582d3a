# ruff: noqa: E402
"""The checks of the smoke step that a CPU cannot fail, on a device made of numbers; times are its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from calibrate.measure.campaign import smoke
from calibrate.measure.campaign.plan import CAMPAIGNS
from calibrate.measure.campaign.smoke import Ground, run_check
from realrun.host.device import Cpu, RealDevice
from realrun.host.driver import Driver
from realrun.model.attention import Attention, GatheringAttention


@dataclass(eq=False)
class Event:
    at_s: float

    def is_done(self) -> bool:
        return True

    def synchronize(self) -> None: ...

    def seconds_after(self, earlier: Any) -> float:
        return self.at_s - float(earlier.at_s)


@dataclass
class Queue:
    """Of hardware: what is in it runs one after the other."""

    free_s: float = 0.0


@dataclass
class Stream:
    device: FakeGpu
    queue: Queue

    def record(self) -> Event:
        return Event(self.device.drifting(max(self.queue.free_s, self.device.host_s)))

    def hold(self, seconds: float) -> None:
        self.queue.free_s = max(self.queue.free_s, self.device.host_s) + seconds


@dataclass
class FakeGpu:
    """Its clock is `drift_ppm` faster than the host's; looking at both takes `look_s`."""

    num_queues: int = 32
    drift_ppm: float = 0.0
    look_s: float = 1e-5
    host_s: float = 0.0
    is_async: bool = True
    queues: list[Queue] = field(default_factory=list)
    num_streams: int = 0

    def drifting(self, host_s: float) -> float:
        return host_s * (1.0 + 1e-6 * self.drift_ppm)

    def now_s(self) -> float:
        self.host_s += self.look_s
        return self.host_s

    def stream(self, priority: int = 0) -> Stream:
        if len(self.queues) < self.num_queues:
            self.queues.append(Queue())
        self.num_streams += 1
        return Stream(self, self.queues[(self.num_streams - 1) % len(self.queues)])

    def synchronize(self) -> None:
        self.host_s = max(self.host_s, *(queue.free_s for queue in self.queues))


def found(check: Callable[[Ground], str | None], device: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    def sleep(seconds: float) -> None:
        device.host_s += seconds

    monkeypatch.setattr(smoke, "sleep", sleep)
    return run_check(check, ground(device))


def ground(device: RealDevice, name: str = "cpu") -> Ground:
    return Ground(name, device, CAMPAIGNS["cpu"].job, Driver(None))


def test_streams_that_share_a_queue_are_red(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight on two queues: four held one after the other."""
    free, shared = (found(smoke.streams, FakeGpu(num_queues=number), monkeypatch) for number in (32, 2))
    assert (free["is_ok"], free["said"]) == (True, "8 held at once took 1.00 times as long as one")
    assert (shared["is_ok"], shared["said"]) == (
        False,
        "8 streams held at once took 4.0 times as long as one: they queue",
    )


@pytest.mark.parametrize(
    ("drift_ppm", "look_s", "is_ok"), [(40.0, 1e-5, True), (900.0, 1e-5, False), (0.0, 0.1, False)]
)
def test_clocks_that_run_apart_or_cannot_be_compared_are_red(
    monkeypatch: pytest.MonkeyPatch, drift_ppm: float, look_s: float, is_ok: bool
) -> None:
    check = found(smoke.clock, FakeGpu(drift_ppm=drift_ppm, look_s=look_s), monkeypatch)
    assert check["is_ok"] is is_ok
    assert "ppm" in check["said"]


def test_attention_that_is_not_the_references_is_red(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that sees one token too few of every row."""
    assert run_check(smoke.kernels, ground(Cpu()))["is_ok"]
    plan = GatheringAttention.plan

    def short(self: Any, rectangles: Any) -> Any:
        is_usual = int(self.name is Attention.FLASH_CPU)
        return plan(self, [each._replace(starts=each.starts - is_usual) for each in rectangles])

    monkeypatch.setattr(GatheringAttention, "plan", short)
    check = run_check(smoke.kernels, ground(Cpu()))
    assert not check["is_ok"]
    assert "off the reference for tiny-draft" in check["said"]


def test_a_check_that_raises_is_red_and_says_why() -> None:
    def out_of_memory(_: Ground) -> str:
        raise RuntimeError("CUDA out of memory.\nTried to allocate 2 GiB")

    check = run_check(out_of_memory, ground(Cpu()))
    assert (check["name"], check["is_ok"]) == ("out_of_memory", False)
    assert check["said"] == "CUDA out of memory. Tried to allocate 2 GiB"
