"""Imports Frontier's attention tables (NetX-lab/Frontier, MIT): decode rows, and prompt chunks after some history.

PATH is one attention*.csv or a folder below which they lie. Rows measured as KERNEL_ONLY are kernel times; CUDA_EVENT
rows contain 5 to 30 us of launch gaps per operation and are used only where there are no others, and the errors say so.
What the tables lack (GEMMs, element-wise kernels, sampler, host) is the shipped profile's of that GPU.
Not here: reading the tables (calibrate.importers.tables.frontier_files), the fits (calibrate.fit.kernels), what is
shipped (calibrate.importers.tables.shipped_rest).
"""

from __future__ import annotations

from datetime import date
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from calibrate.fit.errors import Array, kind_error, relative_error
from calibrate.fit.kernels import (
    DecodeRows,
    History,
    PrefillRows,
    decode_rows_s,
    fit_decode_attention,
    fit_prefill_attention,
    prefill_rows_s,
)
from calibrate.fit.tables import KV_WINDOW
from calibrate.hardware.datasheets import check_fits, datasheet
from calibrate.importers.aiconfigurator.profile import DEVICES
from calibrate.importers.tables.frontier_files import AttentionPoints, ChunkPoints, DecodePoints, read_points
from calibrate.importers.tables.shipped_rest import error_of, no_error, rest_of
from sim.costs.forms.build import build_costs
from sim.costs.kernels import DecodeAttention, PrefillAttention
from sim.costs.passes import layer_kv_bytes
from sim.costs.profile import SCHEMA, UNLOADED, Gpu, KindError, Overlap, Profile
from sim.costs.shapes import ModelShape
from sim.seam.work import Chunk, Model

REPOSITORY, LICENCE = "NetX-lab/Frontier", "MIT"
LEAST_POINTS = 40
"""Of decode rows and of prompts without history, each."""
LEAST_CHUNK = 512
"""Tokens of the longest chunk: shorter ones say nothing about compute."""
STEP = 1.15
"""Row counts, contexts and chunk lengths used are at least so many times the one before, so that small sizes, of which
a table has few, weigh as much as large ones."""
GAPS = "; launch gaps of 5 to 30 us per operation are included (CUDA events): kernels alone are shorter"
NO_WRITE = "; without the KV write, which the table has at a tenth of the bandwidth or less, as no engine does it"


def import_frontier(path: str | Path, gpu: str, shape: ModelShape, *, revision: str = "unrecorded revision") -> Profile:
    """A profile of `shape` alone on one `gpu`. Raises ValueError naming the file and what is wrong with it."""
    sheet, place = datasheet(gpu), Path(path)
    check_fits(shape.name, shape.weight_bytes, sheet.gpu)
    rest = rest_of(gpu, shape)
    points = read_points(place, sheet.gpu, shape)
    l2_bytes = DEVICES[rest.gpu.name].l2_bytes
    check_enough(points, shape, l2_bytes)
    notes = "" if points.is_kernel_only else GAPS
    decode, decode_error = _fit_decode(points.decode, sheet.gpu, shape, l2_bytes, notes)
    chunk_notes = notes + (NO_WRITE if points.lacks_chunk_write else "")
    prefill, errors = _fit_prefill(points.chunks, decode, sheet.gpu, shape, chunk_notes)
    field = "multi_head_decode_attention" if shape.heads == shape.kv_heads else "decode_attention"
    changes = {
        field: decode,
        "prefill_attention": prefill,
        "attention_implementation": points.backend,
        "measured": msgspec.structs.replace(
            rest.compact.measured,
            rows=int(points.decode.rows.max()),
            row_context_tokens=int(points.decode.context_tokens.max()),
            chunk_tokens=int(points.chunks.tokens.max()),
        ),
    }
    times = "kernel times" if points.is_kernel_only else "CUDA-event times, launch gaps included"
    profile = Profile(
        schema=SCHEMA,
        name=f"{gpu}/{shape.name}",
        gpu=sheet.gpu,
        target=shape,
        draft=None,
        kernels=msgspec.structs.replace(rest.compact, **changes),
        host=rest.host,
        overlap=Overlap(),
        errors={"decode_attention": decode_error, **errors, **_taken_errors(rest, shape)},
        conditions=UNLOADED,
        source=f"{REPOSITORY}@{revision} ({LICENCE}), {', '.join(points.files)}: attention of one layer "
        f"({points.backend}, {times}), decode rows and prompt chunks with history, fitted by lanesim; GEMMs, "
        f"element-wise kernels, sampler and host from the shipped {rest.name} ({rest.source})",
        fingerprint=None,
        date=date.today().isoformat(),
    )
    if not points.mixed:
        return profile
    mixed = {"mixed_attention": _mixed_error(profile, points, notes)}
    return msgspec.structs.replace(profile, errors=profile.errors | mixed)


