"""`python -m tests.mutants [MODULE ...]` (or `make mutation`): how many mutants the tests kill, into docs/testing.md.

Each mutant is applied in a scratch copy of the tree, never in the working tree, and the tests of its module run there.
It is killed where they fail or take more than MOST_CPU_S. With names only modules that contain one of them run, and
the other rows of the table stay. Not here: the lists (tests.mutants, *.toml).
"""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

from tests.mutants import ROOT, Mutant, Target, targets

WORKERS = 2
MOST_CPU_S, MOST_CPU_ALONE_S, MOST_S = 60, 20, 900
"""Of processor time, with a mutant and without; by the clock, which a busy machine stretches."""
PASSED, FAILED, BROKEN, TOO_LONG = 0, 1, 2, -1
"""pytest's exit codes (broken: a test file could not even be imported), and ours."""
LIMITED = ("sh", "-c", 'ulimit -t "$0"; exec "$@"')
PYTEST = (sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--tb=line")
LEFT_OUT = (".git", ".venv", "results", "build", "dist", "*.egg-info", ".*_cache", ".hypothesis", "__pycache__")
PAGE = ROOT / "docs" / "testing.md"
BEGIN, END = "<!-- killed: begin -->", "<!-- killed: end -->"
T = TypeVar("T")
HEADINGS = ("module", "mutants", "equivalent", "killed", "share")


def copy_tree(folder: Path) -> Path:
    """The working tree in `folder`, compiled once, so that the runs start as quickly as they do here."""
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*LEFT_OUT))
    compileall.compile_dir(folder, quiet=2)
    return folder


def run_tests(copy: Path, target: Target, text: str, most_cpu_s: int = MOST_CPU_S) -> int:
    """The exit code of the module's tests with `text` in its place.

    Byte code is told from source by time and size, and a mutant may have both: the module has none.
    """
    path = copy / target.module
    original = path.read_text()
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    path.write_text(text)
    try:
        command = [*LIMITED, str(most_cpu_s), *PYTEST, *target.tests]
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=MOST_S, check=False)
    except subprocess.TimeoutExpired:
        return TOO_LONG
    finally:
        path.write_text(original)
        shutil.rmtree(copy / ".hypothesis", ignore_errors=True)
    if done.returncode < 0:
        return TOO_LONG
    if done.returncode not in (PASSED, FAILED, BROKEN):
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stdout.decode()[-400:]}")
    return done.returncode


def check_tests(copy: Path, target: Target) -> None:
    """Raise RuntimeError unless the module's tests pass here well within the time, and fail where it is not there."""
    code = run_tests(copy, target, (copy / target.module).read_text(), MOST_CPU_ALONE_S)
    if code != PASSED:
        how = f"take over {MOST_CPU_ALONE_S} s" if code == TOO_LONG else "fail"
        raise RuntimeError(f"{target.module}: its tests {how} without any mutant")
    if run_tests(copy, target, "raise ImportError('no such module')\n") == PASSED:
        raise RuntimeError(f"{target.module}: {', '.join(target.tests)} never import it")


def survivors(chosen: Sequence[Target]) -> dict[str, list[Mutant]]:
    """By module, the mutants that its tests do not notice; told as they are found."""
    found: dict[str, list[Mutant]] = {target.module: [] for target in chosen}
    jobs = [(target, mutant) for target in chosen for mutant in target.mutants if mutant.equivalent is None]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(WORKERS) as pool:
        copies: SimpleQueue[Path] = SimpleQueue()
        for worker in range(WORKERS):
            copies.put(copy_tree(Path(folder) / str(worker)))

        def in_a_copy(run: Callable[[Path], T]) -> T:
            copy = copies.get()
            try:
                return run(copy)
            finally:
                copies.put(copy)

        def apply(job: tuple[Target, Mutant]) -> int:
            target, mutant = job
            return in_a_copy(lambda copy: run_tests(copy, target, target.mutated(mutant, copy)))

        list(pool.map(lambda target: in_a_copy(lambda copy: check_tests(copy, target)), chosen))
        for (target, mutant), code in zip(jobs, pool.map(apply, jobs), strict=True):
            if code == PASSED:
                found[target.module].append(mutant)
            if code in (PASSED, TOO_LONG):
                how = "survived" if code == PASSED else f"over {MOST_CPU_S} s, killed"
                print(f"{how}: {target.module}: {mutant.note}\n  - {mutant.old}\n  + {mutant.new}", flush=True)
    return found


def table(rows: dict[str, tuple[int, int, int]]) -> str:
    """Markdown: (mutants, equivalent, killed) by module, and all together."""
    total = tuple(map(sum, zip(*rows.values(), strict=True)))
    lines = ["| " + " | ".join(HEADINGS) + " |", "| :-- | --: | --: | --: | --: |"]
    for name, (count, equivalent, killed) in [*((f"`{name}`", rows[name]) for name in sorted(rows)), ("all", total)]:
        share = 100.0 * killed / (count - equivalent)
        lines.append(f"| {name} | {count} | {equivalent} | {killed} | {share:.0f} % |")
    return "\n".join(lines)


def read_rows(block: str) -> dict[str, tuple[int, int, int]]:
    """What `table` wrote, but for the last row."""
    cells = [line.strip("| ").split(" | ") for line in block.splitlines() if line.startswith("| `")]
    return {name.strip("`"): (int(count), int(equivalent), int(killed)) for name, count, equivalent, killed, _ in cells}


def main(names: Sequence[str]) -> None:
    everything = targets()
    chosen = [target for target in everything if not names or any(name in target.module for name in names)]
    if not chosen:
        raise SystemExit(f"no list for {', '.join(names)}; there are {', '.join(each.module for each in everything)}")
    alive = survivors(chosen)
    before, _, rest = PAGE.read_text().partition(BEGIN)
    block, _, after = rest.partition(END)
    rows = {name: row for name, row in read_rows(block).items() if name in {each.module for each in everything}}
    for target in chosen:
        count, equivalent = len(target.mutants), sum(mutant.equivalent is not None for mutant in target.mutants)
        rows[target.module] = count, equivalent, count - equivalent - len(alive[target.module])
    PAGE.write_text(f"{before}{BEGIN}\n{table(rows)}\n{END}{after}")
    print(table({name: rows[name] for name in alive}))


if __name__ == "__main__":
    main(sys.argv[1:])
