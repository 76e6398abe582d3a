"""Roofs of the device that is measured.

Not here: what it is called and what runs on it (realrun.host.machine), passes (calibrate.measure.timing).
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch

from realrun.host import cuda
from realrun.host.machine import device_name
from sim.costs.datasheets import datasheet_of_device
from sim.costs.profile import Gpu

ROOF_REPETITIONS = 7
MATRIX = {"cpu": 1024, "cuda": 8192}
"""Side of the square matrices whose product stands for the compute roof."""
COPY_BYTES = {"cpu": 1 << 28, "cuda": 1 << 31}
"""Bytes read by the copy that stands for the bandwidth roof: far beyond any cache."""


def roofs(device: str, dtype: str) -> Gpu:
    """The datasheet's roofs where the device has one here, else what is `achieved`."""
    name = device_name(device)
    sheet = datasheet_of_device(name) if device == "cuda" else None
    if sheet is not None and dtype in ("bfloat16", "float16"):
        return sheet.gpu
    flops_per_s, bytes_per_s = achieved(device, dtype)
    properties = cuda.properties() if device == "cuda" else None
    return Gpu(
        name=name.lower().replace(" ", "-"),
        memory_bytes=cuda.find(device).free_bytes() if properties is None else int(properties.total_memory),
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
