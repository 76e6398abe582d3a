"""Piecewise interpolation of measured times over one or two axes of counts, and what holds outside them.

Below the first point a time is that of the first point; beyond the last one it goes on with the last slope (linear) or
exponent (power). Times that never fall along their axes are interpolated to times that never fall.
GEMMs and decode attention are nearly affine in tokens and context, so they are interpolated linearly; whole prompts'
attention lies between linear and quadratic in tokens, so powers (straight lines between logs) fit it better.
calibrate.fit.table_form has the figures.
Not here: what the axes mean (table).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import inf, log


def place(axis: Sequence[int], at: float) -> tuple[int, int, float]:
    """Indices of the points below and above `at` and the weight of the upper one: 0 below the axis, above 1 beyond it.

    `axis` rises; of a single point both indices are its own.
    """
    if len(axis) == 1 or at <= axis[0]:
        return 0, 0, 0.0
    upper = min(bisect_right(axis, at), len(axis) - 1)
    low = axis[upper - 1]
    return upper - 1, upper, (at - low) / (axis[upper] - low)


def value_at(axis: Sequence[int], values: Sequence[float], at: float) -> float:
    """The line through `values` at the points of `axis`."""
    low, high, weight = place(axis, at)
    return values[low] + weight * (values[high] - values[low])


def power_curve_at(axis: Sequence[int], curves: Sequence[Sequence[float]], at: float) -> list[float]:
    """The curve between two measured ones, like `curve_at` with powers of the axis between and beyond its points; all
    numbers are positive."""
    low, high, _ = place(axis, at)
    if low == high:
        return list(curves[low])
    weight = log(at / axis[low]) / log(axis[high] / axis[low])
    mixed = (a * (b / a) ** weight for a, b in zip(curves[low], curves[high], strict=True))
    return list(accumulate(mixed, max))


def curve_at(axis: Sequence[int], curves: Sequence[Sequence[float]], at: float) -> list[float]:
    """The curve between `curves`, one for each point of `axis` and all over the same second axis."""
    low, high, weight = place(axis, at)
    mixed = (a + weight * (b - a) for a, b in zip(curves[low], curves[high], strict=True))
    return list(accumulate(mixed, max))


def filled(second_axis: Sequence[int], grid: Sequence[Sequence[float | None]]) -> list[list[float]]:
    """`grid` [first axis][second axis] without its holes: each curve's own line, kept between the measured points that
    are smaller and larger in both axes. Measured points stay as they are; they must not fall along either axis."""
    most = _min_above(grid)
    lines = []
    for curve, limits in zip(grid, most, strict=True):
        points = [(at, value) for at, value in zip(second_axis, curve, strict=True) if value is not None]
        axis, values = [at for at, _ in points], [value for _, value in points]
        line = [
            value_at(axis, values, at) if value is None else value for at, value in zip(second_axis, curve, strict=True)
        ]
        lines.append([min(value, limit) for value, limit in zip(line, limits, strict=True)])
    below = [0.0] * len(second_axis)
    full = []
    for line in lines:
        below = list(accumulate(map(max, line, below), max))
        full.append(below)
    return full


def _min_above(grid: Sequence[Sequence[float | None]]) -> list[list[float]]:
    """The least measured time among the points no smaller in both axes, for each point."""
    least = [inf] * len(grid[0])
    rows = []
    for curve in reversed(grid):
        known = [inf if value is None else value for value in curve]
        least = list(accumulate(map(min, reversed(known), reversed(least)), min))[::-1]
        rows.append(least)
    return rows[::-1]
