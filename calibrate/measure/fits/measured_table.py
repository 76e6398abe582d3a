"""The table form of passes measured on this machine: the compact fit's times, corrected by what the points say.

Passes are timed whole. The compact fit splits them into body, LM head and attention, and a point's ratio of measured to
predicted time is shared out over its parts and over the grid points near it (calibrate.measure.fits.corrections). Times
that then fall along an axis are restored by least squares in their logs, each weighing by how well it is known: never
by raising. Held-out points have no part in it: their grid points hold the compact fit's time, corrected as their
neighbours are.
Not here: the compact fit and errors (calibrate.measure.fits.pass_fit), tables of single kernels (calibrate.importers).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log, log1p
from typing import NamedTuple

import msgspec
import numpy as np
from scipy.optimize import isotonic_regression

from calibrate.fit.fit_errors import Array
from calibrate.fit.point_works import timed_pass_of, work_of
from calibrate.fit.table_form import rounded, smooth
from calibrate.measure.fits.corrections import Corrections, Key
from calibrate.measure.fits.pass_fit import MIN_ERROR, held_out_errors
from sim.costs.forms.compact import CompactCosts, CompactPasses
from sim.costs.forms.table import TableCosts, TablePasses
from sim.costs.profile import MeasuredPoint, Profile
from sim.costs.table_kernels import Curve, DecodeGrid, ModelTable, PrefillGrid, TableKernels, VerifyGrid
from sim.interface.work import Chunk, Model, Work

HISTORY_TOKENS = 64.0
"""Histories much shorter than this are alike."""
MAX_SWEEPS = 200
"""Sweeps over all axes of a grid; a few do."""
SETTLED = 1e-12
"""Largest change of a log time at which sweeps end."""


class TooFewPoints(ValueError):
    """Too few points for a table; constants can be fitted all the same."""


class Axes(NamedTuple):
    """Axes of one model's grids, as in ModelTable; `queries` begins with 1, which is a decode."""

    tokens: tuple[int, ...]
    head_tokens: tuple[int, ...]
    queries: tuple[int, ...]
    rows: tuple[int, ...]
    context_tokens: tuple[int, ...]
    chunk_tokens: tuple[int, ...]
    history_tokens: tuple[int, ...]


class Grids(NamedTuple):
    """Seconds on the grids of Axes: per layer but for the head."""

    body: Array
    head: Array
    rows: Array
    """[queries, rows, context_tokens]."""
    chunks: Array
    """[chunk_tokens, history_tokens]."""


def with_tables(fitted: Profile) -> Profile:
    """`fitted`, a compact fit to its points, in table form. Its errors are the table's, beside the compact fit's.

    Raises TooFewPoints where a model has no pass of rows or no prefill among them.
    """
    tables = {}
    for model in (Model.TARGET, Model.DRAFT)[: len(fitted.models)]:
        points = [point for point in fitted.points if point.model == model.value]
        if not {"prefill"} < {point.kind for point in points if not point.is_held_out}:
            raise TooFewPoints(f"too few points for a table of the {model.value}: raise --budget")
        tables[model] = _model_table(fitted, model, points)
    kernels = _kernels(fitted, tables)
    source = f"{fitted.source}; tables: compact fit corrected by its points"
    profile = msgspec.structs.replace(fitted, kernels=kernels, source=source)
    errors = {
        kind: error
        if error.points == 0
        else msgspec.structs.replace(
            error, held_out=f"{error.held_out}; compact form: mean {fitted.errors[kind].mean_error_pct} %"
        )
        for kind, error in held_out_errors(profile).items()
    }
    return msgspec.structs.replace(profile, errors=errors)


def _kernels(fitted: Profile, tables: dict[Model, ModelTable]) -> TableKernels:
    compact = fitted.compact
    return TableKernels(
        target=tables[Model.TARGET],
        draft=tables.get(Model.DRAFT),
        verify_rule=compact.verify_attention,
        attention_implementation=compact.attention_implementation,
        kv_layout=compact.kv_layout,
    )


def _model_table(fitted: Profile, model: Model, points: Sequence[MeasuredPoint]) -> ModelTable:
    """The table on the grid of all `points`, by the times of those that are not held out."""
    compact = CompactCosts(fitted).passes(model)
    axes = _axes(compact, [work_of(timed_pass_of(point)) for point in points])
    plain = _plain(compact, axes)
    before = _costs(fitted, model, _table(axes, Grids(*(rising(grid, np.ones_like(grid)) for grid in plain))))
    used = [point for point in points if not point.is_held_out]
    works = [work_of(timed_pass_of(point)) for point in used]
    corrections = Corrections(
        [_parts(before.passes(model), work) for work in works],
        np.array([before.cost(work).device_s for work in works]),
        np.array([point.device_s for point in used]),
        np.array([np.hypot(MIN_ERROR, point.half_width_pct / 100.0) for point in used]),
    )
    grids = []
    for grid, keys in zip(plain, _keys(axes), strict=True):
        logs, deviations = corrections.at(keys)
        weights = 1.0 / (MIN_ERROR**2 + deviations**2)
        grids.append(rising(grid * np.exp(logs.reshape(grid.shape)), weights.reshape(grid.shape)))
    return _table(axes, Grids(*grids))


def _costs(fitted: Profile, model: Model, table: ModelTable) -> TableCosts:
    """Costs in which `model` has this table, whatever the other one has."""
    tables = dict.fromkeys((Model.TARGET, Model.DRAFT)[: len(fitted.models)], table)
    return TableCosts(msgspec.structs.replace(fitted, kernels=_kernels(fitted, tables)))


