"""Errors of LLMServingSim's tables in table form: every second point of each axis left out and interpolated.

Whole passes are all layers' body and attention and the head, as measured, against the same interpolated.
Not here: the points (calibrate.importers.llmservingsim.layer_tables).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from calibrate.fit.fit_errors import Array, kind_error, relative_error
from calibrate.fit.table_form import HOW
from calibrate.importers.columns import CsvTable
from calibrate.importers.llmservingsim.layer_tables import LayerPoints, RawCurve, RawGrid, smoothing, table_of
from sim.costs.forms.table import TablePasses
from sim.costs.profile import KindError, Profile
from sim.costs.shapes import ModelShape
from sim.interface.work import Chunk

VERIFY_TOKENS = (2, 640)
"""Tokens of verify passes: 5 queries of up to 128 rows."""


def layer_errors(profile: Profile, points: LayerPoints, shape: ModelShape) -> dict[str, KindError]:
    """Errors per kind of `points`, which are those of `shape`, the profile's target or draft."""
    thin = points.thinned()
    passes = TablePasses(profile, shape, table_of(thin), profile.table.verify_rule, ())
    body_tokens, body_errors = _left_out(points.body, thin.body, passes.layer_s)
    _, head_errors = _left_out(points.head, thin.head, passes.logits_s)
    in_verify = (body_tokens >= VERIFY_TOKENS[0]) & (body_tokens <= VERIFY_TOKENS[1])
    body = dict(zip(points.body.counts.tolist(), points.body.seconds, strict=True))
    errors = {
        "body": kind_error(body_errors, f"{HOW}; a layer without attention"),
        "verify_body": kind_error(
            body_errors[in_verify], f"{HOW}; body at {VERIFY_TOKENS[0]}..{VERIFY_TOKENS[1]} tokens"
        ),
        "lm_head": kind_error(head_errors, f"{HOW}; with the sampler"),
    }

    def measured_s(tokens: int, attention_s: float, head_rows: int) -> float | None:
        """The whole pass from raw times, the head between its points; None where its body was not measured."""
        if tokens not in body:
            return None
        head_s = float(np.interp(head_rows, points.head.counts, points.head.seconds))
        return float(shape.layers * (body[tokens] + attention_s) + head_s)

    attention, whole = [], []
    for rows, context, seconds in _left_out_of_grid(points.decode, thin.decode):
        attention.append(passes.rows_s(rows, rows, rows * context, beside_chunks=False) / seconds - 1.0)
        measured = measured_s(rows, seconds, rows)
        if measured is not None:
            whole.append(passes.pass_s(rows, rows, rows * (context - 1), (), rows) / measured - 1.0)
    errors["decode_attention"] = kind_error(np.array(attention), HOW)
    errors["decode"] = kind_error(np.array(whole), f"{HOW}; whole passes")

    attention, whole = [], []
    for tokens, history, seconds in _left_out_of_grid(points.prefill, thin.prefill):
        chunks = (Chunk(tokens, history),)
        attention.append(passes.chunks_attention_s(chunks) / seconds - 1.0)
        measured = measured_s(tokens, seconds, 1)
        if measured is not None:
            whole.append(passes.pass_s(0, 0, 0, chunks, 1) / measured - 1.0)
    errors["prefill_attention"] = kind_error(np.array(attention), f"{HOW}; chunks with and without history")
    errors["prefill"] = kind_error(np.array(whole), f"{HOW}; whole passes of one chunk")
    if points.beside is not None:
        errors |= _mixed_errors(points, thin, passes, measured_s)
    changes = smoothing(points)
    errors["smoothing"] = kind_error(changes, "change of the measured points so that no time falls along an axis")
    return errors


def _mixed_errors(
    points: LayerPoints, thin: LayerPoints, passes: TablePasses, measured_s: Callable[[int, float, int], float | None]
) -> dict[str, KindError]:
    """Errors of a chunk plus rows, a sum of two tables, where at least one of both was left out."""
    assert thin.beside is not None
    attention, whole = [], []
    for chunk, history, rows, context, seconds in zip(*(column.tolist() for column in points.mixed), strict=True):
        if thin.beside.has(rows, context) and thin.prefill.has(chunk, history):
            continue
        if not (thin.beside.reaches(rows, context) and thin.prefill.reaches(chunk, history)):
            continue
        chunks = (Chunk(chunk, history),)
        predicted = passes.chunks_attention_s(chunks) + passes.rows_s(rows, rows, rows * context, beside_chunks=True)
        attention.append(predicted / seconds - 1.0)
        measured = measured_s(chunk + rows, seconds, rows + 1)
        if measured is not None:
            whole.append(passes.pass_s(rows, rows, rows * (context - 1), chunks, rows + 1) / measured - 1.0)
    how = "chunk and rows added up, the rows' part a median over all chunks"
    return {
        "mixed_attention": kind_error(np.array(attention), f"{HOW}; {how}"),
        "mixed": kind_error(np.array(whole), f"{HOW}; whole passes, {how}"),
    }


def skew_errors(skew: CsvTable) -> dict[str, KindError]:
    """How wrong it is that only the sum of contexts counts: batches of two lengths against as many rows of their mean
    one, by regime. Nothing in a cost depends on it; the file sums three repetitions."""
    errors = {}
    for regime in dict.fromkeys(skew.labels):
        part = skew.of(regime)
        rows = "rows alone" if regime == "pure" else "rows beside a chunk" if regime == "mixed" else regime
        changes = relative_error(part.column("t_mean_us"), part.column("t_skew_us"))
        errors[f"skew_{regime}"] = kind_error(
            changes,
            f"attention of {rows} of one length against as many of two lengths with the same sum, "
            f"{100 * float(changes.mean()):+.1f} % on average; no cost corrects it",
        )
    return errors


def _left_out(raw: RawCurve, kept: RawCurve, predict: Callable[[int], float]) -> tuple[Array, Array]:
    """Counts that were left out, and the relative errors there."""
    use = ~np.isin(raw.counts, kept.counts)
    predicted = np.array([predict(int(count)) for count in raw.counts[use]])
    return raw.counts[use].astype(float), relative_error(predicted, raw.seconds[use])


def _left_out_of_grid(raw: RawGrid, kept: RawGrid) -> list[tuple[int, int, float]]:
    """Points that were left out, within what stayed."""
    return [
        (first, second, float(raw.seconds[i, j]))
        for i, first in enumerate(raw.first.tolist())
        for j, second in enumerate(raw.second.tolist())
        if np.isfinite(raw.seconds[i, j]) and not kept.has(first, second) and kept.reaches(first, second)
    ]
