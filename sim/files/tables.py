"""Tables by column: CSV row by row. Every defect is a ValueError with its file, line and column.

Not here: what the columns mean.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from sim.files.read import CONTROL, MOST_TABLE_BYTES, lines_of


class CsvRows(NamedTuple):
    """The header of a CSV file, and its rows as they are read: line of the row's end, cells [columns]."""

    header: list[str]
    rows: Iterator[tuple[int, list[str]]]


def read_csv(path: str | Path, what: str, *, most_bytes: int = MOST_TABLE_BYTES) -> CsvRows:
    """A CSV file with a header line of different names. Rows are as wide as the header; blank ones are passed over.

    Raises ValueError naming file and line, for a row when it is reached.
    """
    where = f"{what} {str(path)!r}"
    reader = csv.reader(_lines(path, what, most_bytes), strict=True)
    cells = _next(reader, where)
    if cells is None:
        raise ValueError(f"{where} is empty; want a header line")
    header = [name.strip() for name in cells]
    for place, name in enumerate(header):
        if name in header[:place]:
            raise ValueError(f"{where} line 1: column {name!r} is there twice")
    return CsvRows(header, _rows(reader, where, len(header)))


def _lines(path: str | Path, what: str, most_bytes: int) -> Iterator[str]:
    for number, line in lines_of(path, what, most_bytes=most_bytes):
        if bad := CONTROL.search(line):
            raise ValueError(f"{what} {str(path)!r} line {number}: control character {bad[0]!a}; is it no text?")
        yield line


def _rows(reader: Any, where: str, width: int) -> Iterator[tuple[int, list[str]]]:
    while (cells := _next(reader, where)) is not None:
        if len(cells) == width:
            yield reader.line_num, cells
        elif any(cell.strip() for cell in cells):
            raise ValueError(f"{where} line {reader.line_num}: {len(cells)} fields, and the header has {width}")


def _next(reader: Any, where: str) -> list[str] | None:
    try:
        return next(reader, None)
    except csv.Error as error:
        raise ValueError(f"{where} line {reader.line_num}: not valid CSV: {error}") from None
