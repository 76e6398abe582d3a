"""Pictures of answers, one axes each. Imports matplotlib inside functions.

Not here: what is drawn (sim.report.shown).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sim.compare.verdict import Interval
from sim.report.pictures.panels import panel, set_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def new_axes(width: float, height: float) -> Axes:
    """One axes in a figure of its own, inches. Raises ValueError without the plotting libraries."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise ValueError("figures need the analysis extra: pip install 'lanesim[analysis]'") from None
    axes: Axes = plt.subplots(figsize=(width, height), layout="constrained")[1]
    return axes


def draw_intervals(rows: Sequence[tuple[str, float | None, Interval | None]], unit: str) -> Axes:
    """A point with its interval per row, the first on top; rows without a value keep their place."""
    axes = new_axes(6.4, 1.2 + 0.35 * len(rows))
    for place, (_, value, interval) in enumerate(rows):
        if value is None:
            continue
        low, high = interval or (value, value)
        axes.errorbar(value, place, xerr=[[max(0.0, value - low)], [max(0.0, high - value)]], fmt="o", capsize=3)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    axes.invert_yaxis()
    axes.set_xlim(left=0.0)
    panel(axes, x=unit)
    return axes


def draw_lines(
    lines: Mapping[str, Sequence[tuple[float, float | None]]], x: str, y: str, *, level: float | None = None
) -> Axes:
    """A line per name, and a thin one at `level`."""
    axes = new_axes(6.4, 3.6)
    for name, points in lines.items():
        known = [(at, value) for at, value in points if value is not None]
        axes.plot(*zip(*known, strict=True), marker="o", label=name) if known else None
    if level is not None:
        axes.axhline(level, color="grey", linewidth=0.8)
    set_ticks(axes, sorted({at for points in lines.values() for at, _ in points}))
    axes.legend(frameon=False, fontsize=8)
    panel(axes, x=x, y=y)
    return axes
