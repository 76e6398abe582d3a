"""Constants of engines and of the importer, judged by models that gave none of their engine's, and fitted anew.

`python -m validation constants judge DATA [--every N]` writes docs/validation/constants.csv: the error of cells with
a constant, with half of it and without it. A cell judges where its model gave no constant of its engine. A pooled
constant is the mean of its sources, and each source judges the mean of the others. The digest of a row covers every
constant of its engine: a changed constant without a new run fails tests/validation/test_constants.py.

`python -m validation constants refit DATA [--write]` fits the constants of each source together, then pools anew. It
prints old and new values with standard errors, and changes files with --write alone. constants.yaml says who gave and
who judges each constant. Not here: the page (validation.pages.leaderboard).
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import cache
from hashlib import sha256
from itertools import compress
from math import log
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, Literal
from unittest.mock import patch

import msgspec
import numpy as np

from calibrate.importers.aiconfigurator import lookups
from calibrate.judge.cell import FITTED, JUDGED, Cell, JudgedCell
from calibrate.judge.cells import speedups
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
SOURCE = Path(lookups.__file__)
CELLS = "aiconfigurator/silicon_visible.csv"
SERVED_CELLS, MTP_PAIRS, IMPORTER, ELSEWHERE = "served cells", "MTP pairs", "importer", "elsewhere"
SHARES = (1.0, 0.5, 0.0)
"""Parts of a constant that are tried. One that is far too large may beat none of it, but not half of it."""
DIGITS = 12
WRITTEN = 4
"""Significant digits of a fitted value."""

Change = Callable[[str, str, float], float]
"""(`ENGINE GPU` or the importer, name, value) -> the value to simulate with."""


class Judge(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Measured cells that are no served ones: a run of a section of sections.yaml, or one of its own."""

    section: str = ""
    run: int | RunSpec = 0


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

    def has(self, name: str, scope: str) -> bool:
        """It is the first that names the constant there."""
        return owner(name, scope) is self

    def is_of(self, family: str) -> bool:
        return IMPORTER in self.where or any(pattern.startswith(family) for pattern in self.where)


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    judges: dict[str, Judge]
    constants: list[Constant]


@cache
def read_specs() -> _File:
    return convert(read_yaml(SPECS, "constants"), _File, str(SPECS))


def owner(name: str, scope: str) -> Constant | None:
    """The first that has the constant of that name there; None: no row says who judges it."""
    for constant in read_specs().constants:
        if name in constant.names and any(fnmatchcase(scope, pattern) for pattern in constant.where):
            return constant
    return None


# -- values


def scopes_of(engine: str, entry: Mapping[str, Any]) -> list[str]:
    return [f"{engine} {gpu}" for gpu in entry["gpus"] or [ELSEWHERE]]


def values() -> dict[tuple[str, str], float]:
    """(`ENGINE GPU`, name) -> seconds, where they are not 0; and the importer's numbers."""
    found: dict[tuple[str, str], float] = {}
    for path in sorted(ENGINES.glob("*.json")):
        for entry in json.loads(path.read_text())["constants"]:
            for scope in scopes_of(path.stem, entry):
                found |= {(scope, name): entry[name] for name in CONSTANTS if entry.get(name)}
    return found | {
        (IMPORTER, name): value
        for name, value in vars(lookups).items()
        if name.isupper() and isinstance(value, int | float)
    }


def pooled_s(constant: Constant) -> dict[str, float]:
    """Seconds by source of the mean."""
    of = values()
    return {
        source: of.get((value, constant.names[0]), 0.0) if isinstance(value, str) else value
        for source, value in constant.pooled.items()
    }


def digest(constant: Constant, family: str) -> str:
    """Of what a row was computed with: all constants of its engine and of the importer, what marks cells as fitted on,
    and who judges."""
    seen = [[*key, value] for key, value in values().items() if key[0].startswith((family, IMPORTER))]
    judges = sorted({*constant.judges, *constant.fitted_on} & read_specs().judges.keys())
    runs = [(run.file, run.rows, run.cells) for run in map(judge_of, judges)]
    data = msgspec.json.encode([seen, lookups.SUSTAINED_TOKENS, recipes()["is_fitted"], constant, runs], order="sorted")
    return sha256(data).hexdigest()[:DIGITS]


