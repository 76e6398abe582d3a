# ruff: noqa: N802
"""NVML of a GPU that computes nothing: constant clocks and power, so that what reads them is rehearsed."""

from __future__ import annotations

NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2


class NVMLError(Exception):
    pass


def nvmlInit() -> None: ...


def nvmlDeviceGetHandleByUUID(uuid: str) -> str:
    return uuid


def nvmlSystemGetDriverVersion() -> str:
    return "made up"


def nvmlDeviceGetCurrentClocksEventReasons(handle: str) -> int:
    return 0


def nvmlDeviceGetPowerUsage(handle: str) -> int:
    return 500_000


def nvmlDeviceGetClockInfo(handle: str, clock: int) -> int:
    return 1_980 if clock == NVML_CLOCK_SM else 2_619
