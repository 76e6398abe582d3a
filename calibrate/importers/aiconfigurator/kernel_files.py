"""Reads aiconfigurator's parquet tables of one GPU into memory, checked: columns, units, missing and negative numbers.

Every defect is a ValueError naming the file. Latencies are milliseconds in the files and seconds here.
Not here: what is made of them (calibrate.importers.aiconfigurator.compact_profile).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from calibrate.fit.fit_errors import Array
from calibrate.fit.kernel_fit import fit_all_reduce
from calibrate.fit.kernel_tables import AttentionTable, GemmTable
from sim.costs.compact_kernels import AllReduce
from sim.costs.profile import Gpu
from sim.files.arrow_tables import read_parquet
from sim.files.json_values import convert, value_at
from sim.files.yaml_values import read_yaml

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

MESSAGE_BYTES = (4 << 10, 64 << 20)
"""All-reduces of a pass: one token of 2,048 dimensions to 4,096 tokens of 8,192, in bf16."""


MIN_BANDWIDTH, MIN_FLOPS = 1e10, 1e12
"""Bytes/s and FLOP/s: no GPU has less; what is below is in GB/s and TFLOP/s."""


MAX_SEQUENCES = 16384
"""Most sequences in a pass of any published table; contexts are longer."""
ALL_REDUCE_MS = (1e-4, 1.0)
"""Bounds of the shortest all-reduce of any table."""


HUGE = 5e8
"""Weights of a matrix, a gigabyte, from which on tables may lack some m: those of A100 and H100 lack the largest
matrix, that of the L40S nine more."""
ABOVE_ROOF = 1.05
"""A kernel may seem this much faster than the compute roof: clocks boost."""
RESOLUTION_S = 1e-6
"""Resolution of the coarsest published tables: a time may be rounded down by as much."""
CACHED = 4.0
"""What is read over and over may come from the L2 cache, up to so many times faster than from memory: three times is
the most in any published table here."""
FAR = 100.0
"""A kernel that takes so many times its roofs is in other units: twice is usual, but some rows of every table go
astray."""
LAUNCH_S = 1e-5
"""Added to the roofs before: small kernels take their launch."""


TEXT_ENDINGS = ("dtype", "_type", "_name", "backend", "distribution")
"""How the names of columns that hold texts end; all others hold numbers."""
OPTIONAL = ("window_size", "nccl_dtype", "backend")
"""Columns that only some versions of a table have."""


class _Sheet(msgspec.Struct):
    """What a datasheet says of its GPU; numbers may be spelt as Python spells them."""

    mem_capacity: int | float | str
    bfloat16_tc_flops: int | float | str
    mem_bw: int | float | str


class KernelFiles:
    """The tables of one GPU below `path`; `used` collects the engine and version of each one read. Of several versions
    of a table the newest is read that is no newer than `version`, the oldest where all are; None: the newest."""

    def __init__(self, path: Path, gpu: str, version: str | None = None) -> None:
        self._gpu = gpu
        self._root = path
        self._version = numbers(version) if version is not None else None
        folder = gpu.replace("-", "_")
        places = [place for place in (path / folder, path / "data" / folder) if place.is_dir()]
        if not places:
            raise ValueError(f"{path}: no folder {folder!r} with kernel tables of {gpu!r}")
        self._folder = places[0]
        self.used: list[str] = []
        self.engine_version: str | None = None
        """Version of vLLM's GEMM table; None before it was read."""

    def datasheet(self) -> Gpu:
        path = self._root / f"{self._gpu.replace('-', '_')}.yaml"
        try:
            sheet = convert(value_at(read_yaml(path, "datasheet"), "gpu"), _Sheet, "gpu")
            gpu = Gpu(
                name=self._gpu,
                memory_bytes=int(sheet.mem_capacity),
                peak_flops=float(sheet.bfloat16_tc_flops),
                bandwidth_bytes_per_s=float(sheet.mem_bw),
            )
        except ValueError as error:
            reason = " ".join(str(error).split())
            raise ValueError(
                f"{path.name}: no datasheet of {self._gpu!r} (gpu: mem_bw, mem_capacity, bfloat16_tc_flops): {reason}"
            ) from error
        for key, value, least in (
            ("mem_bw", gpu.bandwidth_bytes_per_s, MIN_BANDWIDTH),
            ("bfloat16_tc_flops", gpu.peak_flops, MIN_FLOPS),
        ):
            if value < least:
                raise ValueError(f"{path.name}: {key}={value:g} must be at least {least:g}, in bytes/s and FLOP/s")
        return gpu

    def gemm(self, engine: str = "vllm", name: str = "bfloat16", *, is_whole: bool = True) -> GemmTable:
        """GEMMs with weights in `name`, as gemm_dtype has it; not `is_whole`: any shapes may be missing."""
        frame = self.read("gemm", engine, "gemm_perf", ["gemm_dtype", "m", "n", "k"])
        self.engine_version = self.used[-1].partition(" ")[2]
        frame = frame[frame["gemm_dtype"] == name]
        if frame.empty:
            raise ValueError(f"gemm_perf of {self._gpu!r}: no rows with gemm_dtype {name!r}")
        m, n, k = (frame[column].to_numpy(dtype=float) for column in ("m", "n", "k"))
        if name == "bfloat16":
            flops, num_bytes = 2.0 * m * n * k, 2.0 * (n * k + m * (n + k))
            self._check("gemm_perf", "a GEMM", frame, flops, num_bytes)
        axes = [np.sort(frame[column].unique()) for column in ("m", "n", "k")]
        if min(len(axis) for axis in axes) < 2:
            raise ValueError(f"gemm_perf of {self._gpu!r}: m, n and k need at least two values each")
        seconds = np.full([len(axis) for axis in axes], np.nan)
        places = tuple(np.searchsorted(axis, frame[column]) for axis, column in zip(axes, ("m", "n", "k"), strict=True))
        seconds[places] = frame["latency"].to_numpy() * 1e-3
        if is_whole:
            _check_grid(self._gpu, axes, seconds)
        return GemmTable(axes[0], axes[1], axes[2], seconds)

    def decode(self) -> AttentionTable:
        """Grouped-query rows from vLLM; multi-head rows, which its table lacks, from SGLang where there are any."""
        grouped = self.attention("vllm", "generation_attention_perf")
        if self.find("attention", "sglang", "generation_attention_perf") is None:
            return grouped
        multi_head = self.attention("sglang", "generation_attention_perf")
        grouped = grouped.where(grouped.heads != grouped.kv_heads)
        multi_head = multi_head.where(multi_head.heads == multi_head.kv_heads)
        return AttentionTable(*(np.concatenate(pair) for pair in zip(grouped, multi_head, strict=True)))

    def attention(self, engine: str, table: str, kv: str = "bfloat16", window: int = 0) -> AttentionTable:
        """Points with KV in `kv`, as kv_cache_dtype has it, and a sliding window, 0 for none."""
        names = ["batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim"]
        frame = self.read("attention", engine, table, [*names, "attn_dtype", "kv_cache_dtype"])
        use = (frame["attn_dtype"] == "bfloat16") & (frame["kv_cache_dtype"] == kv)
        if "window_size" in frame:
            use &= frame["window_size"] == window
        frame = frame[use]
        if frame.empty or (window and "window_size" not in frame):
            what = f"with a window of {window}" if window else "without a window"
            raise ValueError(f"{table} of {self._gpu!r} ({engine}): no bf16 rows {what} whose KV is {kv}")
        columns = {name: frame[name].to_numpy(dtype=float) for name in names}
        if kv == "bfloat16" and not window:
            self._check_attention(table, frame, columns)
        return AttentionTable(
            columns["batch_size"],
            columns["isl"] + columns["step"],
            columns["num_heads"],
            columns["num_key_value_heads"],
            columns["head_dim"],
            frame["latency"].to_numpy(dtype=float) * 1e-3,
        )

    def _check_attention(self, table: str, frame: pd.DataFrame, columns: Mapping[str, Array]) -> None:
        """Raises ValueError for times that cannot be true, and for contexts in the column of batches."""
        batch, queries, history = (columns[name] for name in ("batch_size", "isl", "step"))
        if batch.max() > MAX_SEQUENCES:
            raise ValueError(
                f"{table} of {self._gpu!r}: batch_size={batch.max():g} must be at most {MAX_SEQUENCES}; are columns "
                "swapped?"
            )
        pairs = batch * queries * (history + 0.5 * queries)
        flops = 4.0 * columns["num_heads"] * columns["head_dim"] * pairs
        num_bytes = 4.0 * batch * (queries + history) * columns["num_key_value_heads"] * columns["head_dim"]
        self._check(table, "attention", frame, flops, num_bytes)

    def _check(self, table: str, what: str, frame: pd.DataFrame, flops: Array, num_bytes: Array) -> None:
        def where(index: int) -> str:
            return f"{table} of {self._gpu!r}, row {frame.index[index]}"

        _check_roofs(where, what, frame["latency"].to_numpy(dtype=float) * 1e-3, flops, num_bytes, self.datasheet())

    def all_reduce(self, tensor_parallel: int) -> AllReduce | None:
        """vLLM's custom all-reduce under CUDA graphs; its message sizes count bf16 elements."""
        if tensor_parallel == 1:
            return None
        frame = self.read("comm", "vllm", "custom_allreduce_perf", ["num_gpus", "message_size", "backend"])
        frame = frame[(frame["num_gpus"] == tensor_parallel) & (frame["backend"] == "vllm_graph")]
        if frame.empty:
            raise ValueError(f"custom_allreduce_perf of {self._gpu!r}: no rows for {tensor_parallel} GPUs")
        min_ms = float(frame["latency"].min())
        if not ALL_REDUCE_MS[0] <= min_ms <= ALL_REDUCE_MS[1]:
            raise ValueError(
                f"custom_allreduce_perf of {self._gpu!r}: the shortest takes {min_ms:g} ms, want "
                f"{ALL_REDUCE_MS[0]:g}..{ALL_REDUCE_MS[1]:g}; are times not in milliseconds?"
            )
        message_bytes = 2.0 * frame["message_size"].to_numpy(dtype=float)
        use = (message_bytes >= MESSAGE_BYTES[0]) & (message_bytes <= MESSAGE_BYTES[1])
        if use.sum() < 2:
            raise ValueError(f"custom_allreduce_perf of {self._gpu!r}: no two messages of {MESSAGE_BYTES} bytes")
        return fit_all_reduce(message_bytes[use], frame["latency"].to_numpy()[use] * 1e-3)

    def find(self, group: str, engine: str, table: str) -> tuple[Path, str] | None:
        """The file of a table and its version; None where there is none."""
        return next(iter(self.versions(group, engine, table)), None)

    def versions(self, group: str, engine: str, table: str) -> list[tuple[Path, str]]:
        """The files of a table and their versions, the one that is read first, then older ones."""
        found = {}
        for path in self._folder.rglob("*.parquet"):
            parts = str(path.relative_to(self._folder).with_suffix("")).replace("/", "__").split("__")
            if len(parts) == 4 and (parts[0], parts[1], parts[3]) == (group, engine, table):
                found[numbers(parts[2])] = (path, parts[2])
        fitting = [version for version in found if self._version is None or version <= self._version]
        return [found[version] for version in sorted(fitting or sorted(found)[:1], reverse=True)]

    def read(self, group: str, engine: str, table: str, columns: list[str]) -> pd.DataFrame:
        """The table of the version that fits. Raises ValueError where there is none, or it is defective."""
        found = self.find(group, engine, table)
        if found is None:
            raise ValueError(f"{self._folder.name}: no table {group}/{engine}/VERSION/{table}.parquet")
        return self.read_file(engine, *found, columns)

    def read_file(self, engine: str, path: Path, version: str, columns: list[str]) -> pd.DataFrame:
        table = read_parquet(path, "table")
        names = table.column_names
        missing = [column for column in [*columns, "latency"] if column not in names]
        if missing:
            raise ValueError(f"{path.name}: no column {missing[0]!r}; columns are {', '.join(names)}")
        for column in [*columns, "latency", *(name for name in OPTIONAL if name in names)]:
            _check_type(path.name, column, table.schema.field(column).type)
        frame: pd.DataFrame = table.to_pandas()
        latency = frame["latency"].to_numpy(dtype=float)
        numbers = frame[[column for column in columns if frame[column].dtype.kind in "iuf"]].to_numpy(dtype=float)
        if not np.isfinite(latency).all() or not np.isfinite(numbers).all():
            raise ValueError(f"{path.name}: a number is missing or not finite")
        if (latency <= 0.0).any():
            raise ValueError(f"{path.name}: latency={latency.min()} ms must be positive")
        self.used.append(f"{engine} {version}")
        return frame