def families(constant: Constant) -> list[str]:
    names = {path.stem.partition("-")[0] for path in ENGINES.glob("*-*.json")}
    return sorted(name for name in names if constant.is_of(name))


def givers(family: str) -> set[str]:
    """Models that gave some constant of an engine."""
    return {model for constant in read_specs().constants if constant.is_of(family) for model in constant.given_by}


@contextmanager
def changed(change: Change) -> Iterator[None]:
    """Other constants while it lasts, in files of engines and in the importer."""
    numbers = {name: change(IMPORTER, name, value) for (scope, name), value in values().items() if scope == IMPORTER}
    with TemporaryDirectory() as folder:
        for path in ENGINES.glob("*.json"):
            held = json.loads(path.read_text())
            for entry in held["constants"]:
                scope = scopes_of(path.stem, entry)[0]
                entry |= {name: change(scope, name, entry.get(name, 0.0)) for name in CONSTANTS}
            (Path(folder) / path.name).write_text(json.dumps(held))
        forget_profiles()
        with patch.object(engine_costs, "ENGINES", Path(folder)), patch.dict(vars(lookups), numbers):
            yield
        forget_profiles()


def none_of(name: str) -> float:
    """The value that leaves a constant out."""
    return float(name.endswith("_RATIO"))


def part_of(constant: Constant, share: float, own_s: float | None = None) -> Change:
    """A part of what it adds; of `own_s` instead, wherever its name stands."""

    def change(scope: str, name: str, value: float) -> float:
        if own_s is not None:
            return share * own_s if name in constant.names else value
        return none_of(name) + share * (value - none_of(name)) if constant.has(name, scope) else value

    return change


# -- judges


def judge_of(name: str) -> RunSpec:
    judge = read_specs().judges[name]
    if isinstance(judge.run, RunSpec):
        return judge.run
    return next(spec for spec in specs() if spec.title == judge.section).runs[judge.run]


def judged_by(name: str, data: Path) -> list[JudgedCell]:
    """Its cells with the engine's constants as they are now, those of the profile dropped."""
    run = judge_of(name)

    def with_files(profile: Profile) -> Profile:
        return with_engine(profile, load_engine(run.set["engine"], profile.gpu.name, profile.tensor_parallel))

    judged, _ = judge_run(run, data, with_files)
    return [
        msgspec.structs.replace(each, cell=msgspec.structs.replace(each.cell, line=line))
        for line, each in enumerate(judged)
    ]


class Served:
    """Served cells of a role, every so manieth; `drafts` are the rows that pairs of drafting and plain cells are of."""

    def __init__(self, data: Path, role: str = JUDGED, every: int = 1) -> None:
        rows = read_cells(data / CELLS)
        by_id = {row["id"]: row for row in rows}
        lines = [line for line in csv_rows(SERVED) if line["role"] == role and line["id"] in by_id][::every]
        self.cells = [(cell_of(by_id[line["id"]]), line["is_starved"] == "1") for line in lines]
        self.data, self.rows = data, rows
        self._whole: dict[str, dict[str, float]] = {}

    def seen(self, constant: Constant, metric: str) -> list[Cell]:
        """Those whose engine has the constant and whose model gave none; of a TTFT none that waits for admission."""
        of = values()
        held = {scope for scope, name in of if constant.has(name, scope)}
        return [
            cell
            for cell, is_starved in self.cells
            if not (is_starved and metric == "ttft_ms")
            and (IMPORTER in held or scope_of(cell, of) in held)
            and model_of(cell.target)[0] not in givers(cell.engine)
        ]

    def errors(self, cells: Sequence[Cell], metric: str, *, is_whole: bool) -> list[float]:
        """In percent; what is simulated with every constant as it is, is kept."""
        known = self._whole if is_whole else {}
        known |= {cell.id: predicted(cell) for cell in cells if cell.id not in known}
        return [off_pct(known[cell.id][metric], cell.measured[metric]) for cell in cells]

    def errors_of(self, judge: str, metric: str, constant: Constant) -> list[float]:
        """Of a judge that is no served cells."""
        if judge == MTP_PAIRS:
            pairs = drafted.pairs([cell_of(row) for row in self.rows])
            groups = [group for group in grouped(pairs, lambda pair: pair.group).values() if len(group) > 1]
            return [line["error_pct"] for group in groups for line in drafted.judge(group)]
        judged = judged_by(judge, self.data)
        if metric == SPEEDUP:
            return [pair["error_pct"] for pair in speedups(judged)]
        drafts_alone = constant.names[0].startswith("draft")
        seen = [each for each in judged if each.cell.num_speculative_tokens or not drafts_alone]
        return [each.error_pct(metric) or 0.0 for each in seen]


