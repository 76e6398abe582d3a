"""Profiles of any model, deployed in any way, from NVIDIA aiconfigurator's kernel tables: layers composed of
kernels, as a table of points.

With attention data-parallel (`dp`), the profile is one rank's, all ranks in lockstep with as many tokens each: experts
see the tokens of all of them. An engine adds its constants.
Not here: the points and their errors (composed), single kernels (lookups), reading files (kernel_files).
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import NamedTuple

import msgspec

from calibrate.catalogue.derived_profiles import check_fits
from calibrate.catalogue.model_configs import format_names
from calibrate.fit.fit_errors import errors_of_draft, not_judged
from calibrate.importers.aiconfigurator.composed import Composed, kernels_per_layer
from calibrate.importers.aiconfigurator.kernel_files import KernelFiles
from calibrate.importers.aiconfigurator.lookups import Lookups
from sim.costs.compact_kernels import VerifyAttention
from sim.costs.datasheets import gpu_name
from sim.costs.engine_costs import ADDED_BY_AN_ENGINE
from sim.costs.profile import SCHEMA, UNLOADED, HostCosts, Overlap, Profile
from sim.costs.shapes import ModelShape
from sim.costs.table_kernels import TableKernels
from sim.names import unknown

LICENCE = "Apache-2.0"
NOT_VALIDATED = "not validated: no public table has attention of 2..8 queries on a long history"
ASSUMED_HOST = HostCosts(
    eager_kernel_s=5e-6,
    graph_launch_s=3e-5,
    kernels_per_layer=10,
    result_s=3e-5,
    step_s=0.0,
    row_s=0.0,
    inflation_eager=(1.0, 1.9, 2.8),
    inflation_graphed=(1.0, 1.1, 1.2),
    source="assumed, not measured, round values: 5 us to launch a kernel, 30 us to replay a graph, 30 us for a result "
    "to reach the host; issuing threads are assumed to share one interpreter almost entirely when eager and hardly "
    f"when graphed; {ADDED_BY_AN_ENGINE}",
)
"""Host costs, which no kernel table has; an engine adds its constants (sim/engines)."""


class DeviceFacts(NamedTuple):
    """Facts of a GPU that the tables do not state (NVIDIA datasheets and architecture papers)."""

    l2_bytes: float
    attention: str
    kv_slowdown: float
    """Factor on the time to read KV in verify and mixed passes. FlashAttention-2: between the 1.8 measured on an RTX
    4090 and the 1.4 on an RTX PRO 6000; FlashAttention-3 reads KV once whatever the queries."""
    query_tile: int
    """Queries of a thread block there. FlashAttention-2 at head dimension 128: 128 on A100, 64 on compute capability
    8.6, 8.9 and 12.0; FlashAttention-3 packs the queries of a KV group."""


DEVICES = msgspec.json.decode(Path(__file__).with_name("devices.json").read_bytes(), type=dict[str, DeviceFacts])

MXFP4_KERNELS = {"hopper": "mxfp4-marlin", "blackwell": "mxfp4-fp8"}
HOPPER, BLACKWELL = ("h100", "h200", "gh200"), ("b200", "b300", "gb200", "gb300")


class Deployment(NamedTuple):
    """Layout of a model: `tensor_parallel` devices share a rank's attention, `data_parallel` ranks have requests of
    their own. Experts are spread over `expert_parallel` of the devices and cut over the rest (None: all cut)."""

    tensor_parallel: int = 1
    expert_parallel: int | None = None
    data_parallel: int = 1
    engine: str = "vllm"
    """Whose kernels: vllm, trtllm or sglang."""
    version: str | None = None
    """Version of that engine, whose nearest tables are read; None: the newest."""
    has_nccl_alone: bool = False
    """NCCL reduces messages of any size, as TensorRT-LLM 1.0 does between some devices; else whatever is fastest."""

    @property
    def devices(self) -> int:
        return self.tensor_parallel * self.data_parallel

    def split(self) -> tuple[int, int]:
        """(ways in which every expert is cut, ways in which experts are spread)."""
        spread = self.expert_parallel or 1
        if spread < 1 or self.devices % spread:
            raise ValueError(f"-ep{spread} must divide the {self.devices} devices of tp and dp")
        return self.devices // spread, spread


def gpus_of(tables: Path) -> list[str]:
    """GPUs with kernel tables below `tables`."""
    folders = ((gpu, gpu.replace("-", "_")) for gpu in DEVICES)
    return [
        gpu for gpu, name in folders if any(any((at / name).rglob("*.parquet")) for at in (tables, tables / "data"))
    ]


def in_kernel_format(shape: ModelShape, gpu: str) -> ModelShape:
    """`shape` with mxfp4 experts in the kernels that engines run them with on that GPU."""
    if shape.formats is None or shape.formats.experts != "mxfp4":
        return shape
    family = "hopper" if gpu.startswith(HOPPER) else "blackwell" if gpu.startswith(BLACKWELL) else None
    if family is None:
        return shape
    formats = msgspec.structs.replace(shape.formats, experts=MXFP4_KERNELS[family])
    return msgspec.structs.replace(shape, formats=formats)


def import_deployment(
    path: Path,
    gpu: str,
    target: ModelShape,
    draft: ModelShape | None,
    deployment: Deployment,
    *,
    source: str,
) -> Profile:
    """The profile of `target` and `draft` from the tables at `path`, of revision `source`. Raises ValueError."""
    gpu = gpu_name(gpu)
    if gpu not in DEVICES:
        raise ValueError(unknown("GPU", gpu, DEVICES))
    device = DEVICES[gpu]
    files = KernelFiles(path, gpu, {deployment.engine: deployment.version})
    lookups = Lookups(files, deployment.engine, has_nccl_alone=deployment.has_nccl_alone)
    target, draft = in_kernel_format(target, gpu), draft and in_kernel_format(draft, gpu)
    shapes = [shape for shape in (target, draft) if shape is not None]
    for shape in shapes:
        check_splits(shape, deployment)
    check_fits(
        " and ".join(shape.name for shape in shapes),
        sum(shape.weight_bytes for shape in shapes),
        lookups.gpu,
        deployment.devices,
    )
    degree, ranks = deployment.tensor_parallel, deployment.data_parallel
    composed = [Composed(lookups, device.l2_bytes, shape, degree, ranks, deployment.split()) for shape in shapes]
    tables = [each.table() for each in composed]
    errors = composed[0].errors()
    if draft is not None:
        errors |= errors_of_draft(composed[1].errors())
    notes = f"; not from the engine's own tables: {'; '.join(lookups.notes)}" if lookups.notes else ""
    errors["verify"] = not_judged(f"{NOT_VALIDATED}; by the rule of kernels.verify_rule")
    return Profile(
        schema=SCHEMA,
        name=profile_name(gpu, target, draft, deployment),
        gpu=lookups.gpu,
        target=target,
        draft=draft,
        tensor_parallel=deployment.tensor_parallel,
        data_parallel=deployment.data_parallel,
        expert_parallel=None if target.experts is None else deployment.expert_parallel or 1,
        kernels=TableKernels(
            target=tables[0],
            draft=tables[1] if draft is not None else None,
            verify_rule=VerifyAttention(kv_slowdown=device.kv_slowdown, query_tile=device.query_tile),
            attention_implementation=device.attention,
            kv_layout="paged",
        ),
        host=msgspec.structs.replace(ASSUMED_HOST, kernels_per_layer=kernels_per_layer(target, degree)),
        overlap=Overlap(),
        errors=errors,
        conditions=UNLOADED,
        source=f"{_repository(source)}@{source} ({LICENCE}): {', '.join(sorted(set(lookups.files.used)))}; layers "
        f"composed of their kernels, element-wise and sampler constants assumed{notes}",
        fingerprint=None,
        date=date.today().isoformat(),
    )


def _repository(revision: str) -> str:
    return f"ai-dynamo/{'aisimulate' if revision.startswith('aisimulate') else 'aiconfigurator'}"


def tables_of(profile: Profile, engine: str) -> str | None:
    """Package of the tables that `profile` was made from, and its versions of `engine`'s; None for other profiles."""
    repository, _, tables = profile.source.partition("; layers composed")[0].partition("@")
    package, _, used = tables.partition(f" ({LICENCE}): ")
    own = [each.removeprefix(f"{engine} ") for each in used.split(", ") if each.startswith(f"{engine} ")]
    named = f"{package}, {engine} {', '.join(own)}" if own else package
    return named if repository.startswith("ai-dynamo/") else None


