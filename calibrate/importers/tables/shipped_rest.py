"""What a table lacks, from the shipped profile of the same GPU: constants, and what may be said of their errors.

Not here: tables (calibrate.importers.tables.vidur and .frontier), the shipped profiles themselves (sim.profiles).
"""

from __future__ import annotations

import msgspec

from calibrate.hardware import engines
from calibrate.hardware.datasheets import datasheet
from sim.costs.kernels import AllReduce, CompactKernels
from sim.costs.profile import KindError, Profile
from sim.costs.profile_files import load, shipped
from sim.costs.shapes import ModelShape


def rest_of(gpu: str, shape: ModelShape) -> Profile:
    """The shipped profile of compact constants that stands in for what a table of `gpu` and `shape` lacks.

    Of that model where there is one, else of another: their kernel constants are the same. An A800 is an A100, an H800
    an H100, but for the links. Raises ValueError where no GPU like it has one.
    """
    sheet = datasheet(gpu)
    names = [name for name in shipped() if "+" not in name]
    alike, known = [], set()
    for name in names:
        profile = load(name)
        like = profile.gpu
        if not isinstance(profile.kernels, CompactKernels):
            continue
        if like.name != "cpu":
            known.add(like.name)
        same = (like.peak_flops, like.bandwidth_bytes_per_s) == (sheet.gpu.peak_flops, sheet.gpu.bandwidth_bytes_per_s)
        if like.name == gpu or same:
            alike.append(name)
    if not alike:
        have = ", ".join(sorted(known))
        raise ValueError(f"GPU {gpu!r} has no shipped profile to take from what the tables lack; there are {have}")
    own = [name for name in alike if name.endswith(f"/{shape.name}")]
    return load((own or alike)[0])


def all_reduce_of(rest: Profile, tensor_parallel: int) -> AllReduce | None:
    """The one of vLLM's newest version that is known on that GPU. None for one device; raises ValueError for a number
    of devices without constants."""
    return engines.all_reduce_of(engines.engine_of(rest.gpu.name, None), tensor_parallel)


def error_of(rest: Profile, shape: ModelShape, kind: str) -> KindError:
    """The shipped profile's error of a kind whose constants are taken from it whole, if it is of the same model."""
    known = rest.errors.get(kind)
    if known is None or rest.target.name != shape.name or known.mean_error_pct is None:
        why = f": {known.held_out}" if known is not None and known.mean_error_pct is None else ""
        return no_error(f"constants of the shipped {rest.name}, not of these tables{why}")
    return msgspec.structs.replace(known, held_out=f"constants and error of the shipped {rest.name}: {known.held_out}")


def no_error(reason: str) -> KindError:
    return KindError(mean_error_pct=None, max_error_pct=None, points=0, held_out=reason)
