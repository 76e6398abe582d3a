"""Judgement of lanesim on runs that others published: `python -m validation accuracy DATA_FOLDER [--only PART]`.

It writes three tables in docs/validation: every cell, every bar, and what was fitted. DATA_FOLDER holds the public data
that validation/sections.yaml names. None of it is part of this repository. With --only it prints the bars of these
parts, and writes no table unless --out names a folder. It says which part it could not run, and exits with 1 then. Not
here: reading the files of a source (validation.judge.sources), judging a cell
(validation.judge.judges), the page (validation.pages.accuracy).
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from calibrate.catalogue.model_configs import source_of
from calibrate.catalogue.published_tables import published_tables
from calibrate.fit.constants import RATIO, Fitted, fit_constant, fit_constants
from calibrate.importers.aiconfigurator.deployment import Deployment, import_deployment
from calibrate.served.judge import speedups
from calibrate.served.load import FITTED, JudgedLoad, ServedLoad, judged_errors
from sim.costs.engine_costs import engine_of, load_engine, with_engine
from sim.costs.profile import SERVED, Profile
from sim.costs.profile_files import load
from sim.costs.shapes import MODELS
from sim.drafters.registry import draft_model
from sim.metrics.compared import THROUGHPUT, compared
from validation.judge.judges import JUDGES
from validation.judge.sources import cells_of_run
from validation.judge.specs import (
    HERE,
    ROOT,
    SECTIONS,
    BarSpec,
    FitSpec,
    ProfileSpec,
    RunSpec,
    SectionSpec,
    holds,
    specs,
)
from validation.tables import as_written, grouped, write_csv

if TYPE_CHECKING:
    import pandas as pd

FOLDER = ROOT / "docs/validation"
CELLS, BARS, FITS = "accuracy-cells.csv", "accuracy-bars.csv", "accuracy-fits.csv"
CELL_METRICS = ("output_throughput", "tpot_ms", "itl_ms", "ttft_ms", "e2el_ms", "speedup", "acceptance_length")
PEER_METRICS = ("tpot_ms", "ttft_ms", "e2el_ms")
CELL_FIELDS = ("gpu", "engine", "target", "method", "num_speculative_tokens")
SPEEDUP = "speedup"
"""Metric of a drafting cell whose partner without drafts is in its section."""
AICONFIGURATOR_REVISION = "095f58a51c4c"


class BarLine(NamedTuple):
    """One bar: the error in percent, or the mean or largest of several in size, and the most that is requested."""

    what: str
    error_pct: float
    bar_pct: float
    is_size: bool

    @property
    def is_met(self) -> bool:
        return abs(self.error_pct) <= self.bar_pct

    def texts(self) -> tuple[str, str, str, str]:
        """Its line of the table."""
        error = f"{self.error_pct:.2f} %" if self.is_size else f"{self.error_pct:+.2f} %"
        return self.what, error, f"{self.bar_pct:g} %", "yes" if self.is_met else "no"


class JudgedSection(NamedTuple):
    spec: SectionSpec
    judged: list[JudgedLoad]
    bars: list[BarLine]
    fitted: str


def section_of(spec: SectionSpec, data: Path) -> JudgedSection:
    """Fits, then judges every cell with what was fitted. Raises ValueError and OSError."""
    by_run: dict[str | None, list[JudgedLoad]] = {}
    fitted = []
    for run in spec.runs:
        judged, texts = judge_run(run, data)
        by_run.setdefault(run.name, []).extend(judged)
        fitted += texts
    by_run[None] = _with_speedups(by_run.get(None, []), spec)
    bars = [line for bar in spec.bars for line in _bar_lines(bar, by_run[bar.run])]
    return JudgedSection(spec, by_run[None], bars, spec.fitted.format(fits=". ".join(fitted)))


def judge_run(
    run: RunSpec, data: Path, change: Callable[[Profile], Profile] | None = None
) -> tuple[list[JudgedLoad], list[str]]:
    """The cells judged, and texts of what was fitted; with a `change` of the profile nothing is fitted."""
    cells = cells_of_run(run, data)
    if run.profile is None:
        return JUDGES[run.reader](cells, None, run, data), []
    profile = profile_of(run.profile, data)
    if change is not None:
        return JUDGES[run.reader](cells, change(profile), run, data), []
    texts = []
    for fit in run.fits:
        marked = [cell for cell in cells if holds(fit.where, cell)]
        fitted = fit_run(run, fit, marked, profile, data)
        profile = fitted.profile
        texts.append(_fit_text(fit, fitted, len(marked)))
        if not run.fitted_metrics:
            cells = [msgspec.structs.replace(cell, role=FITTED) if cell in marked else cell for cell in cells]
    judged = JUDGES[run.reader](cells, profile, run, data)
    return [_without(each, run.fitted_metrics) for each in judged], texts


def _fit_text(fit: FitSpec, fitted: Fitted, num_cells: int) -> str:
    if not fit.where:
        return str(fitted)
    marks = ",".join(f"{name}={value}" for name, value in fit.where.items())
    left = f". {fitted.error_pct:.2f} % left on them" if fitted.half_widths_s else ""
    of_cells = "1 cell" if num_cells == 1 else f"{num_cells} cells"
    return f"{fitted} on the mean {' and '.join(fit.metrics)} of {of_cells}, `{marks}`{left}"


def _without(each: JudgedLoad, metrics: Sequence[str]) -> JudgedLoad:
    return msgspec.structs.replace(each, metrics={k: v for k, v in each.metrics.items() if k not in metrics})


def fit_run(run: RunSpec, fit: FitSpec, cells: Sequence[ServedLoad], profile: Profile, data: Path) -> Fitted:
    """One constant fitted on one metric, whose mean signed error becomes 0; several, or ratios, by least squares over
    the metrics, each cell and metric an equal share. The profile carries the others of that engine from then on.

    Raises ValueError where the cells cannot tell the constants.
    """

    def ratios(candidate: Profile) -> list[float]:
        sides = [
            each.metrics[metric] for each in JUDGES[run.reader](cells, candidate, run, data) for metric in fit.metrics
        ]
        return [(side["simulated"] or 0.0) / (side["real"] or 1.0) for side in sides]

    profile = with_engine(profile, engine_of(run.engine.get("name"), profile))
    has_ratios = any(name.startswith(RATIO) for name in fit.constants)
    if len(fit.constants) == 1 and not has_ratios:
        sign = -1.0 if fit.metrics == [THROUGHPUT] else 1.0
        return fit_constant(profile, fit.constants[0], lambda tried: sign * 100.0 * (fmean(ratios(tried)) - 1.0))
    fitted = fit_constants(profile, fit.constants, ratios)
    served = {"conditions": SERVED} if has_ratios else {}
    return replace(fitted, profile=msgspec.structs.replace(fitted.profile, **served))


@lru_cache(maxsize=16)
def profile_of(spec: str | ProfileSpec, data: Path) -> Profile:
    """A shipped profile, one in a file of the project, or one made from tables. Raises ValueError where these are
    missing."""
    if isinstance(spec, str):
        return load(ROOT / spec if spec.startswith(HERE) else spec)
    if spec.tables is None:
        tables, revision = published_tables()
        shape = source_of(str(tables.parent / "model_configs" / f"{spec.config}_config.json"), plain=False).shape
    else:
        tables, revision = data / spec.tables, AICONFIGURATOR_REVISION
        shape = MODELS[spec.target]
    draft = draft_model(spec.draft, msgspec.structs.replace(shape, formats=None)) if spec.draft else None
    deployment = Deployment(spec.tp, spec.ep, spec.dp, spec.engine) if spec.tables is None else Deployment()
    profile = import_deployment(tables, spec.gpu, shape, draft, deployment, source=revision)
    if spec.without_gap_of:
        engine = load_engine(spec.without_gap_of, spec.gpu)
        profile = with_engine(profile, msgspec.structs.replace(engine, gap_s=0.0, source="no device gap"))
    return as_written(profile)


def _with_speedups(judged: Sequence[JudgedLoad], spec: SectionSpec) -> list[JudgedLoad]:
    """The cells with their speed-ups, and of them what is shown; lines count through the section."""
    numbered = [
        msgspec.structs.replace(each, cell=msgspec.structs.replace(each.cell, line=line))
        for line, each in enumerate(judged)
    ]
    pairs = {pair["line"]: compared(pair["real"], pair["simulated"]) for pair in speedups(numbered, spec.speedup_by)}
    shown = []
    for line, each in enumerate(numbered):
        metrics = {**each.metrics, SPEEDUP: pairs[line]} if line in pairs else each.metrics
        kept = {name: sides for name, sides in metrics.items() if not spec.shown or name in spec.shown}
        if kept:
            shown.append(msgspec.structs.replace(each, metrics=kept))
    return shown


def _bar_lines(bar: BarSpec, judged: Sequence[JudgedLoad]) -> list[BarLine]:
    cells = [each for each in judged if holds(bar.where, each.cell)]
    lines = []
    for members in grouped(cells, lambda each: tuple(getattr(each.cell, name) for name in bar.by)).values():
        if bar.with_fitted:
            members = [msgspec.structs.replace(m, cell=msgspec.structs.replace(m.cell, role="judged")) for m in members]
        errors = judged_errors(members, bar.metric)
        if not errors:
            continue
        what = bar.what.format(n=len(errors), **{name: getattr(members[0].cell, name) for name in bar.by})
        sizes = list(map(abs, errors))
        for bar_pct, error_pct, of in (
            (bar.mean, fmean(sizes), ": mean size of the error"), (bar.largest, max(sizes), ": largest size"),
            (bar.error, max(errors, key=abs), ""),
        ):  # fmt: skip
            if bar_pct is not None:
                lines.append(BarLine(f"{what}{of}", error_pct, bar_pct, is_size=bool(of)))
    return lines


# -- the tables


def main(data: Path, out: Path = FOLDER, only: Sequence[str] = ()) -> int:
    """1 where a section could not be run."""
    wanted = [spec for spec in specs() if not only or spec.part in only]
    if not data.is_dir():
        raise ValueError(f"{str(data)!r} is no folder. Give the one with aiconfigurator/ and llmservingsim/ in it")
    if not wanted:
        raise ValueError(f"--only {' '.join(only)}: no such part in {SECTIONS.name}")
    return write_tables(wanted, data, None if only and out == FOLDER else out)


def write_tables(sections: Sequence[SectionSpec], data: Path, out: Path | None) -> int:
    """The three tables in the folder `out`, or the bars printed; 1 where a section could not be run."""
    built, failures = list[JudgedSection](), list[str]()
    for spec in sections:
        print(f"{spec.title} ...", file=sys.stderr)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                built.append(section_of(spec, data))
            except ValueError as error:
                failures.append(f"{spec.part} could not be run: {error}")
            except OSError as error:
                name = Path(error.filename).name if error.filename else "a file"
                failures.append(f"{spec.part} could not be run: {name}: {error.strerror}")
    bars = [(section.spec.title, *line.texts()) for section in built for line in section.bars]
    if out is None:
        print(*map(" | ".join, bars), sep="\n")
    else:
        out.mkdir(parents=True, exist_ok=True)
        frame(built).to_csv(out / CELLS, index=False, float_format="%.6g", lineterminator="\n")
        write_csv(out / BARS, ("run", "metric", "error", "bar", "met"), bars)
        write_csv(out / FITS, ("run", "what was fitted"), ((section.spec.title, section.fitted) for section in built))
    met = sum(line.is_met for section in built for line in section.bars)
    print(*failures, f"{met} of {len(bars)} bars met.", sep="\n", file=sys.stderr)
    return 1 if failures else 0


def frame(sections: Sequence[JudgedSection]) -> pd.DataFrame:
    """A line per cell: measured, simulated, and predicted by a peer. `k` is the draft length, or what the page has for
    it. `decides` is 1 where users choose by the speed-up."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for section in sections:
        spec = section.spec
        for each in section.judged:
            cell, metrics = each.cell, each.metrics
            row = {"part": spec.part, "run": spec.title} | {name: getattr(cell, name) for name in CELL_FIELDS}
            row |= {"k": spec.together or str(cell.num_speculative_tokens), "decides": int(spec.decides)}
            row |= {"workload": cell.label or f"{cell.input_len:g}->{cell.output_len:g}", "load": load_of(cell)}
            row |= {"num_prompts": cell.num_prompts, "role": cell.role}
            for name in CELL_METRICS:
                sides = metrics.get(name, {})
                row |= {name: sides.get("real"), f"{name}_simulated": sides.get("simulated")}
            row["peer"] = cell.peer
            for name in PEER_METRICS:
                sides = each.peer.get(name, {})
                row |= {f"peer_{name}": sides.get("simulated"), f"peer_{name}_real": sides.get("real")}
            rows.append(row)
    cells = pd.DataFrame(rows)
    return cells.astype({name: float for name in cells if name.startswith(CELL_METRICS)} | {"num_prompts": "Int64"})


def load_of(cell: ServedLoad) -> str:
    """Requests in flight, or arrivals per second; `open` for recorded arrivals."""
    if cell.request_rate is not None:
        return f"{cell.request_rate:g}/s"
    return f"{cell.concurrency:g}" if cell.concurrency else "open"
