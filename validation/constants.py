"""Constants that some models' cells gave, judged on all other models: `python -m validation constants CELLS.csv
[--every N]` writes docs/validation/constants.csv.

Of judged served cells of models that had no part in a constant, by engine: the mean size of the error with it, and with
the value that leaves it out. A constant that does not help there has no place in the product
(tests/validation/test_constants.py). Not here: constants that several sources went into, each left out
(validation.left_out).
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import msgspec

from calibrate.importers.aiconfigurator import lookups
from calibrate.served.load import JUDGED
from calibrate.served.load import ServedLoad as Cell
from sim.costs.engine_costs import CONSTANTS as OF_ENGINES
from sim.costs.engine_costs import engine_of, with_engine
from validation.judge.evidence import model_of
from validation.judge.served_cells import (
    cell_of,
    engine_name,
    forget_profiles,
    means,
    profile_of,
    raw_scenario,
    read_cells,
)
from validation.judge.served_judge import SERVED
from validation.tables import csv_rows, grouped, mean_size, off_pct, write_csv

TABLE = SERVED.with_name("constants.csv")
COLUMNS = ("constant", "fitted on", "engine", "metric", "models", "cells", "with it", "without it")
COMPOSED = ("gpt-oss-120b", "llama-3.1-70b", "qwen3-235b-a22b")
"""Models whose cells recipes.csv marks for the importer's constants."""


class JudgedConstant(NamedTuple):
    """A constant, and the models whose cells gave it."""

    name: str
    models: tuple[str, ...]
    metric: str
    without: Mapping[str, float]
    """Values that leave it out, of fields of EngineCosts or names of the importer's lookups."""
    engines: tuple[str, ...] = ("vllm", "sglang", "trtllm")
    gpus: tuple[str, ...] = ()
    """All where there is none."""

    def is_seen_by(self, cell: Cell, model: str) -> bool:
        """Another model's cell, under an engine and on a GPU that have the constant."""
        return model not in self.models and cell.engine in self.engines and (not self.gpus or cell.gpu in self.gpus)


FITTED = (
    JudgedConstant("REDUCE_RATIO and REDUCE_SKEW_S", COMPOSED, "tpot", {"REDUCE_RATIO": 1.0, "REDUCE_SKEW_S": 0.0}),
    JudgedConstant("SUSTAINED_RATIO", COMPOSED, "tpot", {"SUSTAINED_RATIO": 1.0}),
    JudgedConstant("QUANTISE_S", COMPOSED, "tpot", {"QUANTISE_S": 0.0}),
    JudgedConstant(
        "frontend_s and frontend_token_s", COMPOSED, "ttft", {"frontend_s": 0.0, "frontend_token_s": 0.0},
        engines=("vllm", "trtllm"),
    ),
    JudgedConstant(
        "prompt_kernel_s", ("llama-3.1-70b",), "ttft", {"prompt_kernel_s": 0.0}, engines=("trtllm",),
    ),
    JudgedConstant(
        "gap_s", ("llama-3.1-8b",), "tpot", {"gap_s": 0.0}, engines=("sglang",), gpus=("h100-sxm", "h200-sxm"),
    ),
)  # fmt: skip


def error_without(cell: Cell, fitted: JudgedConstant) -> float:
    """Error of the cell without the constant, percent."""
    of_engine = {name: value for name, value in fitted.without.items() if name in OF_ENGINES}
    profile, _ = profile_of(cell)
    profile = with_engine(profile, msgspec.structs.replace(engine_of(engine_name(cell), profile), **of_engine))
    simulated = means(raw_scenario(cell, profile.name), profile)
    return off_pct(simulated[f"{fitted.metric}_ms"], cell.measured[f"{fitted.metric}_ms"])


def lines_of(fitted: JudgedConstant, judged: Sequence[tuple[Cell, Mapping[str, str]]]) -> Iterator[tuple[Any, ...]]:
    """COLUMNS by engine; of a TTFT only where requests do not wait for admission."""
    seen = [
        (cell, model, float(line[f"{fitted.metric}_error_pct"]))
        for cell, line in judged
        for model in (model_of(cell.target)[0],)
        if fitted.is_seen_by(cell, model) and not (fitted.metric == "ttft" and int(line["is_starved"]))
    ]
    of_importer = {name: value for name, value in fitted.without.items() if name not in OF_ENGINES}
    forget_profiles()
    with patch.dict(vars(lookups), of_importer):
        without = {cell.id: error_without(cell, fitted) for cell, _, _ in seen}
    forget_profiles()
    for engine, of in sorted(grouped(seen, lambda each: each[0].engine).items()):
        errors = [error for _, _, error in of], [without[cell.id] for cell, _, _ in of]
        models = " ".join(sorted({model for _, model, _ in of}))
        sizes = (round(mean_size(each) or 0.0, 1) for each in errors)
        yield fitted.name, " ".join(fitted.models), engine, fitted.metric, models, len(of), *sizes


def main(cells: Path, every: int = 1, out: Path = TABLE) -> None:
    """Every so manieth judged cell."""
    warnings.simplefilter("ignore")
    rows = {row["id"]: row for row in read_cells(cells)}
    lines = [line for line in csv_rows(SERVED) if line["role"] == JUDGED][::every]
    judged = [(cell_of(rows[line["id"]]), line) for line in lines]
    found = []
    for fitted in FITTED:
        for line in lines_of(fitted, judged):
            found.append(line)
            print(*line, sep=", ", file=sys.stderr)
    write_csv(out, COLUMNS, found)
