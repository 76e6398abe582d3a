"""aiconfigurator's parquet tables of one GPU (ai-dynamo/aiconfigurator, Apache-2.0), checked: columns, units, missing
and negative numbers.

A folder holds GPU folders of tables and a YAML of each GPU's datasheet, as `systems/` there does; a table's file has
the path `gemm/vllm/0.14.0/gemm_perf.parquet`, or that path with `__` for every `/`.
Every defect is a ValueError naming the file. Latencies are milliseconds in the files and seconds here.
Not here: what is made of them (calibrate.importers.aiconfigurator.lookups).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from calibrate.fit.fit_errors import Array
from sim.costs.profile import Gpu
from sim.costs.shapes import ModelShape
from sim.files.arrow_tables import read_parquet
from sim.files.json_values import convert, value_at
from sim.files.yaml_values import read_yaml

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

ATTENTION = ("batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim")
LATENT = ("batch_size", "isl", "step", "num_heads", "kv_cache_dtype")
SPARSE = ("batch_size", "isl", "step", "num_heads", "tp_size", "gemm_type", "kv_cache_dtype", "op_name", "architecture")
LAYOUT = ("hidden_size", "inter_size", "topk", "num_experts")
SPLIT = ("moe_tp_size", "moe_ep_size")
STATES = (
    "phase", "kernel_source", "batch_size", "seq_len", "num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim",
)  # fmt: skip
TABLES = {
    "gemm_perf": ("gemm", ("gemm_dtype", "m", "n", "k")),
    "context_attention_perf": ("attention", (*ATTENTION, "attn_dtype", "kv_cache_dtype")),
    "generation_attention_perf": ("attention", (*ATTENTION, "attn_dtype", "kv_cache_dtype")),
    "context_mla_perf": ("mla", LATENT),
    "generation_mla_perf": ("mla", LATENT),
    **{
        f"{kind}_{phase}_module_perf": ("msa" if kind == "msa" else "sparse_attention", SPARSE)
        for kind in ("dsa", "dsv4_csa", "dsv4_hca", "msa")
        for phase in ("context", "generation")
    },
    "gdn_perf": ("linear_attention", STATES),
    "kda_perf": ("kda", STATES),
    "mhc_module_perf": ("mhc", ("op_name", "num_tokens", "hc_mult", "hidden_size")),
    "moe_perf": ("moe", ("moe_dtype", "num_tokens", *LAYOUT, *SPLIT, "distribution")),
    "custom_allreduce_perf": ("comm", ("num_gpus", "message_size")),
    "nccl_perf": ("comm", ("num_gpus", "message_size", "op_name", "nccl_dtype", "kernel_source")),
    "computescale_perf": ("quantize", ("m", "k", "quant_dtype")),
    "scale_matrix_perf": ("quantize", ("m", "k", "quant_dtype")),
}
"""Table -> its folder, and the columns that it needs beside its latency."""
TEXT_ENDINGS = ("dtype", "_type", "_name", "_source", "phase", "backend", "distribution", "architecture")
"""Endings of the names of columns that hold texts; all others hold numbers."""
OPTIONAL = ("window_size", "backend")
"""Columns that only some versions of a table have."""
NEWEST = (10**9,)
"""A version beyond all that are released."""
MIN_BANDWIDTH, MIN_FLOPS = 1e10, 1e12
"""Bytes/s and FLOP/s: no GPU has less; what is below is in GB/s and TFLOP/s."""
MAX_SEQUENCES = 16384
"""Most sequences in a pass of any published table; contexts are longer."""
ABOVE_ROOF = 1.05
"""A kernel may seem this much faster than the compute roof: clocks boost."""
RESOLUTION_S = 1e-6
"""Resolution of the coarsest published tables: a time may be rounded down by as much."""
CACHED = 4.0
"""Times faster than from memory that reads from the L2 cache may be: three is the most in any published table here."""
FAR = 50.0
"""Kernels whose median takes so many times their roofs are in other units. Twice is usual, with rows that go astray."""
ALONE = 0.5
"""A column or depth with at most this share of the pairs that others have is no part of a table's grid."""
LAUNCH_S = 1e-5
"""Added to the roofs before: small kernels take their launch."""
KV_WINDOW = (0.1, 1.2)
"""Decode rows whose KV is between these multiples of the L2 cache are left out: the tables replay a batch without
flushing L2, so they are up to twice too fast there. Below, KV traffic hardly matters; above, it misses L2 anyway."""
UNBOUND_SHARE = 0.5
"""L2 is about twice as fast as memory; a kernel that reads KV at less than half the memory's rate waits for something
else, as a few rows of long contexts do for their few thread blocks."""


