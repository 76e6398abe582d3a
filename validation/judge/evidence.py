"""The writer of lanesim's errors on served GPUs, for answers to quote: `python -m validation evidence CELLS.csv`.

- sim/evidence/cells.json has the mean size of TPOT's error per GPU, engine, model and load, over judged cells of
  docs/validation/served-cells.csv. Cells of other sources stay in the file.
- sim/evidence/errors.json has the model of errors (sim.studies.served_errors), fitted on all of them.
- docs/validation/levels.csv says how often its 95 % intervals are right where a set-up or a whole model is left out. It
  also has their width and their interval score.

A set-up is an engine's family, a GPU, a model, a format of the weights and degrees, or an open loop. It counts once.
Speed-ups are those of docs/validation/accuracy-cells.csv under engines that a scenario can name. Other forms are in
docs/adr/039. Not here: the errors of cells (validation.judge.served_judge), what is near a question
(sim.studies.evidence), docs/real-gpus.md (validation.pages.real_gpus).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from math import exp, lgamma, log, log1p, log2, pi
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import msgspec
import numpy as np

from calibrate.catalogue.model_configs import source_of
from calibrate.served.load import JUDGED, ServedLoad
from sim.costs.engine_costs import ENGINES
from sim.costs.profile_files import load
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
from validation.tables import csv_rows, grouped, write_csv

SAMPLE = "ai-dynamo/aiconfigurator@095f58a51c4c, silicon_sample.csv"
ACCURACY, LEVELS = SERVED.with_name("accuracy-cells.csv"), SERVED.with_name("levels.csv")
OVER_LENGTHS = f"{SAMPLE}; mean size over lengths, formats and degrees"
COMMON = ("gpu", "engine", "model", "has_experts", "in_flight")
"""Fields that the cells of one mean have in common; requests in flight on a rank are the nearest power of two."""
SCHEMA = 1
DIGITS = 4
START = (0.0, log(0.05), log(2.0), log(0.05), log(2.0))
"""Bias, logarithms of scale and degrees of freedom of the group's and the set-up's part."""
REPLAYS = "measured here"
"""Engine of the replays, which are in no fit (validation.pages.real_gpus)."""
MISS = 40.0
"""Weight of a distance outside a 95 % interval, 2 / 0.05 (Gneiting and Raftery 2007, equation 43)."""
LOADS = {8: "1 to 8 in flight", 32: "9 to 32 in flight", 128: "33 to 128 in flight", 10**9: "129 and more in flight"}
"""Most requests in flight -> the name of such loads."""
OPEN_LOOPS, OPEN, OTHERS = "open-loops", ("h100-sxm/llama-2-7b",), "other sources"
"""A part of accuracy-cells.csv and its profiles; the kind of set-ups that are no rows of the sample."""


class MeasuredSetUp(NamedTuple):
    """Logarithms of simulated over measured TPOT of one set-up's cells."""

    group: tuple[str, str, str]
    """Engine without version, GPU, model."""
    tensor_parallel: int
    kind: str
    """Such as `dense fp8`."""
    errors: Sequence[float]
    loads: Sequence[float]
    """[cells] requests in flight."""

    @property
    def mean(self) -> float:
        return float(np.mean(self.errors))


MeasuredCell = tuple[tuple[str, str, str], int, str, tuple[Any, ...], float, float]
"""Group, tensor-parallel degree, kind and whatever else its set-up has; logarithm of simulated over measured TPOT and
requests in flight."""


def group_of(engine: str, gpu: str, model: str) -> tuple[str, str, str]:
    return engine.partition("-")[0], gpu, model