def check_enough(points: AttentionPoints, shape: ModelShape, l2_bytes: float) -> None:
    """Raises ValueError for a grid too small to tell fixed times from bandwidth and compute."""
    decode, chunks = points.decode, points.chunks
    most_bytes = float(np.max(decode.rows * decode.context_tokens, initial=0.0)) * layer_kv_bytes(shape, 1)
    least_bytes = KV_WINDOW[1] * l2_bytes
    prompts = chunks.tokens[chunks.history_tokens == 0]
    longest = int(np.max(prompts, initial=0.0))
    is_small = min(len(decode.seconds), len(prompts)) < LEAST_POINTS
    if is_small or most_bytes < least_bytes or longest < LEAST_CHUNK:
        raise ValueError(
            f"{', '.join(points.files)}: {len(decode.seconds)} decode points of at most {1e-6 * most_bytes:.0f} MB of "
            f"KV and {len(prompts)} prompts of at most {longest} tokens are too few or too small to fit; "
            f"want {LEAST_POINTS} of each, up to {1e-6 * least_bytes:.0f} MB (beyond the L2 cache) and {LEAST_CHUNK} "
            "tokens"
        )


def _fit_decode(
    points: DecodePoints, gpu: Gpu, shape: ModelShape, l2_bytes: float, notes: str
) -> tuple[DecodeAttention, KindError]:
    read = points.rows * points.context_tokens * layer_kv_bytes(shape, 1)
    rows = DecodeRows(points.rows * shape.kv_heads, read, points.seconds)
    use = (read < KV_WINDOW[0] * l2_bytes) | (read > KV_WINDOW[1] * l2_bytes)
    use &= np.isin(points.context_tokens, _spread(points.context_tokens))
    in_fit, held_out = (use & part for part in _halves(points.rows))
    constants = fit_decode_attention(DecodeRows(*(column[in_fit] for column in rows)), gpu)
    left = DecodeRows(*(column[held_out] for column in rows))
    how = f"row counts that the fit did not use, KV that the L2 cache does not flatter{notes}"
    return constants, kind_error(relative_error(decode_rows_s(constants, gpu, left), left.seconds), how)


def _fit_prefill(
    points: ChunkPoints, decode: DecodeAttention, gpu: Gpu, shape: ModelShape, notes: str
) -> tuple[PrefillAttention, dict[str, KindError]]:
    """Fitted on prompts without history: with one, FlashInfer runs another kernel, whose jumps the form does not have.
    A history's KV is read as decode rows read theirs and its query-key pairs computed; so the simulator charges it."""
    token_s = layer_kv_bytes(shape, 1) / (decode.bandwidth_share * gpu.bandwidth_bytes_per_s)
    ones = np.ones_like(points.tokens)
    rows = PrefillRows(
        points.sequences,
        points.tokens,
        ones * float(shape.heads * shape.head_dim),
        ones * float(shape.head_dim < 128),
        points.sequences * points.tokens * layer_kv_bytes(shape, 1),
        points.seconds,
    )

    def part(use: NDArray[np.bool_]) -> PrefillRows:
        return PrefillRows(*(column[use] for column in rows))

    is_prompt = points.history_tokens == 0
    in_fit, held_out = _halves(points.tokens)
    constants = fit_prefill_attention(part(in_fit & is_prompt), gpu)
    errors = {}
    for kind, use, what in (
        ("prefill_attention", held_out & is_prompt, "prompt lengths that the fit did not use, without history"),
        ("chunk_attention", (in_fit | held_out) & ~is_prompt, "chunks after some history, in no fit"),
    ):
        left, history = part(use), History(points.history_tokens[use], token_s)
        errors[kind] = kind_error(
            relative_error(prefill_rows_s(constants, gpu, left, history), left.seconds), f"{what}{notes}"
        )
    return constants, errors


def _halves(values: Array) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Points to fit and points held out: alternating ones of the spread `values`, the first and the last in the fit."""
    spread = _spread(values)
    in_fit = sorted({*spread[::2], spread[-1]})
    return np.isin(values, in_fit), np.isin(values, [value for value in spread if value not in in_fit])


def _spread(values: Array) -> list[float]:
    """Different values, rising, each at least STEP times the one before, and the largest."""
    chosen: list[float] = []
    different = np.unique(values)
    for value in different:
        if not chosen or value >= STEP * chosen[-1]:
            chosen.append(float(value))
    return sorted({*chosen, float(different[-1])})


def _mixed_error(profile: Profile, points: AttentionPoints, notes: str) -> KindError:
    """Of rows beside chunks, which no fit used; the simulator slows the rows down there (kv_slowdown)."""
    passes = build_costs(profile).passes(Model.TARGET)
    predicted = []
    for batch in points.mixed:
        rows, read = len(batch.contexts), sum(batch.contexts)
        seconds = passes.chunks_attention_s([Chunk(new, history) for new, history in batch.chunks])
        predicted.append(seconds + passes.rows_s(rows, rows, read, beside_chunks=True) if rows else seconds)
    measured = np.array([batch.seconds for batch in points.mixed])
    how = f"decode rows beside chunks, with their KV write, in no fit{notes}"
    return kind_error(relative_error(np.array(predicted), measured), how)


def _taken_errors(rest: Profile, shape: ModelShape) -> dict[str, KindError]:
    whole = f"GEMMs are those of the shipped {rest.name}: no whole pass was measured together"
    return {
        **{kind: error_of(rest, shape, kind) for kind in ("body", "verify_body", "lm_head")},
        **dict.fromkeys(("decode", "prefill"), no_error(whole)),
        "verify": error_of(rest, shape, "verify"),
    }
