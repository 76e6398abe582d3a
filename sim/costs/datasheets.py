"""Datasheets of GPUs: memory, dense bf16 FLOP/s, bandwidth, multiprocessors, watts, families, and which one is meant.

Values are NVIDIA's published data sheets and architecture papers; FLOP/s are dense, with fp32 accumulation. Memory is
what a driver says is there: of an L4 and an L40S (23,034 and 46,068 MiB) error correction takes a sixteenth.
Not here: how fast anything really runs (calibrate.measure, sim/profiles).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import msgspec

from sim.costs.profile import Gpu
from sim.names import unknown


class Power(NamedTuple):
    """Watts of one GPU."""

    idle_w: float
    limit_w: float
    """TDP of the data sheet."""


class Datasheet(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU; `device_names` are parts of what its driver calls it, most telling first."""

    gpu: Gpu
    multiprocessors: int
    family: str
    """By compute capability: RTX cards of Blackwell have 12.0, and other kernels than the 10.0 of B200."""
    device_names: tuple[str, ...]
    power: Power | None = None


DATASHEETS = msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes(), type=dict[str, Datasheet])
"""Data sheets by the name that profiles use; `idle_source` says who read the idle power."""
POWER = {name: sheet.power for name, sheet in DATASHEETS.items() if sheet.power is not None}
"""Power of GPUs whose idle power was published; data sheets do not have it. A process that holds a CUDA context adds 26
to 50 W (arXiv 2605.23918), which is left out."""
ALIASES = {"rtx-pro-6000": "rtx-pro-6000-server"}
"""Other names of the same GPU."""


def gpu_name(name: str) -> str:
    """The name that profiles use for what is called `name`, `h200` for `h200-sxm` too; unknown names stay as they are.

    >>> gpu_name("h200"), gpu_name("gh200")
    ('h200-sxm', 'gh200')
    """
    socket = f"{name}-sxm"
    return socket if socket in DATASHEETS else ALIASES.get(name, name)


def datasheet(name: str) -> Datasheet:
    """The datasheet of `name`; raises ValueError with the nearest name."""
    name = gpu_name(name)
    if name not in DATASHEETS:
        raise ValueError(unknown("GPU", name, DATASHEETS))
    return DATASHEETS[name]


def datasheet_of_device(device_name: str) -> Datasheet | None:
    """The datasheet of what a driver calls `device_name`, or None where there is none, as of a slice of a GPU (MIG).

    >>> names = ("H100 NVL", "H20", "H200", "B200", "GeForce RTX 5090")
    >>> [datasheet_of_device(f"NVIDIA {name}").gpu.name for name in names]
    ['h100-nvl', 'h20', 'h200-sxm', 'b200-sxm', 'rtx-5090']
    >>> [datasheet_of_device(f"NVIDIA {name}") for name in ("A100-SXM4-80GB MIG 3g.40gb", "H100 80GB HBM3 MIG 1g.10gb")]
    [None, None]
    """
    if re.search(r"\bMIG\b", device_name):
        return None
    by_length = sorted(
        ((part, sheet) for sheet in DATASHEETS.values() for part in sheet.device_names), key=lambda pair: -len(pair[0])
    )
    names = ((re.search(rf"\b{re.escape(part)}\b", device_name, re.IGNORECASE), sheet) for part, sheet in by_length)
    return next((sheet for match, sheet in names if match), None)
