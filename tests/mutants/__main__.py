"""Mutants drawn over every room: `python -m tests.mutants [--count 120] [--seed COMMIT] [--workers 2]`.

Each is one change of one line of `sim`, `calibrate`, `realrun` or `lanesim`: an operator, a constant, a condition
negated, a result that is None, `min` for `max`, a call left out. A room is drawn first, then a line of it, then a
change of that line, all uniformly, so that a large room counts no more than a small one. The seed is the commit, so
that every commit draws anew and anybody draws the same. What runs is what belongs to the module: the test files
that import it, its room's tests, the examples of its docstrings, and then what belongs to the modules that import it;
tests marked slow are left out. A mutant is killed where they fail or, unlike without it, take more than MAX_CPU_S.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import subprocess
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from tests.mutants.scratch import PASSED, ROOT, TOO_LONG, Outcome, copies, run_tests

PACKAGES = ("lanesim", "sim", "calibrate", "realrun")
MAX_CPU_S = 90
OPERATORS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Add: (r"\+", "-"),
    ast.Sub: (r"-", "+"),
    ast.Mult: (r"\*", "/"),
    ast.Div: (r"/", "*"),
    ast.FloorDiv: (r"//", "*"),
    ast.Mod: (r"%", "*"),
    ast.Lt: (r"<", "<="),
    ast.LtE: (r"<=", "<"),
    ast.Gt: (r">", ">="),
    ast.GtE: (r">=", ">"),
    ast.Eq: (r"==", "!="),
    ast.NotEq: (r"!=", "=="),
    ast.Is: (r"is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
    ast.In: (r"in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
    ast.And: (r"and", "or"),
    ast.Or: (r"or", "and"),
}
"""What stands in the source, and what takes its place."""
EXAMPLES = "tests/test_public_door.py::test_every_example_in_a_docstring_runs"
EXTREMES = {"min": "max", "max": "min"}


@dataclass(frozen=True, slots=True)
class Change:
    """`new` in place of the bytes from `start` to `end` of `module` (a path below the root); `line` counts from 1."""

    module: str
    line: int
    start: int
    end: int
    new: str

    def apply(self, text: str) -> str:
        raw = text.encode()
        return (raw[: self.start] + self.new.encode() + raw[self.end :]).decode()

    def told(self, text: str) -> str:
        """The line before and after."""
        before, after = text.splitlines(), self.apply(text).splitlines()
        return f"{self.module}:{self.line}\n  - {before[self.line - 1].strip()}\n  + {after[self.line - 1].strip()}"


class _Source:
    """Byte offsets of the nodes of a module's tree."""

    def __init__(self, module: str, text: str) -> None:
        self.module, self.raw = module, text.encode()
        self.tree = ast.parse(text)
        self.starts = [0]
        for line in self.raw.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[node.end_lineno - 1] + node.end_col_offset

    def change(self, start: int, end: int, new: str) -> Change:
        line = bisect_right(self.starts, start)
        return Change(self.module, line, start, end, new)

    def replaced(self, node: ast.expr | ast.stmt, new: str) -> Change:
        return self.change(*self.span(node), new)

    def wrapped(self, node: ast.expr, before: str, after: str) -> Change:
        start, end = self.span(node)
        return self.change(start, end, before + self.raw[start:end].decode() + after)

    def operator(self, left: ast.expr, operator: ast.AST, right: ast.expr) -> Iterator[Change]:
        """The operator between two operands; none where a comment stands between them."""
        if type(operator) not in OPERATORS:
            return
        pattern, new = OPERATORS[type(operator)]
        start, end = self.span(left)[1], self.span(right)[0]
        between = self.raw[start:end].decode()
        if found := re.fullmatch(rf"[\s)]*(?P<operator>{pattern})[\s(]*", between):
            yield self.change(start + found.start("operator"), start + found.end("operator"), new)


def changes(module: str, text: str) -> list[Change]:
    """Every change of the module. Annotations, texts, decorators, protocols and what is raised stay as they are."""
    source = _Source(module, text)
    found: list[Change] = []
    _collect(source, source.tree, found)
    return found


def _collect(source: _Source, node: ast.AST, found: list[Change]) -> None:
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _is_ellipsis(node.body[-1]):
        return
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    found += _of_node(source, node)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "type_params", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                _collect(source, child, found)


