"""This machine: its device, processor and cores, and the versions that run on it. Torch inside the functions.

Not here: a device's roofs (calibrate.measure.roofs), its memory (realrun.host.cuda).
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")


def fingerprint(device: str) -> dict[str, str]:
    """Facts that times depend on beside shapes, as text, as the summary of a replay has them."""
    import torch
    import transformers

    return hardware(device) | {
        "threads": str(torch.get_num_threads()),
        "torch": str(torch.__version__),
        "transformers": str(transformers.__version__),
        "cuda": str(torch.version.cuda or "none"),
    }


def hardware(device: str) -> dict[str, str]:
    """The part of it that a CPU tells without torch."""
    return {
        "device": device_name(device),
        "cpu": processor(),
        "cpu_cores": str(usable_cores()),
        "python": platform.python_version(),
    }


def device_name(device: str) -> str:
    """Name that the driver has for the GPU; "cpu" for the CPU."""
    if device == "cpu":
        return "cpu"
    from realrun.host import cuda

    return cuda.properties().name


def processor() -> str:
    """Model name of the CPU, as far as the system tells."""
    if CPU_INFO.exists():
        for line in CPU_INFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def usable_cores() -> int:
    """Cores that this process may use: a container or a batch system may give it fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
