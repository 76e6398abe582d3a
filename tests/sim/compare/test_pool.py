"""Worker processes."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import multiprocessing, os
from sim.compare.pool import started

for _ in range(20):
    with started(2) as pool:
        assert sorted(done for _, done in pool.run(abs, [-1, -2, -3])) == [1, 2, 3]
        assert "fork" == pool.executor._mp_context.get_start_method()
"""


def test_workers_are_forked_right_after_other_workers_have_ended() -> None:
    """A thread of the first pool is still listed for a moment after it has been joined."""
    environment = {"OPENBLAS_NUM_THREADS": "1", "PATH": ""}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
