"""The runner of notebooks/*.ipynb, each in a separate folder:

    python -m validation notebooks [--write | --compare] [NAME...]

`make notebooks` executes them on small settings and keeps nothing. `small` in a cell's metadata maps a text of its code
to the text that replaces it. --write executes them as they stand and keeps what they show, without warnings and times,
beside a stamp of the code (`stamp`), which a test and the site check. --compare executes them as they stand and exits 1
where a text differs from what is kept. Not here: what is in them.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "notebooks"
CELL_LIMIT_S = 1800
Notebook = dict[str, Any]
"""Content of its file: `cells` and `metadata`."""


def stamp(notebook: Notebook) -> dict[str, str]:
    """Stamp of a notebook's outputs: the release, and 16 hex digits of its code."""
    code = [_joined(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return {"version": version("lanesim"), "code": hashlib.sha256(json.dumps(code).encode()).hexdigest()[:16]}


def texts(notebook: Notebook) -> Iterator[str]:
    """Texts that the cells printed or showed, pictures left out."""
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            yield _joined(output.get("text") or output.get("data", {}).get("text/plain", ""))


def executed(path: Path, *, is_small: bool) -> Notebook:
    """The notebook with its outputs. Raises CellExecutionError."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    for cell in notebook.cells if is_small else ():
        for whole, small in cell.metadata.get("small", {}).items():
            cell.source = cell.source.replace(whole, small)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            notebook,
            timeout=CELL_LIMIT_S,
            kernel_name="python3",
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": folder}},
        ).execute()
    content: Notebook = json.loads(nbformat.writes(notebook))  # type: ignore[no-untyped-call]
    return content


def kept(notebook: Notebook) -> Notebook:
    """Without warnings and versions, and stamped. A test finds paths of the machine in what is kept."""
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"] = [output for output in cell["outputs"] if output.get("name") != "stderr"]
    notebook["metadata"]["language_info"] = {"name": "python"}
    notebook["metadata"]["lanesim"] = stamp(notebook)
    return notebook


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)


def differences(now: Notebook, before: Notebook) -> list[str]:
    """A line or two for each text of two kept notebooks that is not the same; pictures are not compared."""
    if now["metadata"]["lanesim"] != before["metadata"].get("lanesim"):
        return ["what is kept is of other code or another release"]
    pairs = zip_longest(texts(before), texts(now), fillvalue="nothing")
    return [f"kept: {old[:300]!r}\nnow:  {new[:300]!r}" for old, new in pairs if old != new]


def main(names: list[str], write: bool = False, compare: bool = False) -> int:
    from nbclient.exceptions import CellExecutionError

    os.environ["PYTHONPATH"] = os.pathsep.join([str(FOLDER.parent), os.environ.get("PYTHONPATH", "")])
    differ = False
    for path in sorted(FOLDER.glob("*.ipynb")):
        if names and not path.stem.startswith(tuple(names)):
            continue
        started_s = time.perf_counter()
        try:
            notebook = executed(path, is_small=not (write or compare))
        except CellExecutionError as error:
            print(f"{path.name}: {error}", file=sys.stderr)
            return 1
        print(f"{path.name}: {time.perf_counter() - started_s:.0f} s", flush=True)
        if write:
            path.write_text(json.dumps(kept(notebook), indent=1, ensure_ascii=False) + "\n")
        elif compare:
            lines = differences(kept(notebook), json.loads(path.read_text()))
            differ |= bool(lines)
            print("\n".join(lines), file=sys.stderr)
    return int(differ)
