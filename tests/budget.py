"""The budget: how much code every folder holds, against the ceilings in budget.toml.

`python -m tests.budget` (`make budget`) lowers the ceilings to today's counts. A weight has three numbers:

1. lines without blanks, comments and docstrings;
2. statements (`ast.stmt`), and strings of more than 200 characters that are no docstring;
3. the same with lambdas, comprehensions and conditional expressions.

C counts lines and semicolons. YAML, JSON, CSV and templates count half a line per 120 characters in all three numbers.
Files that budget.toml lists as data count nothing, and no listed file can be code.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

import click

ROOT = Path(__file__).parent.parent
FILE = "budget.toml"
SPLIT = ("tests/sim", "tests/calibrate")
"""Folders whose sub-folders are rows; elsewhere the folders one level below a package are."""
PACKAGES = ("sim", "calibrate", "realrun", "validation", "tests")
PYTHON, C = (".py", ".pyi"), (".c", ".h", ".cpp")
HALF = (".yaml", ".yml", ".json", ".csv", ".html", ".css", ".js", ".sql", ".j2")
EXPRESSIONS = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.IfExp)
LONG_TEXT, HALF_LINE, SLACK, MIN_SLACK = 200, 120, 0.02, 30
TOTAL = r"total = \[(\d+), (\d+), (\d+)\]"
NAMES = ("lines", "statements", "statements and expressions")
Weight = tuple[int, int, int]


def tracked(root: Path) -> list[str]:
    """Files that git tracks; where there is no git, every file outside hidden and built folders."""
    listed = _git(root, "ls-files", "-z")
    if listed is not None:
        return [name for name in listed.split("\0") if name and (root / name).is_file()]
    names = (path.relative_to(root).as_posix() for path in sorted(root.rglob("*")) if path.is_file())
    return [name for name in names if not re.search(r"(^|/)\.|^(results|build|dist)/", name)]


def row_of(name: str) -> str:
    """The row of a file: its folder, cut one level below the package."""
    folders = PurePosixPath(name).parts[:-1]
    if not folders:
        return "."
    deep = 3 if "/".join(folders[:2]) in SPLIT else 2 if folders[0] in PACKAGES else 1
    return "/".join(folders[:deep])


def weigh(name: str, text: str) -> tuple[float, float, float]:
    suffix = PurePosixPath(name).suffix
    if suffix in PYTHON:
        return _weigh_python(text)
    if suffix in C:
        text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)
        lines, ends = sum(bool(line.strip()) for line in text.splitlines()), text.count(";")
        return lines, ends, ends
    half = sum(-(-len(line) // HALF_LINE) for line in text.splitlines() if line.strip()) / 2
    return half, half, half


def _weigh_python(text: str) -> Weight:
    nodes = list(ast.walk(ast.parse(text)))
    texts = [node for node in nodes if isinstance(node, ast.JoinedStr) or _is_text(node)]
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr) and _is_text(node.value)}
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    in_texts, in_docstrings = set[int](), set[int]()
    for node in texts:
        span = range(getattr(node, "lineno", 0), getattr(node, "end_lineno", 0) + 1)
        (in_docstrings if id(node) in docstrings else in_texts).update(span)
    lines = 0
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        is_comment = line.startswith("#") or number in in_docstrings
        lines += bool(line) and (number in in_texts or not is_comment)
    long_texts = [node for node in texts if id(node) not in docstrings | parts and _length(node) > LONG_TEXT]
    statements = sum(isinstance(node, ast.stmt) for node in nodes) + len(long_texts)
    return lines, statements, statements + sum(isinstance(node, EXPRESSIONS) for node in nodes)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)


def _length(node: ast.AST) -> int:
    if isinstance(node, ast.JoinedStr):
        return sum(map(_length, node.values))
    return len(node.value) if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) else 0


def weights(root: Path, data: Sequence[str]) -> dict[str, Weight]:
    """Weight of every row: the files that are counted and are not data."""
    sums: dict[str, list[float]] = {}
    for name in tracked(root):
        is_counted = name.endswith((*PYTHON, *C, *HALF)) or "/templates/" in name
        is_data = not name.endswith((*PYTHON, *C)) and any(fnmatch(name, pattern) for pattern in data)
        if is_counted and not is_data:
            row = sums.setdefault(row_of(name), [0.0, 0.0, 0.0])
            for column, weight in enumerate(weigh(name, (root / name).read_text())):
                row[column] += weight
    return {row: (round(a), round(b), round(c)) for row, (a, b, c) in sorted(sums.items())}


def lowest_total(root: Path) -> tuple[Weight | None, str]:
    """The lowest total that budget.toml had in the commits behind HEAD, and what limits the comparison."""
    log = _git(root, "log", "-m", "-p", "--full-history", "--format=", "--", FILE)
    if log is None:
        return None, "without git there is no earlier total to compare with"
    is_shallow = (_git(root, "rev-parse", "--is-shallow-repository") or "").strip() == "true"
    note = "a shallow clone: the total is compared with the commits that are here" if is_shallow else ""
    totals = [[int(number) for number in found] for found in re.findall(r"(?m)^\+" + TOTAL, log)]
    if not totals:
        return None, note
    lines, statements, expressions = map(min, zip(*totals, strict=True))
    return (lines, statements, expressions), note


def faults(root: Path, ideas: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """What breaks the budget, and what could not be compared. `ideas`: today's counts."""
    budget = tomllib.loads((root / FILE).read_text())
    rows, total, lowest = budget["rows"], budget["total"], lowest_total(root)
    counted = weights(root, budget["data"])
    found = [
        f"{row}: a folder with code and no row in {FILE}; run make budget RAISE={row}"
        for row in counted
        if row not in rows
    ]
    found += [f"{row}: a row of {FILE} without code; delete it" for row in rows if row not in counted]
    for row in sorted(set(rows) & set(counted)):
        for name, ceiling, count in zip(NAMES, rows[row], counted[row], strict=True):
            found += _beside_ceiling(f"{row}, {name}", ceiling, count, MIN_SLACK)
    if set(ideas) != set(budget["ideas"]):
        found.append(f"ideas of {FILE}: wanted {sorted(ideas)}")
    for idea in sorted(set(ideas) & set(budget["ideas"])):
        found += _beside_ceiling(idea, budget["ideas"][idea], ideas[idea], 0)
    if re.search(r"(?m)^" + TOTAL, (root / FILE).read_text()) is None:
        found.append(f"total of {FILE}: write it as one line, total = [lines, statements, statements and expressions]")
    for column, name in enumerate(NAMES):
        ceilings = sum(row[column] for row in rows.values())
        if total[column] < ceilings:
            found.append(f"total, {name}: {total[column]} is below the sum of the rows, {ceilings}")
        if lowest[0] and total[column] > lowest[0][column]:
            found.append(f"total, {name}: {total[column]} is above {lowest[0][column]} of an earlier commit")
    return found, [lowest[1]] * bool(lowest[1])


