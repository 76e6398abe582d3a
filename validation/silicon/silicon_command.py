"""Served cells beside lanesim and a peer: `python -m validation silicon CELLS.csv --json OUT [--peer PREDICTIONS.csv]`.

CELLS.csv is ai-dynamo/aiconfigurator's silicon_sample.csv or a part of it: closed loops of vLLM, SGLang and
TensorRT-LLM, mean TTFT and TPOT. Every aggregated row gets a profile from the kernel tables of the installed
aiconfigurator-core and a scenario (validation.silicon.served_cells), disaggregated ones with --mode disagg
(validation.silicon.disaggregated). A run that several dumps have is one cell. Classes are engine, dense or MoE, and the
format of the GEMMs. Counted apart: cells that constants were fitted on, and those whose labels cannot be. --peer takes
the rows with aic_ttft_ms and aic_tpot_ms beside them; of several readings of the labels the kindest counts. --only
takes classes whose name holds a text, such as 'vllm moe', --every every so manieth row. Exits 1 where no row is judged,
and leaves OUT as it was; 2 where CELLS.csv or the kernel tables are missing.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from json import dumps
from pathlib import Path
from typing import Any, Literal

from calibrate.importers.aiconfigurator.deployment import installed_tables
from validation.silicon import disaggregated
from validation.silicon.judge import Refusal, classes_of, judge, kindest, rounded
from validation.silicon.served_cells import cell_of, read_cells
from validation.tables import csv_rows, markdown

COLUMNS = (
    "class", "cells", "refused", "tpot_mean_abs_pct", "tpot_mean_pct", "peer_tpot_mean_abs_pct", "ttft_mean_abs_pct",
    "ttft_median_abs_pct",
)  # fmt: skip
"""Columns of the table on the terminal."""


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
    installed_tables()
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
