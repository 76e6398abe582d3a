"""Served cells beside lanesim and a peer: `python -m validation silicon CELLS.csv --json OUT [--peer PREDICTIONS.csv]`.

CELLS.csv is ai-dynamo/aiconfigurator's silicon_sample.csv or a part of it: closed loops of vLLM, SGLang and
TensorRT-LLM, mean TTFT and TPOT. Every aggregated row gets a profile from the kernel tables of the installed
aiconfigurator-core and a scenario (validation.silicon.served_cells), disaggregated ones with --mode disagg
(validation.silicon.disaggregated). A run that several dumps have is one cell. Classes are engine, dense or MoE, and the
format of the GEMMs. Counted apart: cells that constants were fitted on, and those whose labels cannot be. --peer takes
the rows with aic_ttft_ms and aic_tpot_ms beside them; of several readings of the labels the kindest counts. --only
takes classes whose name holds a text, such as 'vllm moe', --every every so manieth row. Exits 1 where no row is judged,
and leaves OUT as it was; 2 where CELLS.csv or the kernel tables are missing. Not here: what
a cell is simulated as (validation.silicon.served_cells), disaggregated rows (validation.silicon.disaggregated).
"""

from __future__ import annotations

import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from json import dumps
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

import msgspec

from calibrate.catalogue.published_tables import published_tables
from calibrate.judge.cell import FITTED, JUDGED, Cell
from validation.silicon import disaggregated
from validation.silicon.labels import DOUBTFUL, contradicted, drafting, first_runs, is_fitted, role_of
from validation.silicon.served_cells import (
    METRICS,
    SET_UP,
    Refusal,
    cell_of,
    engine_block,
    import_words,
    predicted,
    profile_of,
    read_cells,
    refusal,
    row_of,
)
from validation.tables import csv_rows, grouped, markdown, mean_size, off_pct

STARVED_SHARE = 5.0
"""A TTFT above so many times that of the smallest concurrency of its series is admission, not service."""
MARKS = {JUDGED: "", FITTED: " (fitted on)", DOUBTFUL: " (labels in doubt)"}


COLUMNS = (
    "class", "cells", "refused", "tpot_mean_abs_pct", "tpot_mean_pct", "peer_tpot_mean_abs_pct", "ttft_mean_abs_pct",
    "ttft_median_abs_pct",
)  # fmt: skip
"""Columns of the table on the terminal."""


def judge(cells: Sequence[Cell], peer: Mapping[str, Mapping[str, str]]) -> Iterator[dict[str, Any] | Refusal]:
    """A row of figures for every run, or why it is refused, those that constants were fitted on first."""
    in_order = sorted(cells, key=lambda cell: not is_fitted(cell))
    first, doubted_ids = first_runs(in_order), drafting(in_order) | contradicted(in_order)
    least = {series: min(of, key=lambda cell: cell.concurrency) for series, of in grouped(in_order, _series).items()}
    known: dict[object, dict[str, float]] = {}
    for cell in in_order:
        if first[cell.id] != cell.id:
            continue
        loop = _series(cell), cell.source, cell.concurrency
        try:
            role = role_of(cell, *profile_of(cell), doubted_ids)
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


def main(
    cells: Path,
    json: Path,
    peer: Sequence[Path] = (),
    only: str = "",
    every: int = 1,
    mode: Literal["agg", "disagg"] = "agg",
) -> int:
    from pandas import DataFrame

    warnings.simplefilter("ignore")
    published_tables()
    rows = read_cells(cells, mode)
    is_whole = mode == "agg"
    family = (lambda row: cell_of(row).label) if is_whole else disaggregated.family_of
    rows = [row for row in rows if only in family(row)][::every]
    known = kindest(map(csv_rows, peer))
    entries = judge(list(map(cell_of, rows)), known) if is_whole else disaggregated.judge(rows)
    judged: list[dict[str, Any]] = []
    refusals: list[Refusal] = []
    start_s = time.perf_counter()
    for i, entry in enumerate(entries, start=1):
        if isinstance(entry, Refusal):
            refusals.append(entry)
        else:
            judged.append(entry)
        if i % 50 == 0:
            print(f"{i} of {len(rows)} rows, {time.perf_counter() - start_s:.0f} s", flush=True)
    if not judged:
        why = f"no row with --mode {mode} --only {only!r} --every {every}"
        if refusals:
            ((most, count),) = Counter(entry.why for entry in refusals).most_common(1)
            why = f"all {len(refusals)} rows refused, {count} of them so: {most}"
        print(f"silicon: {cells}: {why}", file=sys.stderr)
        return 1
    classes = rounded(classes_of(judged, refusals), 2)
    result = {"classes": classes, "refusals": sorted(refusals), "cells": rounded(judged, 1, tpot_ms=3)}
    json.write_text(dumps(result, indent=1) + "\n")
    print(markdown(DataFrame(classes, columns=COLUMNS)))
    return 0
