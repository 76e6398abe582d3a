"""Notebooks: clean of outputs, built on the public door alone, and all of them where they are linked. `make notebooks`
executes them."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
ALLOWED = {"lanesim", "matplotlib", "numpy", "os", "pandas", "pathlib", "re", "seaborn", "tempfile", "warnings"}
"""lanesim, what draws its frames, and the standard library; not the packages behind the door."""


def cells(path: Path, kind: str) -> list[str]:
    return ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == kind]


def test_there_are_six() -> None:
    assert [path.stem[:2] for path in NOTEBOOKS] == ["01", "02", "03", "04", "05", "06"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_holds_no_outputs_and_no_counts(path: Path) -> None:
    found = json.loads(path.read_text())
    code = [cell for cell in found["cells"] if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_imports_the_public_door_and_libraries_only(path: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse("\n".join(cells(path, "code")))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported.add(node.module.split(".")[0])
    assert "lanesim" in imported
    assert imported - ALLOWED == set()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_small_settings_for_continuous_integration(path: Path) -> None:
    assert 'SMALL = "LANESIM_SMALL" in os.environ' in cells(path, "code")[0]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_a_notebook_links_to_exists(path: Path) -> None:
    text = "\n".join(cells(path, "markdown"))
    for target in (part.split(")")[0] for part in text.split("](")[1:]):
        assert (path.parent / target).exists(), target
