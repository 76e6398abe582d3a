"""Imports LLMServingSim's kernel profiles (casys-kaist/LLMServingSim, MIT): per-layer times inside a running vLLM.

PATH is the folder of one GPU, model and degree of parallelism: dense.csv, per_sequence.csv, attention.csv. They hold
kernel times of a one-layer model of the full dimensions, so the number of layers and all dimensions come from our
table; the host's constants, which they do not have, are assumed. Times are microseconds in the files.
Not here: the fits (calibrate.fit), aiconfigurator's assumed host constants (aiconfigurator).
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrate.datasheets import Datasheet, datasheet
from calibrate.fit import (
    Array,
    Body,
    DecodeRows,
    PrefillRows,
    body_s,
    decode_rows_s,
    fit_decode_attention,
    fit_gemm,
    fit_prefill_attention,
    kind_error,
    prefill_rows_s,
    relative_error,
    round_constant,
)
from calibrate.importers.aiconfigurator import ASSUMED_HOST
from calibrate.importers.csv_tables import CsvTable
from sim.costs.kernels import CompactKernels, Elementwise, Gemm, Head, Measured, VerifyAttention
from sim.costs.passes import LOGIT_BYTES
from sim.costs.profile import SCHEMA, Gpu, KindError, Overlap, Profile
from sim.models import ModelShape

REPOSITORY, LICENCE = "casys-kaist/LLMServingSim", "MIT"
GEMMS = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
ELEMENTWISE = {"layernorm": 2, "rotary_emb": 1, "act_fn": 1}
"""Other kernels of a layer, and how often each runs."""
ATTENTION_COLUMNS = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
HELD_OUT_IN = 5
MIX_DECODE_SHARE = 0.3
"""The slowdown of decode rows beside a chunk is read off mixed points whose decode part is at least this long."""


class Tables(NamedTuple):
    dense: CsvTable
    per_sequence: CsvTable
    attention: CsvTable


def import_llmservingsim(
    path: str | Path, gpu: str, shape: ModelShape, *, revision: str = "unrecorded revision"
) -> Profile:
    """A profile of `shape` alone on one `gpu`. Raises ValueError naming the table and what is wrong with it."""
    folder, sheet = Path(path), datasheet(gpu)
    tables = Tables(
        CsvTable.read(folder / "dense.csv", ("tokens", "time_us"), label="layer"),
        CsvTable.read(folder / "per_sequence.csv", ("sequences", "time_us"), label="layer"),
        CsvTable.read(folder / "attention.csv", (*ATTENTION_COLUMNS, "time_us")),
    )
    kernels, errors = _fit(tables, sheet, shape)
    return Profile(
        schema=SCHEMA,
        name=f"{gpu}/{shape.name}",
        gpu=sheet.gpu,
        target=shape,
        draft=None,
        kernels=kernels,
        host=ASSUMED_HOST,
        overlap=Overlap(),
        errors=errors,
        source=f"{REPOSITORY}@{revision} ({LICENCE}), kernel times of one layer inside vLLM, eager; compact constants "
        "fitted by lanesim on four fifths of the points, errors on the rest; host constants assumed",
        fingerprint=None,
        date=date.today().isoformat(),
    )


def _fit(tables: Tables, sheet: Datasheet, shape: ModelShape) -> tuple[CompactKernels, dict[str, KindError]]:
    gpu = sheet.gpu
    tokens, gemm_s = _sum(tables.dense, dict.fromkeys(GEMMS, 1))
    held_out = _every_fifth(len(tokens))
    gemms = shape.gemms()
    gemm = fit_gemm([Body(gemms, tokens[~held_out].tolist(), gemm_s[~held_out])], gpu, sheet.multiprocessors)
    body = Body(gemms, tokens[held_out].tolist(), gemm_s[held_out])
    how = f"one fifth of {shape.name}'s own points, not in the fit"
    errors = {"body": kind_error(relative_error(body_s(gemm, gpu, body), body.seconds), f"{how}; GEMMs of a layer")}

    attention = tables.attention
    chunk, history, rows, context = (attention.column(name) for name in ATTENTION_COLUMNS)
    seconds = 1e-6 * attention.column("time_us")
    _check_regimes(attention, chunk, rows)
    decode_points = DecodeRows(rows * shape.kv_heads, rows * context * _kv_bytes(shape), seconds)
    is_decode = (chunk == 0) & (rows > 0)
    decode_rows, decode_rest = _split(decode_points, is_decode)
    decode = fit_decode_attention(DecodeRows(*decode_rows), gpu)
    rest = DecodeRows(*decode_rest)
    errors["decode_attention"] = kind_error(relative_error(decode_rows_s(decode, gpu, rest), rest.seconds), how)

    head_size = float(shape.heads * shape.head_dim)
    ones = np.ones_like(chunk)
    is_small = ones * float(shape.head_dim < 128)
    prefill_points = PrefillRows(ones, chunk, ones * head_size, is_small, chunk * _kv_bytes(shape), seconds)
    prefill_rows, prefill_rest = _split(prefill_points, (chunk > 0) & (rows == 0) & (history == 0))
    prefill = fit_prefill_attention(PrefillRows(*prefill_rows), gpu)
    whole = PrefillRows(*prefill_rest)
    errors["prefill_attention"] = kind_error(relative_error(prefill_rows_s(prefill, gpu, whole), whole.seconds), how)
    slowdown = _slowdown(chunk, history, rows, context, seconds)
    kernels = CompactKernels(
        gemm=gemm,
        decode_attention=decode,
        multi_head_decode_attention=decode,
        prefill_attention=prefill,
        verify_attention=VerifyAttention(kv_slowdown=slowdown),
        elementwise=_elementwise(tables.dense, shape, gpu),
        head=_head(tables.per_sequence, shape, gpu),
        all_reduce=None,
        attention_implementation="as vLLM chose on this GPU",
        kv_layout="paged",
        measured=Measured(
            tokens=int(tokens.max()),
            rows=int(rows.max()),
            row_context_tokens=int(max(context.max(), history.max())),
            chunk_tokens=int(chunk.max()),
        ),
    )
    errors["lm_head"] = _head_error(tables.per_sequence, gemm, shape, gpu)
    reason = f"no verify shapes there; kv_slowdown {slowdown} is that of decode rows beside a prefill chunk"
    errors["verify"] = KindError(mean_error_pct=None, max_error_pct=None, points=0, held_out=reason)
    return kernels, errors


def _kv_bytes(shape: ModelShape) -> float:
    """Of one token in one layer."""
    return 2.0 * shape.kv_heads * shape.head_dim * shape.dtype_bytes


def _every_fifth(number: int) -> NDArray[np.bool_]:
    return np.asarray(np.arange(number) % HELD_OUT_IN == HELD_OUT_IN // 2)


def _split(points: DecodeRows | PrefillRows, use: NDArray[np.bool_]) -> tuple[list[Array], list[Array]]:
    """Columns of the points in `use`: those to fit, and every fifth."""
    chosen = [column[use] for column in points]
    held_out = _every_fifth(len(chosen[0]))
    return [column[~held_out] for column in chosen], [column[held_out] for column in chosen]


def _sum(table: CsvTable, times: dict[str, int]) -> tuple[NDArray[np.int64], Array]:
    """Token counts and the seconds of all named layers together, each so many times."""
    total: Array | None = None
    tokens: NDArray[np.int64] | None = None
    for name, count in times.items():
        part = table.of(name)
        order = np.argsort(part.column("tokens"))
        own = part.column("tokens")[order].astype(np.int64)
        if tokens is not None and not np.array_equal(tokens, own):
            raise ValueError(f"{table.where}: {name!r} has other token counts than the layers before it")
        seconds = count * 1e-6 * part.column("time_us")[order]
        tokens, total = own, seconds if total is None else total + seconds
    assert tokens is not None
    assert total is not None
    return tokens, total


def _elementwise(dense: CsvTable, shape: ModelShape, gpu: Gpu) -> Elementwise:
    """A line through the other kernels of a layer, by tokens."""
    tokens, seconds = _sum(dense, ELEMENTWISE)
    number = sum(ELEMENTWISE.values())
    fixed_s, token_s = _line(tokens.astype(float), seconds)
    share = shape.elementwise_bytes_per_token / (token_s * gpu.bandwidth_bytes_per_s)
    return Elementwise(
        bandwidth_share=round_constant(share), kernel_s=round_constant(fixed_s / number), kernels_per_layer=number
    )


def _head(per_sequence: CsvTable, shape: ModelShape, gpu: Gpu) -> Head:
    sampler = per_sequence.of("sampler")
    rows, seconds = sampler.column("sequences"), 1e-6 * sampler.column("time_us")
    fixed_s, row_s = _line(rows, seconds)
    passes = row_s * gpu.bandwidth_bytes_per_s / (shape.vocab * LOGIT_BYTES)
    return Head(sampler_s=round_constant(fixed_s), sampler_passes=round_constant(passes))


def _head_error(per_sequence: CsvTable, gemm: Gemm, shape: ModelShape, gpu: Gpu) -> KindError:
    head = per_sequence.of("lm_head")
    rows = head.column("sequences").astype(np.int64).tolist()
    body = Body([(shape.vocab, shape.hidden)], rows, 1e-6 * head.column("time_us"))
    return kind_error(relative_error(body_s(gemm, gpu, body), body.seconds), "LM head, in no fit")


def _line(x: Array, y: Array) -> tuple[float, float]:
    """Intercept and slope of least relative squares, neither below a ten-thousandth of its share."""
    weights = 1.0 / y
    (intercept, slope), *_ = np.linalg.lstsq(np.stack([weights, x * weights], axis=1), np.ones_like(y), rcond=None)
    return max(float(intercept), 1e-4 * float(y.min())), max(float(slope), 1e-4 * float((y / x).min()))


def _slowdown(chunk: Array, history: Array, rows: Array, context: Array, seconds: Array) -> float:
    """How much longer decode rows take beside a chunk than alone: the median over mixed points, 1 at least."""
    timed: dict[tuple[float, ...], float] = {}
    for shape, time_s in zip(np.stack([chunk, history, rows, context], axis=1), seconds, strict=True):
        timed[tuple(float(size) for size in shape)] = float(time_s)
    ratios = []
    for (c, h, r, k), mixed_s in timed.items():
        chunk_s, decode_s = timed.get((c, h, 0.0, 0.0)), timed.get((0.0, 0.0, r, k))
        if c and r and chunk_s and decode_s and decode_s >= MIX_DECODE_SHARE * mixed_s:
            ratios.append((mixed_s - chunk_s) / decode_s)
    return max(1.0, round(float(np.median(ratios)), 2)) if ratios else 1.0


def _check_regimes(table: CsvTable, chunk: Array, rows: Array) -> None:
    for what, present in (("decode", (chunk == 0) & (rows > 0)), ("prefill", (chunk > 0) & (rows == 0))):
        if present.sum() < 2 * HELD_OUT_IN:
            raise ValueError(f"{table.where}: {int(present.sum())} {what} points are too few to fit")
