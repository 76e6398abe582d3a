"""Figures of comparisons: latency distributions, throughput against latency.

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
from sim.report.pictures.panels import COLOURS, PAPER, headline, panel, save_and_close, set_log_scale, set_theme
from sim.report.pictures.work_figures import draw_timelines

TITLES = {"ttft": "TTFT (ms)", "tpot": "TPOT (ms)", "e2el": "E2EL (ms)"}
MEANS = {"mean_ttft_ms": "mean TTFT (ms)", "mean_e2el_ms": "mean E2EL (ms)"}


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


def draw_throughput_latency(path: Path, results: Sequence[Comparison]) -> None:
    """Output throughput against mean TTFT and mean E2EL, a line per policy and profile through the loads of `results`.

    Hollow points are overloaded runs, whose latencies depend on their length.
    """
    import pandas as pd
    import seaborn

    set_theme()
    rows = [
        {"policy": row.policy, "profile": result.profile.name, "metric": label, "value": row.mean[key],
         "output": row.mean["output_throughput"], "unstable": row.unstable}
        for result in results for row in result.policies for key, label in MEANS.items() if row.mean[key] is not None
    ]  # fmt: skip
    table = pd.DataFrame(rows).sort_values("output", kind="stable")
    colours = dict(zip(dict.fromkeys(row["policy"] for row in rows), COLOURS * len(rows), strict=False))
    grid = seaborn.relplot(
        table, kind="line", x="output", y="value", hue="policy", style="profile", col="metric", palette=colours,
        markers=True, errorbar=None, sort=False, height=3.6, aspect=1.3, facet_kws={"sharey": False},
        col_order=list(MEANS.values()),
    )  # fmt: skip
    for label, axis in grid.axes_dict.items():
        hollow = table[(table["metric"] == label) & table["unstable"]]
        edges = [colours[policy] for policy in hollow["policy"]]
        axis.scatter(hollow["output"], hollow["value"], s=36, facecolors=PAPER, edgecolors=edges, zorder=3)
        set_log_scale(axis, "y")
        panel(axis, x="output (tokens/s)", y=label)
    of = "1 result" if len(results) == 1 else f"{len(results)} results"
    profiles = table["profile"].unique()
    whose = profiles[0] if len(profiles) == 1 else f"{len(profiles)} profiles"
    headline(grid.figure, f"Mean TTFT and E2EL against throughput, {of}; hollow: overloaded\n{whose}")
    save_and_close(grid.figure, path)