def set_ups_of(cells: Iterable[MeasuredCell]) -> list[MeasuredSetUp]:
    """Cells in their order; they are of one set-up where all but the last two are the same."""
    return [
        MeasuredSetUp(group, tp, kind, [cell[-2] for cell in of], [cell[-1] for cell in of])
        for (group, tp, kind, _), of in sorted(grouped(cells, lambda cell: cell[:4]).items())
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


def coverage_rows(set_ups: Sequence[MeasuredSetUp], chances: Sequence[ErrorChances]) -> list[dict[str, Any]]:
    """Share of cells in their 95 % interval, half its width and its score, a set-up counting once in the score: of all,
    and by engine, degree, kind and load."""
    import pandas as pd

    cells = []
    for index, (each, of) in enumerate(zip(set_ups, chances, strict=True)):
        low, high = of.at(LOW_95), of.at(HIGH_95)
        half = (exp(high) - exp(low)) / 2.0
        for error, in_flight in zip(each.errors, each.loads, strict=True):
            score = high - low + MISS * max(0.0, low - error, error - high)
            load = next(name for most, name in LOADS.items() if in_flight <= most)
            names = "all", each.group[0], f"TP {each.tensor_parallel}", each.kind, load
            for place, name in enumerate(names):
                cells.append((place, len(name.partition(" ")[0]), name, index, low <= error <= high, half, score))
    table = pd.DataFrame(cells, columns=["place", "length", "of", "index", "holds", "half", "score"])
    return [
        {
            "of": name, "set-ups": of["index"].nunique(), "cells": len(of),
            "hold": f"{100.0 * of['holds'].mean():.1f} %", "half-width": f"{100.0 * of['half'].median():.0f} %",
            "score": f"{of.groupby('index')['score'].mean().mean():.2f}",
        }
        for (_, _, name), of in table.groupby(["place", "length", "of"])
    ]  # fmt: skip


# -- cells that answers quote


@cache
def model_of(repository: str) -> tuple[str, bool]:
    """Name, as a profile has it, models of the same layers by one; and whether it has experts."""
    shape = source_of(repository, plain=False).shape
    return measured_name(shape) or shape.name, shape.experts is not None


def judged_cells(
    rows: Iterable[Mapping[str, str]], judged: Iterable[Mapping[str, str]]
) -> list[tuple[ServedLoad, float]]:
    """Judged cells of `rows`, those of silicon_sample.csv, and the error of their TPOT in percent, by `judged`, lines
    of served-cells.csv."""
    cells = {row["id"]: cell_of(row) for row in rows}
    return [(cells[line["id"]], float(line["tpot_error_pct"])) for line in judged if line["role"] == JUDGED]


def served(cells: Iterable[tuple[ServedLoad, float]]) -> list[EvidenceCell]:
    """Means over the cells of a GPU, engine, model and load."""

    def load_of(judged: tuple[ServedLoad, float]) -> tuple[Any, ...]:
        cell, _ = judged
        return cell.gpu, engine_name(cell), *model_of(cell.target), 1 << round(log2(cell.concurrency))

    return [
        EvidenceCell(
            **dict(zip(COMMON, load, strict=True)), method=NONE, k=0, workload="random", metric=f"TPOT {MEAN_SIZE}",
            error_pct=round(fmean(abs(error) for _, error in of), 1), speedup_error_pct=None, source=OVER_LENGTHS,
            runs=len(of),
        )
        for load, of in sorted(grouped(cells, load_of).items())
    ]  # fmt: skip


def set_ups(cells: Iterable[tuple[ServedLoad, float]]) -> list[MeasuredSetUp]:
    """Set-ups of the same cells, and of those of other sources that measure a level without drafts."""
    sample = (
        (
            group_of(engine_name(cell), cell.gpu, model_of(cell.target)[0]), cell.tp, cell.label.partition(" ")[2],
            (cell.dp, cell.ep or 1, cell.weights or ""), log1p(error / 100.0), float(cell.concurrency),
        )
        for cell, error in cells
    )  # fmt: skip
    others = (
        (group_of(cell.engine, cell.gpu, cell.model), 1, OTHERS, (), log_time(cell), float(cell.in_flight))
        for cell in measured().cells
        if cell.is_level and cell.method == NONE and cell.source != OVER_LENGTHS and not cell.policy
    )
    return [*set_ups_of(sample), *set_ups_of(others), *open_loops(csv_rows(ACCURACY))]


def open_loops(cells: Iterable[Mapping[str, str]]) -> list[MeasuredSetUp]:
    """Judged open loops of accuracy-cells.csv by GPU and model; requests in flight by Little's law."""
    return set_ups_of(
        (
            group_of(cell["engine"], f"{cell['gpu'].lower()}-sxm", cell["target"]), 1, "open loop", (),
            log(float(cell["tpot_ms_simulated"]) / float(cell["tpot_ms"])),
            float(cell["load"].partition("/")[0]) * float(cell["e2el_ms"]) / 1e3,
        )
        for cell in cells
        if cell["part"] == OPEN_LOOPS and cell["role"] == JUDGED
    )  # fmt: skip


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


def write_cells(cells: Sequence[EvidenceCell], is_replaced: Callable[[EvidenceCell], bool]) -> int:
    """Writes them behind those of the file that they do not replace; how many these are."""
    before = msgspec.json.decode(CELLS.read_bytes(), type=Evidence)
    others = [cell for cell in before.cells if not is_replaced(cell)]
    CELLS.write_text(text_of(Evidence(schema=before.schema, cells=(*others, *cells))))
    return len(others)


def main(cells: Path) -> None:
    rows = read_cells(cells)
    judged = judged_cells(rows, csv_rows(SERVED))
    plain = served(judged)
    others = write_cells(plain, lambda cell: cell.source == OVER_LENGTHS)
    of_levels = set_ups(judged)
    errors = fit(of_levels, part(speedups_of(csv_rows(ACCURACY))))
    shapes = [source_of(row["model_path"], plain=False).shape for row in rows] + [load(name).target for name in OPEN]
    layers = {measured_name(shape) or shape.name: layers_of(shape) for shape in shapes}
    replayed = tuple(each for each in served_errors().set_ups if each.engine == REPLAYS)
    stated = msgspec.structs.replace(errors, layers=served_errors().layers | layers, set_ups=errors.set_ups + replayed)
    ERRORS.write_text(text_of_errors(stated))
    chances = {"set-up": without_set_up(of_levels, errors), "model": without_model(of_levels, errors)}
    shares = [{"left out": what, **row} for what, of in chances.items() for row in coverage_rows(of_levels, of)]
    write_csv(LEVELS, list(shares[0]), (row.values() for row in shares))
    print(f"{len(plain)} means of {sum(cell.runs for cell in plain)} served cells, {others} others")
    print(f"{len(of_levels)} set-ups: bias {errors.bias:+.3f}")
    print(f"parts {errors.group}, {errors.set_up}, {errors.cell}")
