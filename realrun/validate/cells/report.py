"""What `validate cells` shows: a table, and a figure of the error by cell, one panel per metric, cells of the fit
hollow.

Matplotlib is imported where figures are drawn. Not here: the numbers (realrun.validate.cells.compare).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from realrun.validate.cells.compare import JudgedCell
from realrun.validate.cells.table import MEASURED
from sim.files.write import write_figure
from sim.report.figures import DPI, set_theme
from sim.report.tables import percent, print_table, significant

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


def print_cells(result: dict[str, Any]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False)
    table = Table(box=SIMPLE_HEAD, title=f"{result['profile']['name']}: closed-loop cells", title_justify="left")
    table.add_column("cell", overflow="fold")
    for heading in ("", "metric"):
        table.add_column(heading, no_wrap=True)
    for heading in ("real", "simulated", "error"):
        table.add_column(heading, justify="right", no_wrap=True)
    for cell in result["cells"]:
        what = "/".join(filter(None, (cell["label"], cell["arm"])))
        lengths = "" if cell["input_len"] is None else f" {cell['input_len']}->{cell['output_len']}"
        point = f"c={cell['concurrency']}{lengths} k={cell['num_speculative_tokens']}"
        for place, (metric, values) in enumerate(cell["metrics"].items()):
            name = (" ".join(filter(None, (what, point))), cell["role"]) if place == 0 else ("", "")
            table.add_row(*name, metric, *_values(values))
    for pair in result["speedups"]:
        table.add_row(pair["name"], pair["role"], "speed-up", *_values(pair))
    print_table(console, table)
    for metric, errors in [*result["judged"].items(), ("speed-up", result["speedup"])]:
        if errors["cells"]:
            console.print(
                f"{metric}: mean absolute error {errors['mean_absolute_error_pct']:.2f} %, mean "
                f"{errors['mean_error_pct']:+.2f} %, largest {errors['max_absolute_error_pct']:.2f} % over "
                f"{errors['cells']} judged",
                highlight=False,
            )
    fit = result["fit"]
    if fit:
        told = ", ".join(map(_told, fit.get("constants", [fit])))
        lines = ", ".join(map(str, fit["lines"]))
        left = f"mean size of error left {fit['error_pct']:.2f} %"
        if "constants" not in fit:
            left = f"mean error left {fit['error_pct']:+.3f} %"
        bound = "; at its bound, 0 is too slow already" if fit.get("is_at_bound") else ""
        console.print(f"{told}, fitted on {fit['metric']} of lines {lines} ({left}){bound}", highlight=False)
    for note in result["notes"]:
        console.print(note, style="dim", highlight=False)


def _told(each: dict[str, Any]) -> str:
    """A constant, with its interval where it was fitted with others."""
    scale, digits, unit, plain = (1.0, 3, "", 1) if "value" in each else (1e3, 4, " ms", 0)
    value = each["value"] if "value" in each else each["value_s"]
    width = each.get("half_width", each.get("half_width_s"))
    text = f"{each['constant']} = {value * scale:.{digits}f}"
    if width is None:
        return f"{text}{unit}"
    return f"{text} ± {width * scale:.{digits}f}{unit}" + ("" if each["is_told"] else f" (not told from {plain})")


def _values(values: dict[str, float | None]) -> tuple[str, str, str]:
    return significant(values["real"]), significant(values["simulated"]), percent(values["error_pct"])
