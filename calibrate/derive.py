"""Datasheet transfer: a profile of one GPU made into one of another of the same family.

Every constant of the compact form is a share of a roof, a fixed time of a kernel or of the host; the transfer keeps
them all and exchanges the roofs, the memory and the number of multiprocessors. Nothing on the new GPU was measured, so
all errors are null. Not here: the datasheets (datasheets).
"""

from __future__ import annotations

from datetime import date

import msgspec

from calibrate.datasheets import DATASHEETS, check_fits, datasheet
from sim.costs.profile import KindError, Overlap, Profile


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
        errors={
            kind: KindError(mean_error_pct=None, max_error_pct=None, points=0, held_out=reason)
            for kind in profile.errors
        },
        source=f"{reason}; shares of the roofs, kernel and host times kept from: {profile.source}",
        fingerprint=None,
        date=date.today().isoformat(),
        points=(),
    )
