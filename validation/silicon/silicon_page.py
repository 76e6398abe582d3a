"""Writes docs/silicon.md, and validation/served-cells.csv beside it, from results of `python -m validation silicon`:
`python -m validation silicon_page RESULT.json ...`.

Results may be of parts (`--only`). Not here: the predictions (validation.silicon.judge), means by load
(validation.pages.leaderboard).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from calibrate.judge.cell import JUDGED
from validation.silicon.judge import classes_of
from validation.tables import page, write_csv

PAGE = Path(__file__).parents[2] / "docs" / "silicon.md"
TABLE = PAGE.parent / "validation" / "served-cells.csv"
COLUMNS = (
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


def main(results: list[Path], out: Path = PAGE, table_path: Path = TABLE) -> None:
    parts = [json.loads(path.read_text()) for path in results]
    cells = sorted((cell for part in parts for cell in part["cells"]), key=lambda cell: (cell["class"], cell["id"]))
    refusals = [refusal for part in parts for refusal in part["refusals"]]
    rows = ({**cell, "is_starved": int(cell["is_starved"])} for cell in cells)
    write_csv(table_path, COLUMNS, ([row.get(name, "") for name in COLUMNS] for row in rows))
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
