"""A scratch copy of the tree in which the tests run with one module changed; never the working tree.

Not here: what is changed (tests.mutants.__main__).
"""

from __future__ import annotations

import compileall
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

ROOT = Path(__file__).parents[2]
MAX_S = 900
"""By the clock, which a busy machine stretches; limits are of processor time."""
PASSED, FAILED, BROKEN, TOO_LONG = 0, 1, 2, -1
"""pytest's exit codes (broken: a test file could not even be imported), and ours."""
LIMITED = ("sh", "-c", 'ulimit -t "$0"; exec "$@"')
PYTEST = (sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--hypothesis-seed=0")
PYTEST = (*PYTEST, "--tb=line")
LEFT_OUT = (".git", ".venv*", "results", "build", "dist", "*.egg-info", ".*_cache", ".hypothesis", "__pycache__")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome:
    """pytest's exit code, or TOO_LONG, and what it printed."""

    code: int
    output: str = ""

    @property
    def first_failure(self) -> str:
        """The test that failed, without its parameters, or the file that could not be imported; else empty."""
        named = re.search(r"^(?:FAILED|ERROR) ([^\s\[]+)", self.output, re.MULTILINE)
        return named[1] if named else ""


def copy_tree(folder: Path) -> Path:
    """The working tree in `folder`, compiled once, so that the runs start as quickly as they do here."""
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*LEFT_OUT))
    compileall.compile_dir(folder, quiet=2)
    return folder


@contextmanager
def copies(workers: int) -> Iterator[Callable[[Callable[[Path], T]], T]]:
    """A function that calls another with one of `workers` copies, as soon as one is free."""
    with tempfile.TemporaryDirectory() as folder:
        free: SimpleQueue[Path] = SimpleQueue()
        for worker in range(workers):
            free.put(copy_tree(Path(folder) / str(worker)))

        def in_a_copy(run: Callable[[Path], T]) -> T:
            copy = free.get()
            try:
                return run(copy)
            finally:
                free.put(copy)

        yield in_a_copy


def run_tests(copy: Path, module: str, tests: Sequence[str], text: str, max_cpu_s: int) -> Outcome:
    """How `tests` (files, or pytest's other arguments) end with `text` in place of the module.

    Byte code is told from source by time and size, and a mutant may have both: the module has none.
    """
    path = copy / module
    original = path.read_text()
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [*LIMITED, str(max_cpu_s), *PYTEST, *tests]
    path.write_text(text)
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=MAX_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Outcome(TOO_LONG)
    finally:
        path.write_text(original)
        shutil.rmtree(copy / ".hypothesis", ignore_errors=True)
    if done.returncode < 0:
        return Outcome(TOO_LONG)
    if done.returncode not in (PASSED, FAILED, BROKEN):
        raise RuntimeError(
            f"{' '.join(command)} ended with {done.returncode}: {done.stdout[-400:]}{done.stderr[-400:]}"
        )
    return Outcome(done.returncode, done.stdout)
