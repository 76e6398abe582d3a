"""This machine: its device, processor and cores, and the versions that run on it. Torch inside the functions.

Not here: a device's roofs (calibrate.measure.host_times), its memory (realrun.host.cuda).
"""

from __future__ import annotations

import gc
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")


def fingerprint(device: str) -> dict[str, str]:
    """Facts that times depend on beside shapes, as text, as the summary of a replay has them."""
    import torch
    import transformers

    # A container or a batch system may give this process fewer cores than the machine has.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {
        "device": device_name(device),
        "cpu": processor(),
        "cpu_cores": str(cores),
        "python": platform.python_version(),
        "threads": str(torch.get_num_threads()),
        "torch": str(torch.__version__),
        "transformers": str(transformers.__version__),
        "cuda": str(torch.version.cuda or "none"),
    }


def device_name(device: str) -> str:
    """Name that the driver has for the GPU; "cpu" for the CPU."""
    if device == "cpu":
        return "cpu"
    from realrun.host import cuda

    return str(cuda.properties().name)


def processor() -> str:
    if CPU_INFO.exists():
        for line in CPU_INFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Context in which the garbage collector looks at nothing that exists at its beginning. May be nested. With torch
    and transformers loaded a full collection walks a million objects: 0.2 s on a laptop, at any moment. vLLM freezes
    what it has loaded before it serves, and so do we."""
    was_frozen = gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if not was_frozen:
            gc.unfreeze()
