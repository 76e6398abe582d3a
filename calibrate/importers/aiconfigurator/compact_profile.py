"""Imports NVIDIA aiconfigurator's published kernel tables (ai-dynamo/aiconfigurator, Apache-2.0) as a profile.

PATH holds GPU folders of parquet tables and a YAML of each GPU's datasheet, as `systems/` there does; a table is found
by its path `gemm/vllm/0.14.0/gemm_perf.parquet`, or by that path with `__` for every `/`.
Two forms: "compact" fits constants, "table" keeps the models' own points (10 to 15 kB of JSON; none is shipped).
Not here: reading the tables (calibrate.importers.aiconfigurator.kernel_files), fits and their errors
(calibrate.fit.held_out), the points (calibrate.fit.table_form).
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from calibrate.fit.held_out import Fitted, Tables, fit, held_out_errors
from calibrate.fit.table_form import Rest, measured_points, model_table, table_errors
from calibrate.hardware.datasheets import check_divides, check_fits
from calibrate.hardware.engines import ASSUMED_HOST
from calibrate.importers.aiconfigurator.kernel_files import KernelFiles
from sim.costs.datasheets import gpu_name
from sim.costs.kernels import AllReduce, CompactKernels, Elementwise, Head, Measured, VerifyAttention
from sim.costs.points import ModelTable, TableKernels
from sim.costs.profile import SCHEMA, UNLOADED, KindError, Overlap, Profile
from sim.costs.shapes import ModelShape, draft_model, model
from sim.names import unknown

REPOSITORY = "ai-dynamo/aiconfigurator"
LICENCE = "Apache-2.0"


class Device(NamedTuple):
    """What the tables do not say about a GPU (NVIDIA datasheets and architecture papers)."""

    multiprocessors: int
    l2_bytes: float
    attention: str
    kv_slowdown: float
    """Of verify and mixed passes. FlashAttention-2: between the 1.8 measured on an RTX 4090 and the 1.4 on an RTX PRO
    6000; FlashAttention-3 reads KV once whatever the queries."""
    query_tile: int
    """Queries of a thread block there. FlashAttention-2 at head dimension 128: 128 on A100, 64 on compute capability
    8.6, 8.9 and 12.0; FlashAttention-3 packs the queries of a KV group."""


DEVICES = {
    "a100-sxm": Device(108, 40e6, "FlashAttention-2", 1.6, 128),
    "h100-sxm": Device(132, 50e6, "FlashAttention-3", 1.0, 1),
    "h100-pcie": Device(114, 50e6, "FlashAttention-3", 1.0, 1),
    "h200-sxm": Device(132, 50e6, "FlashAttention-3", 1.0, 1),
    "b200-sxm": Device(148, 126e6, "FlashInfer TRT-LLM", 1.0, 1),
    "b300-sxm": Device(160, 126e6, "FlashInfer TRT-LLM", 1.0, 1),
    "gb200": Device(148, 126e6, "FlashInfer TRT-LLM", 1.0, 1),
    "gb300": Device(160, 126e6, "FlashInfer TRT-LLM", 1.0, 1),
    "a100-pcie": Device(108, 40e6, "FlashAttention-2", 1.6, 128),
    "a30": Device(56, 24e6, "FlashAttention-2", 1.6, 128),
    "l4": Device(58, 48e6, "FlashAttention-2", 1.6, 64),
    "b60": Device(20, 18e6, "XPU", 1.6, 64),
    "l40s": Device(142, 96e6, "FlashAttention-2", 1.6, 64),
    "rtx-pro-6000-server": Device(188, 128e6, "FlashAttention-2", 1.4, 64),
}

ASSUMED_ELEMENTWISE = Elementwise(bandwidth_share=0.72, kernel_s=1e-6, kernels_per_layer=4)
"""0.72 is fitted to the element-wise columns of Vidur's A100 tables; 1 us per kernel under CUDA graphs closes the gap
between kernel sums and published batch-1 times of Llama-3.1-8B on H100 (5.9 ms, arXiv 2601.11580)."""
ASSUMED_HEAD = Head(sampler_s=2e-5, sampler_passes=3.0)
NOT_VALIDATED = "not validated: no public table has attention of 2..8 queries on a long history"
COMPACT_SOURCE = (
    "compact constants fitted by lanesim on all reference models (errors: with the model left out); element-wise and "
    "sampler constants assumed"
)
TABLE_SOURCE = (
    "table of the models' own points: GEMMs interpolated between the tables' columns and depths, decode points that "
    "the L2 cache flatters left out, noise smoothed until no time falls along an axis; chunks with history, verify and "
    "mixed passes by rule; element-wise and sampler constants assumed"
)
TABLE_RULE = "by the rule of kernels.verify_rule"


def import_aiconfigurator(
    path: str | Path,
    gpu: str,
    target: str | ModelShape,
    draft: str | ModelShape | None = None,
    tensor_parallel: int = 1,
    *,
    revision: str = "unrecorded revision",
    form: Literal["compact", "table"] = "compact",
) -> Profile:
    """A profile of `target` (and `draft`) on `gpu`, with held-out errors: of a fit without the model ("compact"), or of
    interpolation without every second point ("table"). An engine adds its constants.

    Raises ValueError naming the table and what is wrong with it.
    """
    target_shape = model(target) if isinstance(target, str) else target
    draft_shape = draft_model(draft, target_shape) if isinstance(draft, str) else draft
    shapes = [shape for shape in (target_shape, draft_shape) if shape is not None]
    for shape in shapes:
        check_divides(shape, tensor_parallel)
    gpu = gpu_name(gpu)
    if gpu not in DEVICES:
        raise ValueError(unknown("GPU", gpu, DEVICES))
    device = DEVICES[gpu]
    files = KernelFiles(Path(path), gpu)
    tables = read_tables(files, device)
    names = " and ".join(shape.name for shape in shapes)
    check_fits(names, sum(shape.weight_bytes for shape in shapes), tables.gpu, tensor_parallel)
    reduce = files.all_reduce(tensor_parallel)
    kernels: CompactKernels | TableKernels
    if form == "table":
        kernels = _table_kernels(tables, device, reduce, target_shape, draft_shape, tensor_parallel)
    else:
        kernels = _kernels(fit(tables, tensor_parallel), tables, device, reduce)
    name = f"{gpu}/{target_shape.name}" + (f"+{draft_shape.name}" if draft_shape is not None else "")
    profile = Profile(
        schema=SCHEMA,
        name=name if tensor_parallel == 1 else f"{name}-tp{tensor_parallel}",
        gpu=tables.gpu,
        target=target_shape,
        draft=draft_shape,
        tensor_parallel=tensor_parallel,
        kernels=kernels,
        host=ASSUMED_HOST,
        overlap=Overlap(),
        errors={},
        conditions=UNLOADED,
        source=f"{REPOSITORY}@{revision} ({LICENCE}), bf16 kernel tables: {', '.join(sorted(set(files.used)))}; "
        f"{TABLE_SOURCE if form == 'table' else COMPACT_SOURCE}",
        fingerprint=None,
        date=date.today().isoformat(),
    )
    return msgspec.structs.replace(profile, errors=_errors(profile, tables))


def _errors(profile: Profile, tables: Tables) -> dict[str, KindError]:
    def of(shape: ModelShape) -> dict[str, KindError]:
        if isinstance(profile.kernels, TableKernels):
            return table_errors(profile, tables, shape)
        return held_out_errors(tables, shape, profile.tensor_parallel)

    errors = of(profile.target)
    if profile.draft is not None:
        of_draft = of(profile.draft)
        errors |= {"draft": of_draft["decode"], "draft_body": of_draft["body"], "draft_prefill": of_draft["prefill"]}
    rule = f"; {TABLE_RULE}" if isinstance(profile.kernels, TableKernels) else ""
    not_validated = KindError(mean_error_pct=None, max_error_pct=None, points=0, held_out=NOT_VALIDATED + rule)
    return errors | {"verify": not_validated}


def read_tables(files: KernelFiles, device: Device) -> Tables:
    return Tables(
        gpu=files.datasheet(),
        multiprocessors=device.multiprocessors,
        l2_bytes=device.l2_bytes,
        gemm=files.gemm(),
        decode=files.decode(),
        prefill=files.attention("vllm", "context_attention_perf"),
    )


def _table_kernels(
    tables: Tables,
    device: Device,
    reduce: AllReduce | None,
    target: ModelShape,
    draft: ModelShape | None,
    tensor_parallel: int,
) -> TableKernels:
    def table(shape: ModelShape) -> ModelTable:
        rest = Rest(ASSUMED_ELEMENTWISE, ASSUMED_HEAD, reduce)
        return model_table(measured_points(tables, shape, tensor_parallel), tables.gpu, shape, tensor_parallel, rest)

    return TableKernels(
        target=table(target),
        draft=table(draft) if draft is not None else None,
        verify_rule=VerifyAttention(kv_slowdown=device.kv_slowdown, query_tile=device.query_tile),
        attention_implementation=device.attention,
        kv_layout="paged",
    )


def _kernels(fitted: Fitted, tables: Tables, device: Device, all_reduce: AllReduce | None) -> CompactKernels:
    return CompactKernels(
        gemm=fitted.gemm,
        decode_attention=fitted.decode,
        multi_head_decode_attention=fitted.multi_head_decode,
        prefill_attention=fitted.prefill,
        verify_attention=VerifyAttention(kv_slowdown=device.kv_slowdown, query_tile=device.query_tile),
        elementwise=ASSUMED_ELEMENTWISE,
        head=ASSUMED_HEAD,
        all_reduce=all_reduce,
        attention_implementation=device.attention,
        kv_layout="paged",
        measured=Measured(
            tokens=int(tables.gemm.tokens.max()),
            rows=int(tables.decode.sequences.max()),
            row_context_tokens=int(tables.decode.tokens.max()),
            chunk_tokens=int(tables.prefill.tokens.max()),
        ),
    )
