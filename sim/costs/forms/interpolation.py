"""Piecewise interpolation of measured times over one or two axes of counts, and what holds outside them.

Below the first point a time is that of the first point. Beyond the last one it goes on with the slope (linear) or
exponent (power) of the upper half of the axis: neighbours may lie on one step of a kernel's staircase, whose slope says
nothing. Times that never fall along their axes are interpolated to times that never fall. GEMMs and decode attention
are nearly affine in tokens and context: linear. Attention of whole prompts lies between linear and quadratic in tokens:
powers. calibrate.importers.aiconfigurator.grids has the figures.
Not here: what the axes mean (table).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import inf, log


def bracket(axis: Sequence[int], at: float) -> tuple[int, int, float]:
    """Indices of the points below and above `at` and the weight of the upper one: 0 below the axis, above 1 beyond it,
    where the points are `middle` and the last. Of a single point both indices are 0."""
    if len(axis) == 1 or at <= axis[0]:
        return 0, 0, 0.0
    upper = min(bisect_right(axis, at), len(axis) - 1)
    lower = upper - 1 if at <= axis[-1] else middle(axis)
    low = axis[lower]
    return lower, upper, (at - low) / (axis[upper] - low)


def middle(axis: Sequence[int]) -> int:
    """Index of the last point of the rising `axis` in its lower half, from which the line to its end goes on beyond.

    >>> middle((1, 1000, 1024, 2032, 2048)), middle((1000, 1024)), middle((1000,))
    (2, 0, 0)
    """
    return max(0, bisect_right(axis, axis[-1] / 2) - 1)


def value_at(axis: Sequence[int], values: Sequence[float], at: float) -> float:
    """The line through `values` at the points of `axis`."""
    low, high, weight = bracket(axis, at)
    return values[low] + weight * (values[high] - values[low])


def power_curve_at(axis: Sequence[int], curves: Sequence[Sequence[float]], at: float) -> list[float]:
    """The curve between two measured ones, like `curve_at` with powers of the axis; all numbers are positive."""
    low, high, _ = bracket(axis, at)
    if low == high:
        return list(curves[low])
    weight = log(at / axis[low]) / log(axis[high] / axis[low])
    mixed = (a * (b / a) ** weight for a, b in zip(curves[low], curves[high], strict=True))
    return list(accumulate(mixed, max))


def curve_at(axis: Sequence[int], curves: Sequence[Sequence[float]], at: float) -> list[float]:
    """The curve between `curves`, one for each point of `axis` and all over the same second axis."""
    low, high, weight = bracket(axis, at)
    mixed = (a + weight * (b - a) for a, b in zip(curves[low], curves[high], strict=True))
    return list(accumulate(mixed, max))


def filled(second_axis: Sequence[int], grid: Sequence[Sequence[float | None]]) -> list[list[float]]:
    """`grid` [first axis][second axis] without its holes: each curve's own line, kept between the measured points that
    are smaller and larger in both axes. Measured points stay as they are; they must not fall along either axis.

    The first row's own line has 1.44 at 50, but the second row takes 1.2 there. The second row, whose line would end at
    6.8, takes no less than the first:

    >>> filled((10, 50, 100, 400), [[1.0, None, 2.0, 9.0], [1.1, 1.2, 2.0, None]])
    [[1.0, 1.2, 2.0, 9.0], [1.1, 1.2, 2.0, 9.0]]

    A row between its points, and beyond them with their slope:

    >>> filled((10, 50, 90, 400), [[2.0, None, 30.0, None]])
    [[2.0, 16.0, 30.0, 138.5]]
    """
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