def scope_of(cell: Cell, of: Mapping[tuple[str, str], float]) -> str:
    scope = f"{engine_name(cell)} {cell.gpu}"
    return scope if any(scope == known for known, _ in of) else f"{engine_name(cell)} {ELSEWHERE}"


# -- the table


def lines_of(constant: Constant, served: Served) -> Iterator[tuple[Any, ...]]:
    """COLUMNS by engine and judge."""
    head = constant.name, ", ".join(constant.where), " ".join(constant.given_by)
    lines: list[tuple[str, str, str, list[list[float]]]] = []
    for judge, metric in constant.judges.items():
        others = [value_s for other, value_s in pooled_s(constant).items() if other != judge]
        own_s = fmean(others) if judge in constant.pooled else None
        cells = served.seen(constant, metric) if judge == SERVED_CELLS else []
        errors = []
        for share in SHARES:
            with changed(part_of(constant, share, own_s)):
                if judge == SERVED_CELLS:
                    errors.append(served.errors(cells, metric, is_whole=share == 1.0))
                else:
                    errors.append(served.errors_of(judge, metric, constant))
        if judge != SERVED_CELLS:
            engine = "trtllm" if judge == MTP_PAIRS else str(judge_of(judge).set["engine"])
            lines.append((engine.partition("-")[0], judge, metric, errors))
        engines = [cell.engine for cell in cells]
        for family in sorted(set(engines)):
            is_its = [engine == family for engine in engines]
            models = " ".join(sorted({model_of(cell.target)[0] for cell in compress(cells, is_its)}))
            lines.append((family, models, metric, [list(compress(each, is_its)) for each in errors]))
    for family, by, metric, errors in lines:
        sizes = (round(mean_size(of) or 0.0, 2) for of in errors)
        yield *head, family, by, metric, len(errors[0]), *sizes, digest(constant, family)
    for family in [] if lines else families(constant):
        yield *head, family, constant.why, "", 0, "", "", "", digest(constant, family)


def judge_all(data: Path, every: int, out: Path) -> None:
    served, found = Served(data, every=every), []
    for constant in read_specs().constants:
        for line in lines_of(constant, served):
            found.append(line)
            print(*line, sep=", ", file=sys.stderr)
    write_csv(out, COLUMNS, found)


# -- values anew


class Refit(msgspec.Struct, frozen=True):
    constant: Constant
    name: str
    old: float
    new: float
    error: float
    """Standard error; nan where cells are as many as constants, and of a mean."""

    def __str__(self) -> str:
        where = ", ".join(self.constant.where)
        return f"{self.name} of {where}: {self.old:.4g} -> {self.new:.4g} +- {self.error:.2g}"


def fit(names: Sequence[str], old: Sequence[float], logs: Callable[[Mapping[str, float]], list[float]]) -> Any:
    """(values, standard errors) with which the squares of `logs` are least, each value counted in its old one."""
    from scipy.optimize import least_squares

    def of(parts: Any) -> Any:
        return np.asarray(logs({name: float(part) * one for name, part, one in zip(names, parts, old, strict=True)}))

    found = least_squares(
        of, np.ones(len(names)), bounds=(0.0, np.inf), diff_step=0.05, xtol=1e-3, ftol=1e-4, max_nfev=12
    )
    free = (len(found.fun) - len(names)) or np.nan
    spread = np.sqrt(np.diag(np.linalg.pinv(found.jac.T @ found.jac)) * float(found.fun @ found.fun) / free)
    return (found.x * old).tolist(), (spread * old).tolist()


