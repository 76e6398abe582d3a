"""Rows of a SQLite file of ours, which a stranger may have made: exactly our tables, within limits, nothing written.

A schema can hold views and triggers that never end, so the file must have our tables and no other object. What a query
may read and compute is bounded by the size of the file, and a signal is heard meanwhile.
Not here: what a row says (sim.studies.sweeps.store_rows), when rows are written (sim.studies.sweeps.store).
"""

from __future__ import annotations

import shutil
import sqlite3
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sim.files.read import FREE_UNPACKED_BYTES, MAX_LINE_BYTES, MAX_TABLE_BYTES, MAX_UNPACKED, Unreadable, opened

WAIT_S = 60.0
"""Time that a connection waits for another one's rows."""
OPERATIONS = 10_000
"""Operations of SQLite's machine after which a signal is heard. A table takes fewer of them than it has bytes."""
LEAST_CALLS = 1_000
JOURNAL, LOG = "-journal", "-wal"
"""Endings of the files beside a database: pages before a write, and a log, which our stores never have."""
END_OF_NAMED = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
"""Last bytes of a journal that names a second file (sqlite.org/fileformat2.html): SQLite would remove that one."""


def connected(path: Path, mode: str) -> sqlite3.Connection:
    """A connection, `mode` ro, rw or rwc. Raises ValueError where a file beside it could make SQLite touch others."""
    journal, log = (path.with_name(path.name + ending) for ending in (JOURNAL, LOG))
    if log.exists() or journal.is_fifo():
        raise ValueError(f"store {str(path.parent)!r} has files beside {path.name!r} that lanesim never writes")
    # A journal may end at any moment: another sweep's.
    with suppress(Unreadable), opened(journal, "store", max_bytes=MAX_TABLE_BYTES) as file:
        file.seek(max(0, file.seek(0, 2) - len(END_OF_NAMED)))
        if file.read() == END_OF_NAMED:
            raise ValueError(f"store {str(path.parent)!r} has a journal that names another file. Remove it")
    base = sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", WAIT_S, uri=True)
    base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_LINE_BYTES)
    base.execute("PRAGMA trusted_schema = OFF")
    return base


def read_rows(
    path: Path, query: str, values: Sequence[str] = (), *, tables: Collection[str], version: int
) -> list[tuple[Any, ...]]:
    """What `query` gives of a file whose schema is `tables`, SQL as SQLite keeps it, and whose user version is this. A
    write that was killed is rolled back in a copy. Raises ValueError where the file is none of ours."""
    what = f"store {str(path.parent)!r}"
    opened(path, "store", max_bytes=MAX_TABLE_BYTES).close()
    num_calls, most_calls = 0, max(LEAST_CALLS, path.stat().st_size // OPERATIONS)

    def is_too_much() -> bool:
        nonlocal num_calls
        num_calls += 1
        return num_calls > most_calls

    def read(file: Path, mode: str) -> list[tuple[Any, ...]]:
        with closing(connected(file, mode)) as base:
            base.set_progress_handler(is_too_much, OPERATIONS)
            base.execute("PRAGMA query_only = ON")
            base.execute("BEGIN")
            ((found,),) = base.execute("PRAGMA user_version")
            if {sql for (sql,) in base.execute("SELECT sql FROM sqlite_schema LIMIT 9")} != set(tables):
                raise ValueError(
                    f"{what} has other tables than `lanesim sweep` makes. Name a store that it made, or a new folder"
                )
            if found != version:
                raise ValueError(
                    f"{what}: schema={found} must be {version}: name a store of this version, or a new folder"
                )
            ((size,),) = base.execute("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
            rows = []
            for row in base.execute(query, values):
                rows.append(row)
                size -= sum(len(each) for each in row if isinstance(each, str | bytes))
                if size < 0:
                    raise ValueError(f"{what} is damaged: it has more bytes in rows than in pages")
            return rows

    try:
        try:
            return read(path, "ro")
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorname", None) != "SQLITE_READONLY_ROLLBACK":
                raise
        with _copied(path) as copy:
            return read(copy, "rw")
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorname", None) != "SQLITE_INTERRUPT":
            raise ValueError(f"{what} cannot be read: {error}") from None
        if num_calls <= most_calls:  # SQLite has swallowed what a signal raised within the handler.
            raise KeyboardInterrupt from None
        raise ValueError(f"{what} is damaged: it takes more to read than a table of its size can") from None


@contextmanager
def _copied(path: Path) -> Iterator[Path]:
    """A copy of a file and its journal, on which SQLite may undo the write that was killed."""
    with TemporaryDirectory(prefix="lanesim-") as folder:
        for name in (path.name, path.name + JOURNAL):
            source = opened(path.with_name(name), "store", max_bytes=MAX_TABLE_BYTES)
            with source, (Path(folder) / name).open("wb") as copy:
                shutil.copyfileobj(source, copy)
        yield Path(folder) / path.name


def unpacked(rows: Iterable[tuple[str, bytes]], what: str) -> Iterator[tuple[str, bytes]]:
    """Keys, and what was compressed under them: each a line's bytes at most, all MAX_UNPACKED times their size. Raises
    ValueError where the bytes are others than were written, by their checksum, or too many."""
    spare = FREE_UNPACKED_BYTES
    for key, packed in rows:
        unpacking = zlib.decompressobj()
        try:
            content = unpacking.decompress(packed, MAX_LINE_BYTES)
        except (zlib.error, TypeError) as error:
            raise ValueError(f"{what} is damaged: {error}. Sweep its grid into another --out") from None
        spare += MAX_UNPACKED * len(packed) - len(content)
        if not unpacking.eof or unpacking.unused_data or spare < 0:
            raise ValueError(f"{what} is damaged: row {key!r} is cut off or unpacks to over {MAX_LINE_BYTES:,} bytes")
        yield key, content
