"""How often a pass is timed: until it is warm, then until its median is known tightly, or it is marked noisy.

Pure but for the clock and the pass, both arguments. Not here: what is timed (calibrate.measure.bench).

Warm means: the newest block of repetitions is not faster than the one before it by more than WARM_SHARE. Tight means:
half of the median's 95 % interval, by order statistics, is at most TIGHT_SHARE of it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, floor, sqrt
from statistics import median
from typing import NamedTuple

from calibrate.points.point_works import NOISY_PCT

BLOCK = 3
"""Repetitions that are compared at a time while warming up."""
WARM_SHARE = 0.05
MAX_WARM_BLOCKS = 6
TIGHT_SHARE = 0.02
MIN_REPETITIONS = 7
"""Fewer give no 95 % interval of a median by order statistics."""
MAX_REPETITIONS = 60


class Sample(NamedTuple):
    """One repetition. On a CPU both are the duration of the pass."""

    device_s: float
    host_s: float


class Timing(NamedTuple):
    """Medians over the repetitions after warm-up."""

    device_s: float
    host_s: float
    half_width_pct: float
    """Half of the 95 % interval of the median device time, percent of it."""
    repetitions: int
    warm_up: int
    """Repetitions thrown away."""
    is_noisy: bool


def repeat(
    run: Callable[[], Sample],
    *,
    share_s: float,
    clock: Callable[[], float],
    least: int = MIN_REPETITIONS,
    most: int = MAX_REPETITIONS,
) -> Timing:
    """Time `run` for about `share_s` seconds at most, and `least` times at least, which is BLOCK or more."""
    started_s = clock()
    block = [run() for _ in range(BLOCK)]
    warm_up = BLOCK
    for _ in range(MAX_WARM_BLOCKS - 1):
        newer = [run() for _ in range(BLOCK)]
        is_warm = _middle(newer) >= (1.0 - WARM_SHARE) * _middle(block)
        block = newer
        if is_warm or clock() - started_s > 0.5 * share_s:
            break
        warm_up += BLOCK
    kept = block
    while len(kept) < most:
        if len(kept) >= least:
            is_tight = half_width(sorted(sample.device_s for sample in kept)) <= TIGHT_SHARE * _middle(kept)
            if is_tight or clock() - started_s > share_s:
                break
        kept.append(run())
    middle_s = _middle(kept)
    half_share = half_width(sorted(sample.device_s for sample in kept)) / middle_s
    return Timing(
        device_s=middle_s,
        host_s=median(sample.host_s for sample in kept),
        half_width_pct=100.0 * half_share,
        repetitions=len(kept),
        warm_up=warm_up,
        is_noisy=100.0 * half_share > NOISY_PCT,
    )


def half_width(ordered: list[float]) -> float:
    """Half of the 95 % interval of the median of `ordered` values, by order statistics (normal approximation of the
    binomial; David and Nagaraja, Order Statistics, 2003, section 7.1)."""
    num = len(ordered)
    reach = 1.96 * sqrt(num) / 2.0
    low = max(0, floor(num / 2.0 - reach) - 1)
    high = min(num - 1, ceil(num / 2.0 + reach))
    return 0.5 * (ordered[high] - ordered[low])


def _middle(samples: list[Sample]) -> float:
    return median(sample.device_s for sample in samples)
