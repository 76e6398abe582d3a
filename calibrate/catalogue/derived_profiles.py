"""Profiles of other GPUs and models by their data sheets, of several GPUs by published all-reduces, and whether a model
fits a GPU.

Not here: the sheets (sim.costs.datasheets), how fast anything really runs (calibrate.measure, sim/profiles).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from itertools import accumulate
from math import log
from pathlib import Path
from typing import Any

import msgspec

from sim.costs.compact_kernels import AllReduce, CompactKernels
from sim.costs.datasheets import DATASHEETS, datasheet
from sim.costs.profile import Gpu, KindError, Overlap, Profile
from sim.costs.shapes import ModelShape
from sim.costs.table_kernels import Curve, ModelTable, TableKernels

GB = 1e9
REDUCE_SOURCE = "ai-dynamo/aiconfigurator (Apache-2.0) custom_allreduce_perf, CUDA graph, 4 KiB..64 MiB"
"""All-reduces under CUDA graphs, which vLLM captures up to 512 tokens. Launched eagerly they take 2 us longer on RTX
PRO 6000, 15 to 40 us elsewhere: that is the launch, which the host costs already count."""
NEAR_FAMILY = {"ampere-8.6": "ada"}
"""Family without kernel tables -> the one whose kernels are nearest: both have FlashAttention-2 and GDDR memory."""
TRANSFERRED = KindError(
    mean_error_pct=13.0,
    max_error_pct=68.0,
    points=432,
    held_out="L40S and RTX PRO 6000, one from the other by data sheet, against the tables of both: layers off by 12 % "
    "in the mean, decode attention by 13 %; H100 and H200 likewise: 6 and 7 %",
)
"""Error of a table scaled by data sheets."""


class Reduces(msgspec.Struct, frozen=True):
    """All-reduces of vLLM on one GPU."""

    version: str
    """vLLM's, major and minor."""
    by_degree: dict[int, tuple[float, float]]
    """(fixed seconds, bytes/s) by degree of tensor parallelism."""
    source: str = REDUCE_SOURCE


REDUCES = msgspec.json.decode(Path(__file__).with_name("all_reduces.json").read_bytes(), type=dict[str, Reduces])
"""Mean errors over the tables that they were fitted on: A100 8 %, 11 %, 20 % with 2, 4, 8 GPUs, H100 4 %, 7 %, 12 %,
L40S 3 %, 3 %, 13 %, RTX PRO 6000 2 %. GH200, four joined in pairs: H100's rate over what an all-reduce takes longer in
service (1.35, fitted on other cells), and a fixed time fitted on one served level (docs/adr/018)."""


def check_fits(models: str, weight_bytes: int, gpu: Gpu, devices: int = 1) -> None:
    """Raises ValueError where the weights of `models` exceed the memory of so many GPUs."""
    memory_bytes = gpu.memory_bytes * devices
    if weight_bytes > memory_bytes:
        raise ValueError(
            f"weights of {models} need {weight_bytes / GB:.1f} GB and {devices} x {gpu.name} has "
            f"{memory_bytes / GB:.1f} GB. Choose smaller models or a larger GPU"
        )


def all_reduce_of(gpu: str, tensor_parallel: int) -> AllReduce:
    """Raises ValueError where none of so many of these GPUs is known."""
    if gpu not in REDUCES or tensor_parallel not in REDUCES[gpu].by_degree:
        known = [
            f"{other} with vLLM {reduces.version}: --tp {', '.join(map(str, reduces.by_degree))}"
            for other, reduces in sorted(REDUCES.items(), key=lambda item: item[0] != gpu)
        ]
        raise ValueError(f"no all-reduce of {tensor_parallel} GPUs is known for {gpu!r}. Measured: {', '.join(known)}")
    fixed_s, bytes_per_s = REDUCES[gpu].by_degree[tensor_parallel]
    return AllReduce(fixed_s=fixed_s, bytes_per_s=bytes_per_s)


def with_models(profile: Profile, target: ModelShape, draft: ModelShape | None) -> Profile:
    """The compact constants of `profile` for other models. Raises ValueError for tables and weights too large."""
    names = target.name if draft is None else f"{target.name}+{draft.name}"
    shapes = [shape for shape in (target, draft) if shape is not None]
    check_fits(names, sum(shape.weight_bytes for shape in shapes), profile.gpu, profile.tensor_parallel)
    reason = f"compact constants of {profile.name}, nothing was measured with {names}"
    name = f"{profile.name.partition('/')[0]}/{names}"
    return _unmeasured(profile, reason, name=name, target=target, draft=draft, kernels=profile.compact)


def derive(profile: Profile, gpu: str) -> Profile:
    """`profile` on `gpu`. Raises ValueError for another family, for the same GPU, or where the weights do not fit."""
    sheet = datasheet(gpu)
    origin = DATASHEETS.get(profile.gpu.name)
    if origin is None:
        raise ValueError(
            f"profile {profile.name!r} is of {profile.gpu.name!r}, which has no datasheet here. "
            f"Derive from one of {', '.join(DATASHEETS)}"
        )
    if (family := NEAR_FAMILY.get(sheet.family, sheet.family)) != origin.family:
        known = [name for name, other in DATASHEETS.items() if other.family == family]
        raise ValueError(
            f"{gpu} ({sheet.family}) is of another family than {profile.gpu.name} ({origin.family}): kernels differ. "
            f"Derive it from a profile of {', '.join(known)}"
        )
    if gpu == profile.gpu.name:
        raise ValueError(f"profile {profile.name!r} is of {gpu} already")
    models = profile.name.partition("/")[2] or profile.name
    check_fits(models, profile.weight_bytes, sheet.gpu, profile.tensor_parallel)
    is_table = isinstance(profile.kernels, TableKernels)
    kernels: TableKernels | CompactKernels
    if is_table:
        kernels = _scaled(profile, profile.table, sheet.gpu)
    else:
        gemm = msgspec.structs.replace(profile.compact.gemm, multiprocessors=sheet.multiprocessors)
        kernels = msgspec.structs.replace(profile.compact, gemm=gemm)
    derived = _unmeasured(
        profile,
        f"derived from {profile.name} by datasheet transfer, nothing was measured on {gpu}",
        "times by the roofs" if is_table else "shares of the roofs, kernel and host times kept",
        name=f"{gpu}/{models}",
        gpu=sheet.gpu,
        kernels=kernels,
        overlap=Overlap(),
    )
    errors = dict.fromkeys(profile.errors, TRANSFERRED) if is_table else derived.errors
    return msgspec.structs.replace(derived, errors=errors)


