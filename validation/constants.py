"""Constants of engines and of the importer, judged by models that gave none of their engine's, and fitted anew.

`python -m validation constants judge DATA` writes docs/validation/constants.csv: the error of cells with
a constant, with half of it and without it. A cell judges where its model gave no constant of its engine. A pooled
constant is the mean of its sources, and each source judges the mean of the others. The digest of a row covers every
constant of its engine: a changed constant without a new run fails tests/validation/test_constants.py.

`python -m validation constants refit DATA` fits the constants of each source together, then pools anew. It prints old
and new values with standard errors. Not here: the page (validation.pages.accuracy).
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import cache, partial
from hashlib import sha256
from math import log1p
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple
from unittest.mock import patch

import msgspec
import numpy as np

from calibrate.importers.aiconfigurator import lookups
from calibrate.served.judge import speedups
from calibrate.served.load import FITTED, JUDGED, ServedLoad
from sim.costs import engine_costs
from sim.costs.engine_costs import CONSTANTS, ENGINES, load_engine, with_engine
from sim.costs.profile import Profile
from sim.files.json_values import convert
from sim.files.yaml_values import read_yaml
from validation.judge import drafted
from validation.judge.evidence import model_of
from validation.judge.sections import SPEEDUP, judge_run
from validation.judge.served_cells import cell_of, engine_name, forget_profiles, predicted, read_cells, recipes
from validation.judge.served_judge import SERVED
from validation.judge.specs import RunSpec, holds, specs
from validation.tables import csv_rows, grouped, mean_size, off_pct, write_csv

TABLE = SERVED.with_name("constants.csv")
COLUMNS = (
    "constant", "where", "given by", "engine", "judged by", "metric", "cells", "with it", "half of it", "without it",
    "digest",
)  # fmt: skip
SPECS = Path(__file__).with_name("constants.yaml")
CELLS = "aiconfigurator/silicon_visible.csv"
SERVED_CELLS, MTP_PAIRS, IMPORTER, ELSEWHERE = "served cells", "MTP pairs", "importer", "elsewhere"
SHARES = (1.0, 0.5, 0.0)
"""Parts of a constant that are tried. One that is far too large may beat none of it, but not half of it."""
DIGITS = 12
"""Of a digest."""

Known = dict[str, dict[str, float]]
"""Metrics of simulated cells by their ids."""
Key = tuple[str, str]
"""`ENGINE GPU` or the importer, and a name."""


class Constant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Constants that one source gave together."""

    names: list[str]
    """Fields of EngineCosts, or numbers of the importer's lookups."""
    where: list[str]
    """Patterns of `ENGINE GPU`, as sim/engines has them; the GPU of an engine's last entry is `elsewhere`."""
    given_by: list[str]
    """Models whose measurements gave it."""
    fitted_on: dict[str, str] = {}
    """Judge whose marked cells it is fitted on -> metric."""
    pooled: dict[str, float | str] = {}
    """Source -> its value in seconds, or where sim/engines has it; the constant is their mean."""
    judges: dict[str, str] = {}
    """Judge -> metric."""
    why: str = ""
    """Why nobody judges it."""

    @property
    def name(self) -> str:
        return " and ".join(self.names)

    def is_of(self, family: str) -> bool:
        return IMPORTER in self.where or any(pattern.startswith(family) for pattern in self.where)

    def held(self) -> dict[Key, float]:
        """Its values."""
        return {key: value for key, value in values().items() if owner(*key) is self}

    def sources_s(self, of: Mapping[Key, float], name: str) -> dict[str, float]:
        """Seconds by source of a mean; a number in `pooled` is of the first name."""
        return {
            source: of.get((at, name), 0.0) if isinstance(at, str) else at
            for source, at in self.pooled.items()
            if isinstance(at, str) or name == self.names[0]
        }


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    judges: dict[str, str | RunSpec]
    """Name -> cells of its own, or the title of a section of sections.yaml and the run there: `TITLE, run 1`."""
    constants: list[Constant]


@cache
def read_specs() -> _File:
    return convert(read_yaml(SPECS, "constants"), _File, str(SPECS))


def owner(scope: str, name: str) -> Constant | None:
    """The first that has the constant of that name there; None: no row says who judges it."""
    for constant in read_specs().constants:
        if name in constant.names and any(fnmatchcase(scope, pattern) for pattern in constant.where):
            return constant
    return None


# -- values


def scopes_of(engine: str, entry: Mapping[str, Any]) -> list[str]:
    return [f"{engine} {gpu}" for gpu in entry["gpus"] or [ELSEWHERE]]


def values() -> dict[Key, float]:
    """Times of engines that are not 0, and the importer's numbers."""
    found = {(IMPORTER, name): of for name, of in vars(lookups).items() if name.isupper() and type(of) in (int, float)}
    for path in sorted(ENGINES.glob("*.json")):
        for entry in json.loads(path.read_text()).get("constants", ()):
            for scope in scopes_of(path.stem, entry):
                found |= {(scope, name): entry[name] for name in CONSTANTS if entry.get(name)}
    return found


