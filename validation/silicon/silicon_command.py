"""`python -m validation silicon`: the command line of the served cells. Not here: judging (judge, disaggregated)."""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from calibrate.importers.aiconfigurator.deployment import installed_tables
from sim.files.lock import check_destinations
from validation.silicon import disaggregated
from validation.silicon import judge as judging
from validation.silicon.judge import (
    Judged,
    classes_of,
    engine_block,
    fail,
    import_words,
    judge,
    kindest,
    nothing_judged,
)
from validation.silicon.served_cells import Cell, cell_of, read_cells
from validation.tables import csv_rows, off_pct, plain_table

COLUMNS = (
    "class", "cells", "refused", "tpot_mean_abs_pct", "tpot_mean_pct", "peer_tpot_mean_abs_pct", "ttft_mean_abs_pct",
)  # fmt: skip
"""Columns of the table on the terminal."""


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=judging.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", type=Path)
    parser.add_argument("--json", type=Path, required=True, dest="out")
    parser.add_argument(
        "--peer",
        type=Path,
        nargs="*",
        default=[],
        help="the rows with aic_ttft_ms and aic_tpot_ms; of several readings of the labels the kindest counts",
    )
    parser.add_argument("--only", default="", help="only classes whose name holds this text, such as 'vllm moe'")
    parser.add_argument("--every", type=int, default=1, help="only every so manieth row")
    parser.add_argument(
        "--mode", choices=("agg", "disagg"), default="agg", help="which rows (validation.silicon.disaggregated)"
    )
    parser.add_argument("--overwrite", action="store_true", help="Replace output files that are there.")
    options = parser.parse_args(words)
    warnings.simplefilter("ignore")
    try:
        check_destinations({"--json": options.out}, overwrite=options.overwrite, inputs=[options.cells, *options.peer])
    except ValueError as error:
        return fail(str(error), 2)
    try:
        installed_tables()
        rows = read_cells(options.cells, options.mode)
    except ValueError:
        return fail("the kernel tables of aiconfigurator-core are missing: pip install 'lanesim[tables]'", 2)
    except OSError as error:
        return fail(f"{options.cells}: {error.strerror}", 2)
    if options.mode == "disagg":
        return disaggregated.run(rows, options)
    rows = [row for row in rows if options.only in cell_of(row).family][:: options.every]
    peer = kindest(list(map(csv_rows, options.peer)))
    found, start_s = [], time.perf_counter()
    for i, entry in enumerate(judge(rows)):
        found.append(entry)
        if i % 50 == 49:
            print(f"{i + 1} of {len(rows)} rows, {time.perf_counter() - start_s:.0f} s", flush=True)
    if not any(isinstance(entry, Judged) for entry in found):
        return fail(nothing_judged([why for _, why in _refused(found)], options), 1)
    classes = classes_of(found, peer)
    result = {
        "classes": classes,
        "refusals": sorted({(cell.family, cell.model, cell.gpu, why) for cell, why in _refused(found)}),
        "fitted_on": sorted(entry.cell.id for entry in found if isinstance(entry, Judged) and entry.is_marked),
        "cells": [
            {
                "id": entry.cell.id,
                "class": entry.cell.family,
                "tensor_parallel": entry.cell.deployment.tensor_parallel,
                "data_parallel": entry.cell.deployment.data_parallel,
                "concurrency": entry.cell.concurrency,
                "profile": " ".join(Path(word).name for word in import_words(entry.cell)),
                "engine": {key: value for key, value in engine_block(entry.cell).items() if value is not None},
                "tpot_ms": round(entry.tpot_ms, 3),
                "ttft_ms": round(entry.ttft_ms, 1),
                "tpot_error_pct": round(off_pct(entry.tpot_ms, entry.cell.tpot_ms), 1),
                "ttft_error_pct": round(off_pct(entry.ttft_ms, entry.cell.ttft_ms), 1),
                "is_fitted_on": entry.is_marked,
                "is_doubtful": entry.is_doubtful,
                "is_starved": entry.is_starved,
            }
            for entry in found
            if isinstance(entry, Judged)
        ],
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(plain_table(classes, COLUMNS))
    return 0


def _refused(found: list[Judged | tuple[Cell, str]]) -> Iterator[tuple[Cell, str]]:
    return (entry for entry in found if not isinstance(entry, Judged))
