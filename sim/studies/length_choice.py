"""Choosing among draft lengths, given what each is worth at every concurrency in every draw. Pure.

A length is chosen for the least expected regret: what it loses on average against the best one of each draw.
Not here: where the values come from, and the whole answer (tune).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import ceil, exp, inf, log, log2
from operator import itemgetter
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from sim.compare.verdict import Interval
from sim.draws import Floats
from sim.studies.cost_draws import HIGH_PERCENT, LOW_PERCENT, interval_90

PLAIN = -1
"""Stands for the engine without a drafter, beside draft lengths from 0 (a drafter is loaded and idle) on."""
CHANGE_LOSS = 0.0005
"""Relative throughput that a further row of the table must save: less is the grid's interpolation."""
PLAUSIBLE_SHARE = 0.1
"""Share of the draws in which a plausible length is the best."""
MIN_FOR_VERDICT = 10
"""Draws below which no table is preferred to one length."""
SURE_SHARE = 0.95
"""Share of the draws in which a gain is one, from which it is sure."""
MIN_GAIN = 0.01
"""Gain of a table over one length, from which it is an answer: two equal servers were measured 1.5 % apart (vLLM 0.23
on GH200, swiss-ai/apertus-speculative-decoding)."""


class LengthGrid(NamedTuple):
    """Throughputs, or goodputs [concurrencies, settings, draws]; settings are PLAIN and draft lengths."""

    concurrencies: tuple[int, ...]
    settings: tuple[int, ...]
    values: Floats

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(k for k in self.settings if k != PLAIN)

    @property
    def num_draws(self) -> int:
        return int(self.values.shape[2])

    def of(self, setting: int) -> Floats:
        """[concurrencies, draws]."""
        values: Floats = self.values[:, self.settings.index(setting), :]
        return values

    def by_table(self, table: Sequence[Sequence[int]]) -> Floats:
        """[concurrencies, draws] of the table's lengths."""
        return np.stack([self.of(length_in(table, c))[i] for i, c in enumerate(self.concurrencies)])


class Fits(NamedTuple):
    """Draft lengths that a step of so many requests has room for."""

    max_graph_tokens: int | None
    """Most tokens of a captured pass; None where none are captured."""
    max_tokens: int

    def __call__(self, k: int, batch: int) -> bool:
        """`batch` rows of a draft of `k` fit; nothing drafted fits always."""
        tokens = batch * (k + 1)
        is_captured = self.max_graph_tokens is None or tokens <= self.max_graph_tokens
        return k <= 0 or (is_captured and tokens <= self.max_tokens)


Table = tuple[tuple[int, int, int], ...]


def best_table(grid: LengthGrid, fits: Fits, max_batch: int) -> Table:
    """The lengths of least expected regret by batch size, between the grid's concurrencies by its values on their
    logarithms; a further row must save CHANGE_LOSS of the throughput over the sizes it changes."""
    return shared_table([grid], fits, max_batch)


def shared_table(grids: Sequence[LengthGrid], fits: Fits, max_batch: int) -> Table:
    """The best table for several grids of the same lengths, all of one weight at the batch sizes they reach."""
    sizes = np.arange(1, max_batch + 1)
    reaches = np.stack([sizes <= grid.concurrencies[-1] for grid in grids])
    reaches[:, ~reaches.any(axis=0)] = True
    losses = np.stack([_losses(grid, fits, sizes) for grid in grids])
    mean = np.where(reaches[:, None, :], losses, 0.0).sum(axis=0) / reaches.sum(axis=0)
    chosen = cheapest_path(mean, np.log2(sizes + 1.0) - np.log2(sizes), CHANGE_LOSS)
    return _rows([grids[0].lengths[index] for index in chosen])


def loss_of(grid: LengthGrid, fits: Fits, table: Sequence[Sequence[int]]) -> float:
    """Mean loss of `table` against the best setting of each draw, mean over the concurrencies."""
    pairs = zip(grid.by_table(table), best_by_draw(grid, fits), strict=True)
    return float(np.mean([_lost(values, best).mean() for values, best in pairs]))


def _lost(values: Floats, best: Floats) -> Floats:
    """Shares of `best` that `values` lack; 0 where nothing is reached."""
    with np.errstate(divide="ignore", invalid="ignore"):
        lost: Floats = np.nan_to_num(1.0 - values / best)
    return lost


def _losses(grid: LengthGrid, fits: Fits, sizes: NDArray[np.int64]) -> Floats:
    """[lengths, sizes] expected regret of each length; infinite where it does not fit."""
    lengths, max_batch = grid.lengths, len(sizes)
    losses = np.full((len(lengths), max_batch), inf)
    values = np.stack([_at_sizes(grid.of(k), grid.concurrencies, sizes) for k in lengths])
    allowed = np.array([[fits(k, int(size)) for size in sizes] for k in lengths])
    best = np.where(allowed[:, :, None], values, -inf).max(axis=0)
    losses[allowed] = _lost(values, best[None, :, :]).mean(axis=2)[allowed]
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
    row = int(np.argmin(total))
    path = [row]
    for size in range(num_sizes - 1, 0, -1):
        row = int(came_from[row, size])
        path.append(row)
    return path[::-1]