def _beside_ceiling(what: str, ceiling: int, count: int, min_slack: int) -> list[str]:
    if count > ceiling:
        return [f"{what}: {count} is above its ceiling {ceiling}; delete code, or take room from another row"]
    if ceiling - count > max(min_slack, SLACK * count):
        return [f"{what}: the ceiling {ceiling} is too far above {count}; run make budget"]
    return []


def lowered(text: str, counted: Mapping[str, Weight], ideas: Mapping[str, int], raised: Iterable[str] = ()) -> str:
    """budget.toml with every ceiling at its count where that is lower, in `raised` rows where it is higher, too.

    The total falls to today's weight and never rises.
    """
    budget = tomllib.loads(text)
    rows = {
        row: counted[row] if row in raised else tuple(map(min, budget["rows"].get(row, counted[row]), counted[row]))
        for row in {*budget["rows"], *raised} & set(counted)
    }
    total = [min(old, sum(today)) for old, *today in zip(budget["total"], *counted.values(), strict=True)]
    lines = [f'"{row}" = {list(weight)}' for row, weight in sorted(rows.items())]
    counts = [f'"{idea}" = {min(ceiling, ideas[idea])}' for idea, ceiling in budget["ideas"].items() if idea in ideas]
    for section, body in (("rows", lines), ("ideas", counts)):
        text = re.sub(rf"(?<=\[{section}\]\n).*?(?=\n\n|\n*\Z)", "\n".join(body), text, flags=re.DOTALL)
    return re.sub(r"(?m)^" + TOTAL, f"total = {total}", text)


def count_ideas() -> dict[str, int]:
    """Counts of ideas in this tree, under their names in budget.toml."""
    from sim.cli.main import lanesim
    from sim.drafters.registry import SPELLINGS
    from sim.run.scenario import dotted_keys
    from validation.__main__ import PROGRAMS

    names, elsewhere = tracked(ROOT), ("tests/", "docs/", "sim/drafters/")
    product = [name for name in names if name.endswith(".py") and not name.startswith(elsewhere)]
    texts = {name: (ROOT / name).read_text() for name in product}
    shipped = [text for name, text in texts.items() if not name.startswith("validation/")]
    every = list(_commands(lanesim, click.Context(lanesim)))
    return {
        "files that ask which drafter": sum(_asks_for(text, SPELLINGS) for text in texts.values()),
        "places to touch for a metric": sum(bool(re.search(r"[\"']itls?[\"']", t)) for t in shipped),
        "programs of validation": len(PROGRAMS),
        "commands": len(every),
        "options": sum(isinstance(each, click.Option) for command in (lanesim, *every) for each in command.params),
        "scenario keys": len(list(dotted_keys())),
        "documentation pages": sum(name.startswith("docs/") and name.endswith(".md") for name in names),
    }


def _asks_for(text: str, names: Iterable[str]) -> bool:
    compared = [part for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Compare) for part in ast.walk(node)]
    return any(isinstance(part, ast.Constant) and str(part.value) in names for part in compared)


def _commands(command: click.Command, context: click.Context) -> Iterator[click.Command]:
    """Every command below a group, hidden ones too."""
    if not isinstance(command, click.Group):
        yield command
        return
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from _commands(inner, context)


def _git(root: Path, *args: str) -> str | None:
    """What git prints, None where it cannot be asked or `root` is no work tree of its own."""
    if not (root / ".git").exists():
        return None
    try:
        return subprocess.run(["git", "-C", str(root), *args], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None


def main(args: Sequence[str]) -> int:
    """Writes budget.toml and prints the moves; exit code 1 where the budget still does not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.budget", description="Lowers the ceilings of budget.toml.")
    parser.add_argument("rows", nargs="*", help="rows that may rise inside the total, or all")
    raised, ideas, path = parser.parse_args(args).rows, count_ideas(), ROOT / FILE
    text = path.read_text()
    before = tomllib.loads(text)
    counted = weights(ROOT, before["data"])
    path.write_text(lowered(text, counted, ideas, counted if raised == ["all"] else raised))
    after = tomllib.loads(path.read_text())["rows"]
    moves = {row: after.get(row, [0])[0] - before["rows"].get(row, [0])[0] for row in sorted({*before["rows"], *after})}
    print("lines moved:", ", ".join(f"{row} {lines:+}" for row, lines in moves.items() if lines) or "none")
    found, notes = faults(ROOT, ideas)
    print("\n".join([*found, *notes, f"today: {[sum(column) for column in zip(*counted.values(), strict=True)]}"]))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
