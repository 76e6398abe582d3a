"""Reads one folder of LLMServingSim's kernel times of one layer, checked: columns, units, signs, shapes, plausibility.

Every defect is a ValueError that names its place. Times are microseconds in the files and seconds here.
The profiler (casys-kaist/LLMServingSim, profiler/core/hooks/batch.py) gives vLLM requests of so many new tokens after
a history: a decode row of kv_decode reads kv_decode + 1 tokens of KV, its own included, and RTX 4090's jump to split
kernels at kv_decode 128 rather than 129 confirms it. A chunk of prefill_chunk follows a history of kv_prefill.
Not here: what is made of them (calibrate.importers.llmservingsim.layer_tables).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrate.fit.fit_errors import Array
from calibrate.importers.columns import CsvTable
from sim.costs.datasheets import Datasheet, datasheet_of_device
from sim.costs.passes import layer_kv_bytes
from sim.costs.shapes import ModelShape
from sim.files.json_values import Json
from sim.files.yaml_values import read_yaml

REPOSITORY, LICENCE = "casys-kaist/LLMServingSim", "MIT"
GEMMS = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
ATTENTION_GEMMS = GEMMS[:2]
"""GEMMs that a layer with experts has here: router, experts and their activation are in moe.csv."""
ELEMENTWISE = {"layernorm": 2, "rotary_emb": 1, "act_fn": 1}
"""Other kernels of a layer, and how often each runs."""
OPTIONAL = {"qk_norm": 1}
"""Layers that only some models have (Qwen3). The published tp2 file holds the mean of two norms over twice a device's
heads, which is the sum of both over its own."""
ONCE = ("embedding", "final_layernorm")
"""Once per pass, by its tokens."""
ATTENTION_COLUMNS = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
FASTER_THAN_POSSIBLE = 1.3
"""Times the datasheet's FLOP/s or bandwidth: more than any kernel, and less than models of other sizes imply."""
SLOWER_THAN_LIKELY = 0.25
"""Share of the datasheet's FLOP/s and of its bandwidth: less than any model of 0.5 B parameters or more reaches of
both."""


class Attention(NamedTuple):
    """Attention of one layer, one entry per measured point; `context` is KV that a row reads, its own included."""

    chunk: NDArray[np.int64]
    history: NDArray[np.int64]
    rows: NDArray[np.int64]
    context: NDArray[np.int64]
    seconds: Array

    def where(self, use: NDArray[np.bool_]) -> Attention:
        chunk, history, rows, context, seconds = self
        return Attention(chunk[use], history[use], rows[use], context[use], seconds[use])

    def by_rows(self) -> dict[tuple[int, int], float]:
        """(rows, context) -> seconds."""
        return _by_shape(self.rows, self.context, self.seconds)

    def by_chunk(self) -> dict[tuple[int, int], float]:
        """(chunk, history) -> seconds."""
        return _by_shape(self.chunk, self.history, self.seconds)

    def decode(self) -> Attention:
        """Rows alone."""
        return self.where((self.chunk == 0) & (self.rows > 0))

    def prefill(self) -> Attention:
        """A chunk alone."""
        return self.where((self.chunk > 0) & (self.rows == 0))

    def mixed(self) -> Attention:
        """Rows beside a chunk."""
        return self.where((self.chunk > 0) & (self.rows > 0))


def _by_shape(first: NDArray[np.int64], second: NDArray[np.int64], seconds: Array) -> dict[tuple[int, int], float]:
    columns = (first.tolist(), second.tolist(), seconds.tolist())
    return {(one, other): value for one, other, value in zip(*columns, strict=True)}


class LayerFiles(NamedTuple):
    """One model on one device of `tensor_parallel`."""

    tensor_parallel: int
    engine_version: str | None
    """vLLM's, from meta.yaml beside the folder; None where there is none."""
    notes: tuple[str, ...]
    """What the folder does not say."""
    dense: CsvTable
    per_sequence: CsvTable
    attention: Attention
    skew: CsvTable | None
    experts: CsvTable | None = None
    """A layer's experts by tokens and how many experts these activate; None for a dense model."""

    @property
    def gemms(self) -> tuple[str, ...]:
        return GEMMS if self.experts is None else ATTENTION_GEMMS

    @property
    def layer(self) -> dict[str, int]:
        """A layer's kernels in dense.csv, and how often each runs."""
        times = dict.fromkeys(self.gemms, 1) | ELEMENTWISE | self.optional
        if self.experts is not None:
            del times["act_fn"]
        return times

    def layer_s(self, times: dict[str, int]) -> tuple[NDArray[np.int64], Array]:
        """Token counts and the seconds of all named layers together, each so many times."""
        return _sum(self.dense, "tokens", times)

    def head_s(self, times: dict[str, int]) -> tuple[NDArray[np.int64], Array]:
        """The same by sequences."""
        return _sum(self.per_sequence, "sequences", times)

    @property
    def optional(self) -> dict[str, int]:
        """Those of OPTIONAL that the model has."""
        return {name: count for name, count in OPTIONAL.items() if name in self.dense.labels}


