"""A store: a folder with one SQLite file of rows, each under its key. Any number of processes may add to it.

SQLite keeps writers apart and what a killed one had written whole. A row that two writers made is the same row and is
kept once; one that succeeded replaces one that failed. Rows are compressed JSON: what is read is what was
written, or an error, as its checksum tells each from damage. Not here: what a row says
(sim.studies.sweeps.store_rows), what a stranger's file may do (sim.files.sqlite_rows), frames (sim.report).
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

from sim.files.json_values import Json, convert, parse_json
from sim.files.sqlite_rows import connected, read_rows, unpacked
from sim.studies.sweeps.store_rows import SCENARIO, Row, model_version, parse_row

STORE_SCHEMA = 2
MARK = "store.sqlite"
TABLES = (
    "CREATE TABLE rows (key TEXT PRIMARY KEY, failed INTEGER, row BLOB) WITHOUT ROWID",
    "CREATE TABLE grids (digest TEXT PRIMARY KEY, run BLOB) WITHOUT ROWID",
)
MAKE = f"""
BEGIN IMMEDIATE;
{";".join(TABLES).replace("TABLE", "TABLE IF NOT EXISTS")};
PRAGMA user_version = {STORE_SCHEMA};
COMMIT;
"""
ADD = """
INSERT INTO rows VALUES (?, ?, ?)
ON CONFLICT (key) DO UPDATE SET failed = 0, row = excluded.row WHERE failed > excluded.failed
"""


class GridRun(msgspec.Struct, frozen=True, kw_only=True):
    """A grid that was run into a store."""

    grid: dict[str, Any]
    """The grid in the words of its file: `scenario`, `grid` and so on."""
    keys: list[str]
    model_version: str
    date_begun: str


class Store:
    """The store at `path`, which must be one. `open` makes one where nothing is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not (path / MARK).is_file():
            raise ValueError(f"{str(path)!r} has no {MARK}. Give a store that `lanesim sweep --out` wrote")
        self._read("SELECT key FROM rows LIMIT 0")

    @classmethod
    def open(cls, path: Path) -> Store:
        """The store at `path`, made if there is nothing. Raises ValueError where something else is, or none can be."""
        if path.exists() and not path.is_dir():
            raise ValueError(f"--out {str(path)!r} is a file. Give a directory")
        if path.is_dir() and not (path / MARK).exists():
            strange = [name for name in sorted(os.listdir(path)) if not name.startswith(".")]
            if strange:
                raise ValueError(f"--out {str(path)!r} holds {strange[0]!r} and is no store. Choose another")
        with _writing(path):
            path.mkdir(parents=True, exist_ok=True)
            with closing(connected(path / MARK, "rwc")) as base:
                if base.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,):
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
        packed = self._unpacked("SELECT digest, run FROM grids")
        runs = [
            convert(parse_json(text.decode(errors="replace"), self._what), GridRun, self._what) for _, text in packed
        ]
        return sorted(runs, key=lambda run: run.date_begun)

    def add(self, rows: Sequence[Row]) -> None:
        """Write rows, all of them or none. Raises ValueError where that fails."""
        packed = [(row["key"], row.get("error") is not None, zlib.compress(msgspec.json.encode(row))) for row in rows]
        self._write(ADD, packed)

    def keys(self) -> frozenset[str]:
        """Keys of the rows that did not fail."""
        return frozenset(key for (key,) in self._read("SELECT key FROM rows WHERE NOT failed"))

    def rows(self) -> list[Row]:
        packed = self._unpacked("SELECT key, row FROM rows ORDER BY key")
        return [parse_row(key, text, self._what) for key, text in packed]

    def scenario(self, key: str) -> dict[str, str]:
        """The resolved scenario of the row with this key: JSON by dotted key."""
        for _, text in self._unpacked("SELECT key, row FROM rows WHERE key = ?", key):
            row = parse_row(key, text, self._what)
            return {name.removeprefix(SCENARIO): str(row[name]) for name in row if name.startswith(SCENARIO)}
        raise ValueError(f"{self._what} has no row {key!r}")

    @property
    def _what(self) -> str:
        return f"store {str(self.path)!r}"

    def _unpacked(self, query: str, *values: str) -> Iterator[tuple[str, bytes]]:
        return unpacked(self._read(query, *values), self._what)

    def _read(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        return read_rows(self.path / MARK, query, values, tables=TABLES, version=STORE_SCHEMA)

    def _write(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        with _writing(self.path), closing(connected(self.path / MARK, "rw")) as base, base:
            base.executemany(statement, rows)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise ValueError(f"--out {str(path)!r} cannot be written: {error}") from None
