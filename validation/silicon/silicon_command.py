"""Served cells beside lanesim and a peer: `python -m validation silicon CELLS.csv --json OUT [--peer PREDICTIONS.csv]`.

CELLS.csv is ai-dynamo/aiconfigurator's silicon_sample.csv or a part of it: closed loops of vLLM, SGLang and
TensorRT-LLM, mean TTFT and TPOT. Every aggregated row gets a profile from the kernel tables of the installed
aiconfigurator-core and a scenario (validation.silicon.served_cells), disaggregated ones with --mode disagg
(validation.silicon.disaggregated). A run that several dumps have is one cell. Classes are engine, dense or MoE, and the
format of the GEMMs. Counted apart: cells that constants were fitted on, and those whose labels cannot be. --peer takes
the rows with aic_ttft_ms and aic_tpot_ms beside them. Exits 1 where no row is judged, and leaves OUT as it was; 2 where
CELLS.csv or the kernel tables are missing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calibrate.importers.aiconfigurator.deployment import installed_tables
from sim.files.lock import check_destinations
from validation.silicon import disaggregated
from validation.silicon.judge import Refusal, classes_of, judge, kindest, rounded
from validation.silicon.served_cells import cell_of, read_cells
from validation.tables import csv_rows, plain_table

COLUMNS = (
    "class", "cells", "refused", "tpot_mean_abs_pct", "tpot_mean_pct", "peer_tpot_mean_abs_pct", "ttft_mean_abs_pct",
    "ttft_median_abs_pct",
)  # fmt: skip
"""Columns of the table on the terminal."""


def fail(why: str, code: int) -> int:
    """Say it on stderr, in one line; the exit code."""
    print(f"silicon: {why}", file=sys.stderr)
    return code


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", type=Path)
    parser.add_argument("--json", type=Path, required=True, dest="out")
    peer_help = "rows with aic_ttft_ms and aic_tpot_ms; of several readings of the labels the kindest counts"
    parser.add_argument("--peer", type=Path, nargs="*", default=[], help=peer_help)
    parser.add_argument("--only", default="", help="only classes whose name holds this text, such as 'vllm moe'")
    parser.add_argument("--every", type=int, default=1, help="only every so manieth row")
    parser.add_argument("--mode", choices=("agg", "disagg"), default="agg")
    parser.add_argument("--overwrite", action="store_true", help="Replace output files that are there.")
    options = parser.parse_args(words)
    warnings.simplefilter("ignore")
    try:
        check_destinations({"--json": options.out}, overwrite=options.overwrite, inputs=[options.cells, *options.peer])
        installed_tables()
        rows = read_cells(options.cells, options.mode)
    except (ValueError, OSError) as error:
        return fail(f"{options.cells}: {error.strerror}" if isinstance(error, OSError) else str(error), 2)
    is_whole = options.mode == "agg"
    family = (lambda row: cell_of(row).label) if is_whole else disaggregated.family_of
    rows = [row for row in rows if options.only in family(row)][:: options.every]
    peer = kindest(map(csv_rows, options.peer))
    entries = judge(list(map(cell_of, rows)), peer) if is_whole else disaggregated.judge(rows)
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
        if not refusals:
            chosen = f"--mode {options.mode} --only {options.only!r} --every {options.every}"
            return fail(f"{options.cells}: no row with {chosen}", 1)
        ((why, count),) = Counter(entry.why for entry in refusals).most_common(1)
        return fail(f"{options.cells}: all {len(refusals)} rows refused, {count} of them so: {why}", 1)
    classes = rounded(classes_of(judged, refusals), 2)
    result = {"classes": classes, "refusals": sorted(refusals), "cells": rounded(judged, 1, tpot_ms=3)}
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(plain_table(classes, COLUMNS))
    return 0
