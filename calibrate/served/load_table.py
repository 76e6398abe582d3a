"""Tables of measured loads and lists of requests, read from CSV and checked.

A load has concurrency or request_rate, input_len and output_len, and any metric of MEASURED. A list of requests, with
prompt_tokens and output_tokens, stands for both lengths. acceptance_length (tokens per verify, bonus included) stands
for an acceptance. Empty means not given. Other columns serve to mark loads.
Not here: simulating loads (calibrate.served.judge).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import msgspec

from calibrate.served.load import MEASURED, Positive, ServedLoad, Whole
from sim.files.arrow_tables import read_csv
from sim.names import unknown
from sim.workload.trace_files import csv_objects

REQUIRED = ("concurrency",)
"""An open loop has a request_rate instead."""
LENGTHS = ("input_len", "output_len")
"""Required without a list of requests."""
VARIED = ("output_len_std", "random_range_ratio")
"""Columns by which lengths differ."""
REQUEST_COLUMNS = ("prompt_tokens", "output_tokens")
ALIASES = {
    "k": "num_speculative_tokens",
    "length_range": "random_range_ratio",
    "output_tokens_per_s": "output_throughput",
}
"""Other names of columns, which a table may have instead of ours."""
KINDS = {
    name: kind
    for name, kind in get_type_hints(ServedLoad, include_extras=True).items()
    if name not in ("line", "measured", "predicted", "texts")
}
"""Column -> what a cell has under its name."""
COLUMNS = (*KINDS, "acceptance_length", *MEASURED)


class LoadTable(NamedTuple):
    path: str
    cells: list[ServedLoad]
    unused: list[str]
    """Columns that mean nothing here."""

    def where(self, cell: ServedLoad) -> str:
        return f"table {self.path!r} line {cell.line}"


def read_cells(path: Path, *, has_requests: bool = False) -> LoadTable:
    """The cells of `path`. With a list of requests (`has_requests`) cells have no
    lengths of their own: such columns tell what is in the list, and nothing is read from them.

    Raises ValueError naming file, line and column.
    """
    return _table(str(path), *read_csv(path, "table"), has_requests=has_requests)


def table_of(name: str, rows: Sequence[Mapping[str, object]], *, has_requests: bool = False) -> LoadTable:
    """The table of `rows` at hand that all have our columns, read like a file; `name` stands for the file."""
    lines = ((number, list(map(str, row.values()))) for number, row in enumerate(rows, start=2))
    return _table(name, list(rows[0]), lines, has_requests=has_requests)


def read_request_list(path: Path) -> list[tuple[int, int]]:
    """Prompt and output tokens of the requests of `path`, in order. Raises ValueError naming file, line and column."""
    requests = []
    for where, row in csv_objects(str(path), REQUEST_COLUMNS, "requests"):
        prompt, output = (_value(str(row[name]), Whole, name, where) for name in REQUEST_COLUMNS)
        requests.append((prompt, output))
    if not requests:
        raise ValueError(f"requests {str(path)!r} has no request below its header")
    return requests


def _table(path: str, names: Sequence[str], rows: Iterable[tuple[int, list[str]]], *, has_requests: bool) -> LoadTable:
    where = f"table {path!r}"
    ignored, needed = (LENGTHS, ()) if has_requests else ((), LENGTHS)
    aliases = {theirs: ours for theirs, ours in ALIASES.items() if ours not in names}
    header = [aliases.get(name, name) for name in names]
    if twice := [name for name in header if header.count(name) > 1]:
        raise ValueError(f"{where} line 1: column {twice[0]!r} is there twice")
    for name in (*_load(header), *needed):
        if name not in header:
            raise ValueError(f"{where} line 1: {unknown('column', name, header)}. The header must name it")
    if not set(MEASURED) & set(header):
        raise ValueError(f"{where} line 1: no measured mean. Give any of {', '.join(MEASURED)}")
    cells = []
    for number, row in rows:
        texts = {name: value.strip() for name, value in zip(header, row, strict=True)}
        given = {name: text for name, text in texts.items() if text and name not in ignored}
        for name in (*_load(given), *needed):
            _value(texts[name], Whole, name, f"{where} line {number}")
        cells.append(msgspec.structs.replace(_cell(given, f"{where} line {number}"), line=number, texts=texts))
    if not cells:
        raise ValueError(f"{where} has no load below its header")
    return LoadTable(path, cells, [name for name in header if name not in COLUMNS])


def _load(names: Container[str]) -> Sequence[str]:
    """Columns that say the load."""
    return () if "request_rate" in names else REQUIRED


def _cell(given: Mapping[str, str], where: str) -> ServedLoad:
    fields: dict[str, Any] = {name: _value(given[name], KINDS[name], name, where) for name in given if name in KINDS}
    measured = {name: _value(given[name], Positive, name, where) for name in MEASURED if name in given}
    if not measured:
        raise ValueError(f"{where}: nothing measured. Give any of {', '.join(MEASURED)}")
    acceptance = _acceptance(given, fields.get("num_speculative_tokens"), where)
    most, mean = fields.get("output_len_max"), fields.get("output_len")
    if all(given.get(name) for name in VARIED):
        raise ValueError(f"{where}: both {' and '.join(VARIED)} vary the outputs. Give one of them")
    if most is not None and mean is not None and most < mean:
        raise ValueError(f"{where}: output_len_max={most} is below the mean, output_len={mean}")
    return ServedLoad(**{**fields, "acceptance": acceptance, "measured": measured})


def _acceptance(given: Mapping[str, str], drafted: int | None, where: str) -> str | None:
    spec, length = given.get("acceptance"), given.get("acceptance_length")
    if not drafted:
        if drafted is None and (spec or length):
            raise ValueError(f"{where}: the acceptance needs num_speculative_tokens. Give it, or 0")
        return None
    if bool(spec) == bool(length):
        raise ValueError(
            f"{where}: num_speculative_tokens={drafted} needs acceptance_length or acceptance. Give one of them"
        )
    if length is None:
        return spec
    value: float = _value(length, Positive, "acceptance_length", where)
    if not 1.0 <= value <= drafted + 1:
        raise ValueError(f"{where}: acceptance_length={length} must be in 1..{drafted + 1}, bonus included")
    return f"length:{value!r}"


def _value(text: str, kind: Any, name: str, where: str) -> Any:
    """The value that `text` spells; 8.0 is a whole number."""
    try:
        return msgspec.convert(msgspec.json.decode(text) if text.startswith("[") else text.strip(), kind, strict=False)
    except msgspec.DecodeError as error:
        problem = str(error).replace("Expected", "it must be").replace(", got `str`", "")
        raise ValueError(f"{where}: {name}={text!r:.40}: {problem}") from None
