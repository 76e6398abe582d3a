"""Errors of served cells: a row of figures for every run, means by class, the peer's rows.

Not here: the command line (validation.silicon.silicon_command), what a cell is simulated as
(validation.silicon.served_cells), disaggregated rows (validation.silicon.disaggregated).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import msgspec

from calibrate.judge.cell import FITTED, JUDGED, Cell, JudgedCell
from validation.silicon.labels import DOUBTFUL, drafting, first_runs, is_fitted, role_of
from validation.silicon.served_cells import SET_UP, engine_block, import_words, predicted, profile_of
from validation.tables import grouped, mean_size, off_pct

STARVED_SHARE = 5.0
"""A TTFT above so many times that of the smallest concurrency of its series is admission, not service."""
MARKS = {JUDGED: "", FITTED: " (fitted on)", DOUBTFUL: " (labels in doubt)"}
METRICS = ("tpot", "ttft")


class Refusal(NamedTuple):
    """A row that is not simulated."""

    family: str
    model: str
    gpu: str
    why: str


def judge(cells: Sequence[Cell], peer: Mapping[str, Mapping[str, str]]) -> Iterator[dict[str, Any] | Refusal]:
    """A row of figures for every run, or why it is refused, those that constants were fitted on first."""
    in_order = sorted(cells, key=lambda cell: not is_fitted(cell))
    first, drafting_ids = first_runs(in_order), drafting(in_order)
    least = {series: min(of, key=lambda cell: cell.concurrency) for series, of in grouped(in_order, _series).items()}
    known: dict[object, dict[str, float]] = {}
    for cell in in_order:
        if first[cell.id] != cell.id:
            continue
        loop = _series(cell), cell.source, cell.concurrency
        try:
            role = role_of(cell, *profile_of(cell), drafting_ids)
            known[loop] = simulated = known.get(loop) or predicted(cell)
        except ValueError as error:
            yield refusal(cell.label, cell.target, cell.gpu, error)
            continue
        theirs = peer.get(cell.id, {})
        said = {f"{name}_ms": float(theirs[f"aic_{name}_ms"]) for name in METRICS if theirs}
        yield {
            **row_of(msgspec.structs.replace(cell, role=role, predicted=said), simulated),
            "is_starved": cell.measured["ttft_ms"] > STARVED_SHARE * least[_series(cell)].measured["ttft_ms"],
            "profile": " ".join(Path(word).name for word in import_words(cell)),
            "engine": engine_block(cell),
        }


def _series(cell: Cell) -> tuple[Hashable, ...]:
    """Fields of cells that differ in load alone."""
    return SET_UP(msgspec.structs.replace(cell, concurrency=0)), cell.engine_version


def refusal(family: str, model: str, gpu: str, error: ValueError) -> Refusal:
    return Refusal(family, model, gpu, " ".join(str(error).split())[:200])


def row_of(cell: Cell, simulated: Mapping[str, float]) -> dict[str, Any]:
    judged = JudgedCell.beside(cell, simulated)
    figures = {f"{name}_ms": simulated[f"{name}_ms"] for name in METRICS}
    errors = {f"{name}_error_pct": judged.error_pct(f"{name}_ms") for name in METRICS}
    peer = {f"peer_{name[:-3]}_error_pct": beside["error_pct"] for name, beside in judged.peer.items()}
    labels = {"tensor_parallel": cell.tp, "data_parallel": cell.dp, "concurrency": cell.concurrency}
    return {
        "id": cell.id,
        "class": cell.label,
        "role": cell.role,
        **labels,
        "is_starved": False,
        **figures,
        **errors,
        **peer,
    }


def kindest(readings: Iterable[Sequence[Mapping[str, str]]]) -> dict[str, Mapping[str, str]]:
    """The peer's row of each id, in the reading of the labels whose mean TPOT error is least for that model, GPU,
    engine and format; where that reading has no answer, another's."""

    def group(row: Mapping[str, str]) -> tuple[str, ...]:
        return row["model_path"], row["system"], row["backend"], row["gemm_quant_mode"]

    answered = [[row for row in rows if row["aic_tpot_ms"]] for rows in readings]
    ranked: dict[tuple[str, ...], list[tuple[float, int]]] = {}
    for index, rows in enumerate(answered):
        for name, of in grouped(rows, group).items():
            error = mean_size(off_pct(float(row["aic_tpot_ms"]), float(row["silicon_tpot_ms"])) for row in of)
            ranked.setdefault(name, []).append((error or 0.0, index))
    chosen: dict[str, Mapping[str, str]] = {}
    for index, rows in enumerate(answered):
        for row in rows:
            if min(ranked[group(row)])[1] == index or row["id"] not in chosen:
                chosen[row["id"]] = row
    return chosen


def classes_of(rows: Sequence[Mapping[str, Any]], refusals: Iterable[Sequence[str]]) -> list[dict[str, Any]]:
    """A line per class, and one each for its fitted and doubtful cells: errors in percent, those of TTFT without cells
    that wait for admission; `refusals` begin with the class."""
    classes = grouped(rows, lambda row: str(row["class"]) + MARKS[row["role"]])
    refused = Counter(family for family, *_ in refusals)
    lines = []
    for name in sorted({*classes, *refused}):
        of = classes.get(name, [])
        tpot = [row["tpot_error_pct"] for row in of]
        ttft = [row["ttft_error_pct"] for row in of if not row["is_starved"]]
        shared = [row for row in of if row.get("peer_tpot_error_pct") is not None]
        lines.append(
            {
                "class": name,
                "cells": len(of),
                "refused": refused[name],
                "tpot_mean_abs_pct": of_errors(fmean, map(abs, tpot)),
                "tpot_median_abs_pct": of_errors(median, map(abs, tpot)),
                "tpot_mean_pct": of_errors(fmean, tpot),
                "ttft_mean_abs_pct": of_errors(fmean, map(abs, ttft)),
                "ttft_median_abs_pct": of_errors(median, map(abs, ttft)),
                "ttft_cells": len(ttft),
                "peer_cells": len(shared),
                "peer_tpot_mean_abs_pct": of_errors(fmean, (abs(row["peer_tpot_error_pct"]) for row in shared)),
                "tpot_mean_abs_pct_on_peer_cells": of_errors(fmean, (abs(row["tpot_error_pct"]) for row in shared)),
            }
        )
    return lines


def of_errors(statistic: Callable[[list[float]], float], errors: Iterable[float]) -> float | None:
    """The statistic; None of no errors."""
    known = list(errors)
    return statistic(known) if known else None


def rounded(rows: Iterable[Mapping[str, Any]], decimals: int, **others: int) -> list[dict[str, Any]]:
    """Floats of the rows to so many decimals, those of some names to `others`."""
    return [
        {
            name: round(value, others.get(name, decimals)) if isinstance(value, float) else value
            for name, value in row.items()
        }
        for row in rows
    ]
