"""Notebooks: clean of outputs, built on the public door alone, and all of them where they are linked. `make notebooks`
executes them."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pandas
import pytest

import lanesim

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
ALLOWED = {
    "json",
    "subprocess",
    "sys",
    "lanesim",
    "matplotlib",
    "numpy",
    "os",
    "pandas",
    "pathlib",
    "re",
    "seaborn",
    "tempfile",
    "warnings",
}
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


def test_the_figures_of_the_accuracy_report_are_read_from_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executed elsewhere, as `make notebooks` does: the summary comes out row by row, and no text quotes a figure."""
    monkeypatch.chdir(tmp_path)
    (path,) = [path for path in NOTEBOOKS if path.stem.startswith("05")]
    assert re.findall(r"\d %", "\n".join(cells(path, "markdown"))) == []
    (source,) = [source for source in cells(path, "code") if "accuracy.md" in source]
    *statements, shown = ast.parse(source).body
    assert isinstance(shown, ast.Expr)
    names = {"lanesim": lanesim, "pd": pandas, "Path": Path}
    exec(compile(ast.Module(statements, []), path.name, "exec"), names)
    table = eval(compile(ast.Expression(shown.value), path.name, "eval"), names)
    page = (ROOT / "docs" / "accuracy.md").read_text()
    (met, bars) = re.findall(r"^(\d+) of (\d+) bars met", page, re.MULTILINE)[0]
    assert list(table.columns) == ["run", "metric", "error", "bar", "met"]
    assert (len(table), (table["met"] == "yes").sum()) == (int(bars), int(met))
    for row in table.itertuples(index=False):
        assert f"| {' | '.join(row)} |" in page