def _is_ellipsis(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and node.value.value is ...


def _of_node(source: _Source, node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.BinOp(left, operator, right):
            yield from source.operator(left, operator, right)
        case ast.Compare(left, operators, rights):
            for before, operator, right in zip([left, *rights], operators, rights, strict=False):
                yield from source.operator(before, operator, right)
        case ast.BoolOp(operator, values):
            for left, right in pairwise(values):
                yield from source.operator(left, operator, right)
        case ast.AugAssign(target, operator, value):
            if type(operator) in OPERATORS:
                pattern, new = OPERATORS[type(operator)]
                start, end = source.span(target)[1], source.span(value)[0]
                if sign := re.search(rf"({pattern})=", source.raw[start:end].decode()):
                    yield source.change(start + sign.start(1), start + sign.end(1), new)
        case ast.Constant(bool() as value):
            yield source.replaced(node, str(not value))
        case ast.Constant(int() as value):
            yield source.replaced(node, str(value + 1))
        case ast.Constant(float() as value):
            yield source.replaced(node, repr(2.0 * value if value else 1.0))
        case ast.If(test) | ast.While(test) | ast.IfExp(test):
            yield source.wrapped(test, "not (", ")")
        case ast.comprehension(ifs=conditions):
            for condition in conditions:
                yield source.wrapped(condition, "not (", ")")
        case ast.Return(value) if value is not None and not (isinstance(value, ast.Constant) and value.value is None):
            yield source.replaced(value, "None")
        case ast.Call(ast.Name(name) as function) if name in EXTREMES:
            yield source.replaced(function, EXTREMES[name])
        case ast.Expr(ast.Call() | ast.Await(ast.Call())):
            yield source.replaced(node, "pass")


def rooms() -> dict[str, list[str]]:
    """Modules (paths below the root) by room: the folder that they are in."""
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    found: dict[str, list[str]] = {}
    for path in sorted(paths):
        module = path.relative_to(ROOT)
        found.setdefault(str(module.parent), []).append(str(module))
    return found


@cache
def _by_line() -> dict[str, list[list[Change]]]:
    """By room, of every line that can change what it can become."""
    found: dict[str, list[list[Change]]] = {}
    for room, modules in rooms().items():
        for module in modules:
            lines: dict[int, list[Change]] = {}
            for change in changes(module, (ROOT / module).read_text()):
                lines.setdefault(change.line, []).append(change)
            found.setdefault(room, []).extend(lines.values())
    return {room: lines for room, lines in found.items() if lines}


def draw(count: int, seed: str) -> list[Change]:
    """So many different changes, uniform over rooms, then over lines that can change, then over the line's changes."""
    lines, rng, drawn = _by_line(), random.Random(seed), dict[Change, None]()
    while len(drawn) < count:
        drawn[rng.choice(rng.choice(lines[rng.choice(list(lines))]))] = None
    return list(drawn)


@cache
def _imports(pattern: str) -> dict[str, frozenset[str]]:
    """By file (of a glob pattern below the root), the dotted names that it imports."""
    found = {}
    for path in sorted(ROOT.glob(pattern)):
        names = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        found[path.relative_to(ROOT).as_posix()] = frozenset(names)
    return found


def near_tests(module: str) -> list[str]:
    """The test file of the module's name, those that import it, and the examples of its docstrings."""
    path = Path(module)
    dotted = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    mirrored = [name for name in room_tests(module) if Path(name).stem == f"test_{path.stem}"]
    importing = [name for name, imported in _imports("tests/**/test_*.py").items() if dotted in imported]
    has_examples = ">>> " in (ROOT / module).read_text()
    examples = [f"{EXAMPLES}[{dotted}]"] if has_examples else []
    return list(dict.fromkeys([*mirrored, *importing, *examples]))


def room_tests(module: str) -> list[str]:
    """Those of the module's folder, or of the nearest one above it that has any."""
    folders = [Path("tests") / folder for folder in Path(module).parents if folder != Path()]
    files = [sorted((ROOT / folder).glob("test_*.py")) for folder in folders]
    return [path.relative_to(ROOT).as_posix() for path in next((found for found in files if found), [])]


def readers(module: str) -> list[str]:
    """The modules that import this one."""
    dotted = ".".join(Path(module).with_suffix("").parts)
    return [name for package in PACKAGES for name, found in _imports(f"{package}/**/*.py").items() if dotted in found]


def judge(copy: Path, change: Change) -> str:
    """`killed`, `survived`, `no tests`; `undecided` where the tests fail or take too long without it too.

    What the module's own tests do not notice those of its readers may.
    """
    own = list(dict.fromkeys([*near_tests(change.module), *room_tests(change.module)]))
    verdict = _judge(copy, change, own)
    if verdict not in ("survived", "no tests"):
        return verdict
    of_readers = [test for name in readers(change.module) for test in near_tests(name) or room_tests(name)]
    further = [test for test in dict.fromkeys(of_readers) if test not in own]
    return "killed" if _judge(copy, change, further) == "killed" else verdict


def _judge(copy: Path, change: Change, tests: Sequence[str]) -> str:
    original = (copy / change.module).read_text()

    def outcome(text: str, chosen: Sequence[str]) -> Outcome:
        return run_tests(copy, change.module, ["-m", "not slow", *chosen], text, MAX_CPU_S)

    if not tests:
        return "no tests"
    found = outcome(change.apply(original), tests)
    if found.code == PASSED:
        return "survived"
    if found.code == TOO_LONG:
        return "killed" if outcome(original, tests).code == PASSED else "undecided"
    fails_anyway = found.first_failure and outcome(original, [found.first_failure]).code != PASSED
    return "undecided" if fails_anyway else "killed"


def main(arguments: Sequence[str] | None = None) -> None:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=120, help="how many (120)")
    parser.add_argument("--seed", default=commit.stdout.strip() or "0", help="any text (the commit)")
    parser.add_argument("--workers", type=int, default=2, help="at once, in a copy each (2)")
    parser.add_argument("--list", action="store_true", help="draw and print, run nothing")
    chosen = parser.parse_args(arguments)
    drawn = draw(chosen.count, chosen.seed)
    if chosen.list:
        print("\n".join(change.told((ROOT / change.module).read_text()) for change in drawn))
        return
    counts: dict[str, int] = {}
    with copies(chosen.workers) as in_a_copy, ThreadPoolExecutor(chosen.workers) as pool:
        verdicts = pool.map(lambda change: in_a_copy(lambda copy: judge(copy, change)), drawn)
        for change, verdict in zip(drawn, verdicts, strict=True):
            counts[verdict] = counts.get(verdict, 0) + 1
            print(f"{verdict}: {change.told((ROOT / change.module).read_text())}", flush=True)
    decided = chosen.count - counts.get("undecided", 0)
    killed = counts.get("killed", 0)
    print(f"seed {chosen.seed}: {killed} of {decided} killed, {100.0 * killed / max(1, decided):.0f} %; {counts}")


if __name__ == "__main__":
    main()
