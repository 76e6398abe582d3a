"""Writes what lanesim knows of served cells: `python -m validation evidence CELLS.csv`.

sim/evidence/cells.json: of judged cells (docs/validation/served-cells.csv) the mean size of TPOT's error per GPU,
engine, model and load; cells of other sources stay as they are in the file. sim/evidence/errors.json: the model of
errors fitted on all of them, and docs/validation/levels.md: how often its intervals hold. Not here: the errors of cells
(validation.silicon.silicon_page), the fit (validation.silicon.error_fit), what is near a question
(sim.studies.evidence).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from math import exp, log1p, log2
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from calibrate.catalogue.model_configs import source_of
from calibrate.judge.cell import JUDGED
from sim.studies.evidence import CELLS, MEAN_SIZE, NONE, Evidence, EvidenceCell, measured
from sim.studies.served_errors import ERRORS, ServedErrors, layers_of, measured_name, served_errors
from validation.silicon.error_fit import (
    DECILES,
    MeasuredSetUp,
    coverage_rows,
    deciles,
    fit,
    outside,
    part,
    set_ups_of,
    speedups_of,
    without_model,
    without_set_up,
)
from validation.silicon.served_cells import cell_of, engine_name, read_cells
from validation.silicon.silicon_page import TABLE as SERVED
from validation.tables import csv_rows, grouped, page

SAMPLE = "ai-dynamo/aiconfigurator@095f58a51c4c, silicon_sample.csv"
ACCURACY, LEVELS = SERVED.with_name("accuracy-cells.csv"), SERVED.with_name("levels.md")
PARTS = ("group", "set_up", "cell", "speedup")
OVER_LENGTHS = f"{SAMPLE}; mean size over lengths, formats and degrees"
COMMON = ("gpu", "engine", "model", "has_experts", "in_flight")
"""Fields that the cells of one mean have in common; requests in flight on a rank are the nearest power of two."""


@cache
def model_of(repository: str) -> tuple[str, bool]:
    """Name, as a profile has it, models of the same layers by one; and whether it has experts."""
    shape = source_of(repository, plain=False).shape
    return measured_name(shape) or shape.name, shape.experts is not None


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


def set_ups(rows: Iterable[Mapping[str, str]], judged: Iterable[Mapping[str, str]]) -> list[MeasuredSetUp]:
    """Set-ups of the same cells, and of those of other sources that measure a level without drafts."""
    cells = {row["id"]: cell_of(row) for row in rows}
    of_served = set_ups_of(
        (cell, model_of(cell.target)[0], float(line["tpot_error_pct"]))
        for line in judged
        if line["role"] == JUDGED
        for cell in (cells[line["id"]],)
    )
    others = [
        cell for cell in measured().cells if cell.is_level and cell.method == NONE and cell.source != OVER_LENGTHS
    ]
    by_group = grouped(others, lambda cell: (cell.engine.partition("-")[0], cell.gpu, cell.model))
    return [*of_served, *(MeasuredSetUp(group, 1, list(map(log_time, of))) for group, of in sorted(by_group.items()))]


def log_time(cell: EvidenceCell) -> float:
    """Logarithm of simulated over measured time, of a throughput its inverse."""
    error = log1p(cell.error_pct / 100.0)
    return -error if cell.metric.endswith("throughput") else error


def text_of(evidence: Evidence) -> str:
    """A cell on a line."""
    lines = ",\n  ".join(msgspec.json.encode(cell).decode() for cell in evidence.cells)
    return f'{{"schema": {evidence.schema}, "cells": [\n  {lines}\n]}}\n'


def text_of_errors(errors: ServedErrors) -> str:
    """A set-up on a line."""
    lines = ",\n  ".join(msgspec.json.encode(each).decode() for each in errors.set_ups)
    head = msgspec.json.encode(msgspec.structs.replace(errors, set_ups=())).decode().removesuffix("[]}")
    return f"{head}[\n  {lines}\n]}}\n"


def main(cells: Path) -> None:
    from pandas import DataFrame

    rows, judged = read_cells(cells), csv_rows(SERVED)
    plain = served(rows, judged)
    before = msgspec.json.decode(CELLS.read_bytes(), type=Evidence)
    others = [cell for cell in before.cells if cell.source != OVER_LENGTHS]
    CELLS.write_text(text_of(Evidence(schema=before.schema, cells=(*others, *plain))))
    of_levels = set_ups(rows, judged)
    errors = fit(of_levels, part(speedups_of(csv_rows(ACCURACY))))
    layers = {
        model_of(row["model_path"])[0]: layers_of(source_of(row["model_path"], plain=False).shape) for row in rows
    }
    ERRORS.write_text(text_of_errors(msgspec.structs.replace(errors, layers=served_errors().layers | layers)))
    chances = {"set-up": without_set_up(of_levels, errors), "model": without_model(of_levels, errors)}
    parts = [(name, *msgspec.structs.astuple(getattr(errors, name))) for name in PARTS]
    shares = [{"left out": what, **row} for what, of in chances.items() for row in coverage_rows(of_levels, of)]
    tenths = [[what, *deciles(of_levels, of)] for what, of in chances.items()]
    page(
        LEVELS,
        "levels",
        bias=f"{100.0 * (exp(errors.bias) - 1.0):+.1f} %",
        parts=DataFrame(parts, columns=["part", "scale", "degrees of freedom"]),
        coverage=DataFrame(shares),
        outside=", ".join(outside(of_levels, chances["model"])),
        deciles=DataFrame(
            tenths, columns=["left out", *(f"{10 * tenth} to {10 * tenth + 10} %" for tenth in range(DECILES))]
        ),
    )
    print(f"{len(plain)} means of {sum(cell.runs for cell in plain)} served cells, {len(others)} others")
    print(f"{len(of_levels)} set-ups: bias {errors.bias:+.3f}, parts {errors.group}, {errors.set_up}, {errors.cell}")