def _check_type(where: str, column: str, kind: pa.DataType) -> None:
    """Raise ValueError for an Arrow type that the column cannot have."""
    from pyarrow import types

    if column.endswith(TEXT_ENDINGS):
        wanted, is_right = "texts", types.is_string(kind) or types.is_large_string(kind) or types.is_dictionary(kind)
    else:
        wanted, is_right = "numbers", types.is_integer(kind) or types.is_floating(kind)
    if not is_right:
        unit = " (milliseconds)" if column == "latency" else ""
        raise ValueError(f"{where}: {column!r} must hold {wanted}{unit}, got {kind}")


def numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version, in order: 1.3.0rc20 is older than 1.3.1."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:4])


def _check_grid(gpu: str, axes: Sequence[Array], seconds: Array) -> None:
    """Every (n, k) is measured at every m, save the huge ones; the token counts of a model that these lack are left
    out (calibrate.fit.kernel_tables.GemmTable)."""
    holes = np.isnan(seconds).any(axis=0) & (axes[1][:, None] * axes[2][None, :] < HUGE)
    if holes.any():
        column, depth = np.argwhere(holes)[0]
        raise ValueError(f"gemm_perf of {gpu!r}: no latency of (n={axes[1][column]}, k={axes[2][depth]}) at some m")


