"""Every writer there is, killed before its file operations: the old state stands or the new one, and the same
command again makes it the new one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.attack.dying import FILES, KINDS

STEP = 4
"""Every fourth operation in a run of all tests, each in the nightly one."""
CASES = [
    *((kind, 1) for kind in FILES),
    *((kind, STEP) for kind in KINDS),
    *(pytest.param(kind, 1, marks=pytest.mark.nightly) for kind in KINDS),
]


@pytest.mark.parametrize(("kind", "step"), CASES)
def test_a_writer_that_dies_leaves_the_old_state_or_the_new_one(kind: str, step: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.attack.dying", kind, str(tmp_path), str(step)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    told = re.fullmatch(rf"{kind}: died (\d+) times\n", done.stdout)
    assert told is not None, done.stdout
    assert int(told[1]) * step >= 3