def profile_name(gpu: str, target: ModelShape, draft: ModelShape | None, deployment: Deployment) -> str:
    """`gpu/target[+draft]`, with formats and degrees where they are not bf16 and 1."""
    name = f"{gpu}/{target.name}{format_names(target)}" + (f"+{draft.name}" if draft is not None else "")
    for flag, degree in (
        ("tp", deployment.tensor_parallel),
        ("ep", deployment.expert_parallel or 1),
        ("dp", deployment.data_parallel),
    ):
        name += f"-{flag}{degree}" if degree > 1 else ""
    return name


def check_splits(shape: ModelShape, deployment: Deployment) -> None:
    """Raises ValueError where `shape` cannot be split as asked."""
    degree = deployment.tensor_parallel
    if degree < 1 or deployment.data_parallel < 1:
        raise ValueError(f"-tp{degree} and -dp{deployment.data_parallel} must be at least 1")
    if shape.heads % degree or (shape.experts is None and shape.intermediate % degree):
        raise ValueError(f"--tp {degree} must divide {shape.name}'s {shape.heads} heads and its MLP")
    if shape.linear is not None and (shape.linear.key_heads % degree or shape.linear.value_heads % degree):
        raise ValueError(f"--tp {degree} must divide the {shape.linear.key_heads} key heads of linear attention")
    if shape.experts is None:
        if (deployment.expert_parallel or 1) > 1 and shape.qkv_inputs == 1:
            raise ValueError(f"-ep{deployment.expert_parallel}: {shape.name} has no experts")
        return
    cut, spread = deployment.split()
    if shape.experts.num % spread or shape.experts.intermediate % cut:
        raise ValueError(
            f"-ep{spread} must divide {shape.name}'s {shape.experts.num} experts, and {cut} devices their width "
            f"{shape.experts.intermediate}"
        )