def read_layer_files(folder: Path, sheet: Datasheet, shape: ModelShape, tensor_parallel: int) -> LayerFiles:
    """The tables in `folder`, which must be those of `shape` on `sheet`'s GPU, split over `tensor_parallel`."""
    notes = []
    if not (folder / "dense.csv").exists():
        inside = sorted(path.parent.name for path in folder.glob("tp*/dense.csv"))
        hint = f"; its folder {inside[0]!r} has one" if inside else ""
        raise ValueError(f"no table dense.csv in {folder}{hint} (want the folder of one degree, .../bf16/tp1)")
    named = re.fullmatch(r"tp(\d+)", folder.resolve().name)
    if named is None:
        notes.append(f"the folder names no degree, taken as tp{tensor_parallel}")
    elif int(named[1]) != tensor_parallel:
        raise ValueError(f"--tp {tensor_parallel}: {folder.name} holds shards of --tp {named[1]}")
    meta = _read_meta(folder.resolve().parent / "meta.yaml")
    if meta is None:
        notes.append("no meta.yaml beside the folder, GPU and engine version unchecked")
    else:
        _check_meta(meta, sheet, shape)
    dense = CsvTable.read(folder / "dense.csv", ("tokens", "time_us"), label="layer")
    per_sequence = CsvTable.read(folder / "per_sequence.csv", ("sequences", "time_us"), label="layer")
    attention = _attention(CsvTable.read(folder / "attention.csv", (*ATTENTION_COLUMNS, "time_us")))
    skew = None
    if (folder / "skew.csv").exists():
        skew = CsvTable.read(folder / "skew.csv", ("n", "kv_mean", "t_mean_us", "t_skew_us"), label="regime")
    experts = None
    if shape.experts is not None:
        experts = CsvTable.read(folder / "moe.csv", ("tokens", "activated_experts", "time_us"))
    elif (folder / "moe.csv").exists():
        raise ValueError(f"{folder.name}: moe.csv is a mixture of experts, and --target {shape.name!r} has none")
    version = None if meta is None else meta.get("vllm_version")
    files = LayerFiles(
        tensor_parallel=tensor_parallel,
        engine_version=None if version is None else str(version),
        notes=tuple(notes),
        dense=dense,
        per_sequence=per_sequence,
        attention=attention,
        skew=skew,
        experts=experts,
    )
    _check_plausible(files, sheet, shape)
    most, longest = int(dense.column("tokens").max()), int(attention.chunk.max())
    if 0 < longest < 0.5 * most:
        raise ValueError(
            f"attention.csv: chunks up to {longest} tokens, dense.csv up to {most}; is the file cut short?"
        )
    return files


def _attention(table: CsvTable) -> Attention:
    chunk, history, rows, context = (table.column(name).astype(np.int64) for name in ATTENTION_COLUMNS)
    points = np.stack([chunk, history, rows, context])
    _check_shapes(table.where, points)
    return Attention(chunk, history, rows, np.where(rows > 0, context + 1, 0), 1e-6 * table.column("time_us"))


def _check_shapes(where: str, points: NDArray[np.int64]) -> None:
    chunk, history, rows, context = points
    for what, wrong in (
        ("history without a chunk", (chunk == 0) & (history > 0)),
        ("context without rows", (rows == 0) & (context > 0)),
        ("rows without context", (rows > 0) & (context == 0)),
        ("neither a chunk nor rows", (chunk == 0) & (rows == 0)),
    ):
        if wrong.any():
            raise ValueError(f"{where}, line {int(np.argmax(wrong)) + 2}: {what}; are columns swapped?")
    if rows.max() > context.max() > 0:
        raise ValueError(f"{where}: n_decode up to {rows.max()}, kv_decode to {context.max()}; are columns swapped?")
    _, first, counts = np.unique(points, axis=1, return_index=True, return_counts=True)
    if (counts > 1).any():
        place = int(first[np.argmax(counts > 1)])
        raise ValueError(f"{where}, line {place + 2}: the point {tuple(points[:, place].tolist())} is there twice")


