"""Imports NVIDIA aiconfigurator's published kernel tables (ai-dynamo/aiconfigurator, Apache-2.0) as a profile.

PATH holds GPU folders of parquet tables and a YAML of each GPU's datasheet, as `systems/` there does; a table is found
by its path `gemm/vllm/0.14.0/gemm_perf.parquet`, or by that path with `__` for every `/`. Latencies are milliseconds.
Not here: fits and their errors (calibrate.held_out).
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import yaml

from calibrate.fit import fit_all_reduce
from calibrate.held_out import Fitted, Tables, fit, held_out_errors
from calibrate.tables import AttentionTable, GemmTable
from sim.costs.kernels import AllReduce, CompactKernels, Elementwise, Head, Measured, VerifyAttention
from sim.costs.profile import SCHEMA, Gpu, HostCosts, KindError, Overlap, Profile
from sim.models import ModelShape, model
from sim.names import unknown

if TYPE_CHECKING:
    import pandas as pd

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


DEVICES = {
    "a100-sxm": Device(108, 40e6, "FlashAttention-2", 1.6),
    "h100-sxm": Device(132, 50e6, "FlashAttention-3", 1.0),
    "l40s": Device(142, 96e6, "FlashAttention-2", 1.6),
    "rtx-pro-6000-server": Device(188, 128e6, "FlashAttention-2", 1.4),
}

ASSUMED_HOST = HostCosts(
    eager_kernel_s=5e-6,
    graph_launch_s=3e-5,
    kernels_per_layer=10,
    result_s=3e-5,
    step_s=1.2e-3,
    row_s=3e-6,
    work_s=1e-4,
    inflation_eager=(1.0, 1.9, 2.8),
    inflation_graphed=(1.0, 1.1, 1.2),
    source="assumed, not measured, round values: 5 us to launch a kernel, 30 us to replay a graph, 30 us for a result to "
    "reach the host, 0.1 ms to prepare a work of a hand-written engine; step_s is the 1.207 ms step overhead that "
    "SpecDecode-Bench (arXiv 2601.11580) measured in vLLM on H100 (engines with async scheduling hide most of it); "
    "issuing threads are assumed to share one interpreter almost entirely when eager and hardly when graphed",
)
ASSUMED_ELEMENTWISE = Elementwise(bandwidth_share=0.72, kernel_s=1e-6, kernels_per_layer=4)
"""0.72 is fitted to the element-wise columns of Vidur's A100 tables; 1 us per kernel under CUDA graphs closes the gap
between kernel sums and published batch-1 times of Llama-3.1-8B on H100 (5.9 ms, arXiv 2601.11580)."""
ASSUMED_HEAD = Head(sampler_s=2e-5, sampler_passes=3.0)
NOT_VALIDATED = "not validated: no public table has attention of 2..8 queries on a long history"


def import_aiconfigurator(
    path: str | Path,
    gpu: str,
    target: str | ModelShape,
    draft: str | ModelShape | None = None,
    tensor_parallel: int = 1,
    *,
    revision: str = "unrecorded revision",
) -> Profile:
    """A profile of `target` (and `draft`) on `gpu`, with held-out errors.

    Raises ValueError naming the table and what is wrong with it.
    """
    target_shape = model(target) if isinstance(target, str) else target
    draft_shape = model(draft) if isinstance(draft, str) else draft
    for shape in (target_shape, draft_shape):
        if shape is not None and (
            tensor_parallel < 1 or shape.heads % tensor_parallel or shape.intermediate % tensor_parallel
        ):
            raise ValueError(
                f"tensor_parallel={tensor_parallel} must divide {shape.name}'s {shape.heads} heads and its MLP"
            )
    if gpu not in DEVICES:
        raise ValueError(unknown("GPU", gpu, DEVICES))
    device = DEVICES[gpu]
    files = Files(Path(path), gpu)
    tables = files.tables(device)
    errors = held_out_errors(tables, target_shape, tensor_parallel)
    if draft_shape is not None:
        of_draft = held_out_errors(tables, draft_shape, tensor_parallel)
        errors |= {"draft": of_draft["decode"], "draft_body": of_draft["body"], "draft_prefill": of_draft["prefill"]}
    errors["verify"] = KindError(mean_error_pct=None, max_error_pct=None, points=0, held_out=NOT_VALIDATED)
    name = f"{gpu}/{target_shape.name}" + (f"+{draft_shape.name}" if draft_shape is not None else "")
    return Profile(
        schema=SCHEMA,
        name=name if tensor_parallel == 1 else f"{name}-tp{tensor_parallel}",
        gpu=tables.gpu,
        target=target_shape,
        draft=draft_shape,
        tensor_parallel=tensor_parallel,
        kernels=_kernels(fit(tables, tensor_parallel), tables, device, files.all_reduce(tensor_parallel)),
        host=ASSUMED_HOST,
        overlap=Overlap(),
        errors=errors,
        source=f"{REPOSITORY}@{revision} ({LICENCE}), bf16 kernel tables: {', '.join(sorted(set(files.used)))}; compact "
        "constants fitted by lanesim on all reference models (errors: with the model left out); element-wise and "
        "sampler constants assumed",
        fingerprint=None,
        date=date.today().isoformat(),
    )


def _kernels(fitted: Fitted, tables: Tables, device: Device, all_reduce: AllReduce | None) -> CompactKernels:
    return CompactKernels(
        gemm=fitted.gemm,
        decode_attention=fitted.decode,
        prefill_attention=fitted.prefill,
        verify_attention=VerifyAttention(kv_slowdown=device.kv_slowdown),
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


class Files:
    """The tables of one GPU below `path`; `used` collects the engine and version of each one read."""

    def __init__(self, path: Path, gpu: str) -> None:
        self._gpu = gpu
        self._root = path
        folder = gpu.replace("-", "_")
        places = [place for place in (path / folder, path / "data" / folder) if place.is_dir()]
        if not places:
            raise ValueError(f"{path}: no folder {folder!r} with kernel tables of {gpu!r}")
        self._folder = places[0]
        self.used: list[str] = []

    def tables(self, device: Device) -> Tables:
        return Tables(
            gpu=self._datasheet(),
            multiprocessors=device.multiprocessors,
            l2_bytes=device.l2_bytes,
            gemm=self._gemm(),
            decode=self._decode(),
            prefill=self._attention("vllm", "context_attention_perf"),
        )

    def _datasheet(self) -> Gpu:
        path = self._root / f"{self._gpu.replace('-', '_')}.yaml"
        try:
            sheet = yaml.safe_load(path.read_text())["gpu"]
            return Gpu(
                name=self._gpu,
                memory_bytes=int(sheet["mem_capacity"]),
                peak_flops=float(sheet["bfloat16_tc_flops"]),
                bandwidth_bytes_per_s=float(sheet["mem_bw"]),
            )
        except (OSError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path.name}: no datasheet of {self._gpu!r} (gpu: mem_bw, mem_capacity, ...): {error}"
            ) from error

    def _gemm(self) -> GemmTable:
        frame = self._read("gemm", "vllm", "gemm_perf", ["gemm_dtype", "m", "n", "k"])
        frame = frame[frame["gemm_dtype"] == "bfloat16"]
        if frame.empty:
            raise ValueError(f"gemm_perf of {self._gpu!r}: no rows with gemm_dtype 'bfloat16'")
        axes = [np.sort(frame[column].unique()) for column in ("m", "n", "k")]
        if min(len(axis) for axis in axes) < 2:
            raise ValueError(f"gemm_perf of {self._gpu!r}: m, n and k need at least two values each")
        seconds = np.full([len(axis) for axis in axes], np.nan)
        places = tuple(np.searchsorted(axis, frame[column]) for axis, column in zip(axes, ("m", "n", "k"), strict=True))
        seconds[places] = frame["latency"].to_numpy() * 1e-3
        return GemmTable(axes[0], axes[1], axes[2], seconds)

    def _decode(self) -> AttentionTable:
        """Grouped-query rows from vLLM; multi-head rows, which its table lacks, from SGLang where there are any."""
        grouped = self._attention("vllm", "generation_attention_perf")
        if self._find("attention", "sglang", "generation_attention_perf") is None:
            return grouped
        multi_head = self._attention("sglang", "generation_attention_perf")
        grouped = grouped.where(grouped.heads != grouped.kv_heads)
        multi_head = multi_head.where(multi_head.heads == multi_head.kv_heads)
        return AttentionTable(*(np.concatenate(pair) for pair in zip(grouped, multi_head, strict=True)))

    def _attention(self, engine: str, table: str) -> AttentionTable:
        names = ["batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim"]
        frame = self._read("attention", engine, table, [*names, "attn_dtype", "kv_cache_dtype"])
        use = (frame["attn_dtype"] == "bfloat16") & (frame["kv_cache_dtype"] == "bfloat16")
        if "window_size" in frame:
            use &= frame["window_size"] == 0
        frame = frame[use]
        if frame.empty:
            raise ValueError(f"{table} of {self._gpu!r} ({engine}): no bf16 rows without a window")
        columns = {name: frame[name].to_numpy(dtype=float) for name in names}
        return AttentionTable(
            columns["batch_size"],
            columns["isl"] + columns["step"],
            columns["num_heads"],
            columns["num_key_value_heads"],
            columns["head_dim"],
            frame["latency"].to_numpy(dtype=float) * 1e-3,
        )

    def all_reduce(self, tensor_parallel: int) -> AllReduce | None:
        """vLLM's custom all-reduce under CUDA graphs; its message sizes count bf16 elements."""
        if tensor_parallel == 1:
            return None
        frame = self._read("comm", "vllm", "custom_allreduce_perf", ["num_gpus", "message_size", "backend"])
        frame = frame[(frame["num_gpus"] == tensor_parallel) & (frame["backend"] == "vllm_graph")]
        if frame.empty:
            raise ValueError(f"custom_allreduce_perf of {self._gpu!r}: no rows for {tensor_parallel} GPUs")
        return fit_all_reduce(2.0 * frame["message_size"].to_numpy(dtype=float), frame["latency"].to_numpy() * 1e-3)

    def _find(self, group: str, engine: str, table: str) -> tuple[Path, str] | None:
        """The newest version of a table and that version."""
        found = {}
        for path in self._folder.rglob("*.parquet"):
            parts = str(path.relative_to(self._folder).with_suffix("")).replace("/", "__").split("__")
            if len(parts) == 4 and (parts[0], parts[1], parts[3]) == (group, engine, table):
                found[tuple(int(number) for number in parts[2].split(".") if number.isdigit())] = (path, parts[2])
        return found[max(found)] if found else None

    def _read(self, group: str, engine: str, table: str, columns: list[str]) -> pd.DataFrame:
        found = self._find(group, engine, table)
        if found is None:
            raise ValueError(f"{self._folder.name}: no table {group}/{engine}/VERSION/{table}.parquet")
        path, version = found
        import pandas as pd

        frame: Any = pd.read_parquet(path)
        missing = [column for column in [*columns, "latency"] if column not in frame]
        if missing:
            raise ValueError(f"{path.name}: no column {missing[0]!r}; columns are {', '.join(frame.columns)}")
        latency = frame["latency"].to_numpy(dtype=float)
        numbers = frame[[column for column in columns if frame[column].dtype.kind in "iuf"]].to_numpy(dtype=float)
        if not np.isfinite(latency).all() or not np.isfinite(numbers).all():
            raise ValueError(f"{path.name}: a number is missing or not finite")
        if (latency <= 0.0).any():
            raise ValueError(f"{path.name}: latency={latency.min()} ms must be positive")
        self.used.append(f"{engine} {version}")
        return frame
