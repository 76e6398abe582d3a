"""Figures of a comparison: latency distributions and lane timelines.

Imports matplotlib and seaborn; only called where figures were asked for. Not here: the numbers (sim.metrics).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sim.metrics import latencies_s
from sim.records import RunRecord, WorkRecord

KIND_COLOURS = {
    "prefill": "#4c72b0",
    "draft": "#dd8452",
    "verify": "#55a868",
    "step": "#8172b3",
    "copy": "#937860",
}
TITLES = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "E2EL"}
TIMELINE_WORKS = 60
"""Works of the busiest stream that a timeline shows."""
DPI = 130


def draw_comparison(directory: Path, result: dict[str, Any], records: Sequence[RunRecord]) -> None:
    """latency_cdf.png over all replications, timeline.png of the first one of each policy. Raises ValueError without
    the plotting libraries."""
    try:
        import matplotlib
        import seaborn as sns
    except ImportError:
        raise ValueError("--plots needs the analysis extra: pip install 'lanesim[analysis]'") from None
    matplotlib.use("Agg")
    sns.set_theme(style="whitegrid", context="notebook", font_scale=0.8)
    title = _title(result)
    _draw_cdfs(directory / "latency_cdf.png", title, records)
    recorded = [record for record in records if record.works]
    if recorded:
        _draw_timelines(directory / "timeline.png", title, recorded)


def _title(result: dict[str, Any]) -> str:
    scenario = result["scenario"]
    workload, speculation = scenario["workload"], scenario["speculation"]
    return (
        f"{result['profile']['name']}: {workload['request_rate']} requests/s, {workload['dataset_name']}, "
        f"k={speculation['num_speculative_tokens']}, {speculation['acceptance']}"
    )


def _draw_cdfs(path: Path, title: str, records: Sequence[RunRecord]) -> None:
    import matplotlib.pyplot as plt
    import seaborn as sns
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    policies = list(dict.fromkeys(record.policy for record in records))
    colours = dict(zip(policies, sns.color_palette("deep", len(policies)), strict=True))
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.8), sharey=True)
    for axis, (name, label) in zip(axes, TITLES.items(), strict=True):
        for policy in policies:
            parts = [
                latencies_s([request for request in record.requests if request.is_finished])[name]
                for record in records
                if record.policy == policy
            ]
            values_ms = np.sort(np.concatenate(parts)) * 1e3
            if len(values_ms):
                shares = np.arange(1, len(values_ms) + 1) / len(values_ms)
                axis.step(values_ms, shares, where="post", label=policy, color=colours[policy], linewidth=1.6)
        axis.set_xscale("log")
        low, high = axis.get_xlim()
        axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 100.0 * low else (1.0,), numticks=12))
        axis.xaxis.set_major_formatter(FuncFormatter(_short))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set_xlabel(f"{label} (ms)")
    axes[0].set_ylabel("share of requests")
    axes[0].set_ylim(0, 1.01)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="center right", frameon=False)
    figure.suptitle(title, x=0.01, ha="left")
    figure.tight_layout(rect=(0, 0, 0.89, 1))
    figure.savefig(path, dpi=DPI)
    plt.close(figure)


def _short(value: float, _: Any) -> str:
    """A tick label: 500, 2k."""
    return f"{value / 1000:g}k" if value >= 1000.0 else f"{value:g}"


def _draw_timelines(path: Path, title: str, records: Sequence[RunRecord]) -> None:
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    windows = [timeline_window(record.works) for record in records]
    length_s = float(np.median([end_s - start_s for start_s, end_s in windows]))
    streams = [list(dict.fromkeys(work.stream for work in record.works)) for record in records]
    figure, axes = plt.subplots(
        len(records),
        1,
        figsize=(12, 0.9 + sum(0.45 + 0.32 * len(names) for names in streams)),
        squeeze=False,
        sharex=True,
        height_ratios=[1 + len(names) for names in streams],
    )
    seen: set[str] = set()
    for axis, record, names, (start_s, _) in zip(axes[:, 0], records, streams, windows, strict=True):
        end_s = start_s + length_s
        for work in record.works:
            if work.kind == "host" or work.end_s <= start_s or work.start_s >= end_s:
                continue
            seen.add(work.kind)
            left_s = max(work.start_s, start_s)
            axis.barh(
                names.index(work.stream),
                (min(work.end_s, end_s) - left_s) * 1e3,
                left=(left_s - start_s) * 1e3,
                height=0.8,
                color=KIND_COLOURS[work.kind],
                alpha=1.0 if work.model == "target" or work.kind != "prefill" else 0.5,
                edgecolor="white",
                linewidth=0.4,
            )
        axis.set_yticks(range(len(names)), names)
        axis.set_ylim(len(names) - 0.4, -0.6)
        axis.set_xlim(0, length_s * 1e3)
        axis.set_title(record.policy, loc="left", fontsize=9, pad=2)
        axis.grid(axis="y", visible=False)
    axes[-1, 0].set_xlabel("ms of simulated time, from the middle of the run")
    handles = [Patch(color=colour, label=kind) for kind, colour in KIND_COLOURS.items() if kind in seen]
    figure.legend(handles=handles, loc="upper right", ncols=len(handles), frameon=False)
    figure.suptitle(title, x=0.01, ha="left")
    figure.tight_layout()
    figure.savefig(path, dpi=DPI)
    plt.close(figure)


def timeline_window(works: Sequence[WorkRecord]) -> tuple[float, float]:
    """Start and end, seconds, of a stretch in the middle of the run with TIMELINE_WORKS works on the busiest stream."""
    by_stream: dict[str, list[WorkRecord]] = {}
    for work in works:
        by_stream.setdefault(work.stream, []).append(work)
    busiest = max(by_stream.values(), key=len)
    first = max(0, len(busiest) // 2 - TIMELINE_WORKS // 2)
    stretch = busiest[first : first + TIMELINE_WORKS]
    return stretch[0].start_s, stretch[-1].end_s
