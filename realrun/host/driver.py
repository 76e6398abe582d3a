"""What the GPU's driver says of clocks and power, now and over a while.

Through NVML (package nvidia-ml-py, extra gpu). Where that is not installed, or does not answer, nothing is read and
`said` says so once: times are worth less without, but they are times. Not here: the machine's name and versions
(realrun.host.machine), passes. No torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event, Thread
from types import ModuleType

import msgspec

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


class Clocks(msgspec.Struct, frozen=True, kw_only=True):
    """Clocks and power at one moment, or at the slowest of several; None where the driver does not say."""

    sm_mhz: float | None = None
    memory_mhz: float | None = None
    power_w: float | None = None
    throttled: tuple[str, ...] = ()
    """Why the clocks were below what they could be, under NVML's names."""


class Watch:
    """Looks at the driver from a separate thread, every LOOK_EVERY_S."""

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
        seen = self._seen
        if not seen:
            return None
        return Clocks(
            sm_mhz=_extreme(min, [each.sm_mhz for each in seen]),
            memory_mhz=_extreme(min, [each.memory_mhz for each in seen]),
            power_w=_extreme(max, [each.power_w for each in seen]),
            throttled=tuple(name for name in THROTTLES.values() if any(name in each.throttled for each in seen)),
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
