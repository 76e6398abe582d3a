"""Executes notebooks/*.ipynb on small settings, in a folder of its own: `make notebooks`, or
`python -m validation notebooks [--out DIR] [--full] [NAME...]`.

With --out the executed copies are kept, figures and all; the files themselves stay free of outputs. `LANESIM_SMALL` in
the environment is what a notebook asks for. Exits 1 with the cell that failed. Not here: what is in them.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

FOLDER = Path(__file__).parents[2] / "notebooks"
CELL_LIMIT_S = 600


def execute(path: Path, out: Path | None) -> float:
    """Seconds that the notebook took. Raises CellExecutionError."""
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    started_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook, timeout=CELL_LIMIT_S, kernel_name="python3", resources={"metadata": {"path": folder}}
        )
        client.execute()
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, out / path.name)  # type: ignore[no-untyped-call]
    return time.perf_counter() - started_s


def main() -> int:
    parser = argparse.ArgumentParser(description="Execute the notebooks.")
    parser.add_argument("names", nargs="*", help="Such as 03 or 03_anatomy_of_33x; none = all.")
    parser.add_argument("--out", type=Path, default=None, help="Keep the executed copies here.")
    parser.add_argument("--full", action="store_true", help="Their own settings in place of small ones.")
    given = parser.parse_args()
    if not given.full:
        os.environ["LANESIM_SMALL"] = "1"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(FOLDER.parent), os.environ.get("PYTHONPATH", "")])
    paths = [
        path for path in sorted(FOLDER.glob("*.ipynb")) if not given.names or path.stem.startswith(tuple(given.names))
    ]
    for path in paths:
        try:
            print(f"{path.name}: {execute(path, given.out):.0f} s", flush=True)
        except CellExecutionError as error:
            print(f"{path.name}: {error}", file=sys.stderr)
            return 1
    return 0
