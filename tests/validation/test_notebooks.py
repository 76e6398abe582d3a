"""Notebooks: outputs are of the code beside them and of no machine, they use the public door alone, what they link to
exists. `make notebooks` executes them, `python -m validation notebooks --write` makes the outputs anew."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from validation.pages.notebooks import differences, kept, stamp

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
ALLOWED = {*sys.stdlib_module_names, "lanesim", "matplotlib", "numpy", "pandas", "seaborn"}
"""lanesim, what draws its frames, and the standard library; not the packages behind the door."""


def cells(path: Path, kind: str) -> list[str]:
    return ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == kind]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_holds_the_outputs_of_its_own_code_and_nothing_of_the_machine_that_made_them(path: Path) -> None:
    found = json.loads(path.read_text())
    assert found["metadata"]["lanesim"] == stamp(found)
    code = [cell for cell in found["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    kinds = {kind for cell in code for output in cell["outputs"] for kind in output.get("data", {})}
    assert {"image/png", "text/plain"} <= kinds
    outputs = [output for cell in found["cells"] for output in cell.get("outputs", ())]
    assert all(output.get("name") != "stderr" and output["output_type"] != "error" for output in outputs)
    assert all("execution" not in cell["metadata"] for cell in found["cells"])
    assert all("".join(cell["source"]).count(text) == 1 for cell in code for text in cell["metadata"].get("small", ()))
    shown = json.dumps([output.get("text") or output["data"].get("text/plain") for output in outputs])
    assert re.findall(r"/(?:tmp|home|root|work|Users)/|Warning", shown) == []


def executed(text: str = "1", source: str = "print(1)") -> dict[str, Any]:
    """A notebook of one cell that printed and warned."""
    streams = [{"output_type": "stream", "name": name, "text": text} for name in ("stdout", "stderr")]
    cell = {"cell_type": "code", "source": source, "outputs": streams, "metadata": {}, "execution_count": 1}
    prose = {"cell_type": "markdown", "source": "# one", "metadata": {}}
    return {"cells": [prose, cell], "metadata": {}}


def test_prose_may_change_without_new_outputs_and_code_may_not() -> None:
    before, reworded = stamp(executed()), executed()
    reworded["cells"][0]["source"] = "# another"
    assert stamp(reworded) == before
    assert stamp(executed(source="print(2)")) != before


def test_what_is_kept_has_no_warnings() -> None:
    (output,) = kept(executed())["cells"][1]["outputs"]
    assert output["name"] == "stdout"


def test_outputs_that_differ_are_named() -> None:
    before = kept(executed())
    assert differences(kept(executed()), before) == []
    assert differences(kept(executed(text="2")), before) == ["kept: '1'\nnow:  '2'"]
    assert differences(kept(executed(source="print(3)")), before) == [
        "what is kept is of other code or another release"
    ]


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
