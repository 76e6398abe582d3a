"""Grids of attention that a profile stores, from points measured anywhere: attention over all tokens, over a window by
rule, and sparse attention by an indexer (DSA).

A profile has matrices in the body of a pass, by tokens, and attention beside it, by rows and context. So what a module
(matrices, indexer, choice of tokens, attention) takes beyond its matrices counts as attention, and both together make
up the module again, but where matrices one by one take longer than a module, which fuses them. Capped at the module's
time they are further off (docs/adr/040).
Not here: which points (composed), reading them (kernel_files, lookups).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrate.fit.fit_errors import Array
from calibrate.importers.aiconfigurator.kernel_files import AttentionTable

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
"""Context tokens of a decoding row; shorter contexts cost what 128 tokens cost."""
CHUNKS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
HISTORIES = (0, 1024, 4096, 16384, 65536)
MIN_SHARE = 0.1
"""Share of a module's time that is attention at least."""


class Modules(NamedTuple):
    """[points] of one phase: `sequences`, `queries` of each, tokens of `history` before them, `seconds`."""

    sequences: Array
    queries: Array
    history: Array
    seconds: Array

    def attention_s(self, gemms_s: Callable[[Array], Array]) -> Array:
        """[points] what modules take beyond matrices of as many tokens."""
        beyond = self.seconds - gemms_s(self.sequences * self.queries)
        return np.maximum(beyond, MIN_SHARE * self.seconds)

    def decode_points(self, gemms_s: Callable[[Array], Array]) -> AttentionTable:
        """Attention of rows that decode, as that of one head."""
        ones = np.ones(len(self.seconds))
        context = self.queries + self.history
        return AttentionTable(self.sequences, context, ones, ones, ones, self.attention_s(gemms_s))

    def prompt_grid(self, gemms_s: Callable[[Array], Array]) -> Array:
        """[CHUNKS, HISTORIES] of one prompt's chunks: histories between measured ones linearly, longer ones by how much
        more such a chunk is in a longer whole prompt; longer chunks than any that was measured in proportion."""
        alone = self.sequences == 1
        queries, history, seconds = self.queries[alone], self.history[alone], self.attention_s(gemms_s)[alone]
        measured = np.unique(queries)
        whole = np.array(
            [seconds[(queries == chunk) & (history == history[queries == chunk].min())][0] for chunk in measured]
        )
        lines = np.empty((len(measured), len(HISTORIES)))
        for i, chunk in enumerate(measured):
            order = np.argsort(history[queries == chunk])
            known, at = history[queries == chunk][order], np.array(HISTORIES, dtype=float)
            lines[i] = np.interp(at, known, seconds[queries == chunk][order])
            ends = _at_end(measured, whole, np.stack([np.maximum(at, known[-1]), np.full(len(at), known[-1])]), chunk)
            lines[i] += np.maximum(0.0, ends[0] - ends[1])
        chunks = np.array(CHUNKS, dtype=float)
        beyond = np.maximum(1.0, chunks / measured[-1])
        columns = (np.exp(np.interp(np.log(chunks), np.log(measured), np.log(line))) for line in lines.T)
        return np.stack([column * beyond for column in columns], axis=1)


def _at_end(measured: Array, whole: Array, history: Array, chunk: float) -> Array:
    """Seconds of the last `chunk` tokens of whole prompts after `history`: beyond the longest prompt at its slope."""
    slope = (whole[-1] - whole[-2]) / (measured[-1] - measured[-2])

    def of(tokens: Array) -> Array:
        return np.asarray(np.interp(tokens, measured, whole) + slope * np.maximum(0.0, tokens - measured[-1]))

    return of(history + chunk) - of(history)


def attention_grid(points: AttentionTable, factor: float) -> Array:
    """[ROWS, CONTEXTS] from points anywhere: rows and contexts between measured ones linearly, none beyond."""
    grid = np.full((len(ROWS), len(CONTEXTS)), np.nan)
    measured_rows = np.unique(points.sequences)
    columns = np.full((len(measured_rows), len(CONTEXTS)), np.nan)
    for i, rows in enumerate(measured_rows):
        line = points.where(points.sequences == rows)
        order = np.argsort(line.tokens)
        tokens, seconds = line.tokens[order], line.seconds[order]
        inside = (np.array(CONTEXTS) <= tokens[-1]) & (np.array(CONTEXTS) >= tokens[0])
        columns[i, inside] = np.interp(np.array(CONTEXTS)[inside], tokens, seconds)
    for j in range(len(CONTEXTS)):
        known = np.isfinite(columns[:, j])
        if not known.any():
            continue
        rows = np.array(ROWS) * factor
        inside = rows <= measured_rows[known][-1]
        grid[inside, j] = np.interp(rows[inside], measured_rows[known], columns[known, j])
    return grid


