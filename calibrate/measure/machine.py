"""The machine that is measured: its fingerprint, its clocks, its roofs. Imports torch inside functions.

Not here: passes (bench).
"""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from calibrate.hardware.datasheets import datasheet_of_device
from sim.costs.profile import Gpu

CLOCK_FIELDS = ("clocks.sm", "power.draw")
"""What nvidia-smi is asked for: MHz and watts."""
ROOF_REPETITIONS = 7
MATRIX = {"cpu": 1024, "cuda": 8192}
"""Side of the square matrices whose product stands for the compute roof."""
COPY_BYTES = {"cpu": 1 << 28, "cuda": 1 << 31}
"""Bytes read by the copy that stands for the bandwidth roof: far beyond any cache."""


def num_cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def fingerprint(device: str, dtype: str) -> dict[str, str]:
    """What times depend on beside shapes, as text; `clock_` entries may change between runs of one machine."""
    import torch
    import transformers

    found = {
        "device": device_name(device),
        "cpu": cpu_model(),
        "cpu_cores": str(num_cores()),
        "threads": str(torch.get_num_threads()),
        "torch": str(torch.__version__),
        "transformers": str(transformers.__version__),
        "python": platform.python_version(),
        "cuda": str(torch.version.cuda or "none"),
        "driver": nvidia_smi("driver_version") or "none",
        "dtype": dtype,
    }
    clocks = read_clocks(device)
    for name, value in clocks.items():
        found[f"clock_{name}"] = "not readable" if value is None else f"{value:g}"
    return found


def device_name(device: str) -> str:
    """What the driver calls the GPU; "cpu" for the CPU."""
    if device == "cpu":
        return "cpu"
    import torch

    return str(torch.cuda.get_device_name())


def cpu_model() -> str:
    """Model name of the CPU, as far as the system tells."""
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def read_clocks(device: str) -> dict[str, float | None]:
    """SM clock (MHz) and power (W) of the first GPU; None where they cannot be read, as on a CPU."""
    values: list[float | None] = [None] * len(CLOCK_FIELDS)
    if device == "cuda":
        answer = (nvidia_smi(",".join(CLOCK_FIELDS)) or "").split(",")
        if len(answer) == len(CLOCK_FIELDS):
            values = [_number(part) for part in answer]
    return {"sm_mhz": values[0], "power_w": values[1]}


def nvidia_smi(fields: str) -> str | None:
    """Answer of nvidia-smi on the first GPU, or None where there is no such program or answer."""
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.strip().splitlines()
    return lines[0].strip() if lines else None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def roofs(device: str, dtype: str) -> Gpu:
    """The datasheet's roofs where the device has one here, else measured: the best of a few products and copies."""
    name = device_name(device)
    sheet = datasheet_of_device(name) if device == "cuda" else None
    if sheet is not None and dtype in ("bfloat16", "float16"):
        return sheet.gpu
    import torch

    dtype_ = getattr(torch, dtype)
    side = MATRIX[device]
    matrix = torch.randn(side, side, device=device).to(dtype_)
    product_s = _typical_s(device, lambda: matrix @ matrix)
    source = torch.zeros(COPY_BYTES[device] // 4, dtype=torch.float32, device=device).normal_()
    target = torch.empty_like(source)
    copy_s = _typical_s(device, lambda: target.copy_(source))
    return Gpu(
        name="cpu" if device == "cpu" else name.lower().replace(" ", "-"),
        memory_bytes=_memory_bytes(device),
        peak_flops=2.0 * side**3 / product_s,
        bandwidth_bytes_per_s=2.0 * COPY_BYTES[device] / copy_s,
    )


def multiprocessors(device: str) -> int:
    """Multiprocessors of the GPU; 1 on a CPU, which has no waves of tiles."""
    if device == "cpu":
        return 1
    import torch

    return int(torch.cuda.get_device_properties(0).multi_processor_count)


def l2_bytes(device: str) -> int | None:
    """L2 cache of the GPU; None where it cannot be read, as on a CPU."""
    if device == "cpu":
        return None
    import torch

    found = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0)
    return int(found) or None


def _memory_bytes(device: str) -> int:
    if device == "cpu":
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    import torch

    return int(torch.cuda.get_device_properties(0).total_memory)


def _typical_s(device: str, run: Any) -> float:
    import torch

    times = []
    for _ in range(ROOF_REPETITIONS + 1):
        if device == "cuda":
            torch.cuda.synchronize()
        started_s = perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(perf_counter() - started_s)
    return median(times[1:])
