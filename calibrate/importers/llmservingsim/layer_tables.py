"""The table form from LLMServingSim's points: one model's curves and grids, composed, smoothed, ready for a profile.

Body: a layer's dense kernels by tokens, with its share of what runs once per pass (embedding, last norm, all-reduce of
the embedding) and two all-reduces where devices share the model. Head: LM head, sampler, and the gathering of the
logits' parts. Attention is separable, as an RTX 4090's run of real requests says it may be (TPOT within 0.3 %): rows
alone, one chunk after its history, and what rows add beside a chunk, the median over all chunks and histories.
Not here: reading files (calibrate.importers.llmservingsim.layer_files), errors
(calibrate.importers.llmservingsim.layer_errors).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrate.fit.fit_errors import Array
from calibrate.fit.table_form import counts, every_second, rounded, smooth
from calibrate.importers.columns import CsvTable
from calibrate.importers.llmservingsim.layer_files import ONCE, Attention, LayerFiles
from sim.costs.compact_kernels import AllReduce
from sim.costs.shapes import Experts, ModelShape
from sim.costs.table_kernels import Curve, DecodeGrid, ModelTable, PrefillGrid

MIN_POINTS = 3
"""Values of an axis with fewer points than this are left out: two grids of different axes may be in one file."""
MIN_ADDED_S = 1e-8
"""What rows add beside a chunk, at least: a few beside a long chunk add nothing that can be measured."""


class RawCurve(NamedTuple):
    """`seconds` [counts], as measured."""

    counts: NDArray[np.int64]
    seconds: Array

    def thinned(self) -> RawCurve:
        keep = every_second(len(self.counts))
        return RawCurve(self.counts[keep], self.seconds[keep])


class RawGrid(NamedTuple):
    """`seconds` [first][second], as measured; nan where nothing was."""

    first: NDArray[np.int64]
    second: NDArray[np.int64]
    seconds: Array

    @staticmethod
    def of(points: Mapping[tuple[int, int], float]) -> RawGrid:
        first, second = (np.unique([key[axis] for key in points]) for axis in (0, 1))
        seconds = np.full((len(first), len(second)), np.nan)
        for (i, j), value in points.items():
            seconds[np.searchsorted(first, i), np.searchsorted(second, j)] = value
        return RawGrid(first, second, seconds)

    def trimmed(self) -> RawGrid:
        """The grid without values of an axis that have few points, and would be interpolated from almost nothing."""
        enough = np.isfinite(self.seconds)
        rows = enough.sum(axis=1) >= min(MIN_POINTS, len(self.second))
        columns = enough[rows].sum(axis=0) >= min(MIN_POINTS, len(self.first))
        return RawGrid(self.first[rows], self.second[columns], self.seconds[np.ix_(rows, columns)])

    def thinned(self) -> RawGrid:
        rows, columns = every_second(len(self.first)), every_second(len(self.second))
        return RawGrid(self.first[rows], self.second[columns], self.seconds[np.ix_(rows, columns)]).trimmed()

    def has(self, first: int, second: int) -> bool:
        i, j = np.searchsorted(self.first, first), np.searchsorted(self.second, second)
        if i == len(self.first) or j == len(self.second) or self.first[i] != first or self.second[j] != second:
            return False
        return bool(np.isfinite(self.seconds[i, j]))

    def reaches(self, first: int, second: int) -> bool:
        """Whether some point is no smaller in both axes: beyond all of them a time would be extrapolated."""
        beyond = self.seconds[np.searchsorted(self.first, first) :, np.searchsorted(self.second, second) :]
        return bool(np.isfinite(beyond).any())


class LayerPoints(NamedTuple):
    """Raw points of one model on one device. `mixed` holds whole attention times of a chunk and rows."""

    body: RawCurve
    head: RawCurve
    decode: RawGrid
    prefill: RawGrid
    beside: RawGrid | None
    mixed: Attention
    experts: RawCurve | None = None
    """The part of `body` that several ranks do together; None for one rank."""

    def thinned(self) -> LayerPoints:
        """Every second value of each axis, the ends kept."""
        return self._replace(
            body=self.body.thinned(),
            experts=None if self.experts is None else self.experts.thinned(),
            head=self.head.thinned(),
            decode=self.decode.thinned(),
            prefill=self.prefill.thinned(),
            beside=None if self.beside is None else self.beside.thinned(),
        )


def layer_points(
    files: LayerFiles, shape: ModelShape, reduce: AllReduce | None, ranks: int = 1, gather: AllReduce | None = None
) -> LayerPoints:
    """Points of the whole `shape` on one device of one of `ranks`, over which experts are spread and among which
    `gather` brings every token to its experts and back. Raises ValueError where the tables have too few."""
    tokens, layer_s = files.layer_s(files.layer)
    once_tokens, once_s = files.layer_s(dict.fromkeys(ONCE, 1))
    rows, head_s = files.head_s({"lm_head": 1, "sampler": 1})
    body_s = layer_s + np.interp(tokens, once_tokens, once_s) / shape.layers
    shared_s = np.zeros(len(tokens))
    if files.experts is not None and shape.experts is not None:
        shared_s = experts_s(files.experts, shape.experts, tokens, ranks)
        if gather is not None:
            shared_s = shared_s + message_s(gather, shape, ranks * tokens)
        body_s = body_s + shared_s
    if reduce is not None:
        body_s = body_s + reduced_s(reduce, shape, tokens)
        head_s = head_s + gather_s(reduce, shape, files.tensor_parallel, rows)
    decode, prefill = files.attention.decode(), files.attention.prefill()
    if 1 not in decode.rows:
        raise ValueError("attention.csv: no decode points of one row (n_decode=1 with prefill_chunk=0)")
    alone = prefill.by_chunk()
    has_start = {chunk for chunk, history in alone if history == 0}
    whole = {key: seconds for key, seconds in alone.items() if key[0] in has_start}
    for what, found in (("decode", len(decode.rows)), ("prefill", len(whole))):
        if found < 2 * MIN_POINTS:
            raise ValueError(f"attention.csv: {found} {what} points are too few")
    mixed = files.attention.mixed()
    return LayerPoints(
        body=RawCurve(tokens, body_s),
        experts=RawCurve(tokens, shared_s) if ranks > 1 else None,
        head=RawCurve(rows, head_s),
        decode=RawGrid.of(decode.by_rows()).trimmed(),
        prefill=RawGrid.of(whole).trimmed(),
        beside=_beside(mixed, alone),
        mixed=mixed,
    )


def reduced_s(reduce: AllReduce, shape: ModelShape, tokens: NDArray[np.int64]) -> Array:
    """All-reduces of one layer [tokens]: two, and its share of the one after the embedding."""
    return np.asarray((2.0 + 1.0 / shape.layers) * message_s(reduce, shape, tokens))


def message_s(constants: AllReduce, shape: ModelShape, tokens: NDArray[np.int64]) -> Array:
    """One exchange of hidden states [tokens]."""
    return np.asarray(constants.fixed_s + tokens * float(shape.hidden * shape.dtype_bytes) / constants.bytes_per_s)


def experts_s(table: CsvTable, experts: Experts, tokens: NDArray[np.int64], ranks: int) -> Array:
    """One layer's experts on one of `ranks` over which they are spread, each with `tokens` [tokens] of its own.

    A device has its share of all ranks' pairs of token and expert, as many as `tokens` have, and of the experts that
    these activate, which are drawn uniformly. Between measured counts of experts, then of tokens, linearly; beyond the
    most experts of a count of tokens with the slope of all of them.
    """
    counts, activated = table.column("tokens"), table.column("activated_experts")
    seconds = 1e-6 * table.column("time_us")
    measured = np.unique(counts)
    wanted = np.array([experts.unique(ranks * float(count)) / ranks for count in tokens])
    expert_s = float(seconds.max() - seconds.min()) / float(activated.max() - activated.min())
    by_tokens = []
    for count in measured:
        of = np.argsort(activated[counts == count])
        axis, known_s = activated[counts == count][of], seconds[counts == count][of]
        by_tokens.append(np.interp(wanted, axis, known_s) + expert_s * np.maximum(0.0, wanted - axis[-1]))
    above = np.clip(np.searchsorted(measured, tokens), 1, len(measured) - 1)
    weight = (tokens - measured[above - 1]) / (measured[above] - measured[above - 1])
    rows, grid = np.arange(len(tokens)), np.array(by_tokens)
    return np.asarray(grid[above - 1, rows] * (1.0 - weight) + grid[above, rows] * weight)


def gather_s(reduce: AllReduce, shape: ModelShape, tensor_parallel: int, rows: NDArray[np.int64]) -> Array:
    """Every device gets the logits of the others' parts of the vocabulary, at the rate of an all-reduce (assumed)."""
    others = (tensor_parallel - 1) * (shape.vocab // tensor_parallel) * shape.dtype_bytes
    return np.asarray(reduce.fixed_s + rows * float(others) / reduce.bytes_per_s)


def _beside(mixed: Attention, alone: Mapping[tuple[int, int], float]) -> RawGrid | None:
    """What rows add to a chunk's attention: medians over all chunks and histories of a shape of rows."""
    added: dict[tuple[int, int], list[float]] = {}
    for chunk, history, rows, context, seconds in zip(*mixed, strict=True):
        chunk_s = alone.get((int(chunk), int(history)))
        if chunk_s is not None:
            added.setdefault((int(rows), int(context)), []).append(float(seconds) - chunk_s)
    if not any(rows == 1 for rows, _ in added):
        return None
    return RawGrid.of({key: max(MIN_ADDED_S, float(np.median(values))) for key, values in added.items()}).trimmed()


def table_of(points: LayerPoints) -> ModelTable:
    """The points as a profile stores them: smoothed until no time falls along an axis, five digits."""
    prefill = points.prefill
    return ModelTable(
        body=_curve(points.body),
        experts=None if points.experts is None else _curve(points.experts),
        head=_curve(points.head),
        decode_attention=_decode_grid(points.decode),
        prefill_attention=PrefillGrid(
            chunk_tokens=counts(prefill.first), history_tokens=counts(prefill.second), seconds=_grid(prefill)
        ),
        rows_beside_chunks=None if points.beside is None else _decode_grid(points.beside),
    )


def smoothing(points: LayerPoints) -> Array:
    """Relative change [points] that smoothing makes: in body, head, and attention of one kind."""
    parts = (points.body.seconds, points.head.seconds, points.decode.seconds, points.prefill.seconds)
    changes = np.concatenate([(smooth(seconds) / seconds - 1.0).ravel() for seconds in parts])
    return np.asarray(changes[np.isfinite(changes)])


def _curve(raw: RawCurve) -> Curve:
    return Curve(tokens=counts(raw.counts), seconds=tuple(map(rounded, smooth(raw.seconds))))


def _decode_grid(raw: RawGrid) -> DecodeGrid:
    return DecodeGrid(rows=counts(raw.first), context_tokens=counts(raw.second), seconds=_grid(raw))


def _grid(raw: RawGrid) -> tuple[tuple[float | None, ...], ...]:
    return tuple(tuple(None if np.isnan(value) else rounded(value) for value in line) for line in smooth(raw.seconds))
