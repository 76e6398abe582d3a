"""Choosing among draft lengths, given what each is worth at every concurrency in every draw. Pure.

A length is chosen for the least expected regret: what it loses on average against the best one of each draw.
Not here: where the values come from, and what is said of the choice (tune).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, exp, inf, log, log2
from typing import Any, NamedTuple

import numpy as np

from sim.draws import Floats
from sim.studies.draws import HIGH_PERCENT, LOW_PERCENT

PLAIN = -1
"""Stands for the engine without a drafter, beside draft lengths from 0 (a drafter is loaded and idle) on."""
CHANGE_LOSS = 0.0005
"""Relative throughput that a further row of the table must save: less is the grid's interpolation."""


class LengthGrid(NamedTuple):
    """Throughputs, or goodputs [concurrencies, settings, draws]; settings are PLAIN and draft lengths."""

    concurrencies: tuple[int, ...]
    settings: tuple[int, ...]
    values: Floats

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(k for k in self.settings if k != PLAIN)

    def of(self, setting: int) -> Floats:
        """[concurrencies, draws]."""
        found: Floats = self.values[:, self.settings.index(setting), :]
        return found


class Fits(NamedTuple):
    """Which draft lengths a step of so many requests has room for."""

    max_graph_tokens: int | None
    """Of the captured passes; None where none are captured."""
    max_tokens: int

    def __call__(self, k: int, batch: int) -> bool:
        """Whether `batch` rows of a draft of `k` fit; nothing drafted fits always."""
        tokens = batch * (k + 1)
        is_captured = self.max_graph_tokens is None or tokens <= self.max_graph_tokens
        return k <= 0 or (is_captured and tokens <= self.max_tokens)


Table = tuple[tuple[int, int, int], ...]


def best_table(grid: LengthGrid, fits: Fits, max_batch: int) -> Table:
    """The lengths of least expected regret by batch size, between the grid's concurrencies by its values on their
    logarithms; a further row must save CHANGE_LOSS of the throughput over the sizes it changes."""
    return shared_table([grid], fits, max_batch)


def shared_table(grids: Sequence[LengthGrid], fits: Fits, max_batch: int) -> Table:
    """As `best_table`, one for several grids of the same lengths, all of one weight at the batch sizes they reach."""
    sizes = np.arange(1, max_batch + 1)
    reaches = np.stack([sizes <= grid.concurrencies[-1] for grid in grids])
    reaches[:, ~reaches.any(axis=0)] = True
    losses = np.stack([_losses(grid, fits, sizes) for grid in grids])
    mean = np.where(reaches[:, None, :], losses, 0.0).sum(axis=0) / reaches.sum(axis=0)
    chosen = cheapest_path(mean, np.log2(sizes + 1.0) - np.log2(sizes), CHANGE_LOSS)
    return _rows([grids[0].lengths[place] for place in chosen])


