"""A disk that is full, a real one where mounting is allowed: one line that names what could not be written, what was
there stays, and with room again the same command succeeds. With a faked disk: tests/sim/cli/test_outputs.py."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from calibrate.fit import points_file
from tests.attack.dying import DRAWN, KINDS

SIZE = 4 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(place)]
    if os.name != "posix" or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def fill(disk: Path, left_bytes: int) -> Path:
    """A file that takes all of the disk but so much."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    os.truncate(filler, max(0, filler.stat().st_size - left_bytes))
    return filler


CASES = [
    *((kind, 0) for kind in KINDS if kind != DRAWN),
    *(pytest.param(kind, left, marks=pytest.mark.nightly) for kind in KINDS for left in (0, 4096)),
]


@pytest.mark.parametrize(("kind", "left_bytes"), CASES)
def test_on_a_disk_that_is_full_or_fills_up_what_was_there_stays(kind: str, left_bytes: int, disk: Path) -> None:
    writer = KINDS[kind]
    folder = disk / "work"
    folder.mkdir()
    writer.prepare(folder)
    before = writer.read(folder)
    filler = fill(disk, left_bytes)
    errors = io.StringIO()
    told = ""
    try:
        with contextlib.redirect_stderr(errors):
            writer.write(folder)
    except (AssertionError, ValueError) as error:
        told = errors.getvalue() or f"{error}\n"
        assert told.count("\n") == 1
        assert str(folder) in told
        assert ("disk is full" if kind == "store" else "No space left on device") in told  # SQLite has words for it.
    assert told or left_bytes, "nothing fits into nothing"
    found = writer.read(folder)
    assert found == before or not told or (writer.is_added and found >= before)
    filler.unlink()
    writer.write(folder)
    assert writer.read(folder)
    assert [path for path in folder.rglob("*") if ".part-" in path.name] == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
def test_a_line_that_a_points_file_has_no_room_for_names_the_file() -> None:
    with pytest.raises(ValueError, match=r"^'/dev/full' cannot be written: No space left on device$"):
        points_file.append(Path("/dev/full"), "clocks", {})
