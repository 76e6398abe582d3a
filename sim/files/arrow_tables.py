"""Tables by column: CSV row by row, Parquet in parts. Every defect is a ValueError with its file, line and column.

Not here: what the columns mean.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sim.files.json_values import Json
from sim.files.read import CONTROL, MAX_TABLE_BYTES, lines_of, opened
from sim.names import install_line

if TYPE_CHECKING:
    from _csv import Reader

    import pyarrow as pa

Columns = Mapping[str, Sequence[Json]]
"""Name -> values, all columns of one length."""
MAX_CELLS = 2_000_000_000
"""A Parquet file's rows times columns: a file of a few KB can say that it holds more than any memory."""


def check_parquet() -> None:
    """Raise ValueError where Parquet can be neither read nor written for want of a library."""
    if find_spec("pyarrow") is None:
        raise ValueError(f"Parquet needs pyarrow: {install_line('figures')}")


class CsvRows(NamedTuple):
    """The header of a CSV file, and its rows as they are read: line of the row's end, cells [columns]."""

    header: list[str]
    rows: Iterator[tuple[int, list[str]]]


def read_csv(path: str | Path, what: str) -> CsvRows:
    """A CSV file with a header line of different names; blank rows are passed over. Raises ValueError naming file and
    line, for a row when it is reached."""
    where = f"{what} {str(path)!r}"
    reader = csv.reader(_lines(path, what), strict=True)
    cells = _next(reader, where)
    if cells is None:
        raise ValueError(f"{where} is empty. Give a header line")
    header = [name.strip() for name in cells]
    for index, name in enumerate(header):
        if name in header[:index]:
            raise ValueError(f"{where} line 1: column {name!r} is there twice")
    return CsvRows(header, _rows(reader, where, len(header)))


def read_parquet(path: str | Path, what: str) -> pa.Table:
    """A Parquet file as an Arrow table. Raises ValueError naming the file."""
    check_parquet()
    import pyarrow as pa
    import pyarrow.parquet as pq

    where = f"{what} {str(path)!r}"
    with opened(path, what, max_bytes=MAX_TABLE_BYTES) as source:
        try:
            file = pq.ParquetFile(source)
            about = file.metadata
            if about.num_rows * max(1, about.num_columns) > MAX_CELLS:
                raise ValueError(f"{where}: {about.num_rows} rows of {about.num_columns} columns. Is it damaged?")
            table = file.read()
            table.validate(full=True)
            # What its writer noted, such as an index for pandas, decides nothing.
            table = table.replace_schema_metadata(None)
            names: list[str] = table.column_names
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            line, *_ = str(error).splitlines() or [type(error).__name__]
            raise ValueError(f"{where} cannot be read as Parquet: {line}") from None
    if twice := [name for index, name in enumerate(names) if name in names[:index]]:
        raise ValueError(f"{where}: column {twice[0]!r} is there twice")
    return table


@contextmanager
def writing_parquet(path: Path) -> Iterator[Callable[[Columns], None]]:
    """A Parquet file in parts, each written by what is yielded: nan becomes null, the first part says columns and
    types."""
    check_parquet()
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer: pq.ParquetWriter | None = None

    def write(columns: Columns) -> None:
        nonlocal writer
        known = {} if writer is None else {field.name: field.type for field in writer.schema}
        arrays = {name: pa.array(values, type=known.get(name), from_pandas=True) for name, values in columns.items()}
        table = pa.table(arrays)
        if writer is None:
            writer = pq.ParquetWriter(path, table.schema, compression="zstd")
        writer.write_table(table)

    try:
        yield write
    finally:
        if writer is not None:
            writer.close()


def join_parquet(parts: Sequence[Path], path: Path) -> None:
    """One Parquet file of the rows of several with the same columns, in their order; one part of one in memory."""
    import pyarrow.parquet as pq

    first = pq.read_schema(parts[0])
    with pq.ParquetWriter(path, first, compression="zstd") as writer:
        for part in parts:
            with pq.ParquetFile(part) as file:
                for number in range(file.num_row_groups):
                    writer.write_table(file.read_row_group(number).cast(first))


def _lines(path: str | Path, what: str) -> Iterator[str]:
    for number, line in lines_of(path, what):
        if bad := CONTROL.search(line):
            raise ValueError(f"{what} {str(path)!r} line {number}: control character {bad[0]!a}. Is it no text?")
        yield line


def _rows(reader: Reader, where: str, width: int) -> Iterator[tuple[int, list[str]]]:
    while (cells := _next(reader, where)) is not None:
        if not any(map(str.strip, cells)):
            continue
        if len(cells) != width:
            raise ValueError(f"{where} line {reader.line_num}: {len(cells)} fields, and the header has {width}")
        yield reader.line_num, cells


def _next(reader: Reader, where: str) -> list[str] | None:
    try:
        return next(reader, None)
    except csv.Error as error:
        raise ValueError(f"{where} line {reader.line_num}: not valid CSV: {error}") from None
