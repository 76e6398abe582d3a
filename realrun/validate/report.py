"""Figures of a validation: latency CDFs of both sides, error by metric, and two timelines one above the other.

Imports matplotlib; only called where figures are drawn. Not here: the numbers (realrun.validate.compare).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from realrun.validate.compare import LATENCIES, Judged
from sim.files.write import write_figure
from sim.metrics.records import WorkRecord
from sim.metrics.summary import latencies_s
from sim.report.work_figures import KIND_COLOURS, timeline_window
from sim.seam.request import Request

TITLES = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "E2EL"}
PARTS = {"mechanism": "#4c72b0", "cost": "#dd8452", "contention": "#55a868"}
DPI = 130


def draw_validation(directory: Path, judged: Sequence[Judged]) -> list[Path]:
    """One set of figures per run of the replay. Raises ValueError without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        raise ValueError("figures need the analysis extra: pip install 'lanesim[analysis]'") from None
    matplotlib.use("Agg")
    paths = []
    for each in judged:
        name = f"{each.verdict['policy']}-{each.verdict['seed']}"
        for what, draw in (("cdf", _draw_cdfs), ("error", _draw_errors), ("timelines", _draw_timelines)):
            path = directory / f"validation-{what}-{name}.png"
            draw(path, each)
            paths.append(path)
    return paths


def _draw_cdfs(path: Path, judged: Judged) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), sharey=True)
    sides = {"real": judged.observed.requests, "simulated": judged.simulated.requests}
    for axis, (name, title) in zip(axes, TITLES.items(), strict=True):
        for side, requests in sides.items():
            values_ms = np.sort(_finished_latencies(requests)[name]) * 1e3
            shares = np.arange(1, len(values_ms) + 1) / max(1, len(values_ms))
            axis.step(values_ms, shares, where="post", label=side)
        axis.set_xlabel(f"{title} (ms)")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("share of requests")
    axes[0].legend(frameon=False)
    _save(figure, path, judged, "latencies, real and simulated")


def _finished_latencies(requests: Sequence[Request]) -> dict[str, Any]:
    return latencies_s([request for request in requests if request.is_finished])


def _draw_errors(path: Path, judged: Judged) -> None:
    import matplotlib.pyplot as plt

    labels = [f"{statistic} {name.upper()}" for name in LATENCIES for statistic in ("mean", "p95")]
    figure, axis = plt.subplots(figsize=(9, 3.6))
    for number, (part, colour) in enumerate(PARTS.items()):
        metrics = judged.verdict["decomposition"][part]
        errors = [metrics[name][statistic]["error_pct"] for name in LATENCIES for statistic in ("mean", "p95")]
        places = np.arange(len(labels)) + (number - 1) * 0.27
        axis.bar(places, [np.nan if error is None else error for error in errors], 0.25, label=part, color=colour)
    axis.axhline(0.0, color="black", linewidth=0.8)
    axis.set_xticks(range(len(labels)), labels, rotation=20, ha="right")
    axis.set_ylabel("error, % of real")
    axis.legend(frameon=False, ncols=3)
    axis.grid(axis="y", alpha=0.3)
    _save(figure, path, judged, "error by metric: measured times, profile's times, with contention")


def _draw_timelines(path: Path, judged: Judged) -> None:
    """The same stretch of time on both sides, real above."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    real = judged.observed.records
    start_s, end_s = timeline_window(real)
    streams = list(dict.fromkeys(work.stream for work in real))
    figure, axes = plt.subplots(2, 1, figsize=(12, 2.0 + 0.7 * len(streams)), sharex=True)
    for axis, (side, works) in zip(axes, {"real": real, "simulated": judged.simulated.works}.items(), strict=True):
        _draw_works(axis, works, streams, start_s, end_s)
        axis.set_title(side, loc="left", fontsize=9, pad=2)
    axes[-1].set_xlabel("ms since the start of the run")
    kinds = list(dict.fromkeys(work.kind for work in real if work.kind in KIND_COLOURS))
    figure.legend(
        handles=[Patch(color=KIND_COLOURS[kind], label=kind) for kind in kinds],
        loc="upper right",
        ncols=len(kinds),
        frameon=False,
    )
    _save(figure, path, judged, "works by stream")


def _draw_works(axis: Any, works: Sequence[WorkRecord], streams: Sequence[str], start_s: float, end_s: float) -> None:
    for work in works:
        if work.kind not in KIND_COLOURS or work.end_s <= start_s or work.start_s >= end_s:
            continue
        left_s = max(work.start_s, start_s)
        axis.barh(
            streams.index(work.stream),
            (min(work.end_s, end_s) - left_s) * 1e3,
            left=left_s * 1e3,
            height=0.8,
            color=KIND_COLOURS[work.kind],
            edgecolor="white",
            linewidth=0.4,
        )
    axis.set_yticks(range(len(streams)), streams)
    axis.set_ylim(len(streams) - 0.4, -0.6)
    axis.set_xlim(start_s * 1e3, end_s * 1e3)


def _save(figure: Any, path: Path, judged: Judged, title: str) -> None:
    import matplotlib.pyplot as plt

    verdict, profile = judged.verdict, judged.observed.experiment.profile
    figure.suptitle(f"{profile.name}, {verdict['policy']}, seed {verdict['seed']}: {title}", x=0.01, ha="left")
    figure.tight_layout()
    write_figure(path, lambda scratch: figure.savefig(scratch, dpi=DPI))
    plt.close(figure)
