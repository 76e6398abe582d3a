"""Served cells beside lanesim and a peer: `python -m validation silicon CELLS.csv --json OUT [--peer PREDICTIONS.csv]`.

CELLS.csv is ai-dynamo/aiconfigurator's silicon_sample.csv or a part of it: closed loops of vLLM, SGLang and
TensorRT-LLM, mean TTFT and TPOT. Every aggregated row gets a scenario, and a profile from the kernel tables of the
installed aiconfigurator-core. A run that several dumps have is one cell. Classes are engine, dense or MoE, and the
format of the GEMMs. Cells that constants were fitted on, and cells with doubtful labels, are counted apart.

--peer takes the rows with aic_ttft_ms and aic_tpot_ms beside them. Of several such files the kindest counts. --only
takes classes whose name holds a text, such as 'vllm moe'. --every 10 takes every tenth row. --mode disagg takes
disaggregated rows, on which nothing is fitted. Exit 1: no row is judged, and OUT is as it was. Exit 2: CELLS.csv or the
kernel tables are missing.

`python -m validation silicon_page OUT ...` writes docs/silicon.md and validation/served-cells.csv beside it from such
results, which may be of parts (`--only`). Not here: what a cell is simulated as (validation.judge.served_cells), means
by load (validation.pages.leaderboard).
"""

from __future__ import annotations

import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from json import dumps, loads
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

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
from validation.tables import csv_rows, grouped, markdown, mean_size, off_pct, page, write_csv

STARVED_SHARE = 5.0
"""A TTFT above so many times that of the smallest concurrency of its series is admission, not service."""
MARKS = {JUDGED: "", FITTED: " (fitted on)", DOUBTFUL: " (labels in doubt)"}
COLUMNS = (
    "class", "cells", "refused", "tpot_mean_abs_pct", "tpot_mean_pct", "peer_tpot_mean_abs_pct", "ttft_mean_abs_pct",
    "ttft_median_abs_pct",
)  # fmt: skip
"""Columns of the table on the terminal."""
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


def classes_of(rows: Sequence[Mapping[str, Any]], refusals: Iterable[Sequence[str]]) -> list[Line]:
    """A line per class, and one each for its fitted and doubtful cells: errors in percent, those of TTFT without cells
    that wait for admission; `refusals` begin with the class."""
    classes = grouped(rows, lambda row: str(row["class"]) + MARKS[row["role"]])
    refused = Counter(family for family, *_ in refusals)
    return [_class(name, classes.get(name, []), refused[name]) for name in sorted({*classes, *refused})]


def _class(name: str, rows: Sequence[Mapping[str, Any]], num_refused: int) -> Line:
    def over(statistic: Callable[[list[float]], float], errors: Iterable[float]) -> float | None:
        known = list(errors)
        return statistic(known) if known else None

    tpot = [row["tpot_error_pct"] for row in rows]
    ttft = [abs(row["ttft_error_pct"]) for row in rows if not row["is_starved"]]
    shared = [row for row in rows if row.get("peer_tpot_error_pct") is not None]
    return {
        "class": name,
        "cells": len(rows),
        "refused": num_refused,
        "tpot_mean_abs_pct": over(fmean, map(abs, tpot)),
        "tpot_median_abs_pct": over(median, map(abs, tpot)),
        "tpot_mean_pct": over(fmean, tpot),
        "ttft_mean_abs_pct": over(fmean, ttft),
        "ttft_median_abs_pct": over(median, ttft),
        "ttft_cells": len(ttft),
        "peer_cells": len(shared),
        "peer_tpot_mean_abs_pct": over(fmean, (abs(row["peer_tpot_error_pct"]) for row in shared)),
        "tpot_mean_abs_pct_on_peer_cells": over(fmean, (abs(row["tpot_error_pct"]) for row in shared)),
    }


