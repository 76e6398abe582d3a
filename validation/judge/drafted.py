"""Served cells that draft with the model's MTP layer, beside plain ones of the same set-up: `python -m validation
drafted CELLS.csv [--out TABLE.csv]`.

Rows do not say that they draft (validation.judge.labels tells them apart), nor what was accepted: one acceptance
length is fitted per format and pair of lengths, on the mean speed-up of its pairs, so that a pair judges how the
speed-up goes with load, and not its size. Depth and the budget of a step are those of InferenceX's recipes
(dsr1_*_trt_mtp.sh): three drafts without data-parallel attention, which is left out here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from datetime import date
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from calibrate.served.load import ServedLoad
from validation.judge.labels import architecture, drafting
from validation.judge.served_cells import budget_of, cell_of, engine_name, means, profile_of, raw_scenario, read_cells
from validation.tables import grouped, off_pct, write_csv

TABLE = Path(__file__).parents[2] / "docs/validation/mtp-pairs.csv"
DRAFTING_MODEL = "DeepSeek"
DRAFTS = 3
NEAR_DAYS = 10
"""Most days between the two runs of a pair: engines change by more than speculation gains between months."""
WAVES, FEWEST = 4, 16
"""Requests per seat, and in all at least."""
FIRST_LENGTH, LONGEST_SHARE = 2.6, 0.975
"""Acceptance length at which a fit begins; most that it may reach, of drafts and bonus."""
ROUNDS = 2
"""Rounds of fitting the length: the speed-up is nearly proportional to it."""

Simulated = Callable[[ServedLoad, int, float], float]
"""Mean TPOT, milliseconds, of a cell with so many drafts a round, at an acceptance length."""


class DraftedPair(NamedTuple):
    """Two runs of one set-up."""

    plain: ServedLoad
    drafted: ServedLoad

    @property
    def group(self) -> str:
        cell = self.plain
        return f"{cell.gpu} {cell.weights} {cell.input_len}/{cell.output_len}"

    @property
    def speedup(self) -> float:
        return self.plain.measured["tpot_ms"] / self.drafted.measured["tpot_ms"]


def pairs(cells: Sequence[ServedLoad]) -> list[DraftedPair]:
    """Each drafting cell with the plain one of the same set-up that is nearest in time, where one is near."""
    drafts = drafting(cells)
    dated = [cell for cell in cells if cell.day]
    plain = grouped((cell for cell in dated if architecture(cell) == DRAFTING_MODEL and cell.id not in drafts), _set_up)
    by_set_up: dict[tuple[Hashable, ...], DraftedPair] = {}
    for cell in dated:
        if cell.id in drafts and cell.dp == 1 and (others := plain.get(_set_up(cell))):
            days, _, nearest = min((_days_between(cell, other), other.id, other) for other in others)
            if days <= NEAR_DAYS:
                by_set_up.setdefault(_set_up(cell), DraftedPair(nearest, cell))
    return sorted(by_set_up.values(), key=lambda pair: (pair.group, pair.plain.tp, pair.plain.concurrency))


def _set_up(cell: ServedLoad) -> tuple[Hashable, ...]:
    """DeepSeek-R1 and -V3 are one architecture."""
    lengths = cell.concurrency, cell.input_len, cell.output_len
    return cell.engine, cell.gpu, cell.weights, cell.tp, cell.ep, cell.dp, *lengths


def _days_between(one: ServedLoad, other: ServedLoad) -> int:
    return abs((date.fromisoformat(one.day) - date.fromisoformat(other.day)).days)


def tpot_ms(cell: ServedLoad, drafts: int, acceptance_length: float) -> float:
    """Mean of the cell's loop, with the model's MTP layer as drafter."""
    profile, _ = profile_of(cell, "mtp")
    raw = raw_scenario(cell, profile.name)
    raw["engine"] = {"name": engine_name(cell), "max_num_batched_tokens": budget_of(cell, drafts)}
    raw["workload"]["num_prompts"] = max(FEWEST, WAVES * cell.concurrency)
    if drafts:
        raw["policy"] = "continuous"
        raw["speculation"] = {"num_speculative_tokens": drafts, "acceptance": f"length:{acceptance_length:.4f}"}
    return means(raw, profile)["tpot_ms"]


def judge(group: Sequence[DraftedPair], simulated_ms: Simulated = tpot_ms) -> list[dict[str, Any]]:
    """Lines of the table for pairs of one format and pair of lengths, with the acceptance length at which their errors
    cancel."""
    length, ratios = FIRST_LENGTH, [1.0] * len(group)
    plain_ms = [simulated_ms(pair.plain, 0, 0.0) for pair in group]
    for fit in range(ROUNDS):
        if fit:
            length = min(LONGEST_SHARE * (DRAFTS + 1), length / exp(fmean(map(log, ratios))))
        ratios = [
            without_ms / simulated_ms(pair.drafted, DRAFTS, length) / pair.speedup
            for pair, without_ms in zip(group, plain_ms, strict=True)
        ]
    return [
        {
            "group": pair.group,
            "tensor_parallel": pair.plain.tp,
            "expert_parallel": pair.plain.ep or 1,
            "concurrency": pair.plain.concurrency,
            "acceptance_length": round(length, 2),
            "measured_speedup": round(pair.speedup, 3),
            "simulated_speedup": round(pair.speedup * ratio, 3),
            "error_pct": round(off_pct(ratio, 1.0), 1),
        }
        for pair, ratio in zip(group, ratios, strict=True)
    ]


def main(cells: Path, out: Path = TABLE) -> None:
    warnings.simplefilter("ignore")
    lines: list[dict[str, Any]] = []
    for group in grouped(pairs([cell_of(row) for row in read_cells(cells)]), lambda pair: pair.group).values():
        # A length that is fitted on one pair alone judges nothing.
        if len(group) > 1:
            lines += judge(group)
            print(*lines[-len(group) :], sep="\n", flush=True)
    write_csv(out, list(lines[0]), (line.values() for line in lines))
