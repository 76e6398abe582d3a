"""CSV tables with columns `time_stats.OPERATION.median` in milliseconds, as Vidur and Frontier write them, checked.

Every defect is a ValueError that names the file and the line. Milliseconds in the files are seconds here.
Not here: what the tables mean (calibrate.importers.tables.vidur, calibrate.importers.tables.frontier); whether a time
can be true (calibrate.importers.roofs); tables of one column `time_us` (calibrate.importers.columns).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrate.fit.errors import Array
from calibrate.hardware.datasheets import DATASHEETS
from calibrate.importers.columns import finite_number, read_rows

LONGEST_MS = 1e4
"""No kernel of one layer takes ten seconds."""


class TimeStats(NamedTuple):
    """Rows of one file: `lines` [rows] in it, counts and seconds [rows] by column, texts by column."""

    where: str
    lines: NDArray[np.int64]
    counts: dict[str, Array]
    seconds: dict[str, Array]
    texts: dict[str, list[str]]

    def place(self, index: int) -> str:
        """Where a row is, for errors."""
        return f"{self.where}, line {self.lines[index]}"

    def rows(self, use: NDArray[np.bool_]) -> TimeStats:
        """The rows in `use`."""
        kept = np.flatnonzero(use)
        return TimeStats(
            self.where,
            self.lines[kept],
            {name: values[kept] for name, values in self.counts.items()},
            {name: values[kept] for name, values in self.seconds.items()},
            {name: [values[i] for i in kept] for name, values in self.texts.items()},
        )

    def only(self, column: str, value: int) -> TimeStats:
        """The rows with `value` in this column of counts; raises ValueError where there are none."""
        use = self.counts[column] == value
        if not use.any():
            known = ", ".join(f"{int(other)}" for other in np.unique(self.counts[column]))
            raise ValueError(f"{self.where}: no rows of {column}={value}; it has {known}")
        return self.rows(use)

    def one(self, column: str) -> int:
        """The value that all rows share; raises ValueError where they differ."""
        values = np.unique(self.counts[column])
        if len(values) != 1:
            several = ", ".join(f"{int(value)}" for value in values[:5])
            raise ValueError(
                f"{self.where}: {column} must be the same in all rows, got {several}; are columns swapped?"
            )
        return int(values[0])


def read_time_stats(
    path: Path,
    operations: Sequence[str],
    counts: Sequence[str],
    texts: Sequence[str] = (),
    optional_texts: Sequence[str] = (),
) -> TimeStats:
    """The named columns of the file; `optional_texts` are empty where it lacks them. Times may be 0, never less."""
    where = path.name
    rows, _ = read_rows(path)
    columns = {operation: f"time_stats.{operation}.median" for operation in operations}
    for name in (*counts, *texts, *columns.values()):
        if name not in rows[0]:
            raise ValueError(f"{where}: no column {name!r}")
    return TimeStats(
        where,
        np.arange(2, len(rows) + 2),
        {name: np.array([_count(where, i, name, row[name]) for i, row in enumerate(rows)]) for name in counts},
        {
            operation: np.array([_seconds(where, i, name, row[name]) for i, row in enumerate(rows)])
            for operation, name in columns.items()
        },
        {name: [str(row.get(name) or "") for row in rows] for name in (*texts, *optional_texts)},
    )


def check_positive(table: TimeStats, operations: Sequence[str]) -> None:
    """Raises ValueError for the first row in which one of `operations` took no time."""
    for operation in operations:
        none = table.seconds[operation] <= 0.0
        if none.any():
            where = table.place(int(np.argmax(none)))
            raise ValueError(f"{where}: time_stats.{operation}.median=0 must be positive")


def files_of(path: Path, pattern: str, gpu: str) -> list[Path]:
    """`path`, or the files of this pattern below it that lie in no folder named after another GPU: they do not name
    theirs. Raises ValueError where there are none."""
    if not path.exists():
        raise ValueError(f"{path} does not exist; want {pattern} or a folder that has some")
    files = sorted(path.rglob(pattern)) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"no table {pattern} in {path} or below it")
    others = [_other_gpu(file, gpu) for file in files]
    if all(others):
        raise ValueError(f"{path}: the folder {others[0]!r} is of another GPU than --gpu {gpu}")
    return [file for file, other in zip(files, others, strict=True) if not other]


def _other_gpu(path: Path, gpu: str) -> str:
    """The folder on the way to `path` that is named after a GPU with other roofs; empty where there is none."""
    ours = DATASHEETS[gpu].gpu.peak_flops
    for part in path.resolve().parts:
        named = [sheet.gpu.peak_flops for name, sheet in DATASHEETS.items() if name.split("-")[0] == part.lower()]
        if named and ours not in named:
            return part
    return ""


def _seconds(where: str, index: int, name: str, text: str | None) -> float:
    value = finite_number(f"{where}, line {index + 2}", name, text)
    if value < 0.0:
        raise ValueError(f"{where}, line {index + 2}: {name}={value:g} must not be negative")
    if value > LONGEST_MS:
        raise ValueError(
            f"{where}, line {index + 2}: {name}={value:g} must be at most {LONGEST_MS:g} milliseconds; is it in other "
            "units?"
        )
    return 1e-3 * value


def _count(where: str, index: int, name: str, text: str | None) -> float:
    value = finite_number(f"{where}, line {index + 2}", name, text)
    if value < 0.0 or value != int(value):
        raise ValueError(
            f"{where}, line {index + 2}: {name}={value:g} must be a whole number of at least 0; are columns swapped?"
        )
    return value
