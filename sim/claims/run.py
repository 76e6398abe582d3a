"""Sections of the ledger, simulated over several processes. Not here: what a section simulates (one module each)."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from sim.claims import headline
from sim.claims.ledger import Row, read_section
from sim.experiment.pool import default_workers

DRAWS = 100
"""Draws of luck, or the like, behind a row, unless it says otherwise."""
JUDGES: dict[str, Callable[..., list[Row]]] = {"A": headline.judge}
"""By section: its rows in the order of the ledger."""
LONGEST_FIRST = ("A",)


def judge(name: str, draws: int = DRAWS) -> list[Row]:
    """The rows of one section. Raises ValueError for one that is not in the ledger."""
    section = read_section(name)
    return JUDGES[name](section, draws)


def judge_all(
    names: Sequence[str],
    *,
    draws: int = DRAWS,
    workers: int | None = None,
    on_done: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> list[Row]:
    """The rows of several sections, in the order of `names`; `on_done` hears how many sections are done."""
    for name in names:
        read_section(name)
    queue = [name for name in LONGEST_FIRST if name in names]
    count = min(len(queue), default_workers() if workers is None else workers)
    found: dict[str, list[Row]] = {}
    on_done("judging", 0, len(queue))
    if count <= 1:
        for name in queue:
            found[name] = judge(name, draws)
            on_done("judging", len(found), len(queue))
    else:
        method = "fork" if sys.platform == "linux" else "spawn"
        pool = ProcessPoolExecutor(count, mp_context=multiprocessing.get_context(method))
        try:
            futures = {pool.submit(judge, name, draws): name for name in queue}
            for future in as_completed(futures):
                found[futures[future]] = future.result()
                on_done("judging", len(found), len(queue))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    return [row for name in names for row in found[name]]
