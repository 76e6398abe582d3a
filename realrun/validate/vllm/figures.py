"""Figures of `validate vllm`: every request simulated against real, and the distributions laid over each other.

Imports matplotlib; only called where figures are drawn. Not here: the numbers (realrun.validate.vllm.compare).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from realrun.validate.vllm.compare import VllmVerdict, latencies_s
from sim.files.write import write_figure
from sim.metrics.stats import Floats
from sim.report.figures import DPI, set_theme

SCATTERED = {"ttft": "TTFT", "e2el": "E2EL"}
DISTRIBUTED = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "E2EL"}
SIDES = {"real": "-", "simulated": "--"}
FEW_TICKS = 20.0
"""A logarithmic axis that spans less than this factor gets round numbers in place of decades."""
MOST_TICKS = 4


def draw_vllm(directory: Path, verdict: VllmVerdict) -> list[Path]:
    """validation-scatter.png and validation-cdf.png. Raises ValueError without the plotting libraries."""
    set_theme()
    real, simulated = latencies_s(verdict.real.requests), latencies_s(verdict.simulated.requests)
    paths = []
    for name, draw in (("scatter", _draw_scatter), ("cdf", _draw_cdfs)):
        paths.append(directory / f"validation-{name}.png")
        write_figure(paths[-1], partial(_save, draw(real, simulated), verdict))
    return paths


def _draw_scatter(real: Mapping[str, Floats], simulated: Mapping[str, Floats]) -> Any:
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
    return figure


def _draw_cdfs(real: Mapping[str, Floats], simulated: Mapping[str, Floats]) -> Any:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(DISTRIBUTED), figsize=(12, 3.8), sharey=True)
    for axis, (name, title) in zip(axes, DISTRIBUTED.items(), strict=True):
        for (side, style), values_s in zip(SIDES.items(), (real[name], simulated[name]), strict=True):
            shares = np.arange(1, len(values_s) + 1) / max(1, len(values_s))
            axis.step(np.sort(values_s) * 1e3, shares, style, where="post", label=side)
        axis.set_xlabel(f"{title} (ms)")
        axis.locator_params(axis="x", nbins=MOST_TICKS)
    axes[0].set_ylabel("share of requests")
    axes[0].set_ylim(0, 1.01)
    axes[0].legend(frameon=False)
    return figure


def _save(figure: Any, verdict: VllmVerdict, path: Path) -> None:
    import matplotlib.pyplot as plt

    result = verdict.result
    title = f"{result['profile']['name']}, {result['policy']}: {result['num_requests']} requests of a real vLLM run"
    figure.suptitle(title, x=0.01, ha="left")
    figure.tight_layout()
    figure.savefig(path, dpi=DPI)
    plt.close(figure)
