"""Figures of comparisons: latency distributions, throughput against latency.

Imports matplotlib; only called where figures were requested. Not here: the numbers (sim.metrics.summary),
and figures of single works (sim.report.pictures.work_figures).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path

import numpy as np

from sim.compare.side_by_side import Comparison
from sim.compare.verdict import PolicySummary
from sim.interface.request import Request
from sim.metrics.breakdown import PHASES
from sim.metrics.records import RunRecord
from sim.metrics.stats import Floats
from sim.metrics.summary import latencies_s
from sim.report.pictures.panels import (
    COLOURS,
    canvas,
    headline,
    legend,
    panel,
    save_and_close,
    set_log_scale,
    set_theme,
)
from sim.report.pictures.work_figures import draw_occupancy, draw_phases, draw_timelines

TITLES = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "E2EL"}
MARKERS = "os^DvP"
"""Marks of profiles, in order of appearance."""


def draw_comparison(directory: Path, result: Comparison, records: Sequence[RunRecord]) -> None:
    """latency_cdf.png over all replications; breakdown.png, timeline.png and occupancy.png of the first
    requests of each policy's first.

    Raises ValueError without the plotting libraries.
    """
    set_theme()
    title = _title(result)
    draw_cdfs(directory / "latency_cdf.png", title, _latencies_s(records))
    recorded = [record for record in records if record.works]
    if recorded:
        draw_timelines(directory / "timeline.png", title, recorded)
        draw_phases(directory / "breakdown.png", title, _phases_s(result))
        draw_occupancy(directory / "occupancy.png", title, recorded)


def _phases_s(result: Comparison) -> dict[str, dict[str, float]]:
    """Mean seconds per request by policy and phase, of requests whose works are recorded."""
    phases_ms = {run["policy"]: run["phases_ms"] for run in reversed(result.runs)}
    return {
        row.policy: {phase: (phases[phase] or 0.0) / 1e3 for phase in PHASES}
        for row in result.policies
        if isinstance(phases := phases_ms[row.policy], dict)
    }


def _title(result: Comparison) -> str:
    scenario = result.scenario
    workload, speculation = scenario["workload"], scenario["speculation"]
    return (
        f"{result.profile.name}: {workload['request_rate']} requests/s, {workload['dataset_name']}, "
        f"k={speculation['num_speculative_tokens']}, {speculation['acceptance']}"
    )


def _latencies_s(records: Sequence[RunRecord]) -> dict[str, dict[str, Floats]]:
    """Seconds by policy and metric, of what finished in all its runs."""
    finished: dict[str, list[Request]] = {}
    for record in records:
        finished.setdefault(record.policy, []).extend(each for each in record.requests if each.is_finished)
    return {policy: latencies_s(requests) for policy, requests in finished.items()}


def draw_cdfs(path: Path, title: str, sides: Mapping[str, Mapping[str, Floats]]) -> None:
    """TTFT, TPOT and E2EL (seconds, by metric) of each side, one step line each."""
    figure, axes = canvas(1, 3, width=3.8, height=3.8, shared="y")
    for axis, (name, label) in zip(axes[0], TITLES.items(), strict=True):
        for (side, values_s), colour in zip(sides.items(), cycle(COLOURS), strict=False):
            values_ms = np.sort(values_s[name]) * 1e3
            if len(values_ms):
                shares = np.arange(1, len(values_ms) + 1) / len(values_ms)
                axis.step(values_ms, shares, where="post", label=side, color=colour, linewidth=1.6)
        set_log_scale(axis, "x")
        panel(axis, x=f"{label} (ms)")
    axes[0][0].set(ylabel="share of requests", ylim=(0, 1.01))
    legend(figure, axes)
    headline(figure, f"Share of requests within a latency\n{title}")
    save_and_close(figure, path)


def draw_throughput_latency(path: Path, results: Sequence[Comparison]) -> None:
    """Output throughput against mean TTFT and mean E2EL, a line per policy and profile through the loads of `results`.

    Hollow points are overloaded runs, whose latencies depend on their length.
    """
    from matplotlib.lines import Line2D

    set_theme()
    points: dict[tuple[str, str], list[PolicySummary]] = {}
    for result in results:
        for row in result.policies:
            points.setdefault((row.policy, result.profile.name), []).append(row)
    policies, profiles = (list(dict.fromkeys(names)) for names in zip(*points, strict=True))
    colours = dict(zip(policies, cycle(COLOURS), strict=False))
    markers = {profile: MARKERS[number % len(MARKERS)] for number, profile in enumerate(profiles)}
    figure, axes = canvas(1, 2, height=4.2)
    for axis, (metric, label) in zip(axes[0], (("mean_ttft_ms", "TTFT"), ("mean_e2el_ms", "E2EL")), strict=True):
        for (policy, profile), rows in points.items():
            known = [row for row in rows if row.mean[metric] is not None]
            known.sort(key=lambda row: row.mean["output_throughput"] or 0.0)
            xs, ys = ([row.mean[name] or 0.0 for row in known] for name in ("output_throughput", metric))
            colour = colours[policy]
            axis.plot(xs, ys, color=colour, linewidth=1.4)
            faces = ["white" if row.unstable else colour for row in known]
            axis.scatter(xs, ys, marker=markers[profile], facecolors=faces, edgecolors=[colour], s=36, zorder=3)
        set_log_scale(axis, "y")
        panel(axis, x="output (tokens/s)", y=f"mean {label} (ms)")
    handles = [Line2D([], [], color=colours[policy], label=policy) for policy in policies]
    if len(profiles) > 1:
        handles += [
            Line2D([], [], linestyle="none", marker=markers[profile], color="grey", label=profile)
            for profile in profiles
        ]
    legend(figure, axes, handles)
    of = "1 result" if len(results) == 1 else f"{len(results)} results"
    whose = profiles[0] if len(profiles) == 1 else f"{len(profiles)} profiles"
    headline(figure, f"Mean TTFT and E2EL against throughput, {of}; hollow: overloaded\n{whose}")
    save_and_close(figure, path)