def nearest(gpu: str, known: Iterable[str]) -> str | None:
    """The one of `known` that `gpu` is derived from: of its family, with as much memory, nearest in bandwidth."""
    sheet = DATASHEETS.get(gpu)
    if sheet is None:
        return None
    near = [each for each in known if each in DATASHEETS]
    near = [each for each in near if DATASHEETS[each].family == NEAR_FAMILY.get(sheet.family, sheet.family)]

    def distance(each: str) -> tuple[bool, float]:
        other = DATASHEETS[each].gpu
        speeds = other.bandwidth_bytes_per_s / sheet.gpu.bandwidth_bytes_per_s
        return other.memory_bytes < sheet.gpu.memory_bytes, abs(log(speeds))

    return min(near, key=distance, default=None)


def _scaled(profile: Profile, kernels: TableKernels, gpu: Gpu) -> TableKernels:
    """Times of a table by the roofs of `gpu` over those of the profile's own: attention of single queries by bandwidth,
    of chunks by FLOP/s, both beyond their shortest time, which is a launch; the rest by both roofs, in proportion to
    tokens and the count at which these meet."""
    reading = profile.gpu.bandwidth_bytes_per_s / gpu.bandwidth_bytes_per_s
    computing = profile.gpu.peak_flops / gpu.peak_flops

    def curve(points: Curve, meet: float) -> Curve:
        ratios = [(reading * meet + computing * tokens) / (meet + tokens) for tokens in points.tokens]
        scaled = [ratio * seconds for ratio, seconds in zip(ratios, points.seconds, strict=True)]
        return msgspec.structs.replace(points, seconds=tuple(accumulate(scaled, max)))

    def grid(points: Any, ratio: float) -> Any:
        def of(values: Any) -> Any:
            if isinstance(values, tuple):
                return tuple(map(of, values))
            return values and launch_s + ratio * (values - launch_s)

        launch_s = None if points is None else points.seconds[0][0]
        while isinstance(launch_s, tuple):
            launch_s = launch_s[0]
        return points and msgspec.structs.replace(points, seconds=of(points.seconds))

    def table(each: ModelTable, shape: ModelShape) -> ModelTable:
        meet = profile.gpu.peak_flops / profile.gpu.bandwidth_bytes_per_s
        sparse = meet if shape.experts is None else meet * shape.experts.num / shape.experts.per_token
        return msgspec.structs.replace(
            each,
            body=curve(each.body, sparse),
            head=curve(each.head, meet),
            experts=each.experts and curve(each.experts, sparse),
            decode_attention=grid(each.decode_attention, reading),
            rows_beside_chunks=grid(each.rows_beside_chunks, reading),
            verify_attention=grid(each.verify_attention, reading),
            prefill_attention=grid(each.prefill_attention, computing),
        )

    draft = None if kernels.draft is None or profile.draft is None else table(kernels.draft, profile.draft)
    return msgspec.structs.replace(kernels, target=table(kernels.target, profile.target), draft=draft)


def split(profile: Profile, tensor_parallel: int) -> Profile:
    """The compact constants of `profile`, of one GPU, for so many that share the models. Raises ValueError for tables,
    for models that do not divide, and where no all-reduce of so many GPUs is known."""
    if profile.tensor_parallel > 1 or tensor_parallel < 2:
        raise ValueError(
            f"profile {profile.name!r} is of {profile.tensor_parallel} GPU(s): from one on, split it over 2 or more"
        )
    for shape in profile.models:
        if shape.heads % tensor_parallel or shape.intermediate % tensor_parallel:
            raise ValueError(
                f"tensor_parallel={tensor_parallel} must divide {shape.name}'s {shape.heads} heads and its MLP"
            )
    reduce = all_reduce_of(profile.gpu.name, tensor_parallel)
    source = REDUCES[profile.gpu.name].source
    return _unmeasured(
        profile,
        f"{profile.name} split over {tensor_parallel} GPUs, {source}; no kernel was measured so",
        name=f"{profile.name}-tp{tensor_parallel}",
        tensor_parallel=tensor_parallel,
        kernels=msgspec.structs.replace(profile.compact, all_reduce=reduce),
    )


def _unmeasured(profile: Profile, reason: str, kept: str = "kept", **changes: Any) -> Profile:
    """`profile` with `changes`, and without an error of any kind for that `reason`."""
    none = KindError(mean_error_pct=None, max_error_pct=None, points=0, held_out=reason)
    return msgspec.structs.replace(
        profile,
        **changes,
        errors=dict.fromkeys(profile.errors, none),
        source=f"{reason}; {kept} from: {profile.source}",
        fingerprint=None,
        date=date.today().isoformat(),
        points=(),
    )
