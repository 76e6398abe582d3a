"""Worker processes."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from functools import partial

import pytest

from sim.compare.pool import WorkerDied, lasting, started
from sim.run import compiled

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


def scaled(factor: int, value: int) -> tuple[int, int]:
    """In a worker: which it is, and the product."""
    return os.getpid(), factor * value


def died(value: int) -> None:
    os._exit(value)


def refused(value: int) -> None:
    raise ValueError(f"{value} is refused")


def ran(factor: int, workers: int = 2) -> set[int]:
    """The processes that multiplied twenty numbers by `factor`."""
    with started(workers) as pool:
        found = dict(pool.run(partial(scaled, factor), range(20)))
    assert {value: product for value, (_, product) in found.items()} == {value: factor * value for value in range(20)}
    return {process for process, _ in found.values()}


def test_blocks_within_a_lasting_one_share_processes() -> None:
    with lasting():
        with lasting():
            first = ran(1)
        processes = first | ran(10) | ran(100)
        assert os.getpid() not in processes
        children = {child.pid for child in multiprocessing.active_children()}
        assert processes <= children
        assert len(children) <= 2
    assert processes.isdisjoint(child.pid for child in multiprocessing.active_children())
    assert processes.isdisjoint(ran(1))


def told(reason: str) -> None:
    compiled.told[reason] += 1


def test_who_served_the_runs_of_workers_is_told_here() -> None:
    before = compiled.told.copy()
    with started(2) as pool:
        list(pool.run(told, ["core", "priorities", "core"]))
    assert compiled.told - before == {"core": 2, "priorities": 1}


def test_a_block_for_more_workers_than_there_are_gets_them() -> None:
    with lasting():
        ran(1, workers=2)
        ran(1, workers=3)
        assert len(multiprocessing.active_children()) == 3


@pytest.mark.parametrize(("task", "error"), [(died, WorkerDied), (refused, ValueError)])
def test_after_a_worker_died_or_a_task_failed_others_go_on(task: object, error: type[Exception]) -> None:
    with lasting():
        processes = ran(1)
        with pytest.raises(error), started(2) as pool:
            list(pool.run(task, [1, 2, 3]))  # type: ignore[arg-type]
        assert not multiprocessing.active_children()
        assert processes.isdisjoint(ran(10))
    assert not multiprocessing.active_children()
