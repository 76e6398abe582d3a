"""Fits constants on kernel tables of reference models, and measures them on a model that the fit never saw.

"Held out" means: the model's layer shapes are not among the bodies fitted, and its head layout is not among the
attention points fitted (other models' and every other layout in the table are). The LM head is in no fit at all.
Not here: reading tables (calibrate.importers), the formulas (sim.costs.compact_kernels).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrate.fit.fit_errors import Array, kind_error, relative_error
from calibrate.fit.kernel_fit import (
    Body,
    body_s,
    decode_rows_s,
    fit_decode_attention,
    fit_gemm,
    fit_prefill_attention,
    prefill_rows_s,
)
from calibrate.fit.kernel_tables import MAX_ROWS, AttentionTable, GemmTable, outside_l2, pass_points
from sim.costs.compact_kernels import DecodeAttention, Gemm, PrefillAttention
from sim.costs.profile import Gpu, KindError
from sim.costs.shapes import MODELS, ModelShape

REFERENCES = tuple(
    MODELS[name]
    for name in (
        "tinyllama-1.1b",
        "llama-2-7b",
        "codellama-34b",
        "llama-3.2-1b",
        "llama-3.1-8b",
        "qwen2.5-0.5b",
        "qwen2.5-1.5b",
        "qwen2.5-7b",
        "qwen3-32b",
    )
)
"""Models whose layer shapes the GEMM constants are fitted on. Named, since one more model here changes the constants of
every shipped profile."""
VERIFY_TOKENS = (2, 1024)
"""Token counts of verify passes: 1..128 rows of 2..8 tokens."""
MIN_PROMPT_TOKENS = 16
"""Shorter prompts in the context tables are decode rows in disguise."""
MAX_ATTENTION_TOKENS = 16384
"""Prefill attention points of more tokens in all are longer than any pass and not fitted."""
MAX_DECODE_ROWS = 512
"""Decode points of more rows are dominated by block scheduling and not fitted."""


class Tables(NamedTuple):
    """Everything measured on one GPU that the fits use."""

    gpu: Gpu
    multiprocessors: int
    l2_bytes: float
    gemm: GemmTable
    decode: AttentionTable
    prefill: AttentionTable


class Fitted(NamedTuple):
    gemm: Gemm
    decode: DecodeAttention
    multi_head_decode: DecodeAttention
    prefill: PrefillAttention


def fit(tables: Tables, tensor_parallel: int, without: ModelShape | None = None) -> Fitted:
    """Constants from all references, or from all that do not share `without`'s shapes and head layout."""
    shapes = [shape for shape in REFERENCES if without is None or shape.gemms() != without.gemms()]
    bodies = [tables.gemm.body(shape, tensor_parallel) for shape in shapes]
    decode, prefill = tables.decode, tables.prefill
    use_decode = decode.for_fits() & outside_l2(decode, tables.l2_bytes) & (decode.sequences <= MAX_DECODE_ROWS)
    use_prefill = prefill.for_fits() & (prefill.tokens >= MIN_PROMPT_TOKENS)
    use_prefill &= prefill.sequences * prefill.tokens <= MAX_ATTENTION_TOKENS
    if without is not None:
        use_decode &= ~decode.of(without, tensor_parallel)
        use_prefill &= ~prefill.of(without, tensor_parallel)
    return Fitted(
        fit_gemm(bodies, tables.gpu, tables.multiprocessors),
        _fit_decode(tables, use_decode & ~decode.is_multi_head),
        _fit_decode(tables, use_decode & decode.is_multi_head),
        fit_prefill_attention(prefill.where(use_prefill).prefill_rows(), tables.gpu),
    )


def _fit_decode(tables: Tables, use: NDArray[np.bool_]) -> DecodeAttention:
    """The fit to the points in `use`, or to all where there are none of the kind."""
    points = tables.decode.where(use) if use.any() else tables.decode
    return fit_decode_attention(points.decode_rows(), tables.gpu)


