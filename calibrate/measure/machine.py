"""The machine that is measured: its fingerprint, its roofs, and what the GPU's driver says of clocks and power.

Through NVML (package nvidia-ml-py, extra gpu). Where that is not installed, or does not answer, nothing is read and
`said` says so once: times are worth less without, but they are times. Not here: what the machine is called and what
runs on it (realrun.host.machine), passes (calibrate.measure.timing).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from threading import Event, Thread
from time import perf_counter
from types import ModuleType

import torch

from calibrate.fit.points_file import Clocks
from realrun.host import cuda
from realrun.host.machine import device_name
from realrun.host.machine import fingerprint as of_a_replay
from sim.costs.datasheets import datasheet_of_device
from sim.costs.profile import Gpu

ROOF_REPETITIONS = 7
MATRIX = {"cpu": 1024, "cuda": 8192}
"""Side of the square matrices whose product stands for the compute roof."""
COPY_BYTES = {"cpu": 1 << 28, "cuda": 1 << 31}
"""Bytes read by the copy that stands for the bandwidth roof: far beyond any cache."""

THROTTLES = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""Bits of nvmlClocksEventReasons (nvml.h) that mean slower than requested; idle and clocks set by the user do not."""
LOOK_EVERY_S = 0.02
"""A driver's answer takes about a millisecond, in which a separate thread lets the others run."""


def fingerprint(device: str, dtype: str, driver: str | None = None) -> dict[str, str]:
    """That of a replay and, as a points file has them, the version of the GPU's driver and the passes' dtype."""
    return {**of_a_replay(device), "driver": driver or "none", "dtype": dtype}


def gpu(device: str) -> cuda.Properties | None:
    """Properties of the GPU that it gives this process; None on a CPU."""
    return None if device == "cpu" else cuda.properties()


def roofs(device: str, dtype: str) -> Gpu:
    """The datasheet's roofs where the device has one here, else what is `achieved`."""
    name = device_name(device)
    sheet = datasheet_of_device(name) if device == "cuda" else None
    if sheet is not None and dtype in ("bfloat16", "float16"):
        return sheet.gpu
    flops_per_s, bytes_per_s = achieved(device, dtype)
    properties = gpu(device)
    return Gpu(
        name=name.lower().replace(" ", "-"),
        memory_bytes=cuda.find(device).free_bytes() if properties is None else properties.memory_bytes,
        peak_flops=flops_per_s,
        bandwidth_bytes_per_s=bytes_per_s,
    )


def achieved(device: str, dtype: str) -> tuple[float, float]:
    """FLOP/s of a large matrix product and bytes/s, read and written, of a long copy: medians of a few."""
    side = MATRIX[device]
    matrix = torch.randn(side, side, device=device).to(getattr(torch, dtype))
    product_s = _typical_s(device, lambda: matrix @ matrix)
    source = torch.zeros(COPY_BYTES[device] // 4, dtype=torch.float32, device=device).normal_()
    target = torch.empty_like(source)
    copy_s = _typical_s(device, lambda: target.copy_(source))
    return 2.0 * side**3 / product_s, 2.0 * COPY_BYTES[device] / copy_s


def _typical_s(device: str, run: Callable[[], torch.Tensor]) -> float:
    times, runs_on = [], cuda.find(device)
    for _ in range(ROOF_REPETITIONS + 1):
        runs_on.synchronize()
        started_s = perf_counter()
        run()
        runs_on.synchronize()
        times.append(perf_counter() - started_s)
    return median(times[1:])


class Watch:
    """Looks at the driver from a separate thread."""

    def __init__(self, read: Callable[[], Clocks | None]) -> None:
        self._read, self._over = read, Event()
        self._seen: list[Clocks] = []
        self._thread = Thread(target=self._look, name="driver")

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._over.wait(LOOK_EVERY_S)
            clocks = self._read()
            if clocks is None:
                return
            self._seen.append(clocks)

    def slowest(self) -> Clocks | None:
        """Lowest clocks, highest power and every reason of the looks; None if nothing was told."""
        if not self._seen:
            return None
        return Clocks(
            sm_mhz=_extreme(min, [each.sm_mhz for each in self._seen]),
            memory_mhz=_extreme(min, [each.memory_mhz for each in self._seen]),
            power_w=_extreme(max, [each.power_w for each in self._seen]),
            throttled=tuple(name for name in THROTTLES.values() if any(name in each.throttled for each in self._seen)),
        )


def _extreme(pick: Callable[[list[float]], float], values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return pick(known) if known else None


class Driver:
    """The driver of the GPU with this UUID, as CUDA names it; None on a CPU, of which nothing is told."""

    def __init__(self, uuid: str | None) -> None:
        self.said = "no GPU, no clocks"
        self.version: str | None = None
        self._nvml: ModuleType | None = None
        if uuid is None:
            return
        try:
            import pynvml

            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
            self.version = str(pynvml.nvmlSystemGetDriverVersion())
        except ImportError:
            self.said = "clocks are not read: pip install nvidia-ml-py"
        except pynvml.NVMLError as error:
            self.said = f"clocks are not read: NVML says {error}"
        else:
            self._nvml = pynvml
            self.said = f"clocks are read with every visit, driver {self.version}"

    def watch(self) -> Watch:
        """A context to be entered while something is measured."""
        return Watch(self.read)

    def read(self) -> Clocks | None:
        """Clocks right now; None where it tells nothing at all."""
        nvml = self._nvml
        if nvml is None:
            return None
        mask = self._told(nvml, nvml.nvmlDeviceGetCurrentClocksEventReasons) or 0
        power_mw = self._told(nvml, nvml.nvmlDeviceGetPowerUsage)
        return Clocks(
            sm_mhz=self._told(nvml, nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
            memory_mhz=self._told(nvml, nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_MEM),
            power_w=None if power_mw is None else 1e-3 * power_mw,
            throttled=tuple(name for bit, name in THROTTLES.items() if mask & bit),
        )

    def _told(self, nvml: ModuleType, ask: Callable[..., int], *more: int) -> int | None:
        """A virtual GPU may tell one thing and not another."""
        try:
            return int(ask(self._handle, *more))
        except nvml.NVMLError:
            return None
