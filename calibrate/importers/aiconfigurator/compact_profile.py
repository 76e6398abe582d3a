"""Imports NVIDIA aiconfigurator's published kernel tables (ai-dynamo/aiconfigurator, Apache-2.0) as a profile.

PATH holds GPU folders of parquet tables and a YAML of each GPU's datasheet, as `systems/` there does; a table is found
by its path `gemm/vllm/0.14.0/gemm_perf.parquet`, or by that path with `__` for every `/`.
Constants are fitted to reference models, so that others can be derived from the profile.
Not here: reading the tables (calibrate.importers.aiconfigurator.kernel_files), fits and their errors
(calibrate.fit.held_out), profiles of points (calibrate.importers.aiconfigurator.deployment).
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import NamedTuple

from calibrate.catalogue.derived_profiles import check_divides, check_fits
from calibrate.catalogue.host_costs import ASSUMED_HOST
from calibrate.fit.fit_errors import errors_of_draft, not_judged
from calibrate.fit.held_out import Fitted, Tables, fit, held_out_errors
from calibrate.importers.aiconfigurator.kernel_files import KernelFiles
from sim.costs.compact_kernels import AllReduce, CompactKernels, Elementwise, Head, Measured, VerifyAttention
from sim.costs.datasheets import gpu_name
from sim.costs.profile import SCHEMA, UNLOADED, Overlap, Profile
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
    """Factor on the time to read KV in verify and mixed passes. FlashAttention-2: between the 1.8 measured on an RTX
    4090 and the 1.4 on an RTX PRO 6000; FlashAttention-3 reads KV once whatever the queries."""
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


def import_aiconfigurator(
    path: str | Path,
    gpu: str,
    target: str | ModelShape,
    draft: str | ModelShape | None = None,
    tensor_parallel: int = 1,
    *,
    revision: str = "unrecorded revision",
) -> Profile:
    """A profile of `target` (and `draft`) on `gpu`, with the errors of a fit without each model. An engine adds its
    constants.

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
    name = f"{gpu}/{target_shape.name}" + (f"+{draft_shape.name}" if draft_shape is not None else "")
    errors = held_out_errors(tables, target_shape, tensor_parallel)
    if draft_shape is not None:
        errors |= errors_of_draft(held_out_errors(tables, draft_shape, tensor_parallel))
    return Profile(
        schema=SCHEMA,
        name=name if tensor_parallel == 1 else f"{name}-tp{tensor_parallel}",
        gpu=tables.gpu,
        target=target_shape,
        draft=draft_shape,
        tensor_parallel=tensor_parallel,
        kernels=_kernels(fit(tables, tensor_parallel), tables, device, reduce),
        host=ASSUMED_HOST,
        overlap=Overlap(),
        errors=errors | {"verify": not_judged(NOT_VALIDATED)},
        conditions=UNLOADED,
        source=f"{REPOSITORY}@{revision} ({LICENCE}), bf16 kernel tables: {', '.join(sorted(set(files.used)))}; "
        f"{COMPACT_SOURCE}",
        fingerprint=None,
        date=date.today().isoformat(),
    )


def read_tables(files: KernelFiles, device: Device) -> Tables:
    return Tables(
        gpu=files.datasheet(),
        multiprocessors=device.multiprocessors,
        l2_bytes=device.l2_bytes,
        gemm=files.gemm(),
        decode=files.decode(),
        prefill=files.attention("vllm", "context_attention_perf"),
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
