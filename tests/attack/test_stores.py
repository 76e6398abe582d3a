"""Stores that a stranger made, or that a killed sweep left: one line or the rows, never a traceback, a hang or a full
memory."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sim.cli.main import run
from sim.files import sqlite_rows
from sim.studies.sweeps.store import MARK, STORE_SCHEMA, TABLES, Store
from tests.attack.test_found import refusal
from tests.properties import assert_refused

GRID = """
scenario: {profile: cpu/tiny, policy: [continuous, pd], workload: {num_prompts: 4, output_len: 4}}
grid: {workload.request_rate: [2, 4]}
"""
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n WHERE i < 0"
FROM = f"FROM ({ENDLESS})"
Row = dict[str, Any]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("swept")
    (folder / "grid.yaml").write_text(GRID)
    assert run(["sweep", str(folder / "grid.yaml"), "--out", str(folder / "store"), "--workers", "1"]) == 0
    return folder


@pytest.fixture
def store(swept: Path, tmp_path: Path) -> Path:
    shutil.copytree(swept, tmp_path / "s")
    return tmp_path / "s" / "store"


def edited(store: Path, change: Callable[[Row], object], *, times: int = 1) -> None:
    """The store with every row's JSON changed, compressed and packed as ours is."""
    with sqlite3.connect(store / MARK) as base:
        for key, packed in base.execute("SELECT key, row FROM rows").fetchall():
            text = json.dumps(change(json.loads(zlib.decompress(packed)))).encode()
            blob = zlib.compress(text + b" " * (times << 20) if times > 1 else text)
            base.execute("UPDATE rows SET row = ? WHERE key = ?", (blob, key))
    base.close()


def put(store: Path, values: Row) -> None:
    edited(store, lambda row: row | values)


def padded(store: Path, times: int) -> None:
    edited(store, lambda row: row, times=times)


def with_schema(store: Path, script: str) -> None:
    with sqlite3.connect(store / MARK) as base:
        base.executescript(script)
    base.close()


def foreign(store: Path, version: int) -> None:
    (store / MARK).unlink()
    with_schema(store, f"CREATE TABLE customers (name TEXT); PRAGMA user_version = {version}")


