"""The report of replay_accuracy.py: Markdown tables of every draw, and one figure.

A cell is a policy under a load, replayed several times, beside its one prediction. Not here: any measuring.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from sim.report.pictures.panels import canvas, legend, panel, save_and_close, set_theme
from validation.tables import grouped, markdown, page

BARS = {"e2el": 15.0, "throughput": 10.0, "mechanism": 5.0}
"""Percent: mean E2EL, closed-loop throughput, mechanism error on mean and p95 E2EL."""


Row = dict[str, Any]
"""One replay: `load`, `policy`, `decomposition`, `works` and what was noted around it."""
Draw = dict[str, Any]


class ReplayedCell:
    """The replays of one policy under one load in one draw. Errors are percent of the mean over the replays."""

    def __init__(self, replays: Sequence[Row]) -> None:
        self.replays = list(replays)
        self.policy = self.replays[0]["policy"]

    def real(self, metric: str, statistic: str | None = None) -> list[float]:
        """Measured means, replay by replay."""
        return [float(self._value(row, "contention", metric, statistic)["real"]) for row in self.replays]

    def simulated(self, metric: str, statistic: str | None = None) -> float:
        """The same for every replay: the profile and the tape are."""
        return float(self._value(self.replays[0], "contention", metric, statistic)["simulated"])

    def error(self, metric: str, statistic: str | None = None) -> float:
        real = fmean(self.real(metric, statistic))
        return 100.0 * (self.simulated(metric, statistic) - real) / real

    def mechanism(self, statistic: str) -> list[float]:
        """Mechanism error on E2EL, replay by replay: each has its measured times."""
        return [float(self._value(row, "mechanism", "e2el", statistic)["error_pct"]) for row in self.replays]

    @property
    def worst_mechanism(self) -> float:
        return max((error for name in ("mean", "p95") for error in self.mechanism(name)), key=abs)

    def works_ratio(self, how: str) -> float | None:
        """Simulated over real mean device time of works `alone` or `together`, weighted by the real one; None where no
        work was so on both sides."""
        pairs = [
            (kind[f"real_{how}_s"], kind[f"simulated_{how}_s"])
            for row in self.replays
            for kind in row["works"].values()
        ]
        known = [(real, simulated) for real, simulated in pairs if real and simulated]
        return sum(simulated for _, simulated in known) / sum(real for real, _ in known) if known else None

    @property
    def slowdown(self) -> float:
        """Slowdown of fixed passes before and after the replays against their time when the profile was measured."""
        return fmean(ratio for row in self.replays for ratio in row["machine"] or [1.0])

    @property
    def dominant(self) -> str:
        """The largest step of the error on mean E2EL: scheduling, the machine that drifted, and beyond that the passes'
        times or works at the same time."""
        parts = {
            "scheduling": abs(fmean(self.mechanism("mean"))),
            "drift": 100.0 * abs(1.0 / self.slowdown - 1.0),
        }
        for name, how in (("passes alone", "alone"), ("together", "together")):
            ratio = self.works_ratio(how)
            parts[name] = 0.0 if ratio is None else 100.0 * abs(ratio * self.slowdown - 1.0)
        return max(parts, key=lambda name: parts[name])

    @property
    def others_cores(self) -> float | None:
        """Mean over the replays; None where it is unknown."""
        known = [row["others_cores"] for row in self.replays if row["others_cores"] is not None]
        return fmean(known) if known else None

    @staticmethod
    def _value(row: Row, part: str, metric: str, statistic: str | None) -> dict[str, Any]:
        statistics: dict[str, Any] = row["decomposition"][part][metric]
        return statistics if statistic is None else statistics[statistic]


def cells_of(draw: Draw, load: str) -> list[ReplayedCell]:
    """The cells in the order of the policies."""
    rows = [row for row in draw["rows"] if row["load"] == load]
    return list(map(ReplayedCell, grouped(rows, lambda row: str(row["policy"])).values()))


# -- the page


def write_report(directory: Path, draws: Sequence[Draw]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    sections = []
    for number, draw in enumerate(draws, start=1):
        sections += [f"## Draw {number}, open loop at {draw['rate']:g} requests/s", _table(draw, "open")]
        sections += [f"## Draw {number}, closed loop", _table(draw, "closed"), _profile(draw)]
    page(
        directory / "README.md",
        "replays",
        machine=draws[0]["machine"],
        draws=str(len(draws)),
        replays=str(len(cells_of(draws[0], "open")[0].replays)),
        **{name: f"{bar:g}" for name, bar in BARS.items()},
        count=_count(draws),
        summary=_summary(draws),
        sections="\n\n".join(sections),
    )
    _figure(directory / "errors.png", draws)


def _count(draws: Sequence[Draw]) -> str:
    """Number of errors within their bars, of all."""
    cells = [cell for draw in draws for load in ("open", "closed") for cell in cells_of(draw, load)]
    closed = [cell for draw in draws for cell in cells_of(draw, "closed")]
    mechanism = [error for cell in cells for name in ("mean", "p95") for error in cell.mechanism(name)]
    parts = {
        "mechanism": (mechanism, BARS["mechanism"]),
        "mean E2EL": ([cell.error("e2el", "mean") for cell in cells], BARS["e2el"]),
        "closed-loop throughput": ([cell.error("output_throughput") for cell in closed], BARS["throughput"]),
    }
    counts = [
        f"{name} {sum(abs(error) <= bar_pct for error in errors)} of {len(errors)}"
        for name, (errors, bar_pct) in parts.items()
    ]
    return f"Within their bars: {'; '.join(counts)}."


def _summary(draws: Sequence[Draw]) -> Any:
    """Frame of a row per policy, errors of every draw in a cell."""
    import pandas as pd

    def marked(cells: Sequence[ReplayedCell], metric: str, statistic: str | None, bar: str) -> str:
        return ", ".join(_marked(cell.error(metric, statistic), BARS[bar]) for cell in cells)

    rows = []
    by_load = {load: [cells_of(draw, load) for draw in draws] for load in ("open", "closed")}
    for number, first in enumerate(by_load["open"][0]):
        cells = {load: [each[number] for each in by_load[load]] for load in by_load}
        worst = [max((a.worst_mechanism, b.worst_mechanism), key=abs) for a, b in zip(*cells.values(), strict=True)]
        dominant = "; ".join(f"{load}: {', '.join(each.dominant for each in of)}" for load, of in cells.items())
        rows.append(
            {
                "policy": f"`{first.policy}`",
                "mean E2EL error, open": marked(cells["open"], "e2el", "mean", "e2el"),
                "mean E2EL error, closed": marked(cells["closed"], "e2el", "mean", "e2el"),
                "throughput error, closed": marked(cells["closed"], "output_throughput", None, "throughput"),
                "mechanism, worst of mean and p95 E2EL, both loads": ", ".join(
                    _marked(error, BARS["mechanism"]) for error in worst
                ),
                "what dominates": dominant,
            }
        )
    return pd.DataFrame(rows)


def _table(draw: Draw, load: str) -> str:
    """Every cell of one draw and load."""
    import pandas as pd

    throughput_bar = BARS["throughput"] if load == "closed" else 1e9
    columns: dict[str, Callable[[ReplayedCell], str | None]] = {
        "policy": lambda cell: f"`{cell.policy}`",
        "mean E2EL real, simulated ms": lambda cell: _beside(cell, "e2el", "mean", 1),
        "its error": lambda cell: _marked(cell.error("e2el", "mean"), BARS["e2el"]),
        "p95 E2EL real, simulated ms": lambda cell: _beside(cell, "e2el", "p95", 1),
        "p95's error": lambda cell: f"{cell.error('e2el', 'p95'):+.1f}",
        "tokens/s real, simulated": lambda cell: _beside(cell, "output_throughput", None, 0),
        "throughput's error": lambda cell: _marked(cell.error("output_throughput"), throughput_bar),
        "mechanism mean, p95": lambda cell: "; ".join(
            ", ".join(_marked(error, BARS["mechanism"]) for error in cell.mechanism(name)) for name in ("mean", "p95")
        ),
        "passes alone": lambda cell: _ratio(cell.works_ratio("alone")),
        "together": lambda cell: _ratio(cell.works_ratio("together")),
        "drift": lambda cell: _ratio(cell.slowdown),
        "others": lambda cell: _ratio(cell.others_cores),
        "dominates": lambda cell: cell.dominant,
    }
    rows = [{title: value(cell) for title, value in columns.items()} for cell in cells_of(draw, load)]
    return markdown(pd.DataFrame(rows))


def _ratio(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}"


def _beside(cell: ReplayedCell, metric: str, statistic: str | None, digits: int) -> str:
    """Every replay, then the prediction."""
    real = " ".join(f"{value:.{digits}f}" for value in cell.real(metric, statistic))
    return f"{real}, {cell.simulated(metric, statistic):.{digits}f}"


def _profile(draw: Draw) -> str:
    host, overlap = draw["profile"]["host"], draw["profile"]["overlap"]
    errors = {kind: error for kind, error in draw["profile"]["errors"].items() if error is not None}
    served = ", ".join(f"{kind} {factor:.2f}" for kind, factor in host["served"].items())
    lost_s = host["idle_ramp"]["lost_s"] if host["idle_ramp"] else 0.0
    return (
        f"Profile: {1e6 * host['step_s']:.0f} us per work beside its pass, {1e6 * host['result_s']:.0f} us to the next "
        f"act, {1e6 * host['look_s']:.0f} us per look of an idle worker, {1e6 * overlap['tau_s']:.1f} us per kernel "
        f"and other work, {1e3 * lost_s:.1f} ms lost by a long pause; in service passes take longer than in a loop by "
        f"{served}; held-out errors " + ", ".join(f"{kind} {error:.1f} %" for kind, error in errors.items())
    )


def _marked(error_pct: float, bar_pct: float) -> str:
    return f"{error_pct:+.1f}" if abs(error_pct) <= bar_pct else f"**{error_pct:+.1f}**"


Value = Callable[[ReplayedCell], list[float]]
PANELS: tuple[tuple[str, str, Value, float], ...] = (
    ("mean E2EL, open loop", "open", lambda cell: [cell.error("e2el", "mean")], BARS["e2el"]),
    ("mean E2EL, closed loop", "closed", lambda cell: [cell.error("e2el", "mean")], BARS["e2el"]),
    ("throughput, closed loop", "closed", lambda cell: [cell.error("output_throughput")], BARS["throughput"]),
    ("mechanism on mean E2EL, open", "open", lambda cell: cell.mechanism("mean"), BARS["mechanism"]),
    ("mechanism on mean E2EL, closed", "closed", lambda cell: cell.mechanism("mean"), BARS["mechanism"]),
)


def _figure(path: Path, draws: Sequence[Draw]) -> None:
    """One dot per draw, for the mechanism per replay: errors by policy against their bars."""
    set_theme()
    figure, axes = canvas(1, len(PANELS), width=2.9, shared="y")
    for axis, (title, load, value, bar_pct) in zip(axes[0], PANELS, strict=True):
        for number, draw in enumerate(draws):
            dots = [(error, cell.policy) for cell in cells_of(draw, load) for error in value(cell)]
            axis.plot(*zip(*dots, strict=True), "o", alpha=0.75, label=f"draw {number + 1}")
        axis.axvspan(-bar_pct, bar_pct, color="tab:green", alpha=0.12)
        axis.axvline(0.0, color="black", linewidth=0.8)
        panel(axis, title, "error, % of real")
    axes[0][0].invert_yaxis()
    legend(figure, axes)
    save_and_close(figure, path)
