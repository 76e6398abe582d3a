"""Choosing among draft lengths, given what each is worth at every concurrency in every draw. Pure.

A length is chosen for the least expected regret: what it loses on average against the best one of each draw.
Not here: where the values come from, and the whole answer (tune).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil, inf
from typing import Any, NamedTuple

import msgspec
import numpy as np

from sim.compare.verdict import Interval
from sim.draws import Floats
from sim.studies.cost_draws import HIGH_PERCENT, LOW_PERCENT, interval_90

PLAIN = -1
"""Stands for the engine without a drafter, beside draft lengths from 0 (a drafter is loaded and idle) on."""
CHANGE_LOSS = 0.0005
"""Throughput that a further row of the table must save, as a share, summed over the loads that it changes."""
ALIKE = 2.0 * CHANGE_LOSS
"""Share that the best table may lose at a load against the best length there: a row for that load is two changes."""
PLAUSIBLE_SHARE = 0.1
"""Share of the draws in which a plausible length is the best."""
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


Table = tuple[tuple[int, int, int], ...]


def regrets(grid: LengthGrid) -> Floats:
    """[settings, concurrencies] mean loss against the best setting of each draw, share."""
    best = grid.values.max(axis=1, keepdims=True)
    means: Floats = _lost(grid.values, best).mean(axis=2).T
    return means


def best_table(*grids: LengthGrid) -> Table:
    """The lengths of least expected regret from the smallest load that was simulated to the largest one. A row begins
    between two loads where the regrets of both lengths are equal, straight on the logarithm of the load. Several grids
    of the same lengths are of one weight at the loads they reach."""
    loads = sorted({load for grid in grids for load in grid.concurrencies})
    lengths = grids[0].lengths
    reaches = np.array([[load <= grid.concurrencies[-1] for load in loads] for grid in grids])
    losses = np.stack(
        [[np.interp(np.log(loads), np.log(grid.concurrencies), row) for row in _of_lengths(grid)] for grid in grids]
    )
    mean: Floats = np.where(reaches[:, None, :], losses, 0.0).sum(axis=0) / reaches.sum(axis=0)
    path = cheapest_path(mean, CHANGE_LOSS)
    starts, chosen = [loads[0]], [path[0]]
    for place, (before, after) in enumerate(pairwise(path)):
        if after != before:
            low, high = loads[place : place + 2]
            early, late = mean[after, place] - mean[before, place], mean[before, place + 1] - mean[after, place + 1]
            starts.append(min(high, max(low + 1, ceil(_between(low, high, early, late)))))
            chosen.append(after)
    ends = [*(start - 1 for start in starts[1:]), loads[-1]]
    return tuple((start, end, lengths[row]) for start, end, row in zip(starts, ends, chosen, strict=True))


def _of_lengths(grid: LengthGrid) -> Floats:
    """[lengths, concurrencies] regrets."""
    of_lengths: Floats = regrets(grid)[[grid.settings.index(k) for k in grid.lengths]]
    return of_lengths


def _between(low: float, high: float, above: float, below: float) -> float:
    """Where a line falls from `above` zero at `low` to `below` it at `high`, straight on the logarithm of the load; in
    the middle where it does not fall through zero.

    >>> _between(4, 16, 0.1, 0.1), _between(4, 16, -0.1, 0.1)
    (8.0, 8.0)
    """
    share = above / (above + below) if above >= 0.0 and below >= 0.0 and above + below > 0.0 else 0.5
    return float(low * (high / low) ** share)


def loss_of(grid: LengthGrid, table: Sequence[Sequence[int]]) -> float:
    """Mean loss of `table` against the best setting of each draw, mean over the concurrencies."""
    return float(_lost(grid.by_table(table), grid.values.max(axis=1)).mean())


def _lost(values: Floats, best: Floats) -> Floats:
    """Shares of `best` that `values` lack; 0 where nothing is reached."""
    with np.errstate(divide="ignore", invalid="ignore"):
        lost: Floats = np.nan_to_num(1.0 - values / best)
    return lost


def cheapest_path(losses: Floats, change_loss: float) -> list[int]:
    """[loads] which row of `losses` [lengths, loads] to take, where every change costs `change_loss`.

    >>> losses = np.array([[0.0, 1.0, 1.0], [0.0003, 0.0, 0.0]])
    >>> cheapest_path(losses, 0.0005), cheapest_path(losses, 0.0002)
    ([1, 1, 1], [0, 1, 1])
    """
    num_lengths, num_loads = losses.shape
    total = losses[:, 0]
    came_from = np.zeros((num_lengths, num_loads), dtype=np.int64)
    for load in range(1, num_loads):
        changed = int(np.argmin(total))
        stay = total <= total[changed] + change_loss
        came_from[:, load] = np.where(stay, np.arange(num_lengths), changed)
        total = np.where(stay, total, total[changed] + change_loss) + losses[:, load]
    row = int(np.argmin(total))
    path = [row]
    for load in range(num_loads - 1, 0, -1):
        row = int(came_from[row, load])
        path.append(row)
    return path[::-1]


def length_in(table: Sequence[Sequence[int]], batch: int) -> int:
    """The table's length at a batch size; beyond its end the last one.

    >>> [length_in([[1, 4, 3], [5, 8, 1]], batch) for batch in (1, 4, 5, 999)]
    [3, 3, 1, 1]
    """
    reached = [k for start, _, k in table if start <= batch]
    return reached[-1] if reached else table[0][2]


def best_single(grid: LengthGrid, at: int | None = None) -> int:
    """The setting of least expected regret over all concurrencies, or at the one `at`: PLAIN, or a draft length that
    gains at one of them."""
    places = range(len(grid.concurrencies)) if at is None else [grid.concurrencies.index(at)]
    lost = regrets(grid)[:, places].mean(axis=1)

    def gains(k: int) -> bool:
        speedups = [speedup_of(grid, i, k)["speedup"] for i in places]
        return any(speedup is None or speedup > 1.0 for speedup in speedups)

    able = [index for index, k in enumerate(grid.settings) if k == PLAIN or (k > 0 and gains(k))]
    return grid.settings[min(able, key=lambda index: float(lost[index]))]


def plausible_lengths(grid: LengthGrid, table: Table) -> dict[int, tuple[int, ...]]:
    """Lengths that are best in at least PLAUSIBLE_SHARE of the draws, and the table's, by the start of each of its
    rows."""
    plausible = {}
    for start, end, k in table:
        chances = [chances_best(grid, i) for i, load in enumerate(grid.concurrencies) if start <= load <= end]
        often = {length for at in chances for length, share in at.items() if share >= PLAUSIBLE_SHARE}
        plausible[start] = tuple(sorted({k, *often}))
    return plausible


def chances_best(grid: LengthGrid, i: int) -> dict[int, float]:
    winners = np.argmax(np.stack([grid.of(k)[i] for k in grid.lengths]), axis=0)
    return {k: float(np.mean(winners == index)) for index, k in enumerate(grid.lengths)}


def break_even(grid: LengthGrid) -> tuple[float | None, tuple[float | None, float | None]]:
    """The load beyond which no draft length gains, and 5 to 95 % of the draws, outwards to the nearest draw. 0 where no
    load gains; None where the last one does, or where no speed-up is known."""
    ratios = []
    for i, concurrency in enumerate(grid.concurrencies):
        plain = grid.of(PLAIN)[i]
        if (plain > 0.0).all():
            drafts = [grid.of(k)[i] / plain for k in grid.lengths if k > 0]
            ratios.append((concurrency, max(drafts, key=lambda each: float(each.mean()))))
    if not ratios:
        return None, (None, None)
    middle = _crossing([(load, float(ratio.mean())) for load, ratio in ratios])
    crossings = sorted(_crossing([(load, float(r[draw])) for load, r in ratios]) for draw in range(grid.num_draws))
    ranks = len(crossings) + 1

    def at(rank: float) -> float:
        return crossings[min(max(int(rank), 1), len(crossings)) - 1]

    # Draws with gains at other loads than the mean may all cross on one side of it.
    ends = min(middle, at(LOW_PERCENT / 100.0 * ranks)), max(middle, at(ceil(HIGH_PERCENT / 100.0 * ranks)))
    low, high = (None if end == inf else end for end in ends)
    return None if middle == inf else middle, (low, high)


def _crossing(speedups: Sequence[tuple[int, float]]) -> float:
    """The load from which no speed-up exceeds 1, straight on the logarithm of the load; infinite where the last one is
    not below 1, 0 where none is above."""
    last = max((i for i, (_, speedup) in enumerate(speedups) if speedup > 1.0), default=None)
    if last is None:
        return 0.0
    if speedups[-1][1] >= 1.0:
        return inf
    (low, above), (high, below) = speedups[last : last + 2]
    return _between(low, high, above - 1.0, 1.0 - below)


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
    """Its rows' tokens fit the captured graphs."""


class TunedPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One concurrency that was simulated, and the length that the answer has there."""

    concurrency: int
    k: int
    speedup: float | None
    interval: Interval | None
    expected_regret: float
    """Mean loss of the answer there in draws that had no part in choosing it."""
    lengths: list[LengthAt]

    @property
    def best_draft(self) -> LengthAt:
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
    """The answer by a grid's draws: a table, one length, or no speculation."""

    table: Table
    """From the smallest load that was simulated to the largest one; one row unless a table is the answer."""
    lengths: list[int]
    """[concurrencies]; PLAIN among them."""
    gain: Gain
    """Gain of the best table over the best single length."""

    @property
    def sentence(self) -> str:
        return "no speculation" if self.lengths[0] == PLAIN else table_words(self.table)


def table_words(table: Table) -> str:
    """A table of several rows, or one length.

    >>> table_words(((1, 8, 3), (9, 64, 0))), table_words(((1, 8, 3),))
    ('a table: K = 3 for 1..8, K = 0 for 9..64', 'one length: K = 3')
    """
    if len(table) == 1:
        return f"one length: K = {table[0][2]}"
    return "a table: " + ", ".join(f"K = {k} for {start}..{end}" for start, end, k in table)


def choice_of(grid: LengthGrid, at: int | None = None) -> Choice:
    """The table, where it is surely better than one setting; else the best single one, over all loads or `at` one."""
    first, last = grid.concurrencies[0], grid.concurrencies[-1]
    table, one = best_table(grid), best_single(grid, at)
    other = "no speculation" if one == PLAIN else f"K = {one}"
    gain = gain_of("the table", other, grid.by_table(table), grid.of(one))
    # At one load a table has the best length of that load, unless no speculation is better there.
    is_able = any(k for _, _, k in table) if at is None else len(table) > 1 and one != PLAIN
    if gain.is_sure and is_able:
        return Choice(table, [length_in(table, concurrency) for concurrency in grid.concurrencies], gain)
    return Choice(((first, last, max(one, 0)),), [one] * len(grid.concurrencies), gain)


