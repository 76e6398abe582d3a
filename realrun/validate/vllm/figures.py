"""Figures of `validate vllm`: every request simulated against real, and the distributions laid over each other.

Imports matplotlib; only called where figures are drawn. Not here: the numbers (realrun.validate.vllm.compare).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from realrun.validate.vllm.compare import VllmVerdict, latencies_s
from sim.files.write import write_figure
from sim.metrics.stats import Floats
from sim.report.figures import DPI, draw_cdfs, set_theme

SCATTERED = {"ttft": "TTFT", "e2el": "E2EL"}
FEW_TICKS = 20.0
"""A logarithmic axis that spans less than this factor gets round numbers in place of decades."""
MOST_TICKS = 4


def draw_vllm(directory: Path, verdict: VllmVerdict) -> None:
    """validation-scatter.png and validation-cdf.png. Raises ValueError without the plotting libraries."""
    set_theme()
    real, simulated = latencies_s(verdict.real.requests), latencies_s(verdict.simulated.requests)
    result = verdict.result
    title = f"{result['profile']['name']}, {result['policy']}: {result['num_requests']} requests of a real vLLM run"
    sides = {"real": real, "simulated": simulated}
    write_figure(
        directory / "validation-scatter.png", partial(_draw_scatter, title=title, real=real, simulated=simulated)
    )
    write_figure(directory / "validation-cdf.png", partial(draw_cdfs, title=title, sides=sides))


def _draw_scatter(path: Path, title: str, real: Mapping[str, Floats], simulated: Mapping[str, Floats]) -> None:
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    figure, axes = plt.subplots(1, len(SCATTERED), figsize=(9, 4.4))
    for axis, (name, title) in zip(axes, SCATTERED.items(), strict=True):
        ours, theirs = real[name] * 1e3, simulated[name] * 1e3
        is_shown = (ours > 0.0) & (theirs > 0.0)
        axis.scatter(ours[is_shown], theirs[is_shown], s=10, alpha=0.6, linewidths=0)
        ends = [*ours[is_shown], *theirs[is_shown]]
        low, high = (min(ends) / 1.2, max(ends) * 1.2) if ends else (1.0, 10.0)
        axis.plot([low, high], [low, high], color="black", linewidth=0.8)
        axis.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), aspect="equal")
        for each in (axis.xaxis, axis.yaxis):
            is_short = high < FEW_TICKS * low
            each.set_major_locator(MaxNLocator(MOST_TICKS) if is_short else LogLocator())
            each.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            each.set_minor_formatter(NullFormatter())
        axis.set(xlabel=f"{title}, real (ms)", ylabel=f"{title}, simulated (ms)")
    figure.suptitle(title, x=0.01, ha="left")
    figure.tight_layout()
    figure.savefig(path, dpi=DPI)
    plt.close(figure)