def rounded(rows: Iterable[Line], decimals: int, **others: int) -> list[Line]:
    """Floats of the rows to so many decimals, those of some names to `others`."""

    def value(name: str, each: Any) -> Any:
        return round(each, others.get(name, decimals)) if isinstance(each, float) else each

    return [{name: value(name, each) for name, each in row.items()} for row in rows]


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
    classes = rounded(classes_of(judged, refusals), 2)
    result = {"classes": classes, "refusals": sorted(refusals), "cells": rounded(judged, 1, tpot_ms=3)}
    json.write_text(dumps(result, indent=1) + "\n")
    print(markdown(DataFrame(classes, columns=COLUMNS)))
    return 0


# -- the page

PAGE = Path(__file__).parents[2] / "docs" / "silicon.md"
SERVED = PAGE.parent / "validation" / "served-cells.csv"
SERVED_COLUMNS = (
    "id", "class", "role", "tensor_parallel", "data_parallel", "concurrency", "is_starved",
    "tpot_error_pct", "ttft_error_pct", "peer_tpot_error_pct", "peer_ttft_error_pct",
)  # fmt: skip
SHOWN = {
    "class": ("class", "{}"),
    "cells": ("cells", "{}"),
    "refused": ("refused", "{}"),
    "expressed_pct": ("expressed", "{:.1f} %"),
    "tpot_mean_abs_pct": ("TPOT", "{:.1f}"),
    "tpot_mean_pct": ("signed", "{:+.1f}"),
    "tpot_mean_abs_pct_on_peer_cells": ("on shared cells", "{:.1f}"),
    "peer_tpot_mean_abs_pct": ("peer there", "{:.1f}"),
    "ttft_mean_abs_pct": ("TTFT", "{:.1f}"),
    "ttft_cells": ("TTFT cells", "{}"),
}
"""Column of the page's first table by key of a class: its name and format."""
EVERY = {
    "class": ("class", "{}"),
    "cells": ("cells", "{}"),
    "tpot_mean_abs_pct": ("TPOT", "{:.1f}"),
    "tpot_median_abs_pct": ("median of TPOT", "{:.1f}"),
    "ttft_mean_abs_pct": ("TTFT", "{:.1f}"),
    "ttft_median_abs_pct": ("median of TTFT", "{:.1f}"),
}


def table(classes: Sequence[Mapping[str, Any]], columns: Mapping[str, tuple[str, str]]) -> Any:
    """Frame of texts, a line per class."""
    from pandas import DataFrame

    lines = [
        {title: None if line[key] is None else form.format(line[key]) for key, (title, form) in columns.items()}
        for line in classes
    ]
    return DataFrame(lines, columns=[title for title, _ in columns.values()])


def short(why: str) -> str:
    """A refusal without the folder of a file and without what would have been understood."""
    return re.sub(r"'?/\S*/(\S+?_config\.json)'?", r"\1", why).partition("; want one of")[0]


def write_page(results: list[Path], out: Path = PAGE, table_path: Path = SERVED) -> None:
    parts = [loads(path.read_text()) for path in results]
    cells = sorted((cell for part in parts for cell in part["cells"]), key=lambda cell: (cell["class"], cell["id"]))
    refusals = [refusal for part in parts for refusal in part["refusals"]]
    rows = ({**cell, "is_starved": int(cell["is_starved"])} for cell in cells)
    write_csv(table_path, SERVED_COLUMNS, ([row.get(name, "") for name in SERVED_COLUMNS] for row in rows))
    alike = classes_of([{**cell, "role": JUDGED, "is_starved": False} for cell in cells], refusals)
    expressed = {line["class"]: 100.0 * line["cells"] / (line["cells"] + line["refused"]) for line in alike}
    classes = [line | {"expressed_pct": expressed.get(line["class"])} for line in classes_of(cells, refusals)]
    reasons = sorted({(family, model, gpu, short(why)) for family, model, gpu, why in refusals})
    page(
        out,
        "silicon",
        classes=table(classes, SHOWN),
        every=table([line for line in alike if line["cells"]], EVERY),
        refused=[f"{family}, {model} on {gpu}: {why}" for family, model, gpu, why in reasons],
    )
