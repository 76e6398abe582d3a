"""The figure of `validate cells`: error by cell, one panel per metric, cells of the fit hollow.

Imports matplotlib; only called where figures are drawn. Not here: the numbers (realrun.cells_validation).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from realrun.cells import MEASURED
from realrun.cells_validation import JudgedCell
from sim.plots import DPI, set_theme
from sim.results import write_figure

FIGURE = "validation-cells.png"
CELL_INCHES, MOST_INCHES = 0.28, 24.0


def draw_cells(directory: Path, judged: Sequence[JudgedCell], title: str) -> Path:
    """Raises ValueError without the plotting libraries."""
    set_theme()
    import matplotlib.pyplot as plt

    metrics = [name for name in MEASURED if any(name in each.metrics for each in judged)]
    width = min(MOST_INCHES, 3.0 + CELL_INCHES * len(judged))
    figure, axes = plt.subplots(
        len(metrics), 1, figsize=(max(6.0, width), 1.8 + 1.7 * len(metrics)), sharex=True, squeeze=False
    )
    for axis, metric in zip(axes[:, 0], metrics, strict=True):
        for is_fit, face in ((False, "#4c72b0"), (True, "white")):
            points = [
                (place, each.metrics[metric]["error_pct"])
                for place, each in enumerate(judged)
                if each.is_fit is is_fit and metric in each.metrics
            ]
            label = "fitted on" if is_fit else "judged"
            axis.bar([x for x, _ in points], [y for _, y in points], 0.8, color=face, edgecolor="#4c72b0", label=label)
        axis.axhline(0.0, color="black", linewidth=0.8)
        axis.set_ylabel(f"{metric}\nerror, % of real")
    axes[0, 0].legend(frameon=False, ncols=2)
    axes[-1, 0].set_xticks(range(len(judged)), [each.cell.name for each in judged], rotation=90, fontsize=6)
    figure.suptitle(title, x=0.01, ha="left")
    figure.tight_layout()
    path = directory / FIGURE
    write_figure(path, lambda scratch: figure.savefig(scratch, dpi=DPI))
    plt.close(figure)
    return path
