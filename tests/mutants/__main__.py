"""`python -m tests.mutants [MODULE ...]` (or `make mutation`): how many mutants the tests kill, into docs/testing.md.

Each mutant is applied in a scratch copy of the tree, never in the working tree, and the tests of its module run there.
It is killed where they fail or take more than MAX_CPU_S. With names only modules that contain one of them run, and
the other rows of the table stay. `python -m tests.mutants drawn` runs mutants drawn over all rooms instead. Not here:
the lists (tests.mutants, *.toml), drawing (tests.mutants.drawn) and running (tests.mutants.scratch).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutants import ROOT, Mutant, Target, drawn, targets
from tests.mutants.scratch import PASSED, TOO_LONG, Outcome, copies, run_tests

WORKERS = 2
MAX_CPU_S, MAX_CPU_ALONE_S = 60, 20
"""Of processor time, with a mutant and without."""
PAGE = ROOT / "docs" / "testing.md"
BEGIN, END = "<!-- killed: begin -->", "<!-- killed: end -->"
HEADINGS = ("module", "mutants", "equivalent", "killed", "share")


def check_tests(copy: Path, target: Target) -> None:
    """Raise RuntimeError unless the module's tests pass here well within the time, and fail where it is not there."""
    text = (copy / target.module).read_text()
    code = run_tests(copy, target.module, target.tests, text, MAX_CPU_ALONE_S).code
    if code != PASSED:
        how = f"take over {MAX_CPU_ALONE_S} s" if code == TOO_LONG else "fail"
        raise RuntimeError(f"{target.module}: its tests {how} without any mutant")
    absent = run_tests(copy, target.module, target.tests, "raise ImportError('no such module')\n", MAX_CPU_S)
    if absent.code == PASSED:
        raise RuntimeError(f"{target.module}: {', '.join(target.tests)} never import it")


def survivors(chosen: Sequence[Target]) -> dict[str, list[Mutant]]:
    """By module, the mutants that its tests do not notice; told as they are found."""
    found: dict[str, list[Mutant]] = {target.module: [] for target in chosen}
    jobs = [(target, mutant) for target in chosen for mutant in target.mutants if mutant.equivalent is None]
    with copies(WORKERS) as in_a_copy, ThreadPoolExecutor(WORKERS) as pool:

        def apply(job: tuple[Target, Mutant]) -> Outcome:
            target, mutant = job
            return in_a_copy(
                lambda copy: run_tests(copy, target.module, target.tests, target.mutated(mutant, copy), MAX_CPU_S)
            )

        list(pool.map(lambda target: in_a_copy(lambda copy: check_tests(copy, target)), chosen))
        for (target, mutant), outcome in zip(jobs, pool.map(apply, jobs), strict=True):
            if outcome.code == PASSED:
                found[target.module].append(mutant)
            if outcome.code in (PASSED, TOO_LONG):
                how = "survived" if outcome.code == PASSED else f"over {MAX_CPU_S} s, killed"
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
    if names[:1] == ["drawn"]:
        drawn.main(names[1:])
        return
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