def held_out_errors(tables: Tables, shape: ModelShape, tensor_parallel: int) -> dict[str, KindError]:
    """Errors per kind on `shape`, from a fit without it. Passes are GEMMs, attention and LM head of all layers; the
    elementwise kernels, which no table has, are left out of both sides."""
    how = f"{shape.name} left out of the fit"
    return errors_of(tables, fit(tables, tensor_parallel, without=shape), shape, tensor_parallel, how)


def errors_of(
    tables: Tables, fitted: Fitted, shape: ModelShape, tensor_parallel: int, how: str
) -> dict[str, KindError]:
    """Errors per kind of any constants on `shape`; `how` says in the result where they come from."""
    body = tables.gemm.body(shape, tensor_parallel)
    body_errors = relative_error(body_s(fitted.gemm, tables.gpu, body), body.seconds)
    tokens = np.array(body.tokens)
    in_verify = (tokens >= VERIFY_TOKENS[0]) & (tokens <= VERIFY_TOKENS[1])
    head = tables.gemm.head(shape, tensor_parallel, MAX_ROWS)
    head_errors = relative_error(body_s(fitted.gemm, tables.gpu, head), head.seconds)
    errors = {
        "body": kind_error(body_errors, f"{how}; layer GEMMs at {len(tokens)} token counts, 1..{tokens.max()}"),
        "verify_body": kind_error(
            body_errors[in_verify], f"{how}; body at {VERIFY_TOKENS[0]}..{VERIFY_TOKENS[1]} tokens"
        ),
        "lm_head": kind_error(head_errors, "LM heads are in no fit"),
    }
    for kind, table in (("decode", tables.decode), ("prefill", tables.prefill)):
        attention, whole = _attention_and_pass(tables, fitted, shape, tensor_parallel, table, kind == "decode")
        errors[f"{kind}_attention"] = kind_error(attention, f"{how}; its head layout, measured points")
        errors[kind] = kind_error(whole, f"{how}; whole passes: GEMMs, attention and LM head")
    return errors


def _attention_and_pass(
    tables: Tables, fitted: Fitted, shape: ModelShape, tensor_parallel: int, table: AttentionTable, is_decode: bool
) -> tuple[Array, Array]:
    """Relative errors of attention alone and of whole passes."""
    body = tables.gemm.body(shape, tensor_parallel)
    use = table.of(shape, tensor_parallel)
    use &= pass_points(table, body.tokens, is_decode=is_decode, max_context=shape.max_context)
    use &= outside_l2(table, tables.l2_bytes) if is_decode else table.tokens >= MIN_PROMPT_TOKENS
    points = table.where(use)
    if not len(points.seconds):
        return np.array([]), np.array([])
    if is_decode:
        constants = fitted.multi_head_decode if shape.heads == shape.kv_heads else fitted.decode
        predicted = decode_rows_s(constants, tables.gpu, points.decode_rows())
        total = points.sequences
    else:
        predicted = prefill_rows_s(fitted.prefill, tables.gpu, points.prefill_rows())
        total = points.sequences * points.tokens
    head = tables.gemm.head(shape, tensor_parallel, MAX_ROWS)
    measured_body = _pick(body, body.seconds, total)
    predicted_body = _pick(body, body_s(fitted.gemm, tables.gpu, body), total)
    measured_head = _pick(head, head.seconds, points.sequences)
    predicted_head = _pick(head, body_s(fitted.gemm, tables.gpu, head), points.sequences)
    measured = shape.layers * (measured_body + points.seconds) + measured_head
    whole = shape.layers * (predicted_body + predicted) + predicted_head
    return relative_error(predicted, points.seconds), relative_error(whole, measured)


def _pick(body: Body, seconds: Array, tokens: Sequence[float] | Array) -> Array:
    """`seconds` at each of `tokens`, all of which `body` has."""
    return seconds[np.searchsorted(np.array(body.tokens), tokens)]