def loss_of(grid: LengthGrid, fits: Fits, table: Sequence[Sequence[int]]) -> float:
    """What `table` loses on average against the best setting of each draw, mean over the concurrencies."""
    lost = []
    for i, concurrency in enumerate(grid.concurrencies):
        able = [k for k in grid.settings if k == PLAIN or fits(k, concurrency)]
        best = np.stack([grid.of(k)[i] for k in able]).max(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            lost.append(np.nan_to_num(1.0 - grid.of(length_in(table, concurrency))[i] / best).mean())
    return float(np.mean(lost))


def _losses(grid: LengthGrid, fits: Fits, sizes: np.ndarray[Any, Any]) -> Floats:
    """[lengths, sizes] expected regret of each length; infinite where it does not fit."""
    lengths, max_batch = grid.lengths, len(sizes)
    losses = np.full((len(lengths), max_batch), inf)
    values = np.stack([_at_sizes(grid.of(k), grid.concurrencies, sizes) for k in lengths])
    allowed = np.array([[fits(k, int(size)) for size in sizes] for k in lengths])
    best = np.where(allowed[:, :, None], values, -inf).max(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        regret = np.nan_to_num(1.0 - values / best[None, :, :]).mean(axis=2)
    losses[allowed] = regret[allowed]
    if lengths[0] > 0:
        # Beyond what fits any of them, the shortest is what is left.
        losses[0, ~allowed.any(axis=0)] = 0.0
    return losses


def cheapest_path(losses: Floats, weights: Floats, change_loss: float) -> list[int]:
    """[sizes] which row of `losses` [lengths, sizes] to take, where every change costs `change_loss`; sizes weigh as
    much as their share of an octave."""
    num_lengths, num_sizes = losses.shape
    total = losses[:, 0] * weights[0]
    came_from = np.zeros((num_lengths, num_sizes), dtype=np.int64)
    for size in range(1, num_sizes):
        changed = int(np.argmin(total))
        stay = total <= total[changed] + change_loss
        came_from[:, size] = np.where(stay, np.arange(num_lengths), changed)
        total = np.where(stay, total, total[changed] + change_loss) + losses[:, size] * weights[size]
    place = int(np.argmin(total))
    path = [place]
    for size in range(num_sizes - 1, 0, -1):
        place = int(came_from[place, size])
        path.append(place)
    return path[::-1]


def _at_sizes(values: Floats, concurrencies: Sequence[int], sizes: np.ndarray[Any, Any]) -> Floats:
    """[sizes, draws] from [concurrencies, draws]: values per request, straight on the logarithm of the concurrency."""
    places = np.log2(sizes)
    known = [log2(concurrency) for concurrency in concurrencies]
    per_request = values / np.asarray(concurrencies, dtype=float)[:, None]
    found = np.stack([np.interp(places, known, per_request[:, draw]) for draw in range(values.shape[1])], axis=1)
    scaled: Floats = found * sizes[:, None]
    return scaled


def _rows(by_size: Sequence[int]) -> Table:
    rows: list[tuple[int, int, int]] = []
    for size, k in enumerate(by_size, start=1):
        if rows and rows[-1][2] == k:
            rows[-1] = rows[-1][0], size, k
        else:
            rows.append((size, size, k))
    return tuple(rows)


def length_in(table: Sequence[Sequence[int]], batch: int) -> int:
    """The table's length at a batch size; beyond its end the last one."""
    found = [k for start, _, k in table if start <= batch]
    return found[-1] if found else table[0][2]


def best_single(grid: LengthGrid, fits: Fits) -> int:
    """The one length of least expected regret over all concurrencies, PLAIN among them, that fits at all of them."""
    able = [k for k in grid.settings if k == PLAIN or (k > 0 and fits(k, grid.concurrencies[-1]))]
    values = np.stack([grid.of(k) for k in able])
    best = values.max(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        regret = np.nan_to_num(1.0 - values / best).mean(axis=(1, 2))
    return able[int(np.argmin(regret))]


def plausible_lengths(grid: LengthGrid, fits: Fits, table: Table, least: float = 0.1) -> dict[int, tuple[int, ...]]:
    """By the start of each row: the lengths that are best there in at least that share of the draws, and its own."""
    found = {}
    for start, end, k in table:
        inside = [i for i, c in enumerate(grid.concurrencies) if start <= c <= end]
        chances = [chances_best(grid, fits, i) for i in inside]
        likely = {j for chance in chances for j, share in chance.items() if share >= least}
        found[start] = tuple(sorted(likely | {k}))
    return found


def chances_best(grid: LengthGrid, fits: Fits, i: int) -> dict[int, float]:
    able = [k for k in grid.lengths if fits(k, grid.concurrencies[i])] or [grid.lengths[0]]
    values = np.stack([grid.of(k)[i] for k in able])
    winners = np.argmax(values, axis=0)
    return {k: float(np.mean(winners == place)) for place, k in enumerate(able)}


def break_even(grid: LengthGrid, fits: Fits) -> tuple[float | None, tuple[float | None, float | None]]:
    """Median and 5 to 95 % over the draws, outwards to the nearest draw; infinite ones are None."""
    found = sorted(_crossing(grid, fits, draw) for draw in range(grid.values.shape[2]))

    def at(rank: float) -> float | None:
        value = found[min(max(int(rank), 1), len(found)) - 1]
        return None if value == inf else value

    ranks = len(found) + 1
    return at(ranks / 2), (at(LOW_PERCENT / 100.0 * ranks), at(ceil(HIGH_PERCENT / 100.0 * ranks)))


def _crossing(grid: LengthGrid, fits: Fits, draw: int) -> float:
    """The concurrency beyond which no draft pays in one draw, straight on logarithms; infinite where the largest one
    tried still gains, 0 where the smallest one does not."""
    gains = []
    for i, concurrency in enumerate(grid.concurrencies):
        able = [grid.of(k)[i, draw] for k in grid.lengths if k > 0 and fits(k, concurrency)]
        plain = grid.of(PLAIN)[i, draw]
        best = max(able, default=0.0)
        gains.append(log(best / plain) if best > 0.0 and plain > 0.0 else (-1.0 if plain > 0.0 else 0.0))
    if gains[-1] > 0.0:
        return inf
    last = max((i for i, gain in enumerate(gains) if gain > 0.0), default=None)
    if last is None:
        return 0.0
    part = gains[last] / (gains[last] - gains[last + 1])
    low, high = (log(concurrency) for concurrency in grid.concurrencies[last : last + 2])
    return exp(low + part * (high - low))
