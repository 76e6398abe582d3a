"""The compact form from LLMServingSim's points: constants fitted on four fifths of them, errors on the rest.

Not here: reading files (calibrate.importers.llmservingsim.files), the fits themselves (calibrate.fit.kernels), the
table form (calibrate.importers.llmservingsim.table).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrate.fit.errors import Array, kind_error, relative_error
from calibrate.fit.kernels import (
    Body,
    DecodeRows,
    PrefillRows,
    body_s,
    decode_rows_s,
    fit_decode_attention,
    fit_gemm,
    fit_line,
    fit_prefill_attention,
    prefill_rows_s,
)
from calibrate.importers.llmservingsim.files import ELEMENTWISE, GEMMS, Attention, LayerFiles
from sim.costs.datasheets import Datasheet
from sim.costs.kernels import (
    AllReduce,
    CompactKernels,
    DecodeAttention,
    Elementwise,
    Head,
    Measured,
    PrefillAttention,
    VerifyAttention,
)
from sim.costs.passes import LOGIT_BYTES, layer_kv_bytes
from sim.costs.profile import Gpu, KindError
from sim.costs.profile_files import round_constant
from sim.costs.shapes import ModelShape

HELD_OUT_IN = 5
UNFITTED_RULE = VerifyAttention(kv_slowdown=1.0)


class CompactFit(NamedTuple):
    kernels: CompactKernels
    errors: dict[str, KindError]


def fit_compact(
    files: LayerFiles, sheet: Datasheet, shape: ModelShape, reduce: AllReduce | None, attention_implementation: str
) -> CompactFit:
    """All constants but the verify rule, which is UNFITTED_RULE."""
    gpu, parts = sheet.gpu, files.tensor_parallel
    tokens, gemm_s = files.layer_s(dict.fromkeys(GEMMS, 1))
    held_out = _every_fifth(len(tokens))
    gemms = shape.gemms(parts)
    gemm = fit_gemm([Body(gemms, tokens[~held_out].tolist(), gemm_s[~held_out])], gpu, sheet.multiprocessors)
    body = Body(gemms, tokens[held_out].tolist(), gemm_s[held_out])
    how = f"one fifth of {shape.name}'s own points, not in the fit"
    errors = {"body": kind_error(relative_error(body_s(gemm, gpu, body), body.seconds), f"{how}; GEMMs of a layer")}
    kv_heads, kv_bytes = max(1, shape.kv_heads // parts), layer_kv_bytes(shape, parts)
    decode, errors["decode_attention"] = _fit_decode(files.attention.decode(), kv_heads, kv_bytes, gpu, how)
    head_size = shape.heads * shape.head_dim / parts
    prefill, errors["prefill_attention"] = _fit_prefill(files.attention.prefill(), head_size, kv_bytes, shape, gpu, how)
    kernels = CompactKernels(
        gemm=gemm,
        decode_attention=decode,
        multi_head_decode_attention=decode,
        prefill_attention=prefill,
        verify_attention=UNFITTED_RULE,
        elementwise=_elementwise(files, shape, gpu),
        head=_head(files, shape, gpu),
        all_reduce=reduce,
        attention_implementation=attention_implementation,
        kv_layout="paged",
        measured=Measured(
            tokens=int(tokens.max()),
            rows=int(files.attention.rows.max()),
            row_context_tokens=int(max(files.attention.context.max(), files.attention.history.max())),
            chunk_tokens=int(files.attention.chunk.max()),
        ),
    )
    rows, lm_head_s = files.head_s({"lm_head": 1})
    head = Body([(shape.vocab // parts, shape.hidden)], rows.tolist(), lm_head_s)
    errors["lm_head"] = kind_error(relative_error(body_s(gemm, gpu, head), head.seconds), "LM head, in no fit")
    return CompactFit(kernels, errors)


def _fit_decode(
    points: Attention, kv_heads: int, kv_bytes: float, gpu: Gpu, how: str
) -> tuple[DecodeAttention, KindError]:
    _check_enough("decode", points)
    kv_tokens = (points.rows * points.context).astype(float)
    rows = DecodeRows(kv_heads * points.rows.astype(float), kv_bytes * kv_tokens, points.seconds)
    held_out = _every_fifth(len(points.rows))
    constants = fit_decode_attention(DecodeRows(*(column[~held_out] for column in rows)), gpu)
    rest = DecodeRows(*(column[held_out] for column in rows))
    return constants, kind_error(relative_error(decode_rows_s(constants, gpu, rest), rest.seconds), how)


def _fit_prefill(
    points: Attention, head_size: float, kv_bytes: float, shape: ModelShape, gpu: Gpu, how: str
) -> tuple[PrefillAttention, KindError]:
    _check_enough("prefill", points)
    points = points.where(points.history == 0)
    chunk = points.chunk.astype(float)
    ones = np.ones_like(chunk)
    is_small = ones * float(shape.head_dim < 128)
    rows = PrefillRows(ones, chunk, ones * head_size, is_small, chunk * kv_bytes, points.seconds)
    held_out = _every_fifth(len(chunk))
    constants = fit_prefill_attention(PrefillRows(*(column[~held_out] for column in rows)), gpu)
    rest = PrefillRows(*(column[held_out] for column in rows))
    return constants, kind_error(relative_error(prefill_rows_s(constants, gpu, rest), rest.seconds), how)


def _check_enough(what: str, points: Attention) -> None:
    if len(points.rows) < 2 * HELD_OUT_IN:
        raise ValueError(f"attention.csv: {len(points.rows)} {what} points are too few to fit")


def _every_fifth(number: int) -> NDArray[np.bool_]:
    return np.asarray(np.arange(number) % HELD_OUT_IN == HELD_OUT_IN // 2)


def _elementwise(files: LayerFiles, shape: ModelShape, gpu: Gpu) -> Elementwise:
    """A line through the other kernels of a layer, by tokens."""
    times = ELEMENTWISE | files.optional
    tokens, seconds = files.layer_s(times)
    number = sum(times.values())
    fixed_s, token_s = _line(tokens.astype(float), seconds)
    moved = shape.elementwise_bytes_per_token / files.tensor_parallel
    return Elementwise(
        bandwidth_share=round_constant(moved / (token_s * gpu.bandwidth_bytes_per_s)),
        kernel_s=round_constant(fixed_s / number),
        kernels_per_layer=number,
    )


def _head(files: LayerFiles, shape: ModelShape, gpu: Gpu) -> Head:
    rows, seconds = files.head_s({"sampler": 1})
    fixed_s, row_s = _line(rows.astype(float), seconds)
    passes = row_s * gpu.bandwidth_bytes_per_s / (shape.vocab * LOGIT_BYTES)
    return Head(sampler_s=round_constant(fixed_s), sampler_passes=round_constant(passes))


def _line(x: Array, y: Array) -> tuple[float, float]:
    """`fit_line`, neither intercept nor slope below a ten-thousandth of its share."""
    intercept, slope = fit_line(x, y)
    return max(intercept, 1e-4 * float(y.min())), max(slope, 1e-4 * float((y / x).min()))
