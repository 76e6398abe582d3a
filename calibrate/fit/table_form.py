"""Points of kernel tables as a profile's table stores them: smoothed until none falls along an axis, rounded; and which
of them stay where every second one is left out, so that gaps are twice as wide as in the profile.

Mean errors there over five models on A100 and H100 decided how each axis is interpolated: GEMMs of a layer 3.8 %
linear and 4.0 % between logs, LM head 5.2 % and 5.3 %, prefill attention 6.8 % and 5.2 %.
Not here: which points (calibrate.importers), interpolation itself (sim.costs.forms.interpolation).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from calibrate.fit.fit_errors import Array


def smooth(seconds: Array) -> Array:
    """`seconds` [...] made to fall along no axis: the mean of the least such grid above it and the greatest below it.
    What does not fall stays as it is; nan marks holes."""
    above = np.where(np.isnan(seconds), -np.inf, seconds)
    below = np.where(np.isnan(seconds), np.inf, seconds)
    for axis in range(seconds.ndim):
        above = np.maximum.accumulate(above, axis=axis)
        below = np.flip(np.minimum.accumulate(np.flip(below, axis), axis=axis), axis)
    return np.where(np.isnan(seconds), np.nan, 0.5 * (above + below))


def every_second(points: int) -> list[int]:
    """Indices that stay: the even ones and the last."""
    return sorted({*range(0, points, 2), points - 1})


def counts(values: Sequence[int] | Array | NDArray[np.int64]) -> tuple[int, ...]:
    """An axis as a profile stores it."""
    return tuple(int(value) for value in values)


def rounded(seconds: float) -> float:
    """Five significant digits, ten times finer than the tables repeat."""
    return float(f"{seconds:.5g}")
