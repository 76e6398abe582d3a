"""Served cells beside lanesim and a peer: `python -m validation silicon CELLS.csv --json OUT [--peer PREDICTIONS.csv]`.

CELLS.csv is ai-dynamo/aiconfigurator's silicon_sample.csv or a part of it: closed loops of vLLM, SGLang and
TensorRT-LLM, mean TTFT and TPOT. Every aggregated row gets a scenario, and a profile from the kernel tables of the
installed aiconfigurator-core. A run that several dumps have is one cell. Classes are engine, dense or MoE, and the
format of the GEMMs. Cells that constants were fitted on, and cells with doubtful labels, are counted apart.

--peer takes the rows with aic_ttft_ms and aic_tpot_ms beside them. Of several such files the kindest counts. --only
takes classes whose name holds a text, such as 'vllm moe'. --every 10 takes every tenth row. --mode disagg takes
disaggregated rows, on which nothing is fitted. Exit 1: no row is judged, and OUT is as it was. Exit 2: CELLS.csv or the
kernel tables are missing.

`python -m validation silicon_tables OUT ...` writes served-cells.csv and served-refused.csv in docs/validation from
such results, which may be of parts (`--only`). Not here: what a cell is simulated as (validation.judge.served_cells),
the page (validation.pages.accuracy).
"""

from __future__ import annotations

import re
import sys
import warnings
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from json import dumps, loads
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from calibrate.catalogue.published_tables import published_tables
from calibrate.served.load import FITTED, JUDGED, JudgedLoad, ServedLoad
from validation.judge.labels import DOUBTFUL, contradicted, drafting, first_runs, is_fitted, role_of
from validation.judge.served_cells import (
    SET_UP,
    cell_of,
    engine_block,
    family_of,
    pools_of,
    predicted,
    predicted_apart,
    profile_of,
    read_cells,
)
from validation.tables import csv_rows, grouped, markdown, mean_size, off_pct, write_csv

if TYPE_CHECKING:
    import pandas as pd

STARVED_SHARE = 5.0
"""A TTFT above so many times that of the smallest concurrency of its series is admission, not service."""
MARKS = {JUDGED: "", FITTED: " (fitted on)", DOUBTFUL: " (labels in doubt)"}
Line = dict[str, Any]


class Refusal(NamedTuple):
    """A row that is not simulated."""

    family: str
    model: str
    gpu: str
    why: str


def judge(cells: Sequence[ServedLoad], peer: Mapping[str, Mapping[str, str]]) -> Iterator[Line | Refusal]:
    """A line of figures for every run, or why it is refused, those that constants were fitted on first."""
    in_order = sorted(cells, key=lambda cell: not is_fitted(cell))
    first, doubted_ids = first_runs(in_order), drafting(in_order) | contradicted(in_order)
    least = {series: min(of, key=lambda cell: cell.concurrency) for series, of in grouped(in_order, _series).items()}
    known: dict[object, dict[str, float]] = {}
    for cell in in_order:
        if first[cell.id] != cell.id:
            continue
        loop = _series(cell), cell.source, cell.concurrency
        try:
            role = role_of(cell, *profile_of(cell), doubted_ids)
            known[loop] = simulated = known.get(loop) or predicted(cell)
        except ValueError as error:
            yield _refusal(cell.label, cell.target, cell.gpu, error)
            continue
        theirs = peer.get(cell.id, {})
        said = {name: float(theirs[f"aic_{name}"]) for name in ("tpot_ms", "ttft_ms") if theirs}
        yield {
            **_line(msgspec.structs.replace(cell, role=role, predicted=said), simulated),
            "is_starved": cell.measured["ttft_ms"] > STARVED_SHARE * least[_series(cell)].measured["ttft_ms"],
            "engine": engine_block(cell),
        }


def judge_apart(rows: Iterable[Mapping[str, str]]) -> Iterator[Line | Refusal]:
    """The same of disaggregated rows."""
    with TemporaryDirectory() as folder:
        for row in rows:
            try:
                pools = pools_of(row)
                yield _line(pools.decode, predicted_apart(pools, Path(folder))) | {"class": family_of(row)}
            except ValueError as error:
                yield _refusal(family_of(row), row["model_path"], row["system"], error)


def _series(cell: ServedLoad) -> tuple[Hashable, ...]:
    """Fields of cells that differ in load alone."""
    return SET_UP(msgspec.structs.replace(cell, concurrency=0)), cell.engine_version


def _refusal(family: str, model: str, gpu: str, error: ValueError) -> Refusal:
    return Refusal(family, model, gpu, " ".join(str(error).split())[:200])


def _line(cell: ServedLoad, simulated: Mapping[str, float]) -> Line:
    judged = JudgedLoad.beside(cell, simulated)
    peer = {f"peer_{name[:-3]}_error_pct": beside["error_pct"] for name, beside in judged.peer.items()}
    return {
        "id": cell.id,
        "class": cell.label,
        "role": cell.role,
        "tensor_parallel": cell.tp,
        "data_parallel": cell.dp,
        "concurrency": cell.concurrency,
        "is_starved": False,
        **simulated,
        "tpot_error_pct": judged.error_pct("tpot_ms"),
        "ttft_error_pct": judged.error_pct("ttft_ms"),
        **peer,
    }