class NotMeasured(ValueError):
    """There is no such table, or no such row in it; a defect of a table is another ValueError."""


class GemmTable(NamedTuple):
    """`seconds` [tokens, columns, depths], nan where nothing was measured; axes rise.

    Matrices between grid points are interpolated linearly in columns and depth, in which latency is close to linear
    (leaving a grid point out costs 6-9 %).

    >>> axes = np.array([1, 2]), np.array([10, 30]), np.array([100, 300])
    >>> times = GemmTable(*axes, np.array([[[1.0, np.nan], [3.0, 6.0]], [[1.0, 2.0], [3.0, 6.0]]]))
    >>> times.at(20, 100).tolist(), times.at(30, 200).tolist(), times.at(60, 150).tolist()
    ([2.0, 2.0], [4.5, 4.5], [7.5, 7.5])
    >>> times.at(20, 200).tolist()  # A hole counts only where it weighs.
    [nan, 3.0]
    """

    tokens: NDArray[np.int64]
    columns: NDArray[np.int64]
    depths: NDArray[np.int64]
    seconds: Array

    def at(self, columns: int, depth: int) -> Array:
        """Seconds [tokens] of a [depth, columns] matrix, nan in holes; more columns cost in proportion."""
        from scipy.interpolate import RegularGridInterpolator

        most = int(self.columns[-1])
        if columns > most:
            return self.at(most, depth) * (columns / most)
        # Holes apart from times: at a neighbour of weight 0 nan would count, as 0 times nan is nan.
        is_hole = np.isnan(self.seconds)
        values = np.stack([np.where(is_hole, 0.0, self.seconds), is_hole], axis=-1)
        grid = RegularGridInterpolator(
            (self.columns, self.depths), np.moveaxis(values, 0, -1), bounds_error=False, fill_value=None
        )
        seconds, holes = grid((columns, depth))
        return np.asarray(np.where(holes != 0.0, np.nan, seconds))

    def filled(self) -> GemmTable:
        """Columns and depths of a model's matrices beside the grid have few of the others: interpolated in the grid."""
        is_measured = np.isfinite(self.seconds).any(axis=0)
        by_column, by_depth = is_measured.mean(axis=1), is_measured.mean(axis=0)
        wide, deep = by_column > ALONE * by_column.max(), by_depth > ALONE * by_depth.max()
        grid = GemmTable(self.tokens, self.columns[wide], self.depths[deep], self.seconds[:, wide][:, :, deep])
        seconds = self.seconds.copy()
        for column, depth in np.argwhere(~is_measured & ~np.outer(wide, deep)):
            # Narrower than the grid costs what its narrowest does: a line drawn further would end below zero.
            inside = max(self.columns[column], grid.columns[0]), max(self.depths[depth], grid.depths[0])
            seconds[:, column, depth] = grid.at(int(inside[0]), int(inside[1]))
        return self._replace(seconds=seconds)


