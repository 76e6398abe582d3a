"""Shared parts of all figures: theme, panels, ticks and labels that can be read, one legend, files.

Imports matplotlib inside functions; nothing here knows what is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from sim.names import install_line

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

DPI = 130
MAX_TICKS = 8
WIDE = 8.0
"""Loads that span this factor lie on a logarithmic axis."""
NEAR_PX = 60.0
"""Points nearer to each other than this need the same label once."""
SIDES = (((4, 4), "left", "bottom"), ((-4, 4), "right", "bottom"), ((4, -4), "left", "top"), ((-4, -4), "right", "top"))
"""Offsets of a label from its point, in points, in the order in which they are tried."""


INK, RULE, PAPER = "#262626", "#cccccc", "#ffffff"
"""Text, lines of the grid, and ground; a page has its own in place of them, light or dark."""
COLOURS = ("#0173b2", "#de8f05", "#029e73", "#cc78bc", "#d55e00", "#56b4e9", "#ca9161", "#949494")
"""They tell series apart for the colour-blind, too, on light and dark ground."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("", (4, 1.5), (1, 1), (3, 1.25, 1.5, 1.25), (5, 1, 1, 1), (2, 2), (6, 2), (1, 3))
HEAD_IN = 0.45
"""Inches above the panels for two lines of a title."""


def set_theme(font_scale: float = 0.8) -> None:
    """The look of all figures; no display needed. Raises ValueError without the plotting libraries."""
    try:
        import matplotlib
        import seaborn
    except ImportError:
        raise ValueError(f"figures need matplotlib: {install_line('figures')}") from None
    matplotlib.use("Agg")
    look = dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK)
    look |= dict.fromkeys(("grid.color", "axes.edgecolor"), RULE)
    look |= dict.fromkeys(("figure.facecolor", "axes.facecolor", "patch.edgecolor"), PAPER)
    # Names hold dollar signs, and nothing here is a formula.
    more = {"figure.max_open_warning": 0, "text.parse_math": False}
    seaborn.set_theme(style="whitegrid", font="DejaVu Sans", font_scale=font_scale, rc=look | more)


def panel(axis: Axes, title: str = "", x: str = "", y: str = "") -> None:
    """Title and labels, with their units, of one panel."""
    axis.set_title("")
    axis.set_title(title, loc="left", fontsize=9)
    axis.set_xlabel(x)
    axis.set_ylabel(y)


def headline(figure: Figure, title: str) -> Figure:
    """The figure with its title above it, and a legend without one."""
    height = figure.get_size_inches()[1]
    for legend in figure.legends:
        legend.set_title("")
    figure.suptitle(title, x=0.01, y=1.0 + HEAD_IN / height, ha="left", va="top", fontsize=10)
    return figure


def set_log_scale(axis: Axes, which: str) -> None:
    """A logarithmic axis, `x` or `y`, with plain numbers such as 500 and 2k at its ticks."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    axis.set(**{f"{which}scale": "log"})
    side = axis.xaxis if which == "x" else axis.yaxis
    low, high = side.get_view_interval()
    is_short = high < 300.0 * max(low, 1e-9)
    ticks = LogLocator(subs=(1.0, 2.0, 5.0) if is_short else (1.0,), numticks=12)
    side.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]) if high < 4.0 * low else ticks)
    side.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value / 1000:g}k" if 1e3 <= value < 1e6 else f"{value:g}")
    )
    side.set_minor_formatter(NullFormatter())


def set_ticks(axis: Axes, values: Sequence[float]) -> None:
    """The values that were gone through as ticks of the x axis, logarithmic where they span much; fewer of many."""
    if values[0] > 0.0 and values[-1] >= WIDE * values[0]:
        axis.set_xscale("log")
    shown = values[:: -(-len(values) // MAX_TICKS)]
    axis.set_xticks(shown, [f"{value:g}" for value in shown])
    axis.set_xticks([], minor=True)


def label_points(axis: Axes, labels: Iterable[tuple[float, float, str]]) -> None:
    """Texts (x, y, text) beside their points, where there is room: none lies on another one or on a point."""
    from matplotlib.transforms import Bbox

    texts = list(labels)
    spots = [axis.transData.transform((x, y)) for x, y, _ in texts]
    taken = [Bbox.from_extents(x - 3, y - 3, x + 3, y + 3) for x, y in spots]
    placed: list[tuple[str, NDArray[np.float64]]] = []
    for (x, y, text), spot in zip(texts, spots, strict=True):
        if any(text == other and abs(spot - where).max() < NEAR_PX for other, where in placed):
            continue
        note = axis.annotate(text, (x, y), xytext=(0, 0), textcoords="offset points", fontsize=7)
        for offset, across, up in SIDES:
            note.set(position=offset, horizontalalignment=across, verticalalignment=up)
            box = note.get_window_extent()
            if not any(box.overlaps(other) for other in taken):
                taken.append(box)
                placed.append((text, spot))
                break
        else:
            note.remove()


def save(figure: Figure, file: Path | BinaryIO) -> None:
    """Write to a path, or as SVG to an open file, the same bytes every time."""
    kind = file.suffix[1:] if isinstance(file, Path) else "svg"
    figure.savefig(file, dpi=DPI, bbox_inches="tight", format=kind, metadata={"Date": None} if kind == "svg" else None)


def save_and_close(figure: Figure, path: Path) -> None:
    import matplotlib.pyplot as plt

    save(figure, path)
    plt.close(figure)
