"""Writes docs/accuracy.md, and beside it validation/accuracy-cells.csv with every cell: measured and simulated.

    python -m validation accuracy DATA_FOLDER [--out docs/accuracy.md] [--only PART ...]

DATA_FOLDER holds the public data that the sections name; none of it is part of this repository. A part that cannot be
run is reported as such, and the command exits with 1. The figure of speed-ups lies beside the report. Not here: the
sections themselves (validation.judge.sections), the tables of errors (validation.judge.matrix), cells of one's own
(`lanesim validate cells`).
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from validation.judge.matrix import classes, decisions, draw_speedups, frame, write_cells
from validation.judge.sections import SPEEDUP, JudgedSection, section_of
from validation.judge.specs import ROOT, SECTIONS, SectionSpec, specs
from validation.tables import page

if TYPE_CHECKING:
    import pandas as pd

FIGURE = "accuracy-speedup.png"
CELLS = Path("validation/accuracy-cells.csv")
"""Every cell, relative to the page's folder."""
PAGE = ROOT / "docs/accuracy.md"


def build(sections: Sequence[SectionSpec], data: Path) -> tuple[list[JudgedSection], list[str]]:
    """The sections that can be judged, and a line for each that cannot."""
    built, failures = [], []
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
    return built, failures


def bars_of(sections: Sequence[JudgedSection]) -> pd.DataFrame:
    """Every bar, and whether it is met."""
    import pandas as pd

    rows = [
        {
            "run": section.spec.title,
            "metric": bar.what,
            "error": f"{bar.error_pct:.2f} %" if bar.is_size else f"{bar.error_pct:+.2f} %",
            "bar": f"{bar.bar_pct:g} %",
            "met": "yes" if bar.is_met else "**no**",
        }
        for section in sections
        for bar in section.bars
    ]
    return pd.DataFrame(rows)


def main(data: Path, out: Path = PAGE, only: Sequence[str] = ()) -> int:
    wanted = [spec for spec in specs() if not only or spec.part in only]
    if not data.is_dir():
        raise ValueError(f"{str(data)!r} is no folder; want the one with aiconfigurator/ and llmservingsim/ in it")
    if not wanted:
        raise ValueError(f"--only {' '.join(only)}: no such part in {SECTIONS.name}")
    return write_report(wanted, data, out)


def write_report(sections: Sequence[SectionSpec], data: Path, out: Path) -> int:
    """The page and its cells; 1 where a section could not be run."""
    built, failures = build(sections, data)
    cells, bars = frame(built), bars_of(built)
    decided = cells[cells["decides"]][SPEEDUP].notna().any()
    if decided:
        draw_speedups(cells, out.parent / FIGURE)
    met = (bars["met"] == "yes").sum()
    page(
        out,
        "accuracy",
        version=version("lanesim"),
        failures="".join(f"\n**{each}**\n" for each in failures),
        met=str(met),
        bars=str(len(bars)),
        summary=bars,
        classes=classes(cells),
        decisions=decisions(cells),
        figure=f"\n![measured against predicted speed-up]({FIGURE})\n" if decided else "",
        fitted=[f"{section.spec.title}: {section.fitted}" for section in built],
    )
    (out.parent / CELLS).parent.mkdir(parents=True, exist_ok=True)
    write_cells(cells, out.parent / CELLS)
    print(*failures, f"{out}: {met} of {len(bars)} bars met.", sep="\n", file=sys.stderr)
    return 1 if failures else 0
