"""Imports run downhill, between packages and between the rooms inside; no circles; light modules stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("sim", "realrun", "calibrate", "validation")
"""Low to high."""
FLOORS = {
    "sim": (
        ("bounds", "names", "model_names", "draws"),
        ("files",),
        ("plugins", "interface"),
        ("acceptance", "workload"),
        ("costs",),
        ("costs.forms",),
        ("costs.profile_files",),
        ("drafters",),
        ("devices",),
        ("hosts",),
        ("engine",),
        ("policies",),
        ("reference",),
        ("metrics",),
        ("run",),
        ("compare",),
        ("studies",),
        ("report",),
        ("cli",),
    ),
    "realrun": (
        ("installed",),
        ("host",),
        ("model",),
        ("kernels",),
        ("replay",),
        ("validate",),
        ("cli",),
    ),
    "calibrate": (
        ("catalogue",),
        ("fit",),
        ("importers",),
        ("served",),
        ("server",),
        ("cli",),
        ("doors",),
        ("measure.fits",),
        ("measure",),
        ("measure.campaign",),
    ),
    "validation": (
        ("tables",),
        ("claims", "judge", "replays", "conformance"),
        ("constants",),
        ("pages",),
        ("__main__",),
    ),
}
"""Rooms of each package, low to high. A module imports from its own room and from lower ones; rooms of one floor know
nothing of each other."""
ONLY_WHERE_USED = {"transformers", "pandas", "seaborn", "matplotlib", "pyarrow", "ray", "scipy"}
"""Never imported at the top of a module of sim."""


def files() -> dict[str, Path]:
    """Every module of the packages by its dotted name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


FILES = files()


@cache
def statements(path: Path, is_top_level_only: bool) -> list[ast.Import | ast.ImportFrom]:
    tree = ast.parse(path.read_text())
    nodes = tree.body if is_top_level_only else ast.walk(tree)
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


def imported(path: Path, *, is_top_level_only: bool = False) -> Iterator[str]:
    """Dotted names that a file imports, type-checking imports and those inside functions among them."""
    for node in statements(path, is_top_level_only):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in FILES else node.module


def place(module: str) -> tuple[int, int, str] | None:
    """(package, floor, room) of a module; None for a package itself."""
    package, *rest = module.split(".")
    for depth in (2, 1):
        room = ".".join(rest[:depth])
        for floor, rooms in enumerate(FLOORS[package]):
            if room in rooms and len(rest) >= depth:
                return PACKAGES.index(package), floor, room
    return None


def test_two_public_classes_never_share_a_name() -> None:
    classes = Counter(
        node.name for path in FILES.values() for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )  # fmt: skip
    assert [name for name, count in classes.items() if count > 1] == []


def test_every_module_is_in_a_room_that_has_a_floor() -> None:
    homeless = [name for name, path in FILES.items() if path.name != "__init__.py" and place(name) is None]
    assert homeless == []


def test_imports_run_downhill() -> None:
    uphill = []
    for name, path in FILES.items():
        here = place(name)
        for other in imported(path):
            if other.split(".")[0] not in PACKAGES or here is None:
                continue
            there = place(other)
            assert there is not None, f"{name} imports {other}, which is a package: import the module"
            is_same_room = here == there
            if there[:2] >= here[:2] and not is_same_room:
                uphill.append(f"{name} -> {other}")
    assert uphill == []


def test_no_module_is_in_a_circle() -> None:
    arrows = {name: {other for other in imported(path) if other in FILES} - {name} for name, path in FILES.items()}

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        todo = list(arrows[start])
        while todo:
            at = todo.pop()
            if at not in seen:
                seen.add(at)
                todo += arrows[at]
        return seen

    assert [name for name in arrows if name in reached(name)] == []


def test_no_room_is_crowded() -> None:
    counts: dict[str, int] = {}
    for name, path in FILES.items():
        if path.name != "__init__.py":
            folder = name.rpartition(".")[0]
            counts[folder] = counts.get(folder, 0) + 1
    assert {folder: count for folder, count in counts.items() if count > 14} == {}


@pytest.mark.parametrize(
    ("rooms", "but", "others", "is_top_level_only"),
    [
        ("sim", None, {"torch"}, False),
        ("sim", None, ONLY_WHERE_USED, True),
        ("sim.policies", None, {"simpy", "time", "random"}, False),
        ("calibrate", "calibrate.measure", {"torch", "realrun"}, False),
    ],
)
def test_what_a_room_must_do_without_is_never_imported(
    rooms: str, but: str | None, others: set[str], is_top_level_only: bool
) -> None:
    """Policies know no clock and no random numbers; in calibrate measuring alone knows torch and the real backend."""
    found = {
        (name, other)
        for name, path in FILES.items()
        if name.startswith(rooms) and not (but and name.startswith(but))
        for other in imported(path, is_top_level_only=is_top_level_only)
        if other.split(".")[0] in others
    }
    assert found == set()


def test_the_reference_takes_nothing_of_what_is_held_equal_to_it() -> None:
    pure = {"sim.costs.cost", "sim.interface.request", "sim.interface.work", "sim.policies.options"}
    assert {name for name in imported(FILES["sim.reference"]) if name.startswith("sim.")} <= pure | {
        "sim.policies.works"
    }


HEAVY = ("torch", "pandas", "seaborn", "scipy", "numpy", "simpy", "pyarrow", "matplotlib")
COMPARISON = ("sim.compare", "sim.studies", "sim.run", "simpy")


@pytest.mark.parametrize(
    ("command", "others"),
    [
        ("--help", HEAVY + COMPARISON),
        *((f"{name} --help", HEAVY) for name in ("compare", "calibrate", "validate")),
        *((command, COMPARISON) for command in ("profiles", "profiles show cpu/tiny")),
    ],
)
def test_a_command_imports_nothing_that_it_does_not_use(command: str, others: tuple[str, ...]) -> None:
    code = (
        "import sys; from sim.cli.main import run; run(sys.argv[1:]); "
        f"print([name for name in sys.modules if name.startswith({others})])"
    )
    words = [sys.executable, "-c", code, *command.split()]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
