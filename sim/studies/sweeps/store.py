"""A store: a folder with one SQLite file of rows, each under its key; any number of processes may add to it.

SQLite keeps writers apart and what a killed one had written whole. A row that two writers made is the same row and is
kept once; one that succeeded replaces one that failed. Rows are compressed JSON: what is read is what was
written, or an error, as its checksum tells each from damage. Not here: what a row says
(sim.studies.sweeps.store_rows), frames (sim.report).
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from sim.files.json_values import Json
from sim.studies.sweeps.store_rows import SCENARIO, Row, model_version

STORE_SCHEMA = 2
MARK = "store.sqlite"
"""File of a store."""
WAIT_S = 60.0
"""Time that a writer waits for another one's rows."""
MAKE = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS rows (key TEXT PRIMARY KEY, failed INTEGER, row BLOB) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS grids (digest TEXT PRIMARY KEY, run BLOB) WITHOUT ROWID;
PRAGMA user_version = {STORE_SCHEMA};
COMMIT;
"""
ADD = """
INSERT INTO rows VALUES (?, ?, ?)
ON CONFLICT (key) DO UPDATE SET failed = 0, row = excluded.row WHERE failed > excluded.failed
"""
DAMAGED = "store {!r} is damaged; sweep its grid into another --out"


class GridRun(msgspec.Struct, frozen=True, kw_only=True):
    """A grid that was run into a store."""

    grid: dict[str, Any]
    """The grid in the words of its file: `scenario`, `grid` and so on."""
    keys: list[str]
    """Dotted keys that it goes through."""
    model_version: str
    date_begun: str


class Store:
    """The store at `path`, which must be one. `open` makes one where nothing is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not (path / MARK).is_file():
            raise ValueError(f"{str(path)!r} holds no {MARK}: want a store that `lanesim sweep --out` wrote")
        ((schema,),) = self._read("PRAGMA user_version")
        if schema != STORE_SCHEMA:
            raise ValueError(f"store {str(path)!r}: schema={schema!r} must be {STORE_SCHEMA}; choose another --out")

    @classmethod
    def open(cls, path: Path) -> Store:
        """The store at `path`, made if there is nothing. Raises ValueError where something else is, or none can be."""
        if path.exists() and not path.is_dir():
            raise ValueError(f"--out {str(path)!r} is a file; want a directory")
        if path.is_dir() and not is_store(path):
            strange = [name for name in sorted(os.listdir(path)) if not name.startswith(".")]
            if strange:
                raise ValueError(f"--out {str(path)!r} holds {strange[0]!r} and is no store; choose another")
        with _writing(path):
            path.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(path / MARK, WAIT_S)) as base:
                if base.execute("PRAGMA user_version").fetchone() == (0,):
                    base.executescript(MAKE)
        return cls(path)

    def begin(self, grid: Mapping[str, Json], keys: Sequence[str]) -> None:
        """Note that `grid` is run into this store, unless that is known."""
        text = json.dumps(grid, sort_keys=True, default=str)
        run = GridRun(
            grid=json.loads(text),
            keys=list(keys),
            model_version=model_version(),
            date_begun=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        digest = hashlib.sha256(f"{run.model_version} {text}".encode()).hexdigest()
        self._write("INSERT OR IGNORE INTO grids VALUES (?, ?)", [(digest, zlib.compress(msgspec.json.encode(run)))])

    def grids(self) -> list[GridRun]:
        """Grids that were run into the store, oldest first."""
        runs = [msgspec.json.decode(self._whole(run), type=GridRun) for (run,) in self._read("SELECT run FROM grids")]
        return sorted(runs, key=lambda run: run.date_begun)

    def add(self, rows: Sequence[Row]) -> None:
        """Write rows, all of them or none. Raises ValueError where that fails."""
        packed = [(row["key"], row.get("error") is not None, zlib.compress(msgspec.json.encode(row))) for row in rows]
        self._write(ADD, packed)

    def keys(self, *, with_failed: bool = True) -> frozenset[str]:
        """Keys of all rows, or only of those that did not fail."""
        which = "" if with_failed else " WHERE NOT failed"
        return frozenset(key for (key,) in self._read(f"SELECT key FROM rows{which}"))

    def rows(self) -> list[Row]:
        """All rows, ordered by key."""
        return [self._row(*packed) for packed in self._read("SELECT key, row FROM rows ORDER BY key")]

    def scenario(self, key: str) -> dict[str, str]:
        """The resolved scenario of the row with this key: JSON by dotted key."""
        for packed in self._read("SELECT key, row FROM rows WHERE key = ?", key):
            texts = {name: str(text) for name, text in self._row(*packed).items() if name.startswith(SCENARIO)}
            return {name.removeprefix(SCENARIO): text for name, text in texts.items()}
        raise ValueError(f"store {str(self.path)!r} has no row {key!r}")

    def _row(self, key: str, packed: bytes) -> Row:
        row: Row = msgspec.json.decode(self._whole(packed))
        if row["key"] != key:
            raise ValueError(DAMAGED.format(str(self.path)))
        return row

    def _whole(self, packed: bytes) -> bytes:
        """The bytes that were written, by their checksum."""
        try:
            return zlib.decompress(packed)
        except (zlib.error, TypeError):
            raise ValueError(DAMAGED.format(str(self.path))) from None

    def _read(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        file = f"{(self.path / MARK).absolute().as_uri()}?mode=ro"
        try:
            with closing(sqlite3.connect(file, WAIT_S, uri=True)) as base:
                return base.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise ValueError(f"store {str(self.path)!r} cannot be read: {error}") from None

    def _write(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        with _writing(self.path), closing(sqlite3.connect(self.path / MARK, WAIT_S)) as base, base:
            base.executemany(statement, rows)


def is_store(path: Path) -> bool:
    """A store is at `path`."""
    return (path / MARK).exists()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise ValueError(f"--out {str(path)!r} cannot be written: {error}") from None
