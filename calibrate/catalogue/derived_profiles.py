"""Profiles of other GPUs and models by their data sheets, and whether a model fits a GPU.

Not here: the sheets (sim.costs.datasheets), how fast anything really runs (calibrate.measure, sim/profiles).
"""

from __future__ import annotations

from datetime import date

import msgspec

from calibrate.catalogue.host_costs import all_reduce_of, engine_of
from sim.costs.datasheets import DATASHEETS, datasheet
from sim.costs.profile import Gpu, KindError, Overlap, Profile
from sim.costs.shapes import ModelShape

GB = 1e9


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
