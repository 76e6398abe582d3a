"""Imports run downhill: calibrate -> realrun -> sim; sim never meets torch, and light modules stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ABOVE = {"sim": {"realrun", "calibrate", "torch"}, "realrun": {"calibrate"}, "calibrate": set()}
ONLY_WHERE_USED = {"transformers", "pandas", "seaborn", "matplotlib", "pyarrow", "ray", "scipy"}
"""Never imported at the top of a module of sim."""


def imports(path: Path, *, is_top_level_only: bool) -> Iterator[str]:
    """First parts of the module names that a file imports; type-checking imports do not count at top level."""
    tree = ast.parse(path.read_text())
    nodes = tree.body if is_top_level_only else list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("package", ABOVE)
def test_no_package_imports_what_stands_above_it(package: str) -> None:
    found = {
        (str(path.relative_to(ROOT)), name)
        for path in modules(package)
        for name in imports(path, is_top_level_only=False)
    }
    assert {(path, name) for path, name in found if name in ABOVE[package]} == set()


def test_sim_imports_heavy_libraries_only_where_they_are_used() -> None:
    found = {(path.name, name) for path in modules("sim") for name in imports(path, is_top_level_only=True)}
    assert {(path, name) for path, name in found if name in ONLY_WHERE_USED} == set()


def test_policies_know_no_clock_no_random_numbers_and_no_simpy() -> None:
    found = {(path.name, name) for path in modules("sim/policies") for name in imports(path, is_top_level_only=False)}
    assert {(path, name) for path, name in found if name in {"simpy", "torch", "time", "random"}} == set()


@pytest.mark.parametrize("command", [["--help"], ["compare", "--help"]])
def test_help_imports_nothing_heavy(command: list[str]) -> None:
    code = (
        "import sys; from sim.cli.main import run; run(sys.argv[1:]); "
        "print(sorted({'torch', 'pandas', 'seaborn', 'scipy', 'numpy', 'simpy', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
