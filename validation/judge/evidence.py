"""Writes what lanesim knows of served cells: `python -m validation evidence CELLS.csv`.

sim/evidence/cells.json: of judged cells (docs/validation/served-cells.csv) the mean size of TPOT's error per GPU,
engine, model and load; cells of other sources stay as they are in the file. sim/evidence/errors.json: the model of
errors (sim.studies.served_errors) fitted on all of them. docs/validation/levels.md: how often its 95 % intervals hold
where a set-up, or a whole model, is left out.

A set-up is an engine's family, GPU, model, format of the weights and degrees; what its cells have in common counts
once. Speed-ups are those of docs/validation/accuracy-cells.csv under engines that a scenario can name. Which groups
matter was decided by maximum likelihood: engine, GPU, model, engine and GPU, engine and model, and engine and degree
had no variance left beside engine, GPU and model together. Not here: the errors of cells
(validation.judge.served_judge), what is near a question (sim.studies.evidence).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from math import exp, lgamma, log, log1p, log2, pi
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import msgspec
import numpy as np

from calibrate.catalogue.model_configs import source_of
from calibrate.served.load import JUDGED
from calibrate.served.load import ServedLoad as Cell
from sim.costs.engine_costs import ENGINES
from sim.draws import Floats
from sim.studies.evidence import CELLS, MEAN_SIZE, NONE, Evidence, EvidenceCell, measured
from sim.studies.served_errors import (
    ERRORS,
    GRID,
    HIGH_95,
    LOW_95,
    ErrorChances,
    ErrorPart,
    ServedErrors,
    SetUp,
    layers_of,
    measured_name,
    served_errors,
)  # fmt: skip
from validation.judge.served_cells import cell_of, engine_name, read_cells
from validation.judge.served_judge import SERVED
from validation.tables import csv_rows, grouped, page

SAMPLE = "ai-dynamo/aiconfigurator@095f58a51c4c, silicon_sample.csv"
ACCURACY, LEVELS = SERVED.with_name("accuracy-cells.csv"), SERVED.with_name("levels.md")
PARTS = ("group", "set_up", "cell", "speedup")
OVER_LENGTHS = f"{SAMPLE}; mean size over lengths, formats and degrees"
COMMON = ("gpu", "engine", "model", "has_experts", "in_flight")
"""Fields that the cells of one mean have in common; requests in flight on a rank are the nearest power of two."""
SCHEMA = 1
DIGITS = 4
START = (0.0, log(0.05), log(2.0), log(0.05), log(2.0))
"""Bias, logarithms of scale and degrees of freedom of the group's and the set-up's part."""
DECILES = 10


class MeasuredSetUp(NamedTuple):
    """Logarithms of simulated over measured TPOT of one set-up's cells."""

    group: tuple[str, str, str]
    """Engine without version, GPU, model."""
    degree: int
    errors: Sequence[float]

    @property
    def mean(self) -> float:
        return float(np.mean(self.errors))


def set_ups_of(cells: Iterable[tuple[Cell, str, float]]) -> list[MeasuredSetUp]:
    """Set-ups of cells, which come with the name of the model and the error of TPOT, percent."""

    def labels(row: tuple[Cell, str, float]) -> tuple[Any, ...]:
        cell, model, _ = row
        group = engine_name(cell).partition("-")[0], cell.gpu, model
        return group, cell.tp * cell.dp, cell.tp, cell.ep or 1, cell.label.split()[-1]

    return [
        MeasuredSetUp(group, degree, [log1p(pct / 100.0) for _, _, pct in of])
        for (group, degree, *_), of in sorted(grouped(cells, labels).items())
    ]


def part(errors: Iterable[float]) -> ErrorPart:
    """Student's t of most likelihood."""
    from scipy.stats import t

    degrees, _, scale = map(float, t.fit(list(errors), floc=0.0))
    return ErrorPart(round(scale, DIGITS), round(degrees, 2))


def fit(set_ups: Sequence[MeasuredSetUp], speedup: ErrorPart) -> ServedErrors:
    """The model of most likelihood."""
    from scipy.optimize import minimize

    groups = list(grouped(set_ups, lambda each: each.group).values())
    errors = np.array([each.mean for of in groups for each in of])
    firsts = np.cumsum([0, *map(len, groups[:-1])])

    def misfit(values: Sequence[float]) -> float:
        bias, scale, degrees, set_up_scale, set_up_degrees = values[0], *map(exp, values[1:])
        of_set_ups = _log_density(errors[:, None], set_up_scale, set_up_degrees)
        logs = _log_density(bias, scale, degrees) + np.add.reduceat(of_set_ups, firsts)
        most = logs.max(axis=1, keepdims=True)
        return -float((most[:, 0] + np.log(np.exp(logs - most).sum(axis=1))).sum())

    best: list[float] = minimize(
        misfit, START, method="Nelder-Mead", options={"maxiter": 2000, "xatol": 1e-3, "fatol": 1e-3}
    ).x.tolist()
    bias, (scale, degrees, set_up_scale, set_up_degrees) = best[0], map(exp, best[1:])
    return ServedErrors(
        schema=SCHEMA,
        bias=round(bias, DIGITS),
        group=ErrorPart(round(scale, DIGITS), round(degrees, 2)),
        set_up=ErrorPart(round(set_up_scale, DIGITS), round(set_up_degrees, 2)),
        cell=part(error - each.mean for each in set_ups for error in each.errors),
        speedup=speedup,
        set_ups=tuple(SetUp(*each.group, round(each.mean, DIGITS), len(each.errors)) for each in set_ups),
    )


