"""Datasheets of GPUs: memory, dense bf16 FLOP/s, bandwidth, multiprocessors, and which are of one family.

Values are NVIDIA's published data sheets and architecture papers; FLOP/s are dense, with fp32 accumulation.
Not here: how fast anything really runs (calibrate.measure, sim/profiles).
"""

from __future__ import annotations

import re
from datetime import date
from typing import NamedTuple

import msgspec

from calibrate.hardware.engines import all_reduce_of, engine_of
from sim.costs.profile import Gpu, KindError, Overlap, Profile
from sim.costs.shapes import ModelShape
from sim.names import unknown

GIB, GB = 1 << 30, 1e9


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
        _sheet("l40s", 48, 362.0, 864.0, 142, "ada", "L40S"),
        _sheet("l4", 24, 121.0, 300.0, 58, "ada", "NVIDIA L4"),
        _sheet("rtx-4090", 24, 165.2, 1008.0, 128, "ada", "RTX 4090"),
        _sheet("rtx-5090", 31, 209.5, 1792.0, 170, "blackwell", "RTX 5090"),
        _sheet("rtx-pro-6000-server", 95, 467.8, 1792.0, 188, "blackwell", "RTX PRO 6000"),
        # Compute capability 10.0: other kernels than the 12.0 of RTX cards.
        _sheet("b200", 179, 2250.0, 8000.0, 148, "blackwell-10.0", "NVIDIA B200"),
    )
}
"""By the name that profiles use."""
ALIASES = {"rtx-pro-6000": "rtx-pro-6000-server"}
"""Other names of the same GPU."""


def gpu_name(name: str) -> str:
    """The name that profiles use for what is called `name`; unknown names stay as they are."""
    return ALIASES.get(name, name)


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
        ((part, sheet) for sheet in DATASHEETS.values() for part in sheet.device_names),
        key=lambda pair: -len(pair[0]),
    )
    names = ((re.search(rf"\b{re.escape(part)}\b", device_name, re.IGNORECASE), sheet) for part, sheet in by_length)
    return next((sheet for match, sheet in names if match), None)


def check_fits(models: str, weight_bytes: int, gpu: Gpu, devices: int = 1) -> None:
    """Raises ValueError where the weights of `models` exceed the memory of so many GPUs."""
    memory_bytes = gpu.memory_bytes * devices
    if weight_bytes > memory_bytes:
        raise ValueError(
            f"weights of {models} need {weight_bytes / GB:.1f} GB and {devices} x {gpu.name} has "
            f"{memory_bytes / GB:.1f} GB; choose smaller models or a larger GPU"
        )


def check_divides(shape: ModelShape, tensor_parallel: int) -> None:
    """Raises ValueError where `shape` cannot be split over so many devices."""
    if tensor_parallel < 1 or shape.heads % tensor_parallel or shape.intermediate % tensor_parallel:
        raise ValueError(
            f"tensor_parallel={tensor_parallel} must divide {shape.name}'s {shape.heads} heads and its MLP"
        )


def with_models(profile: Profile, target: ModelShape, draft: ModelShape | None) -> Profile:
    """The compact constants of `profile` for other models; of them nothing was measured.

    Raises ValueError where the profile is a table, or the weights do not fit.
    """
    names = target.name if draft is None else f"{target.name}+{draft.name}"
    kernels = profile.compact
    shapes = [shape for shape in (target, draft) if shape is not None]
    check_fits(names, sum(shape.weight_bytes for shape in shapes), profile.gpu, profile.tensor_parallel)
    reason = f"compact constants of {profile.name}, nothing was measured with {names}"
    return msgspec.structs.replace(
        profile,
        name=f"{profile.name.partition('/')[0]}/{names}",
        target=target,
        draft=draft,
        kernels=kernels,
        errors=_none(profile, reason),
        source=f"{reason}; kept from: {profile.source}",
        fingerprint=None,
        date=date.today().isoformat(),
        points=(),
    )


def derive(profile: Profile, gpu: str) -> Profile:
    """`profile` on `gpu`. Raises ValueError for another family, for the same GPU, or where the weights do not fit."""
    sheet = datasheet(gpu)
    origin = DATASHEETS.get(profile.gpu.name)
    if origin is None:
        raise ValueError(
            f"profile {profile.name!r} is of {profile.gpu.name!r}, which has no datasheet here; "
            f"derive from one of {', '.join(DATASHEETS)}"
        )
    if origin.family != sheet.family:
        family = [name for name, other in DATASHEETS.items() if other.family == origin.family]
        raise ValueError(
            f"{gpu} ({sheet.family}) is of another family than {profile.gpu.name} ({origin.family}): kernels differ, "
            f"only {', '.join(family)} can be derived from it"
        )
    if gpu == profile.gpu.name:
        raise ValueError(f"profile {profile.name!r} is of {gpu} already")
    check_fits(profile.name.partition("/")[2], profile.weight_bytes, sheet.gpu, profile.tensor_parallel)
    reason = f"derived from {profile.name} by datasheet transfer, nothing was measured on {gpu}"
    gemm = msgspec.structs.replace(profile.compact.gemm, multiprocessors=sheet.multiprocessors)
    return msgspec.structs.replace(
        profile,
        name=f"{gpu}/{profile.name.partition('/')[2] or profile.name}",
        gpu=sheet.gpu,
        kernels=msgspec.structs.replace(profile.compact, gemm=gemm),
        overlap=Overlap(),
        errors=_none(profile, reason),
        source=f"{reason}; shares of the roofs, kernel and host times kept from: {profile.source}",
        fingerprint=None,
        date=date.today().isoformat(),
        points=(),
    )


def split(profile: Profile, tensor_parallel: int) -> Profile:
    """The compact constants of `profile`, of one GPU, for so many that share the models; nothing was measured so.

    Raises ValueError where the profile is a table or of several GPUs already, the models do not divide, or no
    all-reduce of so many of these GPUs is known.
    """
    if profile.tensor_parallel > 1 or tensor_parallel < 2:
        raise ValueError(
            f"profile {profile.name!r} is of {profile.tensor_parallel} GPU(s): from one on, split it over 2 or more"
        )
    for shape in (profile.target, profile.draft):
        if shape is not None:
            check_divides(shape, tensor_parallel)
    engine = engine_of(profile.gpu.name, None)
    reduce = all_reduce_of(engine, tensor_parallel)
    reason = f"{profile.name} split over {tensor_parallel} GPUs, {engine.source}; no kernel was measured so"
    return msgspec.structs.replace(
        profile,
        name=f"{profile.name}-tp{tensor_parallel}",
        tensor_parallel=tensor_parallel,
        kernels=msgspec.structs.replace(profile.compact, all_reduce=reduce),
        errors=_none(profile, reason),
        source=f"{reason}; kept from: {profile.source}",
        fingerprint=None,
        date=date.today().isoformat(),
        points=(),
    )


def _none(profile: Profile, reason: str) -> dict[str, KindError]:
    """No error of any kind of `profile`, and why."""
    none = KindError(mean_error_pct=None, max_error_pct=None, points=0, held_out=reason)
    return dict.fromkeys(profile.errors, none)
