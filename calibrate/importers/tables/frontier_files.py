"""Reads Frontier's attention*.csv into points by regime: decode rows, chunks with history, mixed batches; all checked.

Rows count only where they have the target's heads on one device. KERNEL_ONLY rows are taken alone where there are any;
files older than that column are kernel times if their reshapes, which launch no kernel, take none.
Not here: columns and numbers (calibrate.importers.tables.time_stats), the fits (calibrate.importers.tables.frontier).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from calibrate.fit.errors import Array
from calibrate.importers.roofs import check_each
from calibrate.importers.tables.time_stats import TimeStats, check_positive, files_of, read_time_stats
from sim.costs.passes import layer_kv_bytes
from sim.costs.profile import Gpu
from sim.costs.shapes import ModelShape

OPERATIONS = ("attn_prefill", "attn_decode", "attn_kv_cache_save", "attn_output_reshape")
HEADS = ("n_q_head", "n_kv_head", "n_embd", "num_tensor_parallel_workers")
COUNTS = (*HEADS, "batch_size", "prefill_chunk_size", "kv_cache_size")
LISTS = ("prefill_seq_lens", "prefill_kv_cache_sizes", "decode_kv_cache_sizes")
MIXED = "true_mixed"
WRITE_SLOWNESS = 10.0
WRITE_LAUNCH_S = 2e-5
"""A KV write that takes longer than this and WRITE_SLOWNESS times its bytes at the peak bandwidth together is no
engine's: the published A800 table copies token by token, at 20 GB/s, and would triple the time of a long prompt."""


class DecodePoints(NamedTuple):
    """`rows` with one query each, every one on `context_tokens`: seconds of one layer [points]."""

    rows: Array
    context_tokens: Array
    seconds: Array


class ChunkPoints(NamedTuple):
    """`sequences` chunks of `tokens` after `history_tokens` each: seconds of one layer [points]."""

    sequences: Array
    tokens: Array
    history_tokens: Array
    seconds: Array


class MixedBatch(NamedTuple):
    """Chunks (new tokens, history) beside decode rows by context; `seconds` of both kernels of one layer."""

    chunks: tuple[tuple[int, int], ...]
    contexts: tuple[int, ...]
    seconds: float


class AttentionPoints(NamedTuple):
    files: list[str]
    backend: str
    is_kernel_only: bool
    lacks_chunk_write: bool
    """Whether the KV write of chunks was left out as no engine's."""
    decode: DecodePoints
    chunks: ChunkPoints
    mixed: list[MixedBatch]


def read_points(path: Path, gpu: Gpu, shape: ModelShape) -> AttentionPoints:
    """Medians over repeated points. Raises ValueError naming the file and what is wrong with it."""
    files = files_of(path, "attention*.csv", gpu.name)
    folders = sorted({str(file.parent) for file in files})
    if len(folders) > 1:
        raise ValueError(f"{path}: attention*.csv lie in {len(folders)} folders, {folders[0]} and others; name one")
    tables = [_own_rows(file, shape) for file in files]
    tables = [table for table in tables if len(table.lines)]
    if not tables:
        raise ValueError(
            f"{path}: no rows of {shape.heads} heads on {shape.kv_heads} and hidden {shape.hidden} ({shape.name}) on "
            "one device"
        )
    is_kernel_only = any(_kernel_only(table).any() for table in tables)
    if is_kernel_only:
        tables = [table.rows(_kernel_only(table)) for table in tables]
        tables = [table for table in tables if len(table.lines)]
    decode, chunks, mixed, write_is_slow = [], [], [], []
    for table in tables:
        is_mixed = np.array([mode == MIXED for mode in table.texts["mode"]])
        is_prefill = np.array([text == "True" for text in table.texts["is_prefill"]])
        decode.append(_decode(table.rows(~is_mixed & ~is_prefill), gpu, shape))
        found, is_slow = _chunks(table.rows(~is_mixed & is_prefill), gpu, shape)
        chunks.append(found)
        write_is_slow.append(is_slow)
        mixed += _mixed(table.rows(is_mixed))
    backends = {backend.rpartition(".")[2] for table in tables for backend in table.texts["attention_backend"]}
    if len(backends) > 1:
        raise ValueError(f"{path}: several attention backends, {', '.join(sorted(backends))}; name one file")
    return AttentionPoints(
        [table.where for table in tables],
        backends.pop(),
        is_kernel_only,
        any(write_is_slow),
        DecodePoints(*_medians(decode)),
        ChunkPoints(*_medians(chunks)),
        mixed,
    )


