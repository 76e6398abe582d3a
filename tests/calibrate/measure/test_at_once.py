"""Jobs that begin together, and end together when one of them fails."""

from __future__ import annotations

from threading import Barrier
from time import perf_counter

import pytest

pytest.importorskip("torch")

from calibrate.measure.timing import at_once


def test_a_job_that_fails_before_the_start_frees_the_others_and_is_raised() -> None:
    def waits(barrier: Barrier) -> None:
        barrier.wait(10.0)
        raise AssertionError("began without the other")

    def fails(barrier: Barrier) -> None:
        raise ValueError("out of memory")

    started_s = perf_counter()
    with pytest.raises(ValueError, match="out of memory"):
        at_once([waits, fails, waits])
    # Freed, not timed out.
    assert perf_counter() - started_s < 5.0


def test_a_barrier_that_nobody_broke_on_purpose_is_no_success() -> None:
    with pytest.raises(RuntimeError, match="begin together"):
        at_once([lambda barrier: barrier.wait(0.01) and None, lambda barrier: None])
