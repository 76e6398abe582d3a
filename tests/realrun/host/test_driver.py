"""Clocks by NVML: what a driver tells, one that keeps some to itself, and none at all."""

from __future__ import annotations

import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from realrun.host.driver import Clocks, Driver


class NVMLError(Exception):
    """As pynvml has it."""


def driver(monkeypatch: pytest.MonkeyPatch, **told: Any) -> Driver:
    """Of a GPU of which NVML tells this."""

    def ask(name: str) -> Any:
        def answer(handle: str, *more: Any) -> Any:
            assert handle == "GPU-12-34"
            if name not in told:
                raise NVMLError("Not Supported")
            return told[name][more] if more else told[name]

        return answer

    module = SimpleNamespace(
        NVMLError=NVMLError,
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlSystemGetDriverVersion=lambda: "580.1",
        nvmlDeviceGetClockInfo=ask("clocks"),
        nvmlDeviceGetPowerUsage=ask("power"),
        nvmlDeviceGetCurrentClocksEventReasons=ask("reasons"),
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return Driver("12-34")


def test_clocks_power_and_the_reasons_for_a_slowdown_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Watts of milliwatts; idle (bit 0) and clocks that the user set (bit 1) are no slowdown."""
    found = driver(monkeypatch, clocks={(1,): 1410, (2,): 2619}, power=312_500, reasons=0x1 | 0x2 | 0x4 | 0x40)
    assert found.read() == Clocks(
        sm_mhz=1410.0, memory_mhz=2619.0, power_w=312.5, throttled=("power cap", "hardware thermal slowdown")
    )
    assert "driver 580.1" in found.said


def test_a_driver_that_keeps_its_power_to_itself_still_tells_its_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert driver(monkeypatch, clocks={(1,): 1410, (2,): 2619}).read() == Clocks(sm_mhz=1410.0, memory_mhz=2619.0)


def test_without_the_package_nothing_is_read_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = Driver("12-34")
    assert (found.read(), found.version) == (None, None)
    assert "pip install nvidia-ml-py" in found.said


def test_a_driver_that_does_not_answer_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise NVMLError("Driver Not Loaded")

    driver(monkeypatch)
    monkeypatch.setattr(sys.modules["pynvml"], "nvmlInit", fails)
    found = Driver("12-34")
    assert found.read() is None
    assert "NVML says Driver Not Loaded" in found.said


def test_a_watch_keeps_the_slowest_of_what_it_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    """From a thread of its own: what is timed meanwhile waits for no driver."""
    found = driver(monkeypatch, clocks={(1,): 1980, (2,): 2619}, power=312_500, reasons=0)
    seen = iter([Clocks(sm_mhz=1980.0, power_w=400.0), Clocks(sm_mhz=1200.0, power_w=700.0, throttled=("power cap",))])
    threads = []

    def read() -> Clocks | None:
        threads.append(threading.current_thread())
        return next(seen, None)

    monkeypatch.setattr(found, "read", read)
    with found.watch() as watch:
        while len(threads) < 3:
            time.sleep(0.001)
    assert watch.slowest() == Clocks(sm_mhz=1200.0, power_w=700.0, throttled=("power cap",))
    assert threading.current_thread() not in threads
    with Driver(None).watch() as nothing:
        pass
    assert nothing.slowest() is None