def digest(constant: Constant, family: str) -> str:
    """Of what a row was computed with: constants of its engine and of the importer, cells fitted on, and who judges."""
    of = {" ".join(key): value for key, value in values().items() if key[0].startswith((family, IMPORTER))}
    judges = sorted({*constant.judges, *constant.fitted_on} & read_specs().judges.keys())
    runs = [(run.file, run.rows, run.cells) for run in map(run_of, judges)]
    data = msgspec.json.encode([of, lookups.SUSTAINED_TOKENS, recipes()["is_fitted"], constant, runs], order="sorted")
    return sha256(data).hexdigest()[:DIGITS]


def givers(family: str) -> set[str]:
    """Models that gave some constant of an engine."""
    return {model for constant in read_specs().constants if constant.is_of(family) for model in constant.given_by}


@contextmanager
def changed(new: Mapping[Key, float]) -> Iterator[None]:
    """Other values while it lasts, in files of engines and in the importer."""
    with TemporaryDirectory() as folder:
        for path in ENGINES.glob("*.json"):
            held = json.loads(path.read_text())
            for entry in held.get("constants", ()):
                scope = scopes_of(path.stem, entry)[0]
                entry |= {name: new[scope, name] for name in CONSTANTS if (scope, name) in new and entry.get(name)}
            (Path(folder) / path.name).write_text(json.dumps(held))
        numbers = {name: value for (scope, name), value in new.items() if scope == IMPORTER}
        forget_profiles()
        with patch.object(engine_costs, "ENGINES", Path(folder)), patch.dict(vars(lookups), numbers):
            yield
        forget_profiles()


def part_of(constant: Constant, share: float, judge: str = "") -> dict[Key, float]:
    """Values with a part of what it adds. Where the `judge` is a source, it is the others' mean wherever it stands."""
    if judge in constant.pooled:
        sources_s = {name: constant.sources_s(values(), name) for name in constant.names}
        others_s = {name: [of[each] for each in of if each != judge or len(of) == 1] for name, of in sources_s.items()}
        return {key: share * fmean(others_s[key[1]]) for key in values() if key[1] in constant.names}
    held = constant.held().items()
    return {key: share * value + (1.0 - share) * key[1].endswith("_RATIO") for key, value in held}


# -- judges


def run_of(judge: str) -> RunSpec:
    run = read_specs().judges[judge]
    if isinstance(run, RunSpec):
        return run
    title, _, index = run.rpartition(", run ")
    return next(spec for spec in specs() if spec.title == title).runs[int(index)]


class Judges:
    """Cells that judge, or those that constants were fitted on."""

    def __init__(self, data: Path, *, is_fitted: bool = False) -> None:
        self.data, self.is_fitted = data, is_fitted
        self.rows = {row["id"]: row for row in read_cells(data / CELLS)}
        role = FITTED if is_fitted else JUDGED
        lines = [line for line in csv_rows(SERVED) if line["role"] == role and line["id"] in self.rows]
        self.cells = [(cell_of(self.rows[line["id"]]), line["is_starved"] == "1") for line in lines]

    def served(self, constant: Constant, metric: str) -> list[ServedLoad]:
        """Those whose engine has the constant and whose model gave none, or gave it. No TTFT waits for admission."""
        known = {scope for scope, _ in values()}
        scopes = {scope for scope, _ in constant.held()}

        def is_seen(cell: ServedLoad) -> bool:
            scope = f"{engine_name(cell)} {cell.gpu}"
            scope = scope if scope in known else f"{engine_name(cell)} {ELSEWHERE}"
            model = model_of(cell.target)[0]
            is_one = model in constant.given_by if self.is_fitted else model not in givers(cell.engine)
            return is_one and not scopes.isdisjoint({scope, IMPORTER})

        return [cell for cell, is_late in self.cells if not (is_late and metric == "ttft_ms") and is_seen(cell)]

    def errors(self, judge: str, metric: str, constant: Constant, known: Known) -> list[tuple[str, str, float]]:
        """(engine, who, error in percent) of each cell; `known` are served ones as simulated with these values."""
        if judge == SERVED_CELLS:
            cells = self.served(constant, metric)
            known |= {cell.id: predicted(cell) for cell in cells if cell.id not in known}
            return [
                (cell.engine, model_of(cell.target)[0], off_pct(known[cell.id][metric], cell.measured[metric]))
                for cell in cells
            ]
        if judge == MTP_PAIRS:
            pairs = grouped(drafted.pairs([*map(cell_of, self.rows.values())]), lambda pair: pair.group).values()
            lines = [line for group in pairs if len(group) > 1 for line in drafted.judge(group)]
            return [("trtllm", judge, line["error_pct"]) for line in lines]
        run = run_of(judge)

        def with_files(profile: Profile) -> Profile:
            return with_engine(profile, load_engine(run.set["engine"], profile.gpu.name, profile.tensor_parallel))

        judged, _ = judge_run(run, self.data, with_files)
        if self.is_fitted:
            wheres = [fit.where for fit in run.fits if {*fit.constants} & {*constant.names}]
            judged = [each for each in judged if any(holds(where, each.cell) for where in wheres) or each.is_fit]
        gains = [pair["error_pct"] for pair in speedups(judged)] if metric == SPEEDUP else []
        errors = gains or [each.error_pct(metric) or 0.0 for each in judged]
        return [(run.set["engine"].partition("-")[0], judge, error) for error in errors]