def _axes(passes: CompactPasses, works: Sequence[Work]) -> Axes:
    """Every count at which a pass of `works` runs."""
    sums = {work.row_tokens + sum(chunk.new_tokens for chunk in work.chunks) for work in works}
    of_rows = [work for work in works if work.rows]
    chunks = [chunk for work in works for chunk in work.chunks]
    return Axes(
        tokens=_rising({1, *sums, *map(passes.padded_tokens, sums)}),
        head_tokens=_rising({1, *(work.head_rows for work in works if work.head_rows)}),
        queries=_rising({1, *(work.row_tokens // work.rows for work in of_rows)}),
        rows=_rising({1, *(work.rows for work in of_rows)}),
        context_tokens=_rising({work.context_tokens // work.rows + 1 for work in of_rows}),
        chunk_tokens=_rising({chunk.new_tokens for chunk in chunks}),
        history_tokens=_rising({0, *(chunk.history_tokens for chunk in chunks)}),
    )


def _rising(counts: set[int]) -> tuple[int, ...]:
    return tuple(sorted(counts))


def _plain(passes: CompactPasses, axes: Axes) -> Grids:
    """Times of every grid point by the compact fit."""
    rows = [
        [
            [
                passes.rows_s(rows, rows * queries, rows * context, beside_chunks=False)
                for context in axes.context_tokens
            ]
            for rows in axes.rows
        ]
        for queries in axes.queries
    ]
    chunks = [
        [passes.chunks_attention_s((Chunk(tokens, history),)) for history in axes.history_tokens]
        for tokens in axes.chunk_tokens
    ]
    body, head = map(passes.layer_s, axes.tokens), map(passes.logits_s, axes.head_tokens)
    return Grids(np.array(list(body)), np.array(list(head)), np.array(rows), np.array(chunks))


def _keys(axes: Axes) -> tuple[list[Key], ...]:
    """Keys of every grid point, as in Grids."""
    return (
        [("body", (log(tokens),)) for tokens in axes.tokens],
        [("head", (log(tokens),)) for tokens in axes.head_tokens],
        [
            _rows_key(rows, queries, context)
            for queries in axes.queries
            for rows in axes.rows
            for context in axes.context_tokens
        ],
        [_chunk_key(tokens, history) for tokens in axes.chunk_tokens for history in axes.history_tokens],
    )


def _rows_key(rows: int, queries: int, context_tokens: int) -> Key:
    return "rows", (log(rows), log(queries), log(context_tokens))


def _chunk_key(tokens: int, history_tokens: int) -> Key:
    return "chunks", (log(tokens), log1p(history_tokens / HISTORY_TOKENS))


def _parts(passes: TablePasses, work: Work) -> dict[Key, float]:
    """Seconds of the parts of `work`, all passes of a draft together at their mean context.

    Their place is that of the grid point which has this history, whatever a pass adds to it: drafts of several lengths
    must not look like contexts that the grid does not tell apart.
    """
    num_passes = max(1, work.draft_tokens)
    tokens = passes.padded_tokens(work.row_tokens + sum(chunk.new_tokens for chunk in work.chunks))
    parts: dict[Key, float] = {("body", (log(tokens),)): num_passes * passes.body_s(tokens)}
    if work.head_rows:
        parts["head", (log(work.head_rows),)] = num_passes * passes.head_s(work.head_rows)
    if work.rows:
        kv_tokens = work.context_tokens + work.row_tokens + work.rows * (num_passes - 1) // 2
        key = _rows_key(work.rows, work.row_tokens // work.rows, work.context_tokens // work.rows + 1)
        attention_s = passes.rows_s(work.rows, work.row_tokens, kv_tokens, beside_chunks=False)
        parts[key] = num_passes * passes.layers * attention_s
    if work.chunks:
        parts[_chunk_key(*work.chunks[0])] = passes.layers * passes.chunks_attention_s(work.chunks)
    return parts


def rising(seconds: Array, weights: Array) -> Array:
    """`seconds` [...] as near as their logs allow, in weighted squares along one axis after the other, to falling
    along none; what does not fall stays as it is. `weights` have the same shape."""
    logs = np.log(seconds)
    for _ in range(MAX_SWEEPS):
        before = logs.copy()
        for axis in range(logs.ndim):
            lines, line_weights = np.moveaxis(logs, axis, -1), np.moveaxis(weights, axis, -1)
            for at in np.ndindex(*lines.shape[:-1]):
                lines[at] = isotonic_regression(lines[at], weights=line_weights[at]).x
        if np.abs(logs - before).max() <= SETTLED:
            break
    return smooth(np.exp(logs))


def _table(axes: Axes, grids: Grids) -> ModelTable:
    decode, *verify = (_grid(plane) for plane in grids.rows)
    return ModelTable(
        body=Curve(tokens=axes.tokens, seconds=tuple(map(rounded, grids.body))),
        head=Curve(tokens=axes.head_tokens, seconds=tuple(map(rounded, grids.head))),
        decode_attention=DecodeGrid(rows=axes.rows, context_tokens=axes.context_tokens, seconds=decode),
        prefill_attention=PrefillGrid(
            chunk_tokens=axes.chunk_tokens, history_tokens=axes.history_tokens, seconds=_grid(grids.chunks)
        ),
        verify_attention=VerifyGrid(
            queries=axes.queries[1:], rows=axes.rows, context_tokens=axes.context_tokens, seconds=tuple(verify)
        )
        if verify
        else None,
    )


def _grid(plane: Array) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(map(rounded, line)) for line in plane)
