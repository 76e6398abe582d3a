"""What the GPU's driver tells during each visit to a place: clocks, power, and why it is slower than it could be.

Through NVML (package nvidia-ml-py, extra gpu). Where that is not installed, or does not answer, nothing is read and
`said` says so once: times are worth less without, but they are times. Not here: times (calibrate.measure.bench), the
rest of the fingerprint (calibrate.measure.machine).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event, Thread
from types import ModuleType

from calibrate.points.points_file import Clocks

THROTTLES = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""Bits of nvmlClocksEventReasons (nvml.h) that mean slower than asked for; idle and clocks set by the user do not."""


LOOK_EVERY_S = 0.02
"""A driver's answer takes about a millisecond, in which a thread of its own lets the others run."""


class Watch:
    """Looks at the driver from a thread of its own."""

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
        """What it tells right now; None where it tells nothing at all."""
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