def _at_sizes(values: Floats, concurrencies: Sequence[int], sizes: NDArray[np.int64]) -> Floats:
    """[sizes, draws] from [concurrencies, draws]: values per request, straight on the logarithm of the concurrency."""
    logs = np.log2(sizes)
    known = [log2(concurrency) for concurrency in concurrencies]
    per_request = values / np.asarray(concurrencies, dtype=float)[:, None]
    interpolated = np.stack([np.interp(logs, known, per_request[:, draw]) for draw in range(values.shape[1])], axis=1)
    scaled: Floats = interpolated * sizes[:, None]
    return scaled


def _rows(by_size: Sequence[int]) -> Table:
    runs = [(k, [size for size, _ in run]) for k, run in groupby(enumerate(by_size, start=1), key=itemgetter(1))]
    return tuple((sizes[0], sizes[-1], k) for k, sizes in runs)


def length_in(table: Sequence[Sequence[int]], batch: int) -> int:
    """The table's length at a batch size; beyond its end the last one."""
    reached = [k for start, _, k in table if start <= batch]
    return reached[-1] if reached else table[0][2]


def best_single(grid: LengthGrid, fits: Fits) -> int:
    """The one length of least expected regret over all concurrencies, PLAIN among them, that fits at all of them."""
    able = [k for k in grid.settings if k == PLAIN or (k > 0 and fits(k, grid.concurrencies[-1]))]
    values = np.stack([grid.of(k) for k in able])
    return able[int(np.argmin(_lost(values, values.max(axis=0)).mean(axis=(1, 2))))]


def plausible_lengths(grid: LengthGrid, fits: Fits, table: Table) -> dict[int, tuple[int, ...]]:
    """Lengths that are best in at least PLAUSIBLE_SHARE of the draws, and the table's, by the start of each of its
    rows."""
    chances = [chances_best(grid, fits, i) for i in range(len(grid.concurrencies))]
    return {
        start: tuple(
            sorted(
                {
                    k,
                    *(
                        length
                        for concurrency, at in zip(grid.concurrencies, chances, strict=True)
                        for length, share in at.items()
                        if start <= concurrency <= end and share >= PLAUSIBLE_SHARE
                    ),
                }
            )
        )
        for start, end, k in table
    }


def chances_best(grid: LengthGrid, fits: Fits, i: int) -> dict[int, float]:
    able = [k for k in grid.lengths if fits(k, grid.concurrencies[i])] or [grid.lengths[0]]
    values = np.stack([grid.of(k)[i] for k in able])
    winners = np.argmax(values, axis=0)
    return {k: float(np.mean(winners == index)) for index, k in enumerate(able)}


def break_even(grid: LengthGrid, fits: Fits) -> tuple[float | None, tuple[float | None, float | None]]:
    """Median and 5 to 95 % over the draws, outwards to the nearest draw; infinite ones are None."""
    crossings = sorted(_crossing(grid, fits, draw) for draw in range(grid.num_draws))

    def at(rank: float) -> float | None:
        value = crossings[min(max(int(rank), 1), len(crossings)) - 1]
        return None if value == inf else value

    ranks = len(crossings) + 1
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


# -- the choice, and what it gains and loses


class LengthAt(msgspec.Struct, frozen=True, kw_only=True):
    """One draft length at one concurrency; 0 = a drafter is loaded and drafts nothing."""

    k: int
    speedup: float | None
    """Mean over the draws, against the engine without a drafter; None where that reaches nothing."""
    interval: Interval | None
    """5 to 95 % of the draws."""
    expected_regret: float
    """Mean loss against the best length of each draw, share."""
    chance_best: float
    fits_graphs: bool
    """All its rows' tokens fit the captured graphs."""


class TunedPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One concurrency that was simulated, and the length that the answer has there."""

    concurrency: int
    k: int
    speedup: float | None
    interval: Interval | None
    expected_regret: float
    """Mean loss of the answer there in draws that had no part in choosing it; by as many choices, each without one."""
    lengths: list[LengthAt]

    @property
    def best_draft(self) -> LengthAt:
        """The draft length from 1 on of least expected regret there."""
        return min((each for each in self.lengths if each.k > 0), key=lambda each: each.expected_regret)


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """Mean over the concurrencies of what one setting has over another, relative, with 5 to 95 % of the draws."""

    of: str
    over: str
    mean: float
    interval: Interval
    is_sure: bool
    """The gain is above 0 in SURE_SHARE of the draws, and in the mean not below MIN_GAIN."""


class Choice(NamedTuple):
    """Best lengths by a grid's draws."""

    table: Table
    """The best table; it has one row where one length is as good."""
    lengths: list[int]
    """[concurrencies]; PLAIN among them."""
    gain: Gain
    is_table: bool

    @property
    def sentence(self) -> str:
        """`a table: K = 3 for 1..8, K = 0 for 9..64`, one length, or no speculation."""
        if self.is_table:
            return "a table: " + ", ".join(f"K = {k} for {start}..{end}" for start, end, k in self.table)
        return "no speculation" if self.lengths[0] == PLAIN else f"one length: K = {self.lengths[0]}"


