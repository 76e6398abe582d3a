"""Memory of the device a pass runs on: will something fit, and did a window allocate anything.

Not here: who holds how much (realrun.model.kv, realrun.model.weights).
"""

from __future__ import annotations

import os

import torch

GIB = 1 << 30


def check_fits(num_bytes: int, what: str, device: torch.device) -> None:
    """Raise ValueError if `what` needs more than the device has."""
    has = available_bytes(device)
    if num_bytes > has:
        raise ValueError(
            f"{what} needs {num_bytes / GIB:.1f} GiB and {device} has {has / GIB:.1f} GiB; "
            "choose a smaller model, fewer slots or fewer tokens per slot"
        )


def available_bytes(device: torch.device) -> int:
    """Free memory on CUDA, all memory on the CPU."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def device_allocations(device: torch.device) -> int:
    """Times the device allocator has gone to the driver so far: unchanged over a window that allocated nothing.

    Always 0 on the CPU, whose allocator keeps no such count.
    """
    if device.type != "cuda":
        return 0
    return int(torch.cuda.memory_stats(device).get("num_device_alloc", 0))