class AttentionTable(NamedTuple):
    """Attention latencies, one entry per measured point; `tokens` per sequence: the prompt, or the context read."""

    sequences: Array
    tokens: Array
    heads: Array
    kv_heads: Array
    head_dim: Array
    seconds: Array

    def where(self, use: NDArray[np.bool_]) -> AttentionTable:
        return AttentionTable(*(column[use] for column in self))

    def of(self, shape: ModelShape, tensor_parallel: int) -> NDArray[np.bool_]:
        """Points with `shape`'s heads on one device. Half the heads at 128 stand for a missing head dimension of 64."""
        heads = shape.heads // tensor_parallel
        kv_heads = max(1, shape.kv_heads // tensor_parallel)
        exact = self._has(heads, kv_heads, shape.head_dim)
        if not exact.any() and shape.head_dim == 64 and kv_heads % 2 == 0:
            return self._has(heads // 2, kv_heads // 2, 128)
        return exact

    def _has(self, heads: int, kv_heads: int, head_dim: int) -> NDArray[np.bool_]:
        use: NDArray[np.bool_] = (self.heads == heads) & (self.kv_heads == kv_heads) & (self.head_dim == head_dim)
        return use

    def outside_l2(self, l2_bytes: float, bandwidth_bytes_per_s: float) -> NDArray[np.bool_]:
        """Decode points that the L2 cache does not flatter, by KV_WINDOW and UNBOUND_SHARE."""
        kv_bytes = self.sequences * self.tokens * self.kv_heads * self.head_dim * 4.0
        is_outside = (kv_bytes < KV_WINDOW[0] * l2_bytes) | (kv_bytes > KV_WINDOW[1] * l2_bytes)
        return is_outside | (kv_bytes < UNBOUND_SHARE * bandwidth_bytes_per_s * self.seconds)


class Sheet(msgspec.Struct):
    """A datasheet's lines on its GPU; numbers may be spelt as Python spells them."""

    mem_capacity: int | float | str
    bfloat16_tc_flops: int | float | str
    mem_bw: int | float | str


Slots = dict[str, dict[str, str | None]]
"""Engine -> slot -> version; in the slot `current` all of an engine's tables were measured anew."""


class QueryVersions(msgspec.Struct):
    """A publisher's list of versions; `overrides` by GPU folder."""

    defaults: Slots
    overrides: dict[str, Slots] = {}


class KernelFiles:
    """The tables of one GPU below `path`; `used` collects the engine and version of each one read.

    Of several versions of a table the first is read that has what is wanted: the newest that is no newer than the
    engine's in `versions`, then older ones, then newer ones, the nearest first; without a version the newest first.
    An engine older than the version that the publisher calls current gets that one: what is older was left to fill it.
    Builds of developers (`dev`) come last: such a table holds one model's kernels.
    """

    def __init__(self, path: Path, gpu: str, versions: Mapping[str, str | None] | None = None) -> None:
        folder = gpu.replace("-", "_")
        folders = [each for each in (path / folder, path / "data" / folder) if each.is_dir()]
        if not folders:
            raise ValueError(f"{path}: no folder {folder!r} with kernel tables of {gpu!r}")
        self._folder = folders[0]
        self._frames: dict[Path, pd.DataFrame] = {}
        self.used: list[str] = []
        self.gpu = _datasheet(path / f"{folder}.yaml", gpu)
        current = _current(path / "query_versions.yaml", folder)
        given = (versions or {}).items()
        self._versions = {each: max(numbers(it), current.get(each, ())) for each, it in given if it is not None}

    def gemms(self, engine: str, name: str) -> Iterator[GemmTable]:
        """GEMMs with weights in `name`, as gemm_dtype has it, of every version; any shapes may be missing."""
        return (self._gemms(frame, name) for frame in self.versions(engine, "gemm_perf", gemm_dtype=name))

    def _gemms(self, frame: pd.DataFrame, name: str) -> GemmTable:
        m, n, k = (frame[column].to_numpy(dtype=float) for column in ("m", "n", "k"))
        if name == "bfloat16":
            self._check("gemm_perf", frame, 2.0 * m * n * k, 2.0 * (n * k + m * (n + k)))
        axes = [np.sort(frame[column].unique()) for column in ("m", "n", "k")]
        if min(len(axis) for axis in axes) < 2:
            raise ValueError(f"gemm_perf of {self.gpu.name!r}: m, n and k need at least two values each")
        seconds = np.full([len(axis) for axis in axes], np.nan)
        seconds[tuple(map(np.searchsorted, axes, (m, n, k)))] = seconds_of(frame)
        return GemmTable(axes[0], axes[1], axes[2], seconds).filled()

    def attention(self, engine: str, table: str, kv: str = "bfloat16", window: int = 0) -> AttentionTable:
        """Points with KV in `kv`, as kv_cache_dtype has it, and a sliding window, 0 for none."""
        frame = self.rows(engine, table, attn_dtype="bfloat16", kv_cache_dtype=kv)
        if window or "window_size" in frame:
            frame = chosen(frame, window_size=window)
        batch, queries, history, heads, kv_heads, head_dim = frame[list(ATTENTION)].to_numpy(dtype=float).T
        if kv == "bfloat16" and not window:
            if batch.max() > MAX_SEQUENCES:
                raise ValueError(
                    f"{table} of {self.gpu.name!r}: batch_size={batch.max():g} must be at most {MAX_SEQUENCES}. Are "
                    "columns swapped?"
                )
            flops = 4.0 * heads * head_dim * batch * queries * (history + 0.5 * queries)
            self._check(table, frame, flops, 4.0 * batch * (queries + history) * kv_heads * head_dim)
        return AttentionTable(batch, queries + history, heads, kv_heads, head_dim, seconds_of(frame))

    def _check(self, table: str, frame: pd.DataFrame, flops: Array, num_bytes: Array) -> None:
        """Raises ValueError for the first time shorter than it can be, or where most times are far too long."""
        seconds, gpu = seconds_of(frame), self.gpu
        roof_s = np.maximum(flops / gpu.peak_flops, num_bytes / (CACHED * gpu.bandwidth_bytes_per_s))
        is_short = (seconds + RESOLUTION_S) * ABOVE_ROOF < roof_s
        is_long = seconds / (roof_s + LAUNCH_S) > FAR
        if np.median(seconds / (roof_s + LAUNCH_S)) <= FAR:
            is_long[:] = False
        if (is_short | is_long).any():
            i = int(np.argmax(is_short if is_short.any() else is_long))
            how = "less than" if is_short.any() else f"over {FAR:g} times"
            raise ValueError(
                f"{table} of {gpu.name!r}, row {frame.index[i]}: {1e3 * seconds[i]:.4g} ms, {how} the "
                f"{1e3 * roof_s[i]:.3g} ms of the datasheet. Are times not in milliseconds, or columns swapped?"
            )

    def rows(self, engine: str, table: str, **wanted: object) -> pd.DataFrame:
        """Rows of the nearest version that has the `wanted` values. Raises NotMeasured, or ValueError."""
        return next(self.versions(engine, table, **wanted))

    def versions(self, engine: str, table: str, **wanted: object) -> Iterator[pd.DataFrame]:
        """`rows` of every version that has some, the nearest first. The last that is asked for counts as read."""
        lacking = NotMeasured(f"{self._folder.name}: no table {TABLES[table][0]}/{engine}/VERSION/{table}.parquet")
        is_measured = False
        for path, version in self._paths(engine, table):
            if path not in self._frames:
                self._frames[path] = _read(path, TABLES[table][1])
            try:
                rows = chosen(self._frames[path], **wanted)
            except NotMeasured as error:
                lacking = error
                continue
            is_measured = True
            self.used.append(f"{engine} {version}")
            yield rows
            self.used.remove(f"{engine} {version}")
        if not is_measured:
            raise lacking

    def _paths(self, engine: str, table: str) -> list[tuple[Path, str]]:
        group, _ = TABLES[table]
        paths = {}
        for path in self._folder.rglob("*.parquet"):
            parts = str(path.relative_to(self._folder).with_suffix("")).replace("/", "__").split("__")
            if len(parts) == 4 and (parts[0], parts[1], parts[3]) == (group, engine, table):
                paths[numbers(parts[2])] = (path, parts[2])
        wanted = self._versions.get(engine, NEWEST)
        newer = sorted(version for version in paths if version[: len(wanted)] > wanted)
        return [paths[version] for version in (*sorted(paths.keys() - newer, reverse=True), *newer)]


def chosen(frame: pd.DataFrame, **wanted: object) -> pd.DataFrame:
    """The rows with these values. Raises NotMeasured where there are none."""
    for column, value in wanted.items():
        frame = frame[frame[column] == value] if column in frame else frame[:0]
    if frame.empty:
        raise NotMeasured(f"no rows with {', '.join(f'{column} {value!r}' for column, value in wanted.items())}")
    return frame


def seconds_of(frame: pd.DataFrame) -> Array:
    return np.asarray(frame["latency"].to_numpy(dtype=float) * 1e-3)


def numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version, in order: 1.3.0rc20 is older than 1.3.1; a developer's build is beyond NEWEST."""
    beyond = (NEWEST[0] + 1,) if "dev" in version else ()
    return *beyond, *(int(number) for number in re.findall(r"\d+", version)[:4])


def _current(path: Path, folder: str) -> dict[str, tuple[int, ...]]:
    """Current version of each engine's tables; none where no file says it."""
    if not path.is_file():
        return {}
    listed = convert(read_yaml(path, "versions of tables"), QueryVersions, path.name)
    slots = listed.defaults | listed.overrides.get(folder, {})
    return {engine: numbers(version) for engine, slot in slots.items() if (version := slot.get("current")) is not None}


def _datasheet(path: Path, gpu: str) -> Gpu:
    try:
        sheet = convert(value_at(read_yaml(path, "datasheet"), "gpu"), Sheet, "gpu")
        read = Gpu(
            name=gpu,
            memory_bytes=int(sheet.mem_capacity),
            peak_flops=float(sheet.bfloat16_tc_flops),
            bandwidth_bytes_per_s=float(sheet.mem_bw),
        )
    except ValueError as error:
        reason = " ".join(str(error).split())
        wanted = "gpu: mem_bw, mem_capacity, bfloat16_tc_flops"
        raise ValueError(f"{path.name}: no datasheet of {gpu!r} ({wanted}): {reason}") from error
    if read.bandwidth_bytes_per_s < MIN_BANDWIDTH or read.peak_flops < MIN_FLOPS:
        raise ValueError(
            f"{path.name}: mem_bw={sheet.mem_bw} and bfloat16_tc_flops={sheet.bfloat16_tc_flops} must be at least "
            f"{MIN_BANDWIDTH:g} bytes/s and {MIN_FLOPS:g} FLOP/s"
        )
    return read


def _read(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    table = read_parquet(path, "table")
    names = table.column_names
    missing = [column for column in (*columns, "latency") if column not in names]
    if missing:
        raise ValueError(f"{path.name}: no column {missing[0]!r}. Columns are {', '.join(names)}")
    for column in (*columns, "latency", *(name for name in OPTIONAL if name in names)):
        _check_type(path.name, column, table.schema.field(column).type)
    frame: pd.DataFrame = table.to_pandas().replace({"kv_cache_dtype": {"fp8_e4m3": "fp8"}})
    known = frame[["latency", *(column for column in columns if not column.endswith(TEXT_ENDINGS))]]
    if not np.isfinite(known.to_numpy(dtype=float)).all():
        raise ValueError(f"{path.name}: a number is missing or not finite")
    if (frame["latency"] <= 0.0).any():
        raise ValueError(f"{path.name}: latency={frame['latency'].min()} ms must be positive")
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
