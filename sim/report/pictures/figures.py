"""Figures of a comparison: latency distributions, and what runs when.

Imports seaborn; only called where figures were requested. Not here: the numbers (sim.metrics.summary), and timelines of
single works (sim.report.pictures.work_figures).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sim.compare.side_by_side import Comparison
from sim.interface.request import Request
from sim.metrics.records import RunRecord
from sim.metrics.stats import Floats
from sim.metrics.summary import latencies_s
from sim.report.pictures.panels import COLOURS, headline, panel, save_and_close, set_log_scale, set_theme
from sim.report.pictures.work_figures import draw_timelines

TITLES = {"ttft": "TTFT (ms)", "tpot": "TPOT (ms)", "e2el": "E2EL (ms)"}


def draw_comparison(directory: Path, result: Comparison, records: Sequence[RunRecord]) -> None:
    """latency_cdf.png over all replications, and timeline.png of the first requests of each policy.

    Raises ValueError without the plotting libraries.
    """
    set_theme()
    workload, speculation = result.scenario["workload"], result.scenario["speculation"]
    title = (
        f"{result.profile.name}: {workload['request_rate']} requests/s, {workload['dataset_name']}, "
        f"k={speculation['num_speculative_tokens']}, {speculation['acceptance']}"
    )
    finished: dict[str, list[Request]] = {}
    for record in records:
        finished.setdefault(record.policy, []).extend(each for each in record.requests if each.is_finished)
    draw_cdfs(directory / "latency_cdf.png", title, {name: latencies_s(each) for name, each in finished.items()})
    if recorded := [record for record in records if record.works]:
        draw_timelines(directory / "timeline.png", title, recorded)


def draw_cdfs(path: Path, title: str, sides: Mapping[str, Mapping[str, Floats]]) -> None:
    """TTFT, TPOT and E2EL (seconds, by metric) of each side, one step line each."""
    import pandas as pd
    import seaborn

    table = pd.DataFrame(
        [
            (side, label, 1e3 * value_s)
            for side, of in sides.items()
            for name, label in TITLES.items()
            for value_s in of[name]
        ],
        columns=["side", "metric", "ms"],
    )
    colours = dict(zip(sides, COLOURS * len(sides), strict=False))
    grid = seaborn.displot(
        table, kind="ecdf", x="ms", hue="side", col="metric", col_order=list(TITLES.values()), palette=colours,
        height=3.4, facet_kws={"sharex": False, "legend_out": True},
    )  # fmt: skip
    for label, axis in grid.axes_dict.items():
        set_log_scale(axis, "x")
        panel(axis, x=label, y="share of requests")
    headline(grid.figure, f"Share of requests within a latency\n{title}")
    save_and_close(grid.figure, path)
