"""Writers that die before each of their file operations, one process each: `python -m tests.attack.dying KIND FOLDER
STEP`; with a STEP of 3, before every third.

For every kind there is an old state, a writer that puts a new one in its place, and what a reader must find after the
writer died and after the same writer has run again. Prints how many died. Copies of this process die, so that each
takes milliseconds. Not here: the assertions about full disks and two writers (tests/sim/cli/test_consent.py).
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import pickle
import shutil
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from calibrate.fit import points_file
from sim.cli.main import run
from sim.files import write
from sim.studies.sweeps.store import Store
from tests.attack.samples import GRID, PAIR, TINY_RUN
from tests.calibrate.fit.test_points_file import point

DIED = 9
WRITES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "shutil.rmtree"}
MAX_OPERATIONS = 300
SEEDED = ["compare", "--profile", PAIR, *TINY_RUN, "--workers", "1", "--seed"]
PLACES = [["decode", "target", 1, 1, context, "eager"] for context in (16, 32, 48)]
OVER = "--overwrite"


def lanesim(*args: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        assert run(args) == 0, args


def seed_of(path: Path) -> int:
    seed = json.loads(path.read_text())["scenario"]["seed"]
    assert isinstance(seed, int)
    return seed


def write_results(folder: Path, seed: str = "1") -> None:
    lanesim(*SEEDED, seed, "--out", str(folder / "r"), OVER)


def results(folder: Path) -> set[object]:
    if not (folder / "r").exists():
        return set()
    lanesim("check", str(folder / "r"))
    return {seed_of(folder / "r" / "summary.json")}


def write_points(folder: Path) -> None:
    """As a measurement does: what an earlier one left is mended, and what is missing is added line by line."""
    path = folder / "p.points.jsonl"
    with points_file.alone(path):
        if path.exists():
            points_file.mend(path)
        else:
            points_file.create(path, {"gpu": "x"}, {})
        if not points_file.read(path).passes:
            points_file.append(path, "plan", {"passes": PLACES})
        for timed in points_file.read(path).left:
            points_file.append(path, "point", point(timed))


def points(folder: Path) -> set[object]:
    path = folder / "p.points.jsonl"
    return {found.context_tokens for found in points_file.read(path).points} if path.exists() else set()


def write_store(folder: Path, seeds: str = "[0, 1]") -> None:
    (folder.parent / "grid.yaml").write_text(GRID.replace("[0, 1]", seeds))
    lanesim("sweep", str(folder.parent / "grid.yaml"), "--out", str(folder / "store"), "--workers", "1")


def store(folder: Path) -> set[object]:
    """Rows without the moments that they were made at."""
    rows = Store(folder / "store").rows()
    assert len({row["key"] for row in rows}) == len(rows)
    return {json.dumps(row, sort_keys=True) for row in rows}


@dataclass(frozen=True)
class Kind:
    """A writer, what it finds, and what a reader finds; what is old stands, or what is new, or some of it is added."""

    write: Callable[..., None]
    read: Callable[[Path], set[object]]
    old: tuple[Any, ...] = ()
    """What writes the old state, and what it is given behind the folder."""
    is_added: bool = False

    def prepare(self, folder: Path) -> None:
        if self.old:
            write_old, *given = self.old
            write_old(folder, *given)


KINDS: dict[str, Kind] = {
    "results": Kind(write_results, results, (write_results, "0")),
    "new results": Kind(write_results, results, is_added=True),
    "points": Kind(write_points, points, is_added=True),
    "store": Kind(write_store, store, (write_store, "[0]"), is_added=True),
}


def write_file(folder: Path, text: str = "new") -> None:
    write.write_text(folder / "x", text)


def write_folder(folder: Path) -> None:
    with write.new_folder(folder / "x", keeps=lambda name: name == "mine") as scratch:
        for name in "ab":
            (scratch / name).write_text("new")


def old_folder(folder: Path) -> None:
    (folder / "x").mkdir()
    for name in ("a", "b", "mine"):
        (folder / "x" / name).write_text("old")


def files_of_folder(folder: Path) -> set[object]:
    """Of what was moved away where nothing has taken its place."""
    place = folder / "x" if (folder / "x").exists() else next(folder.glob(".*-old"))
    return {(path.name, path.read_text()) for path in place.iterdir()}


FILES: dict[str, Kind] = {
    "file": Kind(write_file, lambda folder: {(folder / "x").read_text()}, (write_file, "old")),
    "folder": Kind(write_folder, files_of_folder, (old_folder,)),
}
"""What all of them are made of, and every other output of one file."""


def die_before(allowed: int, folder: Path) -> None:
    """End this process before the file operation of that number below `folder`."""
    done = 0

    def listen(event: str, args: tuple[object, ...]) -> None:
        nonlocal done
        is_write = event == "open" and isinstance(args[0], str | bytes) and _writes(args[2])
        if (is_write or event in WRITES) and str(folder) in os.fsdecode(str(args[0])):
            done += 1
            if done > allowed:
                os._exit(DIED)

    sys.addaudithook(listen)


def _writes(flags: object) -> bool:
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))


def copied(work: Callable[[], None]) -> int:
    """The exit code of `work` in a copy of this process."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@dataclass(frozen=True)
class Known:
    """What copies of this process found out for it, which itself must not start a thread."""

    before: set[object]
    after: set[object]
    modules: list[str]


def know(kind: Kind, old: Path, new: Path, file: Path) -> None:
    kind.prepare(old)
    shutil.copytree(old, new)
    kind.write(new)
    file.write_bytes(pickle.dumps(Known(kind.read(old), kind.read(new), list(sys.modules))))


def check(kind: Kind, folder: Path, known: Known) -> None:
    """What died left the old state, or the new one, or a part of what is added; the same again makes it the new one."""
    before, after, found = known.before, known.after, kind.read(folder)
    assert found in (before, after) or (kind.is_added and before <= found <= after), (before, after, found)
    kind.write(folder)
    assert kind.read(folder) == after
    left = [path.name for path in folder.rglob("*") if ".part-" in path.name or path.name.endswith(".lock")]
    assert left == []


def main(name: str, place: Path, step: int) -> None:
    kind, old, new = (KINDS | FILES)[name], place / "old", place / "new"
    old.mkdir()
    assert copied(lambda: know(kind, old, new, place / "known")) == 0
    known = pickle.loads((place / "known").read_bytes())
    for module in known.modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    for allowed in count(0, step):
        assert allowed < MAX_OPERATIONS
        folder = place / f"{allowed:03}"
        shutil.copytree(old, folder)

        def work(allowed: int = allowed, folder: Path = folder) -> None:
            die_before(allowed, folder)
            kind.write(folder)

        code = copied(work)
        assert code in (0, DIED), code
        assert copied(lambda folder=folder: check(kind, folder, known)) == 0, allowed
        if code == 0:
            break
    print(f"{name}: died {allowed // step} times")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