def axes(grid: Array) -> tuple[list[int], list[int]]:
    """Rows and contexts that have points at all."""
    known = np.isfinite(grid)
    return [int(i) for i in np.flatnonzero(known.any(axis=1))], [int(j) for j in np.flatnonzero(known.any(axis=0))]


def chunk_curve(points: AttentionTable) -> Array:
    """[CHUNKS] between measured prompts by powers; beyond the longest by its square."""
    order = np.argsort(points.tokens)
    tokens, seconds = points.tokens[order], points.seconds[order]
    wanted = np.array(CHUNKS, dtype=float)
    inside = np.exp(np.interp(np.log(wanted), np.log(tokens), np.log(seconds)))
    return np.asarray(np.where(wanted > tokens[-1], seconds[-1] * (wanted / tokens[-1]) ** 2, inside))


def pair_s(curve: Array, tokens: int) -> float:
    """Seconds per pair of query and key in a whole prompt of so many tokens, or of the longest measured one."""
    at = min(tokens, CHUNKS[-1])
    seconds = float(np.exp(np.interp(np.log(at), np.log(CHUNKS), np.log(curve))))
    return 2.0 * seconds / at**2


def bounded(grid: Array, window: int) -> Array:
    """`grid` [ROWS, CONTEXTS] of rows that look back `window` tokens: longer contexts cost what so many do."""
    contexts = np.array(CONTEXTS, dtype=float)
    result = grid.copy()
    for line in result:
        known = np.isfinite(line)
        if known.any():
            far = known & (contexts > window)
            line[far] = np.interp(window, contexts[known], line[known])
    return result


def bounded_prompts(curve: Array, window: int) -> Array:
    """`curve` [CHUNKS] of whole prompts whose tokens look back `window`: beyond it every token has as many pairs."""
    chunks = np.array(CHUNKS, dtype=float)
    at_window = float(np.exp(np.interp(np.log(window), np.log(chunks), np.log(curve))))
    return np.where(chunks > window, at_window * (2.0 * chunks / window - 1.0), curve)


def window_pairs(chunk: int, history: int, window: int) -> float:
    """Pairs of query and key of a chunk after history, every query looking back `window` tokens at most.

    >>> window_pairs(100, 0, 1000), window_pairs(100, 5000, 1000)
    (5000.0, 100000.0)
    """
    growing = min(chunk, max(0, window - history))
    return growing * (history + 0.5 * growing) + float((chunk - growing) * window)


# -- as a profile stores them: smoothed until none falls along an axis
#
# Mean errors over five models on A100 and H100, where every second point is left out, decided how each axis is
# interpolated: GEMMs of a layer 3.8 % linear and 4.0 % between logs, LM head 5.2 % and 5.3 %, prefill attention 6.8 %
# and 5.2 %.


def smooth(seconds: Array) -> Array:
    """`seconds` [...] made to fall along no axis: the mean of the least such grid above it and the greatest below it.
    What does not fall stays as it is; nan marks holes.

    >>> smooth(np.array([1.0, 2.0, 4.0])).tolist(), smooth(np.array([1.0, 4.0, 2.0, 5.0])).tolist()
    ([1.0, 2.0, 4.0], [1.0, 3.0, 3.0, 5.0])
    >>> smooth(np.array([[1.0, np.nan, 6.0], [2.0, 3.0, 4.0]])).tolist()
    [[1.0, nan, 5.0], [2.0, 3.0, 5.0]]
    """
    above = np.where(np.isnan(seconds), -np.inf, seconds)
    below = np.where(np.isnan(seconds), np.inf, seconds)
    for axis in range(seconds.ndim):
        above = np.maximum.accumulate(above, axis=axis)
        below = np.flip(np.minimum.accumulate(np.flip(below, axis), axis=axis), axis)
    return np.where(np.isnan(seconds), np.nan, 0.5 * (above + below))


def every_second(points: int) -> list[int]:
    """Indices that stay: the even ones and the last."""
    return sorted({*range(0, points, 2), points - 1})


def counts(values: Sequence[int] | Array | NDArray[np.int64]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)