def regrets_of(grid: LengthGrid, at: int | None = None) -> list[float]:
    """[concurrencies] expected loss of a choice in a draw that had no part in it: each draw judges the choice of all
    others (leave-one-out). One draw alone judges itself."""
    num_draws, best = grid.num_draws, grid.values.max(axis=1)
    lost = np.zeros((len(grid.concurrencies), num_draws))
    for draw in range(num_draws):
        others = grid if num_draws == 1 else grid._replace(values=np.delete(grid.values, draw, axis=2))
        for i, k in enumerate(choice_of(others, at).lengths):
            lost[i, draw] = _lost(grid.of(k)[i, draw], best[i, draw])
    means: list[float] = lost.mean(axis=1).tolist()
    return means


def speedup_of(grid: LengthGrid, i: int, setting: int) -> dict[str, Any]:
    """Fields `speedup` and `interval` of a setting."""
    plain = grid.of(PLAIN)[i]
    if not (plain > 0.0).all():
        return {"speedup": None, "interval": None}
    ratios = grid.of(setting)[i] / plain
    return {"speedup": float(ratios.mean()), "interval": interval_90(ratios)}


def gain_of(name: str, other_name: str, ours: Floats, theirs: Floats) -> Gain:
    """Gain of values [concurrencies, draws], geometric mean over the concurrencies at which theirs serve something; -1
    where ours serve nothing."""
    is_known = (theirs > 0.0).all(axis=1)
    if not is_known.any():
        return Gain(of=name, over=other_name, mean=0.0, interval=(0.0, 0.0), is_sure=False)
    with np.errstate(divide="ignore"):
        gains: Floats = np.exp(np.log(ours[is_known] / theirs[is_known]).mean(axis=0)) - 1.0
    mean = float(gains.mean())
    is_sure = float((gains > 0.0).mean()) >= SURE_SHARE and mean >= MIN_GAIN
    return Gain(of=name, over=other_name, mean=mean, interval=interval_90(gains), is_sure=is_sure)


def tuned_points(
    grid: LengthGrid, max_graph_tokens: int | None, choice: Choice, at: int | None = None
) -> list[TunedPoint]:
    """[concurrencies] the choice there beside every length. Passes of more than `max_graph_tokens` have no graph."""
    points, own, lost = [], regrets_of(grid, at), _of_lengths(grid)
    for i, concurrency in enumerate(grid.concurrencies):
        chances = chances_best(grid, i)
        lengths = [
            LengthAt(
                k=k,
                **speedup_of(grid, i, k),
                expected_regret=float(of_length[i]),
                chance_best=chances[k],
                fits_graphs=k <= 0 or max_graph_tokens is None or concurrency * (k + 1) <= max_graph_tokens,
            )
            for k, of_length in zip(grid.lengths, lost, strict=True)
        ]
        k, chosen = max(choice.lengths[i], 0), speedup_of(grid, i, choice.lengths[i])
        points.append(TunedPoint(concurrency=concurrency, k=k, **chosen, expected_regret=own[i], lengths=lengths))
    return points
