"""Specifications of the accuracy page's sections, as validation/sections.yaml has them.

Not here: judging them (validation.judge.sections).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from calibrate.served.load import ServedLoad
from sim.files.json_values import convert
from sim.files.yaml_values import read_yaml
from sim.metrics.compared import THROUGHPUT

ROOT = Path(__file__).parents[2]
SECTIONS = ROOT / "validation/sections.yaml"
HERE = "validation/"
"""Begins paths of files that are part of the project."""
Where = Mapping[str, Any]
"""Field of a cell -> its value, or a list of values; all hold."""


class ProfileSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A profile made from aiconfigurator's tables: those of the data folder, or the installed ones."""

    gpu: str
    tables: str | None = None
    target: str = ""
    """A shape of sim.costs.shapes; else `config` names a config.json of the installed package."""
    config: str = ""
    tp: int = 1
    ep: int | None = None
    dp: int = 1
    engine: str = "vllm"
    draft: str | None = None
    without_gap_of: str | None = None
    """An engine whose constants it gets, but the device gap."""


class FitSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Constants that are fitted on some metrics of the cells that are so."""

    constants: list[str]
    metrics: list[str]
    where: dict[str, Any] = {}


class BarSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bars for the errors of a metric, in percent; one set per value of the fields `by`."""

    what: str
    """Its name, with {n} for the number of cells and fields of the first of them."""
    metric: str
    where: dict[str, Any] = {}
    by: list[str] = []
    run: str | None = None
    """Name of the only run that the bars are for; None: the runs without one."""
    with_fitted: bool = False
    mean: float | None = None
    """Most that the mean size may be."""
    largest: float | None = None
    """Most that the largest size may be."""
    error: float | None = None
    """The same, shown with its sign."""


class RunSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cells of one source that are judged with one profile and engine."""

    reader: str = "table"
    """Name of its form, by which it is read and judged."""
    name: str | None = None
    """Name of a run that only bars show."""
    file: str = ""
    cells: list[dict[str, Any]] = []
    """Rows instead of a file."""
    rows: dict[str, str] = {}
    """Column of the file -> patterns, joined by |, one of which its value is like."""
    where: str = ""
    """Formula that holds for the rows of a table, over its columns."""
    join: str = ""
    """Another table in the folder, whose rows formulas have as `joined`."""
    columns: dict[str, str] | list[dict[str, str]] = {}
    """Field of a cell -> formula over the columns of the file; several cells of each row where it is a list."""
    set: dict[str, Any] = {}
    """Fields of every cell."""
    method: str = "none"
    """The drafter of cells that draft."""
    output_spread: float = 0.0
    """Standard deviation of outputs over their mean."""
    predicted: str | None = None
    """Table of what the peer predicts, by lengths and concurrency."""
    requests: str | None = None
    profile: str | ProfileSpec | None = None
    engine: dict[str, Any] = {}
    workload: dict[str, Any] = {}
    devices: dict[str, Any] = {}
    waves: int = 10
    acceptance_spread: float | None = None
    seed: int = 0
    fits: list[FitSpec] = []
    fitted_metrics: list[str] = []
    """Metrics that a constant was fitted on and that are not shown."""


class SectionSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A section as sections.yaml has it."""

    part: str
    title: str
    source: str
    fitted: str
    runs: list[RunSpec]
    bars: list[BarSpec] = []
    together: str = ""
    """Text instead of k, where cells of several draft lengths are one line of the summary."""
    shown: list[str] = []
    """Metrics that are shown; empty: all."""
    decides: bool = False
    """Speed-ups by load and draft length, from which users choose, are shown as decisions."""
    speedup_by: str = THROUGHPUT


def specs() -> list[SectionSpec]:
    """The sections; what `every` run of one has is said once. Raises ValueError.

    Their formulas are evaluated as Python, so that no other file is read.
    """
    sections: Any = read_yaml(SECTIONS, "sections")
    return convert(list(map(_expanded, sections)), list[SectionSpec], str(SECTIONS))


def _expanded(section: Any) -> Any:
    every = section.get("every", {})
    common = every.get("set", {})
    runs = [{**every, **run, "set": {**common, **run.get("set", {})}} for run in section["runs"]]
    return {**{name: value for name, value in section.items() if name != "every"}, "runs": runs}


def holds(where: Where, cell: ServedLoad) -> bool:
    """Every field of `where` has its value, or one of a list of values."""
    return all(getattr(cell, name) in (value if isinstance(value, list) else [value]) for name, value in where.items())


def path_of(name: str, data: Path) -> Path:
    return ROOT / name if name.startswith(HERE) else data / name