def choice_of(grid: LengthGrid, fits: Fits, max_batch: int, num_draws: int | None = None) -> Choice:
    """The table, where that is surely better than one length by `num_draws` draws, by default the grid's."""
    table, one = best_table(grid, fits, max_batch), best_single(grid, fits)
    other = "no speculation" if one == PLAIN else f"K = {one}"
    gain = gain_of("the table", other, grid.by_table(table), grid.of(one))
    if len(table) > 1 and gain.is_sure and (num_draws or grid.num_draws) >= MIN_FOR_VERDICT:
        return Choice(table, [length_in(table, concurrency) for concurrency in grid.concurrencies], gain, True)
    return Choice(((1, max_batch, max(one, 0)),), [one] * len(grid.concurrencies), gain, False)


def regrets_of(grid: LengthGrid, fits: Fits, max_batch: int) -> list[float]:
    """[concurrencies] expected loss of a choice in a draw that had no part in it: each draw judges the choice of all
    others (leave-one-out). One draw alone judges itself."""
    num_draws, best = grid.num_draws, best_by_draw(grid, fits)
    lost = np.full((len(grid.concurrencies), num_draws), np.nan)
    for draw in range(num_draws):
        others = grid if num_draws == 1 else grid._replace(values=np.delete(grid.values, draw, axis=2))
        for i, k in enumerate(choice_of(others, fits, max_batch, num_draws).lengths):
            if best[i][draw] > 0.0:
                lost[i, draw] = 1.0 - grid.of(k)[i, draw] / best[i][draw]
    return [0.0 if np.isnan(row).all() else max(0.0, float(np.nanmean(row))) for row in lost]


def best_by_draw(grid: LengthGrid, fits: Fits) -> list[Floats]:
    """[concurrencies][draws] of the best setting of each draw."""
    return [
        np.stack([grid.of(k)[i] for k in grid.settings if k == PLAIN or fits(k, concurrency)]).max(axis=0)
        for i, concurrency in enumerate(grid.concurrencies)
    ]


def speedup_of(grid: LengthGrid, i: int, setting: int) -> tuple[float | None, Interval | None]:
    plain = grid.of(PLAIN)[i]
    if not (plain > 0.0).all():
        return None, None
    ratios = grid.of(setting)[i] / plain
    return float(ratios.mean()), interval_90(ratios)


def gain_of(name: str, other_name: str, ours: Floats, theirs: Floats) -> Gain:
    """Gain of values [concurrencies, draws] over the same, geometric mean over the concurrencies."""
    is_known = ((ours > 0.0) & (theirs > 0.0)).all(axis=1)
    if not is_known.any():
        return Gain(of=name, over=other_name, mean=0.0, interval=(0.0, 0.0), is_sure=False)
    gains: Floats = np.exp(np.log(ours[is_known] / theirs[is_known]).mean(axis=0)) - 1.0
    interval = interval_90(gains)
    mean = float(gains.mean())
    is_sure = float((gains > 0.0).mean()) >= SURE_SHARE and mean >= MIN_GAIN
    return Gain(of=name, over=other_name, mean=mean, interval=interval, is_sure=is_sure)


def tuned_points(grid: LengthGrid, fits: Fits, max_batch: int, choice: Choice) -> list[TunedPoint]:
    """[concurrencies] the choice there beside every length."""
    points, best, regrets = [], best_by_draw(grid, fits), regrets_of(grid, fits, max_batch)
    for i, concurrency in enumerate(grid.concurrencies):
        chances, is_known = chances_best(grid, fits, i), best[i] > 0.0
        lengths = []
        for k in grid.lengths:
            speedup, interval = speedup_of(grid, i, k)
            lost = (1.0 - grid.of(k)[i][is_known] / best[i][is_known]).mean() if is_known.any() else 0.0
            lengths.append(
                LengthAt(
                    k=k,
                    speedup=speedup,
                    interval=interval,
                    expected_regret=max(0.0, float(lost)),
                    chance_best=chances.get(k, 0.0),
                    fits_graphs=fits(k, concurrency),
                )
            )
        speedup, interval = speedup_of(grid, i, choice.lengths[i])
        points.append(
            TunedPoint(
                concurrency=concurrency,
                k=max(choice.lengths[i], 0),
                speedup=speedup,
                interval=interval,
                expected_regret=regrets[i],
                lengths=lengths,
            )
        )
    return points
