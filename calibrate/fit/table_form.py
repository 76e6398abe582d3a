"""The table form from published kernel tables: one model's points, smoothed, and the error of interpolating them.

Body and LM head are composed of the model's GEMMs as the fit composes them; what no table has (elementwise kernels,
sampler) comes from the compact form's assumed constants. Times are smoothed until none falls along an axis.
Held out: every second point of each axis, the ends kept, so that gaps are twice as wide as in the profile. Mean errors
there over the five shipped models on A100 and H100 decided how each axis is interpolated: GEMMs of a layer 3.8 % linear
and 4.0 % between logs, LM head 5.2 % and 5.3 %, prefill attention 6.8 % and 5.2 %.
Not here: reading tables (calibrate.importers), interpolation itself (sim.costs.forms.interpolation).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrate.fit.fit_errors import Array, kind_error, relative_error
from calibrate.fit.held_out import MIN_PROMPT_TOKENS, VERIFY_TOKENS, Tables
from calibrate.fit.kernel_fit import Body
from calibrate.fit.kernel_tables import MAX_ROWS, MAX_TOKENS, AttentionTable, outside_l2
from sim.costs.forms.table import TablePasses
from sim.costs.kernels import AllReduce, Elementwise, Head
from sim.costs.passes import layer_rest_s, sampler_s
from sim.costs.points import Curve, DecodeGrid, ModelTable, PrefillGrid
from sim.costs.profile import Gpu, KindError, Profile
from sim.costs.shapes import ModelShape
from sim.interface.work import Chunk

HOW = "every second grid point of each axis left out and interpolated"


class Rest(NamedTuple):
    """Constants of what no kernel table has."""

    elementwise: Elementwise
    head: Head
    all_reduce: AllReduce | None


class Measured(NamedTuple):
    """Raw points of one model: GEMMs of a layer, LM head, attention [points]."""

    body: Body
    head: Body
    decode: AttentionTable
    prefill: AttentionTable


def measured_points(tables: Tables, shape: ModelShape, tensor_parallel: int) -> Measured:
    """Points of `shape`'s own head layout. Raises ValueError where the tables lack it: heads are never interpolated."""
    decode, prefill = tables.decode, tables.prefill
    use_decode = decode.of(shape, tensor_parallel) & outside_l2(decode, tables.l2_bytes)
    use_decode &= decode.sequences <= MAX_ROWS
    use_prefill = prefill.of(shape, tensor_parallel) & (prefill.sequences == 1) & (prefill.tokens >= MIN_PROMPT_TOKENS)
    for name, use in (("decode", use_decode & (decode.sequences == 1)), ("prefill", use_prefill)):
        if not use.any():
            raise ValueError(
                f"no {name} attention of {shape.heads} heads on {shape.kv_heads} KV heads of {shape.head_dim} "
                f"({shape.name}) in the tables of {tables.gpu.name!r}; import it in the compact form"
            )
    body = tables.gemm.body(shape, tensor_parallel)
    # Every token of a verify pass samples, so the head is measured at as many positions as a pass may have tokens.
    head = tables.gemm.head(shape, tensor_parallel, MAX_TOKENS)
    return Measured(body, head, decode.where(use_decode), prefill.where(use_prefill))


def model_table(points: Measured, gpu: Gpu, shape: ModelShape, tensor_parallel: int, rest: Rest | None) -> ModelTable:
    """The points as a profile stores them; `rest` None leaves out what no kernel table has."""
    body_s, head_s = smooth(points.body.seconds), smooth(points.head.seconds)
    if rest is not None:
        for i, tokens in enumerate(points.body.tokens):
            body_s[i] += layer_rest_s(rest.elementwise, rest.all_reduce, gpu, shape, tensor_parallel, tokens)
        for i, rows in enumerate(points.head.tokens):
            head_s[i] += sampler_s(rest.head, gpu, shape, rows)
    order = np.argsort(points.prefill.tokens)
    prefill_s = smooth(points.prefill.seconds[order])
    return ModelTable(
        body=Curve(tokens=counts(points.body.tokens), seconds=tuple(map(rounded, body_s))),
        head=Curve(tokens=counts(points.head.tokens), seconds=tuple(map(rounded, head_s))),
        decode_attention=_decode_grid(points.decode),
        prefill_attention=PrefillGrid(
            chunk_tokens=counts(points.prefill.tokens[order]),
            history_tokens=(0,),
            seconds=tuple((rounded(value),) for value in prefill_s),
        ),
    )


def _decode_grid(points: AttentionTable) -> DecodeGrid:
    rows, contexts = np.unique(points.sequences), np.unique(points.tokens)
    grid = np.full((len(rows), len(contexts)), np.nan)
    grid[np.searchsorted(rows, points.sequences), np.searchsorted(contexts, points.tokens)] = points.seconds
    return DecodeGrid(
        rows=counts(rows),
        context_tokens=counts(contexts),
        seconds=tuple(tuple(None if np.isnan(value) else rounded(value) for value in line) for line in smooth(grid)),
    )


