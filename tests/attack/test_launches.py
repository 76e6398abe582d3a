"""Drawn hostile command lines end as they should (tests.attack.launches)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("count", "processes"),
    [pytest.param(20, 0, marks=pytest.mark.slow), pytest.param(500, 50, marks=pytest.mark.nightly)],
)
def test_hostile_launches_end_in_one_line_each(count: int, processes: int) -> None:
    command = [sys.executable, "-m", "tests.attack.launches", str(count), str(processes)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{count} launches: " in done.stdout
