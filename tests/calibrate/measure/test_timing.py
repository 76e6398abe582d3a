"""When a pass has been timed often enough, on scripted times; and jobs that begin and end together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, cycle
from itertools import repeat as forever
from threading import Barrier
from time import perf_counter

import pytest

pytest.importorskip("torch")

from calibrate.measure.timing import (
    BLOCK,
    MAX_REPETITIONS,
    MIN_REPETITIONS,
    Sample,
    Timing,
    at_once,
    half_width,
    repeat,
)


class Script:
    """Gives scripted durations, one per repetition, and a clock that they move."""

    def __init__(self, seconds: Iterable[float]) -> None:
        self._seconds: Iterator[float] = iter(seconds)
        self.now_s = 0.0

    def run(self) -> Sample:
        seconds = next(self._seconds)
        self.now_s += seconds
        return Sample(seconds, seconds / 2.0)

    def time(self, share_s: float) -> Timing:
        return repeat(self.run, share_s=share_s, clock=lambda: self.now_s)


def test_a_steady_pass_is_timed_as_seldom_as_an_interval_allows() -> None:
    timing = Script(forever(0.01)).time(10.0)
    assert timing == Timing(0.01, 0.005, 0.0, MIN_REPETITIONS, False)


def test_repetitions_before_it_is_warm_are_thrown_away() -> None:
    falling = [0.1] * BLOCK + [0.05] * BLOCK + [0.02] * BLOCK
    timing = Script(chain(falling, forever(0.02))).time(10.0)
    assert timing.device_s == 0.02
    assert not timing.is_noisy


def test_a_restless_pass_is_timed_more_often_and_then_marked_noisy() -> None:
    timing = Script(cycle([0.01, 0.02, 0.015, 0.03])).time(1e9)
    assert timing.repetitions == MAX_REPETITIONS
    assert timing.is_noisy
    assert timing.half_width_pct > 5.0


def test_an_outlier_does_not_move_the_median() -> None:
    timing = Script(chain([0.01] * 8, [5.0], forever(0.01))).time(1e9)
    assert timing.device_s == 0.01
    assert not timing.is_noisy


def test_a_share_that_is_used_up_ends_it_with_the_fewest_repetitions() -> None:
    assert Script(cycle([1.0, 2.0])).time(0.0).repetitions == MIN_REPETITIONS


@pytest.mark.parametrize("num", [7, 20, 60])
def test_the_interval_holds_the_middle_ranks(num: int) -> None:
    values = [float(value) for value in range(num)]
    width = 2.0 * half_width(values)
    assert 1.96 * num**0.5 <= width + 1 <= 1.96 * num**0.5 + 4
    assert num > 7 or width == num - 1


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
