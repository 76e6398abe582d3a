"""Which stretch of several runs a timeline shows."""

from __future__ import annotations

import msgspec
import pytest

from sim.metrics.records import WorkRecord
from sim.report.pictures.comparison_pictures import TIMELINE_WORKS, busy_window

WORK = WorkRecord(
    kind="step", model="target", stream="gpu", device="0", submitted_s=0.0, issue_start_s=0.0, issued_s=0.0,
    start_s=0.0, end_s=0.0, ready_s=0.0, rows=1, row_tokens=1, context_tokens=1, chunk_tokens=0, draft_tokens=0,
    is_cancelled=False, requests=(),
)  # fmt: skip


def works(first_s: float, last_s: float, every_s: float = 0.1) -> list[WorkRecord]:
    """Half busy in between."""
    count = round((last_s - first_s) / every_s)
    starts_s = [first_s + every_s * number for number in range(count)]
    return [msgspec.structs.replace(WORK, start_s=start_s, end_s=start_s + every_s / 2) for start_s in starts_s]


def test_it_is_one_that_all_of_them_are_busy_in() -> None:
    """Runs of 100 s whose busy times meet from 55 to 62 s."""
    early, late = works(0, 10) + works(30, 62) + works(95, 100), works(0, 5) + works(55, 100)
    start_s, end_s = busy_window([early, late])
    assert 54.9 <= start_s < end_s <= 62.1
    assert end_s - start_s == pytest.approx(0.1 * TIMELINE_WORKS, rel=0.02)


def test_host_works_are_nothing_that_a_gpu_does() -> None:
    hosts = [msgspec.structs.replace(work, kind="host", stream="cpu") for work in works(25, 40)]
    start_s, _ = busy_window([hosts + works(50, 70) + works(95, 100)])
    assert 49 <= start_s <= 70
