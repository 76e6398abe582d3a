"""Every command that a page of the site or a notebook shows, run as it stands there, in the order of its page.

    python -m pytest -m nightly tests/test_page_commands.py -s

Those that nothing here can run are listed with the reason. Lines of answers that a page quotes are among those that its
commands print. Not here: pages' Python (tests.test_public_door).
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(path for path in ROOT.glob("docs/**/*.md") if "adr" not in path.parts),
    *sorted(ROOT.glob("notebooks/*.ipynb")),
]
LIMIT_S = 1800
FENCE = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(lanesim [^`]+(?: --profile |\.yaml)[^`]*|python -m (?:validation|calibrate|tests)[^`]+)`")
HASHED = re.compile(r"-[0-9a-f]{8}\.json")
"""Name of a profile that was imported: it changes with the code that imported it."""
STARTS = ("lanesim ", "python -m ", "make ", ".venv-gpu/")
SERVER = "a server that runs: tests/calibrate/server/test_guide.py starts one"
FILES = "files of a server: tests/calibrate/server/test_guide.py writes them"
DATA = "data of others, which the reader brings"
PAGE = "writes a page of docs/ anew, whose own test compares it, or takes an hour"
LEFT_OUT = {
    r"make ": "targets are jobs of CI and of the nightly run themselves",
    r"python -m validation (claims|notebooks)": "jobs of the nightly run themselves",
    r".*--device cuda|.*--profile profile\.json|\.venv-gpu/": "a GPU",
    r"lanesim (validate http|tune --metrics http)": SERVER,
    r"lanesim calibrate fit": FILES,
    r"lanesim diagnose": DATA,
    r"lanesim (replay .*--policy gentle|validate results/replay # how)": "a package that the reader installs",
    r"python -m validation (silicon|drafted|evidence|partition|pearl)": DATA,
    r"python -m validation (constants (judge|refit) DATA|\w+ DATA)": DATA,
    r"python -m validation conformance": "logs or a wheel of an engine, which the reader brings",
    r"python -m validation (scenario_docs|accuracy_page)": PAGE,
    r"lanesim .*(FILE|scenario\.yaml)": "a form, whose names the reader fills in",
}
"""Beginning of a command -> what it wants that is not here."""
NEEDS = {r"lanesim (calibrate measure|replay)": "torch", r"lanesim plan": "aiconfigurator_core"}
"""Beginning of a command -> the package without which it cannot run; a nightly job has both."""


def text_of(page: Path) -> str:
    """A notebook's is that of its prose."""
    if page.suffix == ".md":
        return page.read_text()
    cells = json.loads(page.read_text())["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown") + "\n"


def commands(page: Path) -> Iterator[str]:
    """Whole commands: lines of blocks, and in running text what names a profile, a scenario or a program."""
    text = text_of(page)
    for block in FENCE.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            command = line.removeprefix("$ ")
            if command.startswith(STARTS) and "…" not in command:
                yield re.sub(r" +", " ", command)
    for command in INLINE.findall(FENCE.sub("", text)):
        yield " ".join(command.split())


def quoted(page: Path) -> list[str]:
    """Lines of answers on the page: a block behind commands that run, and what follows a command in its block."""
    lines, was_command = [], False
    for block in FENCE.findall(text_of(page)):
        first, *more = block.replace("\\\n", "\0").splitlines()
        if is_command := first.removeprefix("$ ").startswith("lanesim "):
            lines += more if first.startswith("$ ") else []
        elif was_command and "```\n" + block in text_of(page):
            lines += [first, *more]
        was_command = is_command and why_not(first.removeprefix("$ ")) is None
    whole = [line for joined in lines for line in joined.replace("\0", "\\\n").splitlines()]
    return [line for line in whole if line.strip() not in ("", "…") and not HASHED.search(line)]


def why_not(command: str) -> str | None:
    return next((why for start, why in LEFT_OUT.items() if re.match(start, command)), None)


def lacks(command: str) -> str | None:
    """The package that it needs and that is not installed."""
    return next((name for start, name in NEEDS.items() if re.match(start, command) and find_spec(name) is None), None)


RUNNABLE = {page: [each for each in commands(page) if why_not(each) is None] for page in PAGES}


def test_every_reason_to_leave_a_command_out_is_needed() -> None:
    shown = [each for page in PAGES for each in commands(page)]
    assert [start for start in LEFT_OUT if not any(re.match(start, each) for each in shown)] == []


def test_pages_show_commands_and_most_of_lanesims_run() -> None:
    """Here, or with what another test starts for them."""
    own = [each for page in PAGES for each in commands(page) if each.startswith("lanesim ")]
    assert len(own) > 40
    assert sum(why_not(each) in (None, SERVER, FILES) for each in own) > 0.7 * len(own)


@pytest.mark.nightly
@pytest.mark.parametrize("page", [page for page in PAGES if RUNNABLE[page]], ids=lambda page: page.stem)
def test_the_commands_of_a_page_run(page: Path, tmp_path: Path) -> None:
    """In one folder, with the scenarios of the repository and the grid that the guide shows.

    A page may take longer than one test may: here each command has its own limit.
    """
    faulthandler.cancel_dump_traceback_later()
    (tmp_path / "sim").symlink_to(ROOT / "sim")
    (grid,) = re.findall(r"^```yaml\n(# grid\.yaml.*?)^```$", (ROOT / "docs" / "sweeps.md").read_text(), re.M | re.S)
    (tmp_path / "grid.yaml").write_text(grid)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    printed, is_whole = set(), True
    for command in RUNNABLE[page]:
        if missing := lacks(command):
            print(f"\n{page.name}: left out, no {missing}: {command}", end="")
            is_whole = False
            continue
        began_s = time.monotonic()
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        print(f"\n{page.name}: {time.monotonic() - began_s:.0f} s, exit {done.returncode}: {command}", end="")
        assert done.returncode == 0, f"{command}\n{done.stderr[-2000:]}"
        printed |= {line.rstrip() for line in done.stdout.splitlines()}
    assert [line for line in quoted(page) if is_whole and line not in printed] == []