def marked(source: str, constants: Sequence[Constant], served: Served) -> list[float]:
    """Logarithms of simulated over measured on the cells that a source's constants are fitted on."""
    of, found = values(), {}
    for constant in constants:
        metric = constant.fitted_on[source]
        if source == SERVED_CELLS:
            for cell, _ in served.cells:
                scopes = scope_of(cell, of), IMPORTER
                is_seen = any(constant.has(name, scope) for name in constant.names for scope in scopes)
                if is_seen and model_of(cell.target)[0] in constant.given_by and (cell.id, metric) not in found:
                    found[cell.id, metric] = log(predicted(cell)[metric] / cell.measured[metric])
            continue
        fits = [each.where for each in judge_of(source).fits if {*each.constants} & {*constant.names}]
        for each in judged_by(source, served.data):
            if any(holds(where, each.cell) for where in fits) or (not fits and each.is_fit):
                sides = each.metrics[metric]
                found[str(each.cell.line), metric] = log((sides["simulated"] or 0.0) / (sides["real"] or 1.0))
    return list(found.values())


def refit(source: str, constants: Sequence[Constant], served: Served) -> Iterator[Refit]:
    """What one source gave, fitted together."""
    of = values()
    owners = {name: constant for constant in constants for name in constant.names}
    old = [
        next(of[scope, each] for scope, each in of if each == name and owners[name].has(name, scope)) for name in owners
    ]

    def logs(tried: Mapping[str, float]) -> list[float]:
        def change(scope: str, name: str, value: float) -> float:
            return tried[name] if value and name in owners and owners[name].has(name, scope) else value

        with changed(change):
            return marked(source, constants, served)

    for name, before, after, error in zip(owners, old, *fit(list(owners), old, logs), strict=True):
        yield Refit(owners[name], name, before, after, error)


def refits(data: Path) -> Iterator[Refit]:
    """Of constants that have a fit, those of one source together; then of what is pooled over them."""
    served, of, every = Served(data, FITTED), values(), read_specs().constants
    of_source = grouped((each for each in every if each.fitted_on), lambda each: (*each.fitted_on, *each.given_by))
    for (source, *_), constants in of_source.items():
        for found in refit(source, constants, served):
            held = {key: found.new for key in of if key[1] == found.name and found.constant.has(*reversed(key))}
            of |= held
            yield found
    for constant in every:
        if constant.pooled:
            (name,) = constant.names
            old_s = next(value for (scope, each), value in of.items() if each == name and constant.has(name, scope))
            new_s = [of.get((at, name), 0.0) if isinstance(at, str) else at for at in constant.pooled.values()]
            yield Refit(constant, name, old_s, fmean(new_s), np.nan)


def write_values(found: Sequence[Refit]) -> None:
    """The new values, in the files that have the old ones."""
    for each in found:
        name, text = each.name, f"{each.new:.{WRITTEN}g}"
        if IMPORTER in each.constant.where:
            SOURCE.write_text(re.sub(rf"(?m)^{name} = .*$", f"{name} = {text}", SOURCE.read_text()))
        for path in ENGINES.glob("*.json"):
            lines = path.read_text().splitlines(keepends=True)
            for index, line in enumerate(lines):
                if line.lstrip().startswith('{"gpus"'):
                    scopes = scopes_of(path.stem, json.loads(line.strip().rstrip(",")))
                    if any(each.constant.has(name, scope) for scope in scopes):
                        lines[index] = re.sub(rf'"{name}": (?!0\.0[,}}])[^,}}]+', f'"{name}": {text}', line)
            path.write_text("".join(lines))


def main(what: Literal["judge", "refit"], data: Path, every: int = 1, write: bool = False, out: Path = TABLE) -> None:
    warnings.simplefilter("ignore")
    if what == "judge":
        judge_all(data, every, out)
        return
    found = []
    for each in refits(data):
        found.append(each)
        print(each, flush=True)
    if write:
        write_values(found)
