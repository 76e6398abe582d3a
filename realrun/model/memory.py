"""Will something fit the memory of a device. Not here: who holds how much (realrun.model.kv, realrun.model.weights)."""

from __future__ import annotations

import torch

from realrun.host import cuda

GIB = 1 << 30


def check_fits(num_bytes: int, what: str, device: torch.device) -> None:
    """Raise ValueError if `what` needs more than the device has."""
    has = cuda.find(device).free_bytes()
    if num_bytes > has:
        raise ValueError(
            f"{what} needs {num_bytes / GIB:.1f} GiB and {device} has {has / GIB:.1f} GiB; "
            "choose a smaller model, fewer slots or fewer tokens per slot"
        )
