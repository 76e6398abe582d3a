"""Drawn hostile command lines end as they should (tests.attack.launches)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def launched(count: int, processes: int) -> str:
    command = [sys.executable, "-m", "tests.attack.launches", str(count), str(processes)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_few_hostile_launches_end_in_one_line_each() -> None:
    assert "20 launches: " in launched(20, 0)


@pytest.mark.nightly
def test_500_hostile_launches_end_in_one_line_each() -> None:
    assert "500 launches: " in launched(500, 50)
