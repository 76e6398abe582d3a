"""A store: a folder of rows that only grows, each under its key; any number of processes may add to it.

    STORE/store.json       the schema, written when the store is made
    STORE/grids/*.json     the grids that were run into it, each once per version of the model
    STORE/parts/*.parquet  rows, a file per batch, whole or not there; named `NUMBER-DIGEST`, the digest of its bytes

Nobody ever changes a file, and names of parts are never used twice, so that writers need not know of each other; a row
that two of them wrote is the same row, and is read once. Not here: what a row says (sim.studies.store_rows), frames
(sim.report).
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sim.files.arrow_tables import Columns, read_parquet
from sim.files.json_values import Json, convert, read_json
from sim.files.lock import Busy
from sim.files.read import CONTROL, MAX_TABLE_BYTES, Unreadable, read_bytes
from sim.files.write import sweep_folder, write_bytes, write_text
from sim.studies.store_rows import SCENARIO, Row, model_version

if TYPE_CHECKING:
    import pyarrow as pa

STORE_SCHEMA = 1
MARK = "store.json"
MERGED_AT = 32
"""Parts of one writer that are merged into one: reading thousands of small files is slow."""
TRIES, BETWEEN_S = 50, 0.1
"""Tries at making a store that another process is just making, too; at reading parts that another one is merging."""
LABELS = ("key", "scenario_hash", "policy", "model_version", "profile_hash")
"""Texts that every row has."""
REMARKS = ("error", "notes")
"""Texts of any kind, or none."""
WORDS = ("load", "engine")
"""Metrics that are no number."""
COUNTS = ("seed", "replication")
VERDICTS = ("is_steady", "unstable")
"""True or false of every row that ran."""
SHARES = ("rejected_token_share", "device_utilization", "device_idle_share")
"""Metrics from 0 to 1; no metric is below 0."""
ROUNDING = 1e-6
KEY = re.compile(r"[0-9a-f]{32}\Z")
DIGEST_DIGITS = 32
_NO_ARROW = "a store is Parquet and needs the analysis extra: pip install 'lanesim[analysis]'"


class Begun(msgspec.Struct, frozen=True, kw_only=True):
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
        self._own: list[Path] = []
        """Small parts written here, not merged yet."""
        mark = path / MARK
        if not mark.is_file():
            raise ValueError(f"{str(path)!r} holds no {MARK}: want a store that `lanesim sweep --out` wrote")
        held = read_json(mark, "store")
        schema = held.get("schema") if isinstance(held, dict) else None
        if schema != STORE_SCHEMA:
            raise ValueError(f"store {str(path)!r}: schema={schema!r} must be {STORE_SCHEMA}; choose another --out")

    @classmethod
    def open(cls, path: Path) -> Store:
        """The store at `path`, made if there is nothing. Raises ValueError where something else is, or none can be."""
        if find_spec("pyarrow") is None:
            raise ValueError(_NO_ARROW)
        if path.exists() and not path.is_dir():
            raise ValueError(f"--out {str(path)!r} is a file; want a directory")
        if path.is_dir() and not (path / MARK).exists():
            strange = [name for name in sorted(os.listdir(path)) if not name.startswith(".") and name != MARK]
            if strange:
                raise ValueError(f"--out {str(path)!r} holds {strange[0]!r} and is no store; choose another")
        if not (path / MARK).exists():
            _patiently(path / MARK, json.dumps({"schema": STORE_SCHEMA}) + "\n")
        store = cls(path)
        try:
            for name in ("parts", "grids"):
                (path / name).mkdir(exist_ok=True)
                sweep_folder(path / name)
        except OSError as error:
            raise ValueError(f"--out {str(path)!r} cannot be written: {error.strerror or error}") from None
        return store

    def begin(self, grid: Mapping[str, Json], keys: Sequence[str]) -> None:
        """Note that `grid` is run into this store, unless that is known."""
        text = json.dumps(grid, sort_keys=True, default=str)
        name = hashlib.sha256(f"{model_version()} {text}".encode()).hexdigest()[:16]
        file = self.path / "grids" / f"{name}.json"
        if not file.exists():
            begun = Begun(
                grid=json.loads(text),
                keys=list(keys),
                model_version=model_version(),
                date_begun=datetime.now(UTC).isoformat(timespec="seconds"),
            )
            _patiently(file, msgspec.json.format(msgspec.json.encode(begun), indent=1).decode() + "\n")

    def grids(self) -> list[Begun]:
        """What was run into the store, oldest first."""
        files = sorted((self.path / "grids").glob("*.json"))
        found = [convert(read_json(file, "grid of a store"), Begun, f"grid {str(file)!r}") for file in files]
        return sorted(found, key=lambda begun: begun.date_begun)

    def add(self, rows: Sequence[Row]) -> None:
        """Write rows as one part, which is there whole or not at all. Raises ValueError where that fails."""
        if rows:
            names = dict.fromkeys(name for row in rows for name in row)
            self._own.append(self._write({name: [row.get(name) for row in rows] for name in names}))
        if len(self._own) >= MERGED_AT:
            self.merge()

    def merge(self) -> None:
        """One part in place of the small ones that this writer made; a kill meanwhile leaves rows twice, read once."""
        if len(self._own) > 1:
            import pyarrow as pa
            import pyarrow.parquet as pq

            tables = [pq.read_table(part) for part in self._own]
            self._write_table(pa.concat_tables(tables, promote_options="permissive"))
            for part in self._own:
                part.unlink(missing_ok=True)
        self._own = []

    def keys(self, *, with_failed: bool = True) -> Keys:
        """Keys of all rows, or only of those that did not fail."""
        try:
            import pyarrow.compute as pc
        except ImportError:
            raise ValueError(_NO_ARROW) from None
        found = []
        for table in self._tables(("key", "error")):
            known = table if with_failed else table.filter(pc.is_null(table["error"]))
            found.append(np.array(known["key"].to_pylist(), dtype="S32"))
        return Keys(found)

    def table(self) -> pa.Table:
        """All rows as a pyarrow Table, each key once, one that succeeded before one that failed; ordered by key."""
        import pyarrow as pa
        import pyarrow.compute as pc

        tables = self._tables()
        if not tables:
            return pa.table({"key": pa.array([], pa.string())})
        table = pa.concat_tables(tables, promote_options="permissive").combine_chunks()
        failed = pc.is_valid(table["error"]).cast(pa.int8())
        order = pc.sort_indices(
            table.append_column("_failed", failed), sort_keys=[("key", "ascending"), ("_failed", "ascending")]
        )
        table = table.take(order)
        keys = np.asarray(table["key"].to_pylist(), dtype="S32")
        is_first = np.ones(len(keys), dtype=bool)
        is_first[1:] = keys[1:] != keys[:-1]
        return table.filter(pa.array(is_first))

    def scenario(self, key: str) -> dict[str, str]:
        """The resolved scenario of the row with this key: JSON by dotted key."""
        import pyarrow.compute as pc

        for table in self._tables():
            own = table.filter(pc.equal(table["key"], key)).slice(0, 1).to_pylist()
            if own:
                return {
                    name.removeprefix(SCENARIO): text
                    for name, text in own[0].items()
                    if name.startswith(SCENARIO) and text is not None
                }
        raise ValueError(f"store {str(self.path)!r} has no row {key!r}")

    def _tables(self, columns: Sequence[str] | None = None) -> list[pa.Table]:
        """Every part, checked; anew if one that was listed has been merged meanwhile."""
        for _ in range(TRIES):
            parts = sorted(part for part in (self.path / "parts").glob("*.parquet") if part.name[0] != ".")
            try:
                return [_part(part, columns) for part in parts]
            except Unreadable:
                if all(part.exists() for part in parts):
                    raise
                time.sleep(BETWEEN_S)
        raise ValueError(f"store {str(self.path)!r}: parts vanish while they are read; is something clearing it?")

    def _write(self, columns: Columns) -> Path:
        try:
            import pyarrow as pa
        except ImportError:
            raise ValueError(_NO_ARROW) from None
        return self._write_table(pa.table({name: pa.array(values) for name, values in columns.items()}))

    def _write_table(self, table: pa.Table) -> Path:
        import pyarrow.parquet as pq

        content = io.BytesIO()
        pq.write_table(table, content, compression="zstd")
        digest = hashlib.sha256(content.getbuffer()).hexdigest()[:DIGEST_DIGITS]
        path = self.path / "parts" / f"{os.urandom(8).hex()}-{digest}.parquet"
        write_bytes(path, content.getvalue())
        return path


def files_of(path: Path) -> list[Path]:
    """What makes up the store at `path`, over which no other output may be written."""
    return [path / MARK, *sorted((path / "grids").glob("*")), *sorted((path / "parts").glob("*"))]


class Keys:
    """A set of keys in 32 bytes each, since there may be millions."""

    def __init__(self, found: Iterable[NDArray[np.bytes_]]) -> None:
        self._sorted = np.unique(np.concatenate([np.array([], dtype="S32"), *found]))

    def __contains__(self, key: str) -> bool:
        place = int(np.searchsorted(self._sorted, key.encode()))
        return place < len(self._sorted) and bool(self._sorted[place] == key.encode())

    def __len__(self) -> int:
        return len(self._sorted)


def _part(path: Path, columns: Sequence[str] | None) -> pa.Table:
    """The rows of a part as an Arrow table, or `columns` of them. Raises ValueError where they are none."""
    where = f"part of a store {str(path)!r}"
    _check_digest(path, where)
    table = read_parquet(path, "part of a store", columns)
    if "error" not in table.column_names:
        import pyarrow as pa

        table = table.append_column("error", pa.nulls(table.num_rows, pa.string()))
    for name in columns or (*LABELS, *COUNTS):
        if name not in table.column_names:
            raise ValueError(f"{where}: no column {name!r}")
    for name in table.column_names:
        _check(name, table[name], f"{where}: column {name!r}")
    if columns is None:
        _check_verdicts(table, where)
    return table


def _check_digest(path: Path, where: str) -> None:
    """Raise ValueError unless a part holds the bytes that its name has the digest of; earlier versions gave none."""
    digest = path.stem.partition("-")[2]
    if digest:
        held = hashlib.sha256(read_bytes(path, "part of a store", max_bytes=MAX_TABLE_BYTES))
        if held.hexdigest()[:DIGEST_DIGITS] != digest:
            raise ValueError(f"{where} is damaged; remove it, and the same sweep runs its points again")


def _check_verdicts(table: pa.Table, where: str) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    ran = table.filter(pc.is_null(table["error"]))
    for name in VERDICTS if ran.num_rows else ():
        own = ran[name] if name in ran.column_names else None
        if own is None or own.null_count or not pa.types.is_boolean(own.type):
            raise ValueError(f"{where}: column {name!r} must be true or false in every row that ran")


def _check(name: str, column: pa.ChunkedArray, where: str) -> None:
    """Raise ValueError unless the Arrow column holds what rows have under this name."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    has_texts, is_empty = pa.types.is_string(kind) or pa.types.is_large_string(kind), pa.types.is_null(kind)
    is_label, is_text = name in LABELS, name.startswith(SCENARIO) or name in (*LABELS, *REMARKS, *WORDS)
    if (is_label or name in COUNTS) and column.null_count:
        raise ValueError(f"{where} lacks values: every row needs one")
    if name in COUNTS:
        is_right = pa.types.is_integer(kind)
    elif is_text:
        is_right = has_texts or is_empty
    else:
        is_right = is_empty or any(
            is_kind(kind) for is_kind in (pa.types.is_floating, pa.types.is_integer, pa.types.is_boolean)
        )
    if not is_right:
        wanted = "whole numbers" if name in COUNTS else "texts" if is_text else "numbers"
        raise ValueError(f"{where} must hold {wanted}, got {kind}")
    if pa.types.is_floating(kind) and pc.any(pc.is_inf(column)).as_py():
        raise ValueError(f"{where} holds a value that is not finite")
    if (pa.types.is_floating(kind) or pa.types.is_integer(kind)) and not is_text:
        least, most = pc.min_max(column).as_py().values()
        if least is not None and (least < -ROUNDING or (name in SHARES and most > 1.0 + ROUNDING)):
            wanted = "numbers from 0 to 1" if name in SHARES else "numbers of at least 0"
            raise ValueError(f"{where} must hold {wanted}, got {least:g} to {most:g}")
    if has_texts and name not in REMARKS:
        for text in pc.unique(column).to_pylist():
            if text is not None:
                _check_text(name, text, where)


def _check_text(name: str, text: str, where: str) -> None:
    if CONTROL.search(text):
        raise ValueError(f"{where} holds a control character")
    if name == "key" and not KEY.match(text):
        raise ValueError(f"{where} holds {text!r:.40}, which is no key of 32 hex digits")
    if name.startswith(SCENARIO):
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            raise ValueError(f"{where} holds {text!r:.40}, which is no JSON") from None


def _patiently(file: Path, text: str) -> None:
    """Write what other processes may be writing, too, all the same text. Raises ValueError where that fails."""
    for left in reversed(range(TRIES)):
        try:
            write_text(file, text)
            return
        except Busy:
            if file.exists():
                return
            if not left:
                raise
            time.sleep(BETWEEN_S)