def smooth(seconds: Array) -> Array:
    """`seconds` [...] made to fall along no axis: the mean of the least such grid above it and the greatest below it.
    What does not fall stays as it is; nan marks holes."""
    above = np.where(np.isnan(seconds), -np.inf, seconds)
    below = np.where(np.isnan(seconds), np.inf, seconds)
    for axis in range(seconds.ndim):
        above = np.maximum.accumulate(above, axis=axis)
        below = np.flip(np.minimum.accumulate(np.flip(below, axis), axis=axis), axis)
    return np.where(np.isnan(seconds), np.nan, 0.5 * (above + below))


def table_errors(profile: Profile, tables: Tables, shape: ModelShape) -> dict[str, KindError]:
    """Errors per kind at the points that every second one of each axis leaves out, against the raw times. Passes are
    GEMMs, attention and LM head of all layers, without what no kernel table has."""
    tensor_parallel = profile.tensor_parallel
    points = measured_points(tables, shape, tensor_parallel)
    thin = Measured(_thin(points.body), _thin(points.head), _thin_decode(points.decode), _thin_prefill(points.prefill))
    table = model_table(thin, profile.gpu, shape, tensor_parallel, None)
    passes = TablePasses(profile, shape, table, profile.table.verify_rule, ())
    body_tokens, body_errors = _left_out(points.body, thin.body, passes.layer_s)
    _, head_errors = _left_out(points.head, thin.head, passes.logits_s)
    in_verify = (body_tokens >= VERIFY_TOKENS[0]) & (body_tokens <= VERIFY_TOKENS[1])
    errors = {
        "body": kind_error(body_errors, f"{HOW}; layer GEMMs"),
        "verify_body": kind_error(
            body_errors[in_verify], f"{HOW}; body at {VERIFY_TOKENS[0]}..{VERIFY_TOKENS[1]} tokens"
        ),
        "lm_head": kind_error(head_errors, HOW),
    }
    body = dict(zip(points.body.tokens, points.body.seconds, strict=True))
    head = dict(zip(points.head.tokens, points.head.seconds, strict=True))
    for kind, raw, kept in (("decode", points.decode, thin.decode), ("prefill", points.prefill, thin.prefill)):
        seen = set(zip(kept.sequences, kept.tokens, strict=True))
        attention, whole = [], []
        for sequences, tokens, seconds in zip(raw.sequences, raw.tokens, raw.seconds, strict=True):
            rows, count = int(sequences), int(tokens)
            if (sequences, tokens) in seen or not _is_inside(kept, rows, count):
                continue
            if kind == "decode":
                predicted, through = passes.rows_s(rows, rows, rows * count, beside_chunks=False), rows
                predicted_pass = passes.pass_s(rows, rows, rows * (count - 1), (), rows)
            else:
                chunks = (Chunk(count, 0),)
                predicted, through = passes.chunks_attention_s(chunks), count
                predicted_pass = passes.pass_s(0, 0, 0, chunks, 1)
            attention.append(predicted / seconds - 1.0)
            if through in body and rows in head:
                measured = shape.layers * (body[through] + seconds) + head[rows]
                whole.append(predicted_pass / measured - 1.0)
        errors[f"{kind}_attention"] = kind_error(np.array(attention), f"{HOW}; its head layout, measured points")
        errors[kind] = kind_error(np.array(whole), f"{HOW}; whole passes: GEMMs, attention and LM head")
    return errors


def _left_out(raw: Body, kept: Body, predict: Callable[[int], float]) -> tuple[Array, Array]:
    """Token counts that were left out, and the relative errors there."""
    seen = set(kept.tokens)
    tokens = [count for count in raw.tokens if count not in seen]
    measured = np.array([value for count, value in zip(raw.tokens, raw.seconds, strict=True) if count not in seen])
    return np.array(tokens), relative_error(np.array([predict(count) for count in tokens]), measured)


def _is_inside(kept: AttentionTable, rows: int, tokens: int) -> bool:
    """Whether the kept points reach as far as this one: beyond them it would be extrapolated."""
    return bool(((kept.sequences >= rows) & (kept.tokens >= tokens)).any())


def _thin(body: Body) -> Body:
    keep = every_second(len(body.tokens))
    return Body(body.gemms, [body.tokens[i] for i in keep], body.seconds[keep])


def _thin_decode(table: AttentionTable) -> AttentionTable:
    rows, tokens = np.unique(table.sequences), np.unique(table.tokens)
    rows, tokens = rows[every_second(len(rows))], tokens[every_second(len(tokens))]
    return table.where(np.isin(table.sequences, rows) & np.isin(table.tokens, tokens))


def _thin_prefill(table: AttentionTable) -> AttentionTable:
    tokens = np.unique(table.tokens)
    return table.where(np.isin(table.tokens, tokens[every_second(len(tokens))]))


def every_second(points: int) -> list[int]:
    """Indices that stay: the even ones and the last."""
    return sorted({*range(0, points, 2), points - 1})


def counts(values: Sequence[int] | Array | NDArray[np.int64]) -> tuple[int, ...]:
    """An axis as a profile stores it."""
    return tuple(int(value) for value in values)


def rounded(seconds: float) -> float:
    """Five significant digits, ten times finer than the tables repeat."""
    return float(f"{seconds:.5g}")
