"""Every writer there is, killed before its file operations: the old state stands or the new one, and the same
command again makes it the new one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.attack.dying import FILES, KINDS

DRAWN = ("pictures", "page")
STEP = 4
"""Every fourth operation in a run of all tests, each in the nightly one."""


def assert_survived(kind: str, folder: Path, step: int) -> None:
    command = [sys.executable, "-m", "tests.attack.dying", kind, str(folder), str(step)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    told = re.fullmatch(rf"{kind}: died (\d+) times\n", done.stdout)
    assert told is not None, done.stdout
    assert int(told[1]) * step >= 3


@pytest.mark.parametrize("kind", [*FILES, *(kind for kind in KINDS if kind not in DRAWN)])
def test_a_writer_that_dies_leaves_the_old_state_or_the_new_one(kind: str, tmp_path: Path) -> None:
    assert_survived(kind, tmp_path, 1 if kind in FILES else STEP)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_a_writer_that_dies_before_any_operation_leaves_the_old_state_or_the_new_one(kind: str, tmp_path: Path) -> None:
    assert_survived(kind, tmp_path, 1)