def _log_density(around: Floats | float, scale: float, degrees: float) -> Floats:
    """[..., GRID] logarithm of Student's t around some places."""
    factor = lgamma(0.5 * (degrees + 1.0)) - lgamma(0.5 * degrees) - 0.5 * log(pi * degrees) - log(scale)
    return np.asarray(factor - 0.5 * (degrees + 1.0) * np.log1p(((GRID - around) / scale) ** 2 / degrees))


def speedups_of(cells: Iterable[Mapping[str, str]]) -> list[float]:
    """Logarithms of simulated over measured ones, of lines of accuracy-cells.csv: judged ones that draft under an
    engine of sim/engines."""
    return [
        log(float(cell["speedup_simulated"]) / float(cell["speedup"]))
        for cell in cells
        if cell["role"] == JUDGED and cell["speedup"] and (ENGINES / f"{cell['engine']}.json").exists()
        if int(cell["num_speculative_tokens"])
    ]  # fmt: skip


# -- what was left out


def without_set_up(set_ups: Sequence[MeasuredSetUp], errors: ServedErrors) -> list[ErrorChances]:
    """[set-ups] of a cell of each, by the other set-ups of its engine, GPU and model."""
    by_group = grouped(set_ups, lambda each: each.group)
    return [errors.level([other.mean for other in by_group[each.group] if other is not each]) for each in set_ups]


def without_model(set_ups: Sequence[MeasuredSetUp], errors: ServedErrors) -> list[ErrorChances]:
    """[set-ups] of a cell of each, by a model that was fitted on the set-ups of all other models."""
    speedup = errors.speedup
    chances = {
        model: fit([each for each in set_ups if each.group[-1] != model], speedup).level([])
        for model in {each.group[-1] for each in set_ups}
    }
    return [chances[each.group[-1]] for each in set_ups]


def gpus(degree: int) -> str:
    return f"{degree} GPU{'s' * (degree > 1)}"


def coverage_rows(set_ups: Sequence[MeasuredSetUp], chances: Sequence[ErrorChances]) -> list[dict[str, Any]]:
    """Shares of set-ups, by their means, and of cells in the 95 % interval of a cell, and half its width: a row for
    each engine and degree."""
    bounds = [(of.at(LOW_95), of.at(HIGH_95)) for of in chances]
    pairs = list(zip(set_ups, bounds, strict=True))
    kinds = {"all": pairs}
    kinds |= grouped(sorted(pairs, key=lambda pair: pair[0].group[0]), lambda pair: pair[0].group[0])
    kinds |= grouped(sorted(pairs, key=lambda pair: pair[0].degree), lambda pair: gpus(pair[0].degree))
    rows = []
    for kind, of in kinds.items():
        means = [low <= each.mean <= high for each, (low, high) in of]
        cells = [low <= error <= high for each, (low, high) in of for error in each.errors]
        half = median(exp(high) - exp(low) for _, (low, high) in of) / 2.0
        rows.append({
            "of": kind, "set-ups": len(means), "hold": f"{100.0 * fmean(means):.0f} %", "cells": len(cells),
            "cells that hold": f"{100.0 * fmean(cells):.1f} %", "half-width": f"{100.0 * half:.0f} %",
        })  # fmt: skip
    return rows


def deciles(set_ups: Sequence[MeasuredSetUp], chances: Sequence[ErrorChances]) -> list[int]:
    """[DECILES] set-ups by the chance that was given to less than their mean: a tenth in each where the model is
    right."""
    values = [of.chance(each.mean) for each, of in zip(set_ups, chances, strict=True)]
    counts: list[int] = np.histogram(values, DECILES, (0.0, 1.0))[0].tolist()
    return counts


def outside(set_ups: Sequence[MeasuredSetUp], chances: Sequence[ErrorChances]) -> list[str]:
    """Groups with set-ups whose mean is not in the interval, the most first."""
    missed = [
        each for each, of in zip(set_ups, chances, strict=True) if not of.at(LOW_95) <= each.mean <= of.at(HIGH_95)
    ]
    groups = sorted(grouped(missed, lambda each: each.group).items(), key=lambda pair: -len(pair[1]))
    return [
        f"{len(of)} of {model} under {engine} on {gpu} ({100.0 * (exp(fmean(each.mean for each in of)) - 1.0):+.0f} %)"
        for (engine, gpu, model), of in groups
    ]


# -- cells that answers quote


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