def kindest(readings: Iterable[Sequence[Mapping[str, str]]]) -> dict[str, Mapping[str, str]]:
    """The peer's row of each id, in the reading of the labels whose mean TPOT error is least for that model, GPU,
    engine and format; where that reading has no answer, another's."""

    def group(row: Mapping[str, str]) -> tuple[str, ...]:
        return row["model_path"], row["system"], row["backend"], row["gemm_quant_mode"]

    chosen: dict[str, Mapping[str, str]] = {}
    least: dict[tuple[str, ...], float] = {}
    for rows in readings:
        for name, of in grouped((row for row in rows if row["aic_tpot_ms"]), group).items():
            error = mean_size(off_pct(float(row["aic_tpot_ms"]), float(row["silicon_tpot_ms"])) for row in of) or 0.0
            is_kinder = name not in least or error < least[name]
            chosen |= {row["id"]: row for row in of if is_kinder or row["id"] not in chosen}
            least[name] = min(error, least.get(name, error))
    return chosen


def classes_of(cells: pd.DataFrame, refused_classes: Iterable[str]) -> pd.DataFrame:
    """A line per class, and one each for its fitted and doubtful cells: errors in percent, those of TTFT without cells
    that wait for admission."""
    import pandas as pd

    tpot, peer = cells["tpot_error_pct"], cells["peer_tpot_error_pct"].abs().astype(float)
    ttft = cells["ttft_error_pct"].abs().mask(cells["is_starved"].astype(bool))
    errors = pd.DataFrame({"TPOT": tpot.abs(), "signed": tpot, "TTFT": ttft, "peer there": peer})
    errors["on shared cells"] = errors["TPOT"].where(peer.notna())
    groups = errors.groupby(cells["class"] + cells["role"].map(MARKS))
    refused = pd.Series(Counter(refused_classes), name="refused", dtype=float)
    count = groups["TTFT"].count().rename("TTFT cells")
    lines = pd.concat([groups.size().rename("cells"), refused, groups.mean(), count], axis=1).sort_index()
    counts = dict.fromkeys(("cells", "refused", "TTFT cells"), 0)
    return lines.fillna(counts).astype(dict.fromkeys(counts, int)).rename_axis("class").reset_index()


def main(
    cells: Path,
    json: Path,
    peer: Sequence[Path] = (),
    only: str = "",
    every: int = 1,
    mode: Literal["agg", "disagg"] = "agg",
) -> int:
    from pandas import DataFrame

    warnings.simplefilter("ignore")
    published_tables()
    rows, is_whole = read_cells(cells, mode), mode == "agg"
    rows = [row for row in rows if only in (cell_of(row).label if is_whole else family_of(row))][::every]
    judged: list[Line] = []
    refusals: list[Refusal] = []
    for entry in judge(list(map(cell_of, rows)), kindest(map(csv_rows, peer))) if is_whole else judge_apart(rows):
        (refusals if isinstance(entry, Refusal) else judged).append(entry)  # type: ignore[arg-type]
    if not judged:
        why = f"no row with --mode {mode} --only {only!r} --every {every}"
        if refusals:
            ((most, count),) = Counter(entry.why for entry in refusals).most_common(1)
            why = f"all {len(refusals)} rows refused, {count} of them so: {most}"
        print(f"silicon: {cells}: {why}", file=sys.stderr)
        return 1
    digits = {"tpot_ms": 3}
    rounded = [
        {name: round(each, digits.get(name, 1)) if isinstance(each, float) else each for name, each in of.items()}
        for of in judged
    ]
    json.write_text(dumps({"refusals": sorted(refusals), "cells": rounded}, indent=1) + "\n")
    print(markdown(classes_of(DataFrame(judged, columns=SERVED_COLUMNS), [each.family for each in refusals]).round(2)))
    return 0


# -- the tables

SERVED = Path(__file__).parents[2] / "docs" / "validation" / "served-cells.csv"
REFUSED = SERVED.with_name("served-refused.csv")
SERVED_COLUMNS = (
    "id", "class", "role", "tensor_parallel", "data_parallel", "concurrency", "is_starved",
    "tpot_error_pct", "ttft_error_pct", "peer_tpot_error_pct", "peer_ttft_error_pct",
)  # fmt: skip


def short(why: str) -> str:
    """A refusal without the folder of a file and without what would have been understood."""
    return re.sub(r"'?/\S*/(\S+?_config\.json)'?", r"\1", why).partition(". Give one of")[0]


def write_tables(results: list[Path], out: Path = SERVED.parent) -> None:
    """Every judged row, and every refused one, from results of `silicon`."""
    from pandas import DataFrame

    parts = [loads(path.read_text()) for path in results]
    cells = DataFrame([cell for part in parts for cell in part["cells"]], columns=SERVED_COLUMNS)
    cells = cells.astype({"is_starved": int}).sort_values(["class", "id"])
    cells.to_csv(out / SERVED.name, index=False, lineterminator="\n")
    refusals = sorted((*which, short(why)) for part in parts for *which, why in part["refusals"])
    write_csv(out / REFUSED.name, ("class", "model", "GPU", "why"), refusals)
