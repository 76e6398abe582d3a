"""Writes what lanesim shows as evidence of served cells, in sim/evidence/cells.json:
`python -m validation evidence CELLS.csv`.

Of judged cells (docs/validation/served-cells.csv) the mean size of TPOT's error per GPU, engine, model and load. Cells
of other sources stay as they are in the file. Not here: the errors (validation.silicon.silicon_page), what is near a
question (sim.studies.evidence).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from math import log2
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from calibrate.catalogue.model_configs import source_of
from calibrate.judge.cell import JUDGED
from sim.studies.evidence import CELLS, MEAN_SIZE, NONE, SAME_LAYERS, Evidence, EvidenceCell
from validation.silicon.served_cells import cell_of, engine_name, read_cells
from validation.silicon.silicon_page import TABLE as SERVED
from validation.tables import csv_rows, grouped

SAMPLE = "ai-dynamo/aiconfigurator@095f58a51c4c, silicon_sample.csv"
OVER_LENGTHS = f"{SAMPLE}; mean size over lengths, formats and degrees"
COMMON = ("gpu", "engine", "model", "has_experts", "in_flight")
"""Fields that the cells of one mean have in common; requests in flight on a rank are the nearest power of two."""


@cache
def model_of(repository: str) -> tuple[str, bool]:
    """Name, as a profile has it, models of the same layers by one; and whether it has experts."""
    shape = source_of(repository, plain=False).shape
    return SAME_LAYERS.get(shape.name, shape.name), shape.experts is not None


def served(rows: Iterable[Mapping[str, str]], judged: Iterable[Mapping[str, str]]) -> list[EvidenceCell]:
    """Means over `judged`, lines of served-cells.csv, of `rows`, those of silicon_sample.csv."""
    cells = {row["id"]: cell_of(row) for row in rows}
    errors: dict[tuple[Any, ...], list[float]] = {}
    for line in judged:
        if line["role"] == JUDGED:
            cell = cells[line["id"]]
            load = cell.gpu, engine_name(cell), *model_of(cell.target), 1 << round(log2(cell.concurrency))
            errors.setdefault(load, []).append(abs(float(line["tpot_error_pct"])))
    return [
        EvidenceCell(
            **dict(zip(COMMON, load, strict=True)), method=NONE, k=0, workload="random", metric=f"TPOT {MEAN_SIZE}",
            error_pct=round(fmean(sizes), 1), speedup_error_pct=None, source=OVER_LENGTHS, runs=len(sizes),
        )
        for load, sizes in sorted(errors.items())
    ]  # fmt: skip


def by_engine(cells: Iterable[EvidenceCell]) -> dict[str, float]:
    """Mean size of TPOT's error by engine, over all runs of it."""
    by_name = grouped(cells, lambda cell: cell.engine.partition("-")[0])
    return {
        name: round(sum(cell.runs * cell.error_pct for cell in of) / sum(cell.runs for cell in of), 1)
        for name, of in sorted(by_name.items())
    }


def text_of(evidence: Evidence) -> str:
    """A cell on a line."""
    lines = ",\n  ".join(msgspec.json.encode(cell).decode() for cell in evidence.cells)
    by_name = msgspec.json.encode(evidence.served_pct).decode()
    return f'{{"schema": {evidence.schema}, "served_pct": {by_name}, "cells": [\n  {lines}\n]}}\n'


def main(cells: Path) -> None:
    plain = served(read_cells(cells), csv_rows(SERVED))
    before = msgspec.json.decode(CELLS.read_bytes(), type=Evidence)
    others = [cell for cell in before.cells if cell.source != OVER_LENGTHS]
    CELLS.write_text(text_of(Evidence(schema=before.schema, served_pct=by_engine(plain), cells=(*others, *plain))))
    print(f"{len(plain)} means of {sum(cell.runs for cell in plain)} served cells, {len(others)} others")
