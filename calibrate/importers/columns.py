"""CSV tables of measured times, checked: columns, numbers, signs, units. Every defect is a ValueError with its file.

Not here: what the tables mean (calibrate.importers.llmservingsim).
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from calibrate.fit.fit_errors import Array
from sim.files.arrow_tables import read_csv
from sim.files.read import Unreadable, read_text

LONGEST_US = 1e7
"""Kernels of more microseconds are in other units: no kernel of one layer takes ten seconds."""
SHORTEST_US = 0.05
"""Nor can one be shorter than this."""


class CsvTable(NamedTuple):
    """Columns of numbers by name, and the label of each row where the table has one."""

    where: str
    columns: dict[str, Array]
    labels: list[str]

    @staticmethod
    def read(path: Path, columns: tuple[str, ...], label: str | None = None) -> CsvTable:
        """The named columns of the file; those called `*_us` are times, the others counts."""
        where = path.name
        rows, text = read_rows(path)
        for name in (*columns, *([label] if label else [])):
            if name not in rows[0]:
                raise ValueError(f"{where}: no column {name!r}; columns are {', '.join(map(str, rows[0]))}")
        numbers = {
            name: np.array([_number(where, i, name, row[name]) for i, row in enumerate(rows)]) for name in columns
        }
        if not text.endswith("\n"):
            raise ValueError(f"{where}: its last line has no end; is the file cut short?")
        return CsvTable(where, numbers, [str(row[label]) for row in rows] if label else [])

    def column(self, name: str) -> Array:
        return self.columns[name]

    def of(self, label: str) -> CsvTable:
        """The rows with this label. Raises ValueError where there are none."""
        use = np.array([other == label for other in self.labels])
        if not use.any():
            raise ValueError(f"{self.where}: no rows of {label!r}; it has {', '.join(dict.fromkeys(self.labels))}")
        return CsvTable(
            self.where, {name: values[use] for name, values in self.columns.items()}, [label] * int(use.sum())
        )


def read_rows(path: Path) -> tuple[list[dict[str, str]], str]:
    """The rows of a CSV file by its header, at least one, and its text. Raises ValueError naming the file."""
    where = path.name
    try:
        text = read_text(path, "table")
    except Unreadable as error:
        raise ValueError(f"no table {where} in {path.parent}: {error}") from None
    header, rows = read_csv(path, "table")
    found = [dict(zip(header, cells, strict=True)) for _, cells in rows]
    if not found:
        raise ValueError(f"{where}: has no rows")
    return found, text


def _number(where: str, index: int, name: str, text: str | None) -> float:
    """A time or a count, line by line: the header is line 1."""
    line = f"{where}, line {index + 2}"
    value = finite_number(line, name, text)
    if name.endswith("_us"):
        if value <= 0.0:
            raise ValueError(f"{line}: {name}={value:g} must be positive")
        if not SHORTEST_US <= value <= LONGEST_US:
            raise ValueError(
                f"{line}: {name}={value:g} must be {SHORTEST_US}..{LONGEST_US:g} microseconds; is it in other units?"
            )
    elif value < 0.0 or value != int(value):
        raise ValueError(f"{line}: {name}={value:g} must be a whole number of at least 0; are columns swapped?")
    return value


def finite_number(where: str, name: str, text: str | None) -> float:
    """Raises ValueError that begins with `where`, the file and its line."""
    try:
        value = float(text or "")
    except ValueError:
        raise ValueError(f"{where}: {name}={text!r} must be a number") from None
    if not np.isfinite(value):
        raise ValueError(f"{where}: {name}={text!r} must be finite")
    return value
