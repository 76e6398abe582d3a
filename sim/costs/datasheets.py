"""Datasheets of GPUs: memory, dense bf16 FLOP/s, bandwidth, multiprocessors, watts, families, and which one is meant.

Values are NVIDIA's published data sheets and architecture papers; FLOP/s are dense, with fp32 accumulation. Memory is
what a driver says is there: of an L4 and an L40S (23,034 and 46,068 MiB) error correction takes a sixteenth.
Not here: how fast anything really runs (calibrate.measure, sim/profiles).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from sim.costs.profile import Gpu
from sim.names import unknown

GIB = 1 << 30


class Datasheet(NamedTuple):
    """One GPU; `device_names` are parts of what its driver calls it, most telling first."""

    gpu: Gpu
    multiprocessors: int
    family: str
    device_names: tuple[str, ...]


def _sheet(
    name: str,
    memory_gib: int,
    peak_tflops: float,
    bandwidth_gb_per_s: float,
    multiprocessors: int,
    family: str,
    *device_names: str,
) -> Datasheet:
    gpu = Gpu(
        name=name,
        memory_bytes=memory_gib * GIB,
        peak_flops=peak_tflops * 1e12,
        bandwidth_bytes_per_s=bandwidth_gb_per_s * 1e9,
    )
    return Datasheet(gpu, multiprocessors, family, device_names)


DATASHEETS = {
    sheet.gpu.name: sheet
    for sheet in (
        _sheet("a100-sxm", 80, 312.0, 2039.0, 108, "ampere", "A100-SXM4-80GB", "A100-SXM-80GB"),
        _sheet("a100-sxm-40gb", 40, 312.0, 1555.0, 108, "ampere", "A100-SXM4-40GB", "A100-SXM-40GB"),
        _sheet("a100-pcie", 80, 312.0, 1935.0, 108, "ampere", "A100 80GB PCIe", "A100-PCIE-80GB"),
        _sheet("a800-sxm", 80, 312.0, 2039.0, 108, "ampere", "A800-SXM4-80GB"),
        _sheet("h100-sxm", 80, 989.0, 3350.0, 132, "hopper", "H100 80GB HBM3", "H100-SXM"),
        _sheet("h100-pcie", 80, 756.0, 2000.0, 114, "hopper", "H100 PCIe"),
        _sheet("h100-nvl", 93, 835.0, 3900.0, 132, "hopper", "H100 NVL"),
        _sheet("h20", 95, 148.0, 4000.0, 78, "hopper", "NVIDIA H20"),
        _sheet("h800-sxm", 80, 989.0, 3350.0, 132, "hopper", "H800"),
        _sheet("h200-sxm", 141, 989.0, 4800.0, 132, "hopper", "H200"),
        _sheet("gh200", 95, 989.0, 4000.0, 132, "hopper", "GH200 480GB"),
        _sheet("l40s", 45, 362.0, 864.0, 142, "ada", "L40S"),
        _sheet("l4", 22, 121.0, 300.0, 58, "ada", "NVIDIA L4"),
        _sheet("rtx-4090", 24, 165.2, 1008.0, 128, "ada", "RTX 4090"),
        _sheet("rtx-5090", 31, 209.5, 1792.0, 170, "blackwell", "RTX 5090"),
        _sheet("rtx-pro-6000-server", 95, 467.8, 1792.0, 188, "blackwell", "RTX PRO 6000"),
        # Compute capability 10.0: other kernels than the 12.0 of RTX cards.
        _sheet("b200-sxm", 179, 2250.0, 8000.0, 148, "blackwell-10.0", "NVIDIA B200"),
    )
}
"""Data sheets by the name that profiles use."""


class Power(NamedTuple):
    """Watts of one GPU."""

    idle_w: float
    """Power with nothing on it."""
    limit_w: float
    """TDP of the data sheet."""


POWER = {
    "a100-sxm": Power(62.0, 400.0),
    "h100-sxm": Power(70.0, 700.0),
    "h200-sxm": Power(75.0, 700.0),
    "b200-sxm": Power(140.0, 1000.0),
}
"""Power of GPUs whose idle power somebody published; data sheets do not have it. What nvidia-smi read with no process
on the GPU, in this order: 59 to 62 W (chuyishang/inference-energy@6e617d2b98e0), 69 to 73 W
(digitalocean/do-dcgm-exporter and a guide of Nebius), 74 and 80 W (conservemode.com, serialalice.pt), 136 to 144 W (two
reports of an installation). A process that holds a CUDA context adds 26 to 50 W (arXiv 2605.23918), which is left
out."""
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
    """The datasheet of what a driver calls `device_name`, or None where there is none, as of a slice of a GPU (MIG)."""
    if re.search(r"\bMIG\b", device_name):
        return None
    by_length = sorted(
        ((part, sheet) for sheet in DATASHEETS.values() for part in sheet.device_names), key=lambda pair: -len(pair[0])
    )
    names = ((re.search(rf"\b{re.escape(part)}\b", device_name, re.IGNORECASE), sheet) for part, sheet in by_length)
    return next((sheet for match, sheet in names if match), None)
