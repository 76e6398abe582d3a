"""Pages that are generated from the code say what the code says."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from benchmarks.scenario_docs import PAGE, page
from sim.cli.main import run

ROOT = Path(__file__).parent.parent


def test_the_scenario_page_is_the_schemas() -> None:
    """`python -m benchmarks.scenario_docs` writes it anew."""
    assert PAGE.read_text() == page()


SYSTEMS = [
    command
    for page in ("README.md", "docs/systems.md")
    for command in re.findall(r"\| `(lanesim compare [^`]+)` \|", (ROOT / page).read_text())
]


@pytest.mark.parametrize("command", sorted(set(SYSTEMS)))
def test_every_system_of_the_seeds_runs_as_its_page_says(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a few requests, so far apart that nobody asks for capacity."""
    monkeypatch.chdir(ROOT)
    _, *args = shlex.split(command)
    apart = [] if "inf" in args else ["--request-rate", "0.2"]
    assert run([*args, *apart, "--num-prompts", "3", "--replications", "1", "--json", "-"]) == 0
    assert all(row["completed"] for row in json.loads(capsys.readouterr().out)["runs"])


def test_no_test_names_a_data_folder_of_one_machine() -> None:
    """tests.calibrate.support.published finds it beside the checkout, or skips."""
    absolute = re.compile(r"""["']/\w[^"']*/shared/""")
    found = [path.relative_to(ROOT) for path in ROOT.glob("tests/**/*.py") if absolute.search(path.read_text())]
    assert found == []