def _check_roofs(
    where: Callable[[int], str], what: str, seconds: Array, flops: Array, num_bytes: Array, gpu: Gpu
) -> None:
    """Raises ValueError for the first time shorter than it can be, or where most times together are far too long (some
    tables have rows that are); `where` names a row."""
    roof_s = np.maximum(flops / gpu.peak_flops, num_bytes / (CACHED * gpu.bandwidth_bytes_per_s))
    _refuse_first(where, what, seconds, roof_s, "less than", (seconds + RESOLUTION_S) * ABOVE_ROOF < roof_s)
    ratios = seconds / (roof_s + LAUNCH_S)
    if len(ratios) and float(np.median(ratios)) > 0.5 * FAR:
        _refuse_first(where, what, seconds, roof_s, f"over {0.5 * FAR:g} times", ratios > 0.5 * FAR)


def _refuse_first(
    where: Callable[[int], str], what: str, seconds: Array, roof_s: Array, how: str, is_wrong: np.ndarray
) -> None:
    if is_wrong.any():
        i = int(np.argmax(is_wrong))
        raise ValueError(
            f"{where(i)}: {what} takes {1e3 * seconds[i]:.4g} ms, {how} the {1e3 * roof_s[i]:.3g} ms of the datasheet; "
            "are times not in milliseconds, or columns swapped?"
        )
