"""Figures of a validation: latency CDFs of both sides, error by metric, and two timelines one above the other.

Imports matplotlib; only called where figures are drawn. Not here: the numbers (realrun.validate.error_parts), the look
of CDFs and timelines (sim.report).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from realrun.validate.error_parts import JudgedRun
from sim.files.write import write_figure
from sim.metrics.compared import LATENCIES
from sim.metrics.summary import latencies_s
from sim.report.pictures.figures import draw_cdfs
from sim.report.pictures.panels import canvas, headline, legend, panel, save_and_close, set_theme
from sim.report.pictures.work_figures import draw_timelines, timeline_window

PARTS = {"mechanism": "#4c72b0", "cost": "#dd8452", "contention": "#55a868"}


def draw_validation(directory: Path, judged: Sequence[JudgedRun]) -> None:
    """One set of figures per run of the replay. Raises ValueError without the plotting libraries."""
    set_theme()
    for each in judged:
        observed, policy = each.observed, each.verdict["policy"]
        title = f"{observed.experiment.resolved.profile.name}, {policy}, seed {each.verdict['seed']}"
        real = dataclasses.replace(each.simulated, policy="real", requests=observed.requests, works=observed.records)
        sides = [real, dataclasses.replace(each.simulated, policy="simulated")]
        finished = {side.policy: [request for request in side.requests if request.is_finished] for side in sides}
        samples = {name: latencies_s(requests) for name, requests in finished.items()}
        window = timeline_window(real.works)
        for what, draw in (
            ("cdf", partial(draw_cdfs, title=f"{title}: latencies", sides=samples)),
            ("error", partial(_draw_errors, title=f"{title}: error by metric", judged=each)),
            ("timelines", partial(draw_timelines, title=f"{title}: works", records=sides, window=window)),
        ):
            write_figure(directory / f"validation-{what}-{policy}-{each.verdict['seed']}.png", draw)


def _draw_errors(path: Path, title: str, judged: JudgedRun) -> None:
    """Errors on measured times, with the profile's times, and with contention."""
    figure, ((axis,),) = canvas(1, 1, width=9.0)
    labels = [f"{statistic} {name.upper()}" for name in LATENCIES for statistic in ("mean", "p95")]
    for number, (part, colour) in enumerate(PARTS.items()):
        metrics = judged.verdict["decomposition"][part]
        errors = [metrics[name][statistic]["error_pct"] for name in LATENCIES for statistic in ("mean", "p95")]
        positions = np.arange(len(labels)) + (number - 1) * 0.27
        axis.bar(positions, [np.nan if error is None else error for error in errors], 0.25, label=part, color=colour)
    axis.axhline(0.0, color="black", linewidth=0.8)
    axis.set_xticks(range(len(labels)), labels, rotation=20, ha="right")
    panel(axis, y="error, % of real")
    legend(figure, [[axis]])
    headline(figure, title)
    save_and_close(figure, path)