# -- the table


def lines_of(constant: Constant, judges: Judges, known: Known) -> Iterator[tuple[Any, ...]]:
    """COLUMNS by judge and engine; `known` are served cells with every constant as it is."""
    head = constant.name, ", ".join(constant.where), " ".join(constant.given_by)
    for judge, metric in constant.judges.items():
        errors = []
        for share in SHARES:
            with changed(part_of(constant, share, judge)):
                errors.append(judges.errors(judge, metric, constant, known if share == 1.0 else {}))
        for family, of in sorted(grouped(zip(*errors, strict=True), lambda cell: cell[0][0]).items()):
            by = " ".join(sorted({cell[0][1] for cell in of}))
            sizes = (round(mean_size(cell[part][2] for cell in of) or 0.0, 2) for part in range(len(SHARES)))
            yield *head, family, by, metric, len(of), *sizes, digest(constant, family)
    for family in () if constant.judges else sorted({scope.partition("-")[0] for scope, _ in constant.held()}):
        yield *head, family, constant.why, "", 0, "", "", "", digest(constant, family)


# -- values anew


class Refit(NamedTuple):
    constant: Constant
    name: str
    old: float
    new: float
    error: float
    """Standard error; nan of a mean, and where cells are as many as constants."""

    def __str__(self) -> str:
        where = ", ".join(self.constant.where)
        return f"{self.name} of {where}: {self.old:.4g} -> {self.new:.4g} +- {self.error:.2g}"


def fit(old: Mapping[str, float], logs: Callable[[dict[str, float]], list[float]]) -> tuple[list[float], list[float]]:
    """Values with which the squares of `logs` are least, each counted in its old one, and their standard errors."""
    from scipy.optimize import least_squares

    start = np.array([*old.values()])
    found = least_squares(
        lambda parts: np.asarray(logs(dict(zip(old, (parts * start).tolist(), strict=True)))),
        np.ones(len(old)), bounds=(0.0, np.inf), diff_step=0.05, xtol=1e-3, ftol=1e-4, max_nfev=12,
    )  # fmt: skip
    free = (len(found.fun) - len(old)) or np.nan
    spread = np.sqrt(np.diag(np.linalg.pinv(found.jac.T @ found.jac)) * float(found.fun @ found.fun) / free)
    return (found.x * start).tolist(), (spread * start).tolist()


def _logs(
    judges: Judges, of: Mapping[Key, float], source: str, group: Sequence[Constant], tried: Mapping[str, float]
) -> list[float]:
    """Logarithms of simulated over measured by the cells of a source, with values of a group tried beside `of`."""
    known: Known = {}
    with changed({**of, **{key: tried[key[1]] for each in group for key in each.held()}}):
        lists = [judges.errors(source, each.fitted_on[source], each, known) for each in group]
    # Constants that the same cells see count these once.
    return [log1p(error / 100.0) for cells in dict.fromkeys(map(tuple, lists)) for *_, error in cells]


def refits(data: Path) -> Iterator[Refit]:
    """Constants of one source together, beside the new values of sources before it. Pooled constants come last."""
    judges, of, every = Judges(data, is_fitted=True), values(), read_specs().constants
    together = grouped((each for each in every if each.fitted_on), lambda each: (*each.fitted_on, *each.given_by))
    for (source, *_), constants in together.items():
        old = {name: value for each in constants for (_, name), value in each.held().items()}

        fitted = fit(old, partial(_logs, judges, of, source, constants))
        for name, after, error in zip(old, *fitted, strict=True):
            found = Refit(next(each for each in constants if name in each.names), name, old[name], after, error)
            of.update((key, after) for key in found.constant.held() if key[1] == name)
            yield found
    for constant in every:
        for name in constant.names if constant.pooled else ():
            old_s = fmean(value for key, value in constant.held().items() if key[1] == name)
            yield Refit(constant, name, old_s, fmean(constant.sources_s(of, name).values()), np.nan)


def main(what: Literal["judge", "refit"], data: Path, out: Path = TABLE) -> None:
    warnings.simplefilter("ignore")
    if what == "refit":
        for found in refits(data):
            print(found, flush=True)
        return
    judges, lines, known = Judges(data), list[tuple[Any, ...]](), Known()
    for constant in read_specs().constants:
        for line in lines_of(constant, judges, known):
            print(line, flush=True)
            lines.append(line)
    write_csv(out, COLUMNS, lines)
