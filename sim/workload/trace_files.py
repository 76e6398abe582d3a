"""Rows of trace files, read and checked one by one.

Not here: what the columns of a format mean (sim.workload.traces).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from difflib import get_close_matches
from math import isfinite
from typing import NamedTuple

from sim.files.arrow_tables import read_csv
from sim.files.json_values import Json, json_lines

TRACE = "trace"
Cell = Json
"""A value as the file gives it: text from CSV, anything from JSON."""
Row = dict[str, Cell]

UNITS_S = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "datetime": 1.0}
"""Seconds per unit of a clock; datetime is ISO 8601 text."""
MIN_UNIX = {"ms": 1e11, "us": 1e14, "ns": 1e17}
"""Unix times since 1973 in these units are at least this; below the first one they are seconds, until the year 5138."""
MAX_TOKENS = 10**9
"""Tokens of one prompt or answer: a thousand times the longest context there is."""
_EPOCH = datetime(1970, 1, 1)


class TraceRow(NamedTuple):
    """One recorded request. `arrival_s` counts from an origin of the file's; None without a clock."""

    arrival_s: float | None
    prompt_tokens: int
    output_tokens: int
    id: str = ""
    content: Sequence[int] = ()
    """Ids of its whole blocks (sim.workload.content); empty where the file does not tell."""


def number_of(cell: Cell, where: str, field: str, least: int = 0, what: str = "whole number from 0 to") -> int:
    """A whole number from `least`."""
    try:
        if isinstance(cell, str | int) and not isinstance(cell, bool) and least <= (value := int(cell)) <= MAX_TOKENS:
            return value
    except ValueError:
        pass
    raise ValueError(f"{where}: {field}={cell!r:.40} must be a {what} {MAX_TOKENS}")


def tokens_of(cell: Cell, where: str, field: str) -> int:
    """A length of at least one token."""
    return number_of(cell, where, field, 1, "whole number of tokens, 1 to")


def seconds_of(cell: Cell, unit: str, where: str, field: str) -> float:
    """A clock reading in `unit` (UNITS_S) as seconds; a datetime without a zone counts as UTC."""
    try:
        if isinstance(cell, str) and unit == "datetime":
            moment = datetime.fromisoformat(cell)
            return moment.timestamp() if moment.tzinfo else (moment - _EPOCH).total_seconds()
        if unit != "datetime" and isinstance(cell, str | int | float) and not isinstance(cell, bool):
            value = float(cell)
            if isfinite(value):
                return value * UNITS_S[unit]
    except (ValueError, OverflowError):
        pass
    wanted = "an ISO 8601 date and time" if unit == "datetime" else f"a number ({unit})"
    raise ValueError(f"{where}: {field}={cell!r:.40} must be {wanted}")


def unix_unit(cell: Cell) -> str | None:
    """The unit of a clock reading that can only be a Unix time in ms, us or ns; None for any other value."""
    try:
        value = float(cell) if isinstance(cell, str | int | float) else 0.0
    except (ValueError, OverflowError):
        return None
    return next((unit for unit, least in reversed(MIN_UNIX.items()) if least <= value < least * 1e3), None)


def column_names(path: str, kind: str) -> list[str]:
    """Columns of a CSV file (`csv`), or fields of the first object of JSON lines; none where it cannot be read."""
    try:
        if kind == "csv":
            return read_csv(path, TRACE).header
        _, first = next(json_lines(path, TRACE), (0, None))
    except ValueError:
        return []
    return list(first) if isinstance(first, dict) else []


def csv_objects(path: str, names: Sequence[str], what: str = TRACE) -> Iterator[tuple[str, Row]]:
    """The cells `names` of each row of a CSV file whose header has them all, and where each row stands."""
    header, rows = read_csv(path, what)
    for name in names:
        if name not in header:
            raise ValueError(f"{what} {path!r} line 1: {missing('column', name, header)}")
    indices = [(name, header.index(name)) for name in names]
    for line, cells in rows:
        yield f"{what} {path!r} line {line}", {name: cells[index] for name, index in indices}


def json_objects(path: str, names: Sequence[str], *, has_prose: bool = False) -> Iterator[tuple[str, Row]]:
    """The objects of a JSON-lines file, and where each stands; messages ask for the fields `names`."""
    for number, row in json_lines(path, TRACE, has_prose=has_prose):
        where = f"{TRACE} {path!r} line {number}"
        if not isinstance(row, dict):
            raise ValueError(f"{where} must be an object with {', '.join(names)}")
        yield where, row


def missing(what: str, name: str, present: list[str]) -> str:
    """Words for a missing field, and the nearest of those that are present."""
    nearest = get_close_matches(name, present, n=1, cutoff=0.5)
    hint = f". Did you mean {nearest[0]!r}?" if nearest else ""
    return f"no {what} {name!r}{hint} (it has: {', '.join(present)})"
