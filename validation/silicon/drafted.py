"""Served cells that draft with the model's own MTP layer, beside plain ones of the same set-up: `python -m validation
drafted CELLS.csv [--out TABLE.csv]`.

Rows do not say that they draft (validation.silicon.labels finds them), nor what was accepted: one acceptance length is
fitted per format and pair of lengths, on the mean speed-up of its pairs, so that a pair judges how the speed-up goes
with load, and not its size. Depth and the budget of a step are those of InferenceX's recipes (dsr1_*_trt_mtp.sh): three
drafts without data-parallel attention, which is left out here. Not here: plain rows (validation.silicon.judge).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from datetime import date
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from sim.compare.side_by_side import compare
from sim.run.scenario import parse_scenario
from validation.silicon.judge import budget_of, engine_name, profile_of, raw_scenario
from validation.silicon.labels import drafting
from validation.silicon.served_cells import WITH_MTP, Cell, cell_of, read_cells
from validation.tables import grouped, write_csv

TABLE = Path(__file__).parents[2] / "docs/validation/mtp-pairs.csv"
MTP_ENGINE = "trtllm-1.1"
"""Engine of every pair."""
DRAFTS = 3
NEAR_DAYS = 10
"""Most days between the two runs of a pair: engines change by more than speculation gains between months."""
WAVES, FEWEST = 4, 16
"""Requests per seat, and in all at least."""
FIRST_LENGTH, LONGEST_SHARE = 2.6, 0.975
"""Acceptance length at which a fit begins; most that it may reach, of drafts and bonus."""
ROUNDS = 2
"""Rounds of fitting the length: the speed-up is nearly proportional to it."""


Simulated = Callable[[Cell, int, float], float]
"""Mean TPOT, milliseconds, of a cell with so many drafts a round, at an acceptance length."""


class Pair(NamedTuple):
    plain: Cell
    drafted: Cell

    @property
    def group(self) -> str:
        cell = self.plain
        return f"{cell.gpu} {cell.weights} {cell.input_len}/{cell.output_len}"

    @property
    def speedup(self) -> float:
        return self.plain.tpot_ms / self.drafted.tpot_ms


class Judged(NamedTuple):
    """A line of the table."""

    group: str
    tensor_parallel: int
    expert_parallel: int
    concurrency: int
    acceptance_length: float
    measured_speedup: float
    simulated_speedup: float
    error_pct: float


def pairs(cells: Sequence[Cell]) -> list[Pair]:
    """Each drafting row with the plain row of the same set-up that is nearest in time, where one is near."""
    drafts = drafting(cells)
    dated = (cell for cell in cells if cell.model.endswith(WITH_MTP) and cell.id not in drafts and cell.day)
    plain = grouped(dated, _set_up)
    found: dict[tuple[Hashable, ...], Pair] = {}
    for cell in cells:
        others = plain.get(_set_up(cell), [])
        if cell.id not in drafts or not cell.day or not others or cell.deployment.data_parallel > 1:
            continue
        nearest = min(others, key=lambda other: (_days_between(cell, other), other.id))
        if _days_between(cell, nearest) <= NEAR_DAYS:
            found.setdefault(_set_up(cell), Pair(nearest, cell))
    return sorted(found.values(), key=lambda pair: (pair.group, pair.plain.deployment.devices, pair.plain.concurrency))


def _set_up(cell: Cell) -> tuple[Hashable, ...]:
    """DeepSeek-R1 and -V3 are one architecture."""
    lengths = cell.concurrency, cell.input_len, cell.output_len
    return cell.engine, cell.gpu, cell.weights, cell.deployment, *lengths


def _days_between(one: Cell, other: Cell) -> int:
    return abs((date.fromisoformat(one.day) - date.fromisoformat(other.day)).days)


def tpot_ms(cell: Cell, drafts: int, acceptance_length: float) -> float:
    """Mean of the cell's loop, with the model's MTP layer as drafter."""
    profile, _ = profile_of(cell.model, cell.gpu, cell.weights, cell.kv, cell.deployment, "mtp")
    raw = raw_scenario(cell, profile.name)
    raw["engine"] = {"name": engine_name(cell), "max_num_batched_tokens": budget_of(cell, drafts)}
    raw["workload"]["num_prompts"] = max(FEWEST, WAVES * cell.concurrency)
    if drafts:
        raw["policy"] = "continuous"
        raw["speculation"] = {"num_speculative_tokens": drafts, "acceptance": f"length:{acceptance_length:.4f}"}
    (served,) = compare(parse_scenario(raw), profile, workers=1).policies
    return served.mean["mean_tpot_ms"] or 0.0


def judge(group: Sequence[Pair], simulated_ms: Simulated = tpot_ms) -> list[Judged]:
    """Pairs of one format and pair of lengths, with the acceptance length at which their errors cancel."""
    length, ratios = FIRST_LENGTH, [1.0] * len(group)
    plain_ms = [simulated_ms(pair.plain, 0, 0.0) for pair in group]
    for turn in range(ROUNDS):
        if turn:
            length = min(LONGEST_SHARE * (DRAFTS + 1), length / exp(fmean(map(log, ratios))))
        ratios = [
            without_ms / simulated_ms(pair.drafted, DRAFTS, length) / pair.speedup
            for pair, without_ms in zip(group, plain_ms, strict=True)
        ]
    return [
        Judged(
            group=pair.group,
            tensor_parallel=pair.plain.deployment.tensor_parallel,
            expert_parallel=pair.plain.deployment.expert_parallel or 1,
            concurrency=pair.plain.concurrency,
            acceptance_length=round(length, 2),
            measured_speedup=round(pair.speedup, 3),
            simulated_speedup=round(pair.speedup * ratio, 3),
            error_pct=round(100.0 * (ratio - 1.0), 1),
        )
        for pair, ratio in zip(group, ratios, strict=True)
    ]


def fitted_groups(found: Iterable[Pair]) -> list[list[Pair]]:
    """Groups of more than one pair: a length fitted on one alone judges nothing."""
    return [group for group in grouped(found, lambda pair: pair.group).values() if len(group) > 1]


def main(cells: Path, out: Path = TABLE) -> None:
    warnings.simplefilter("ignore")
    lines: list[Judged] = []
    for group in fitted_groups(pairs([cell_of(row) for row in read_cells(cells)])):
        lines += judge(group)
        print(*lines[-len(group) :], sep="\n", flush=True)
    write_csv(out, Judged._fields, lines)