KINDS: dict[str, tuple[Callable[[Path, Any], None], object, str]] = {
    "a view without end": (
        with_schema,
        f"DROP TABLE rows; CREATE VIEW rows AS SELECT i AS key, i AS row {FROM}",
        "has other tables",
    ),
    "a trigger": (with_schema, "CREATE TRIGGER t INSERT ON rows BEGIN DELETE FROM grids; END", "has other tables"),
    "somebody's database": (foreign, 0, "has other tables"),
    "somebody's of our version": (foreign, STORE_SCHEMA, "has other tables"),
    "rows that unpack without end": (padded, 64, "is damaged"),
    "rows that unpack to too much together": (padded, 8, "is damaged"),
    "another version": (with_schema, "PRAGMA user_version = 99", "schema=99 must be"),
    "rows that are lists": (edited, lambda row: [1], "must be an object"),
    "a latency below zero": (put, {"mean_e2el_ms": -5.0}, "numbers from 0"),
    "a latency in words": (put, {"mean_e2el_ms": "x"}, "must be a number"),
    "a latency of blocks": (put, {"mean_e2el_ms": {}}, "must be an object"),
    "a run without its load": (
        edited,
        lambda row: {name: row[name] for name in row if name != "is_steady"},
        "`is_steady`",
    ),
    "the row of another key": (put, {"key": "0" * 32}, "of another key"),
    "a terminal's escape": (put, {"engine": "\x1b[31m"}, "without control"),
    "a scenario of no JSON": (put, {"scenario.workload.request_rate": "[" * 9999}, "nested deeper"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_strangers_store_is_refused_in_one_line_and_nothing_is_written_into_it(
    kind: str, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, given, why = KINDS[kind]
    change(store, given)
    before = (store / MARK).read_bytes()
    assert why in refusal(capsys, "report", str(store), "--out", str(store / "r.html"))
    if kind != "a scenario of no JSON":  # What a frame shows; rows alone are sound.
        assert why in refusal(capsys, "check", str(store))
    assert why in refusal(capsys, "sweep", str(store.parent / "grid.yaml"), "--out", str(store), "--workers", "1")
    assert (store / MARK).read_bytes() == before


def test_rows_of_any_json_are_pages_or_one_line(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A column of some rows is another value, or gone; what a page cannot show is refused."""
    draw = random.Random(60)
    sound = (store / MARK).read_bytes()
    values = [None, True, 0, 1e300, 2**60, "", '"x"', "[1]", "{}", "null", "1e999", "-3", "Infinity", [], {}]
    codes = set()

    def changed(row: Row) -> Row:
        name = draw.choice(sorted(row)) if draw.random() < 0.5 else draw.choice(("error", "notes", "load", "profile"))
        value = draw.choice([*values, *row.values()])
        return {each: row[each] for each in row if each != name} if draw.random() < 0.2 else row | {name: value}

    for _ in range(20):
        (store / MARK).write_bytes(sound)
        edited(store, lambda row: draw.choice((changed, dict, dict))(row))
        codes.add(code := run(["report", str(store), "--out", str(store / "r.html"), "--overwrite"]))
        assert code in (0, 2), capsys.readouterr().err
    assert codes == {0, 2}


def test_a_sweep_that_was_killed_within_a_write_can_be_read(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, sound = Store(store).rows(), (store / MARK).read_bytes()
    killed_writer(store)
    assert (store / f"{MARK}-journal").exists()
    left = (store / MARK).read_bytes()
    assert left != sound
    assert Store(store).rows() == rows
    assert run(["check", str(store)]) == 0
    assert (store / MARK).read_bytes() == left
    assert run(["sweep", str(store.parent / "grid.yaml"), "--out", str(store), "--workers", "1"]) == 0
    assert not (store / f"{MARK}-journal").exists()


def test_a_journal_that_names_another_file_is_refused_and_that_file_stays(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SQLite removes the file that such a journal names once it is rolled back."""
    killed_writer(store)
    with (store / f"{MARK}-journal").open("ab") as journal:
        journal.write(sqlite_rows.END_OF_NAMED)
    for command in (["check", str(store)], ["sweep", str(store.parent / "grid.yaml"), "--out", str(store)]):
        assert "names another file" in refusal(capsys, *command)


def killed_writer(store: Path) -> None:
    """A process that dies amid a write, with pages in the file that its journal undoes."""
    program = (
        "import os, sqlite3, sys; base = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "base.executescript('PRAGMA cache_size = 1; BEGIN IMMEDIATE')\n"
        "base.executemany('INSERT INTO rows VALUES (?, 0, ?)', [(str(i), os.urandom(3000)) for i in range(300)])\n"
        "os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(store / MARK)]).returncode == 9


def test_a_store_that_can_grow_no_more_is_one_line_and_keeps_its_rows(store: Path) -> None:
    """As on a full disk."""
    rows, (before, most) = Store(store).rows(), resource.getrlimit(resource.RLIMIT_FSIZE)
    more = [rows[0] | {"key": f"{number:032}"} for number in range(99)]
    resource.setrlimit(resource.RLIMIT_FSIZE, ((store / MARK).stat().st_size, most))
    try:
        assert_refused(lambda: Store(store).add(more), f"--out {str(store)!r} cannot be written: ")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))
    assert Store(store).rows() == rows


def test_a_query_without_end_ends_by_the_size_of_its_file(store: Path) -> None:
    with pytest.raises(ValueError, match="more to read than a table of its size can"):
        sqlite_rows.read_rows(store / MARK, ENDLESS, tables=TABLES, version=STORE_SCHEMA)


def test_a_signal_is_heard_within_a_query(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_rows, "LEAST_CALLS", sys.maxsize)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            sqlite_rows.read_rows(store / MARK, ENDLESS, tables=TABLES, version=STORE_SCHEMA)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_file_of_the_wrong_kind_is_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / MARK)
    assert "Give a store" in refusal(capsys, "report", str(tmp_path), "--out", str(tmp_path / "r.html"))