def _sum(table: CsvTable, axis: str, times: dict[str, int]) -> tuple[NDArray[np.int64], Array]:
    total: Array | None = None
    counts: NDArray[np.int64] | None = None
    for name, number in times.items():
        part = table.of(name)
        order = np.argsort(part.column(axis))
        own = part.column(axis)[order].astype(np.int64)
        if own[0] < 1 or (np.diff(own) == 0).any():
            raise ValueError(f"{table.where}: {axis} of {name!r} must be at least 1, and each there once")
        if counts is not None and not np.array_equal(counts, own):
            raise ValueError(f"{table.where}: {name!r} has other {axis} counts than the layers before it")
        seconds = number * 1e-6 * part.column("time_us")[order]
        counts, total = own, seconds if total is None else total + seconds
    assert counts is not None
    assert total is not None
    if counts[0] != 1:
        raise ValueError(f"{table.where}: {axis} of {next(iter(times))!r} must begin with 1, got {counts[0]}")
    return counts, total


def _read_meta(path: Path) -> dict[str, Json] | None:
    if not path.exists():
        return None
    meta = read_yaml(path, "tables' record")
    if not isinstance(meta, dict):
        raise ValueError(f"{path.name}: must hold keys such as vllm_version and gpu")
    return meta


def _check_meta(meta: dict[str, Json], sheet: Datasheet, shape: ModelShape) -> None:
    """The GPU that was profiled, and sizes of the model: those of the last degree that was profiled, sharded."""
    device = meta.get("gpu")
    if isinstance(device, str):
        profiled = datasheet_of_device(device)
        if profiled is not None and profiled.gpu.name != sheet.gpu.name:
            raise ValueError(f"--gpu {sheet.gpu.name!r}: meta.yaml says {device!r}, which is {profiled.gpu.name!r}")
    engine = meta.get("engine_effective")
    sizes = engine.get("hf_overrides") if isinstance(engine, dict) else None
    listed = meta.get("tp_degrees")
    degrees = [degree for degree in listed if isinstance(degree, int)] if isinstance(listed, list) else []
    if not isinstance(sizes, dict) or not degrees:
        return
    for key, whole in (("intermediate_size", shape.intermediate), ("num_attention_heads", shape.heads)):
        shard = sizes.get(key)
        if isinstance(shard, int) and whole not in [shard * degree for degree in degrees]:
            raise ValueError(
                f"--target {shape.name!r}: its {key} is {whole}, but meta.yaml's {meta.get('model')} has {shard} "
                f"on one of {max(degrees)} devices"
            )


def _check_plausible(files: LayerFiles, sheet: Datasheet, shape: ModelShape) -> None:
    """Raise ValueError where the model would need a faster GPU than there is, or could do with a far slower one."""
    gpu, tensor_parallel = sheet.gpu, files.tensor_parallel
    tokens, seconds = files.layer_s(dict.fromkeys(files.gemms, 1))
    weights = sum(columns * depth for columns, depth in shape.gemms(tensor_parallel)[: len(files.gemms)])
    compute = 2.0 * weights * tokens[-1] / (seconds[-1] * gpu.peak_flops)
    bandwidth = weights * shape.dtype_bytes / (seconds[0] * gpu.bandwidth_bytes_per_s)
    decode = files.attention.decode()
    read_bytes = layer_kv_bytes(shape, tensor_parallel) * decode.rows * decode.context
    attended = 0.0
    if len(read_bytes):
        longest = int(np.argmax(read_bytes))
        attended = float(read_bytes[longest] / (decode.seconds[longest] * gpu.bandwidth_bytes_per_s))
    suspect = f"is --target {shape.name!r} or --tp {tensor_parallel} or --gpu {gpu.name!r} wrong, or the unit?"
    for what, share in (
        (f"dense.csv: GEMMs of {tokens[-1]} tokens run at {compute:.2g} times the peak FLOP/s", compute),
        (f"dense.csv: GEMMs of 1 token run at {bandwidth:.2g} times the peak bandwidth", bandwidth),
        (f"attention.csv: the largest decode runs at {attended:.2g} times the peak bandwidth", attended),
    ):
        if share > FASTER_THAN_POSSIBLE:
            raise ValueError(f"{what}; {suspect}")
    if max(compute, bandwidth) < SLOWER_THAN_LIKELY:
        raise ValueError(
            f"dense.csv: GEMMs run at {compute:.2g} times the peak FLOP/s and {bandwidth:.2g} times the peak "
            f"bandwidth; {suspect}"
        )
