"""The figure of a comparison: what runs when, a panel per policy.

Imports seaborn and matplotlib; only called where figures were requested. Not here: the numbers (sim.metrics.summary),
the works (sim.metrics.records).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sim.compare.side_by_side import Comparison
from sim.metrics.records import RunRecord, WorkRecord
from sim.report.pictures.panels import headline, panel, save_and_close, set_theme

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KIND_COLOURS = {"prefill": "#4c72b0", "draft": "#dd8452", "verify": "#55a868", "step": "#8172b3", "copy": "#937860"}
KIND_HATCHES = {"prefill": "", "draft": "////", "verify": "....", "step": "", "copy": "xx"}
"""They tell kinds apart in grey."""
TIMELINE_WORKS, WINDOWS_TRIED = 60, 400
"""Works of the busiest stream that a timeline shows; times in the middle half of the runs where it might begin."""


def draw_comparison(directory: Path, result: Comparison, records: Sequence[RunRecord]) -> None:
    """timeline.png of the first requests of each policy.

    Raises ValueError without the plotting libraries.
    """
    set_theme()
    workload, speculation = result.scenario["workload"], result.scenario["speculation"]
    title = (
        f"{result.profile.name}: {workload['request_rate']} requests/s, {workload['dataset_name']}, "
        f"k={speculation['num_speculative_tokens']}, {speculation['acceptance']}"
    )
    if recorded := [record for record in records if record.works]:
        draw_timelines(directory / "timeline.png", title, recorded)


def draw_timelines(path: Path, title: str, records: Sequence[RunRecord]) -> None:
    """Works on the streams of each record, in one stretch of time for all, in which they are all busy."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    start_s, end_s = busy_window([record.works for record in records])
    streams = [list(dict.fromkeys(work.stream for work in record.works)) for record in records]
    figure: Figure = plt.figure(figsize=(12, 0.9 + sum(0.45 + 0.32 * len(names) for names in streams)))
    axes = figure.subplots(
        len(records), 1, squeeze=False, sharex=True, height_ratios=[1 + len(names) for names in streams]
    )
    seen: set[str] = set()
    for axis, record, names in zip(axes[:, 0], records, streams, strict=True):
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
                hatch=KIND_HATCHES[work.kind],
                alpha=1.0 if work.model == "target" or work.kind != "prefill" else 0.5,
                edgecolor="white",
                linewidth=0.4,
            )
        axis.set_yticks(range(len(names)), names)
        axis.set_ylim(len(names) - 0.4, -0.6)
        axis.set_xlim(0, (end_s - start_s) * 1e3)
        panel(axis, record.policy)
        axis.grid(axis="y", visible=False)
    axes[-1, 0].set_xlabel(f"from {start_s:,.2f} s on (ms)")
    handles = [
        Patch(facecolor=colour, edgecolor="white", hatch=KIND_HATCHES[kind], label=kind)
        for kind, colour in KIND_COLOURS.items()
        if kind in seen
    ]
    figure.legend(handles=handles, loc="upper right", ncols=len(handles), frameon=False)
    save_and_close(headline(figure, f"What runs when\n{title}"), path)


def busy_window(runs: Sequence[Sequence[WorkRecord]]) -> tuple[float, float]:
    """Start and end, seconds, of the stretch in the middle half of all runs in which the idlest of them has most to do;
    as long as TIMELINE_WORKS works on the busiest stream take in most of them."""
    lengths_s = []
    for works in runs:
        stream, count = Counter(work.stream for work in works).most_common(1)[0]
        busiest = [work for work in works if work.stream == stream][max(0, count // 2 - TIMELINE_WORKS // 2) :]
        lengths_s.append(busiest[:TIMELINE_WORKS][-1].end_s - busiest[0].start_s)
    length_s = float(np.median(lengths_s))
    last_s = min(max(work.end_s for work in works) for works in runs)
    starts_s = np.linspace(0.25 * last_s, max(0.25 * last_s, 0.75 * last_s - length_s), WINDOWS_TRIED)
    min_s = np.full(WINDOWS_TRIED, np.inf)
    for works in runs:
        spans = sorted((work.end_s, work.end_s - work.start_s) for work in works if work.kind != "host")
        ends_s, busy_s = [end_s for end_s, _ in spans], np.cumsum([taken_s for _, taken_s in spans])
        done_s = np.interp([starts_s, starts_s + length_s], ends_s, busy_s, left=0.0)
        min_s = np.minimum(min_s, done_s[1] - done_s[0])
    start_s = float(starts_s[min_s.argmax()])
    return start_s, start_s + length_s