def _own_rows(file: Path, shape: ModelShape) -> TimeStats:
    texts = ("is_prefill", "attention_backend")
    table = read_time_stats(file, OPERATIONS, COUNTS, texts, ("measurement_type", "mode", *LISTS))
    known = ("True", "False")
    wrong = [i for i, text in enumerate(table.texts["is_prefill"]) if text not in known]
    if wrong:
        text = table.texts["is_prefill"][wrong[0]]
        raise ValueError(f"{file.name}, line {table.lines[wrong[0]]}: is_prefill={text!r} must be True or False")
    wanted = (shape.heads, shape.kv_heads, shape.hidden, 1)
    use = np.all([table.counts[name] == value for name, value in zip(HEADS, wanted, strict=True)], axis=0)
    return table.rows(use)


def _kernel_only(table: TimeStats) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    if any(table.texts["measurement_type"]):
        return np.array([kind == "KERNEL_ONLY" for kind in table.texts["measurement_type"]])
    has_gaps = bool((table.seconds["attn_output_reshape"] > 0.0).any())
    return np.full(len(table.lines), not has_gaps)


def _decode(table: TimeStats, gpu: Gpu, shape: ModelShape) -> DecodePoints:
    rows, context = table.counts["batch_size"], table.counts["kv_cache_size"]
    check_positive(table, ("attn_decode",))
    _check_sizes(table, ("batch_size", "kv_cache_size"))
    read = rows * context * layer_kv_bytes(shape, 1)
    check_each(table.place, "attn_decode", table.seconds["attn_decode"], 0.0 * read, read, gpu)
    return DecodePoints(rows, context, table.seconds["attn_decode"] + table.seconds["attn_kv_cache_save"])


def _chunks(table: TimeStats, gpu: Gpu, shape: ModelShape) -> tuple[ChunkPoints, bool]:
    """The points, and whether their KV write was left out."""
    sequences, tokens = table.counts["batch_size"], table.counts["prefill_chunk_size"]
    history, seconds = table.counts["kv_cache_size"], table.seconds["attn_prefill"]
    check_positive(table, ("attn_prefill",))
    _check_sizes(table, ("batch_size", "prefill_chunk_size"))
    flops = 4.0 * shape.heads * shape.head_dim * sequences * tokens * (history + 0.5 * tokens)
    read = sequences * (history + tokens) * layer_kv_bytes(shape, 1)
    check_each(table.place, "attn_prefill", seconds, flops, read, gpu)
    write_s = sequences * tokens * layer_kv_bytes(shape, 1) / gpu.bandwidth_bytes_per_s
    is_slow = bool((table.seconds["attn_kv_cache_save"] > WRITE_SLOWNESS * write_s + WRITE_LAUNCH_S).any())
    if not is_slow:
        seconds = seconds + table.seconds["attn_kv_cache_save"]
    return ChunkPoints(sequences, tokens, history, seconds), is_slow


def _mixed(table: TimeStats) -> list[MixedBatch]:
    batches = []
    for i, line in enumerate(table.lines):
        new, history, contexts = (_list(table, name, i) for name in LISTS)
        if len(new) != len(history):
            raise ValueError(f"{table.where}, line {line}: {LISTS[0]} and {LISTS[1]} must be of one length")
        seconds = sum(float(table.seconds[operation][i]) for operation in OPERATIONS[:3])
        batches.append(MixedBatch(tuple(zip(new, history, strict=True)), tuple(contexts), seconds))
    return batches


def _list(table: TimeStats, name: str, index: int) -> list[int]:
    text = table.texts[name][index]
    try:
        values = json.loads(text)
        return [int(value) for value in values]
    except (ValueError, TypeError, RecursionError, OverflowError):
        raise ValueError(
            f"{table.where}, line {table.lines[index]}: {name}={text!r} must be a list of counts"
        ) from None


def _check_sizes(table: TimeStats, names: Sequence[str]) -> None:
    for name in names:
        none = table.counts[name] < 1
        if none.any():
            line = table.lines[int(np.argmax(none))]
            raise ValueError(f"{table.where}, line {line}: {name}=0 must be at least 1; are columns swapped?")


def _medians(parts: Sequence[tuple[Array, ...]]) -> list[Array]:
    """Columns of all parts together, one entry for each combination of all columns but the last, which is time."""
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    if not len(columns[0]):
        return columns
    shapes, place = np.unique(np.stack(columns[:-1], axis=1), axis=0, return_inverse=True)
    order = np.argsort(place, kind="stable")
    groups = np.split(columns[-1][order], np.cumsum(np.bincount(place.ravel()))[:-1])
    return [*shapes.T, np.array([float(np.median(group)) for group in groups])]
