# ruff: noqa: E402
"""The seam to the device: who touches torch.cuda, streams that are nobody else's, and a clock that drifts."""

from __future__ import annotations

import ast
import re
from itertools import count
from random import Random
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from realrun.host import cuda
from realrun.host.device import LOOK_EVERY_S, DeviceClock, RealDevice
from tests.realrun.timed_device import TimedDevice, TimedEvent
from tests.test_import_arrows import FILES

ONLY = "realrun.host.cuda"


def touches_cuda(source: str) -> bool:
    """Whether a module reaches for torch.cuda, by any of the ways to spell it."""
    reaching = (ast.Attribute, ast.Import, ast.ImportFrom)
    texts = [ast.unparse(node) for node in ast.walk(ast.parse(source)) if isinstance(node, reaching)]
    return any(re.search(r"\btorch\.cuda\b|^from torch import .*\bcuda\b", text) for text in texts)


def test_one_module_touches_torch_cuda() -> None:
    assert [name for name, path in FILES.items() if touches_cuda(path.read_text())] == [ONLY]


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's streams: 32 of them, handed out in turn."""
    handles = count()

    class Raw:
        def __init__(self, device: Any, priority: int) -> None:
            self.cuda_stream, self.priority = next(handles) % 32, priority

    monkeypatch.setattr(torch.cuda, "Stream", Raw)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))


def test_streams_are_distinct_and_the_one_too_many_is_refused(pool: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cuda.CONNECTIONS, "32")
    device = cuda.Cuda(torch.device("cuda"))
    kept: list[Any] = [device.stream() for _ in range(32)]
    assert len({stream._raw.cuda_stream for stream in kept}) == 32
    with pytest.raises(ValueError, match="32 streams are in use"):
        device.stream()
    del kept[5]
    kept.append(device.stream())
    assert len({stream._raw.cuda_stream for stream in kept}) == 32


def test_streams_beyond_the_hardware_queues_are_refused(pool: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cuda.CONNECTIONS, raising=False)
    device = cuda.Cuda(torch.device("cuda"))
    kept = [device.stream() for _ in range(8)]
    with pytest.raises(ValueError, match="8 streams are in use and CUDA_DEVICE_MAX_CONNECTIONS is 8"):
        device.stream()
    assert len(kept) == 8


def test_a_higher_priority_of_ours_is_a_lower_number_of_torchs(pool: None) -> None:
    stream: Any = cuda.Cuda(torch.device("cuda")).stream(2)
    assert stream._raw.priority == -2


def recorded(device: TimedDevice) -> TimedEvent:
    """An event that is over."""
    event: Any = device.streams[0].record()
    event.synchronize()
    return event


@pytest.mark.parametrize("ppm", [-50.0, 20.0, 50.0])
def test_events_of_a_long_run_are_placed_by_looks_at_both_clocks_at_its_ends(ppm: float) -> None:
    """The host sees what the device does after a while, and now and then it is disturbed."""
    device, random = TimedDevice(drift_ppm=ppm), Random(1)
    device.wake_s = lambda: 4e-6 + (1e-3 if random.random() < 0.3 else 0.0)
    clock, events = DeviceClock(device, device.now_s), []
    for _ in range(400):
        device.host_s += 2.5
        clock.look_if_due()
        events.append(recorded(device))
    clock.look()
    assert device.host_s > 900.0
    errors = [abs(clock.host_s(event) - event.true_s) for event in events]
    # One look at the start alone is wrong by the drift, up to 50 ms here.
    assert max(errors) < 5e-6


def test_a_look_is_due_every_few_seconds_as_event_times_are_float32() -> None:
    device = TimedDevice(drift_ppm=0.0)
    clock = DeviceClock(device, device.now_s)
    clock.look_if_due()
    assert len(clock._looks) == 1
    device.host_s += LOOK_EVERY_S
    clock.look_if_due()
    assert len(clock._looks) == 2


def test_looks_close_together_tell_no_drift() -> None:
    device = TimedDevice(drift_ppm=50.0)
    clock = DeviceClock(device, device.now_s)
    clock.look()
    device.host_s += 5.0
    event = recorded(device)
    assert clock.host_s(event) == pytest.approx(event.true_s, abs=5.0 * 60e-6)


def test_allocations_are_those_that_torch_asked_the_driver_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is on the GPU torch has no statistics at all."""
    gpu = cuda.Cuda(torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device=None: {})
    assert gpu.num_allocations() == 0
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device=None: {"num_device_alloc": 7, "num_ooms": 2})
    assert gpu.num_allocations() == 7


def test_events_of_cuda_tell_milliseconds_from_the_earlier_one() -> None:
    class Raw:
        def __init__(self, at_ms: float) -> None:
            self.at_ms = at_ms

        def elapsed_time(self, later: Raw) -> float:
            return later.at_ms - self.at_ms

    raws: list[Any] = [Raw(2.0), Raw(7.0)]
    first, later = map(cuda._CudaEvent, raws)
    assert later.seconds_after(first) == pytest.approx(0.005)


def test_a_cpu_has_no_graphs_and_runs_at_once() -> None:
    stream, done = RealDevice().stream(), []
    stream.run(lambda: done.append(torch.is_inference_mode_enabled()))
    assert done == [True]
    with pytest.raises(ValueError, match="graphs exist on CUDA only"):
        stream.capture(lambda: torch.zeros(1))
