"""The report of replay_accuracy.py: Markdown tables of every draw, and one figure.

Not here: any measuring, one cell's numbers (validation.replays.rows).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from validation.replays.rows import Cell, Draw, cells_of

BARS = {"e2el": 15.0, "throughput": 10.0, "mechanism": 5.0}
"""Percent: mean E2EL, closed-loop throughput, mechanism error on mean and p95 E2EL."""


def write_report(directory: Path, draws: Sequence[Draw]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    num_replays = len(cells_of(draws[0], "open")[0].replays)
    lines = [
        "# The tiny pair on a CPU, with a profile measured just before",
        "",
        f"Machine: {draws[0]['machine']}. {len(draws)} draws, all shown; each measured its profile, wrote its "
        f"predictions down, then replayed everything {num_replays} times, round after round. Errors are (simulated - "
        "real) / real, percent of the mean over the replays; **bold** misses its bar "
        f"(mean E2EL {BARS['e2el']:g}, closed-loop throughput {BARS['throughput']:g}, mechanism {BARS['mechanism']:g} "
        "on mean and p95 E2EL of every replay).",
        "",
        "*mechanism*: the simulator on each work's measured time, so that only scheduling can differ. *passes alone* "
        "and *together*: simulated over real mean time of works that had the device to themselves, and that did not. "
        "*drift*: fixed passes right before and after the replays, times as long as when the profile was measured. "
        "*others*: cores that other processes used meanwhile.",
        "",
        *_count(draws),
        "",
        *_summary(draws),
    ]
    for number, draw in enumerate(draws, start=1):
        lines += ["", f"## Draw {number}, open loop at {draw['rate']:g} requests/s", "", *_table(draw, "open")]
        lines += ["", f"## Draw {number}, closed loop", "", *_table(draw, "closed")]
        lines += ["", _profile(draw)]
    (directory / "README.md").write_text("\n".join([*lines, "", "![Errors of every draw](errors.png)", ""]))
    _figure(directory / "errors.png", draws)


def _count(draws: Sequence[Draw]) -> list[str]:
    """How many of all errors are within their bars."""
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
    return [f"Within their bars: {'; '.join(counts)}."]


def _summary(draws: Sequence[Draw]) -> list[str]:
    lines = [
        "| policy | mean E2EL error, open | mean E2EL error, closed | throughput error, closed "
        "| mechanism, worst of mean and p95 E2EL, both loads | what dominates |",
        "|---|---|---|---|---|---|",
    ]
    by_load = {load: [cells_of(draw, load) for draw in draws] for load in ("open", "closed")}
    for number, first in enumerate(by_load["open"][0]):
        cells = {load: [each[number] for each in by_load[load]] for load in by_load}
        worst = [max((a.worst_mechanism, b.worst_mechanism), key=abs) for a, b in zip(*cells.values(), strict=True)]
        columns = [
            ", ".join(_marked(cell.error("e2el", "mean"), BARS["e2el"]) for cell in cells["open"]),
            ", ".join(_marked(cell.error("e2el", "mean"), BARS["e2el"]) for cell in cells["closed"]),
            ", ".join(_marked(cell.error("output_throughput"), BARS["throughput"]) for cell in cells["closed"]),
            ", ".join(_marked(error, BARS["mechanism"]) for error in worst),
            "; ".join(f"{load}: {', '.join(cell.dominant for cell in found)}" for load, found in cells.items()),
        ]
        lines.append(f"| `{first.policy}` | " + " | ".join(columns) + " |")
    return lines


def _table(draw: Draw, load: str) -> list[str]:
    lines = [
        "| policy | mean E2EL real, simulated ms | error | p95 E2EL real, simulated ms | error "
        "| tokens/s real, simulated | error | mechanism mean, p95 | passes alone | together | drift | others "
        "| dominates |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    cells = cells_of(draw, load)
    for cell in cells:
        others = cell.around("others_cores")
        columns = [
            _beside(cell, "e2el", "mean", 1),
            _marked(cell.error("e2el", "mean"), BARS["e2el"]),
            _beside(cell, "e2el", "p95", 1),
            f"{cell.error('e2el', 'p95'):+.1f}",
            _beside(cell, "output_throughput", None, 0),
            _marked(cell.error("output_throughput"), BARS["throughput"] if load == "closed" else 1e9),
            "; ".join(
                ", ".join(_marked(error, BARS["mechanism"]) for error in cell.mechanism(name))
                for name in ("mean", "p95")
            ),
            *("-" if (ratio := cell.works_ratio(how)) is None else f"{ratio:.2f}" for how in ("alone", "together")),
            f"{cell.slowdown:.2f}",
            "-" if others is None else f"{others:.2f}",
            cell.dominant,
        ]
        lines.append(f"| `{cell.policy}` | " + " | ".join(columns) + " |")
    return lines


def _beside(cell: Cell, metric: str, statistic: str | None, digits: int) -> str:
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


Value = Callable[[Cell], list[float]]


def _figure(path: Path, draws: Sequence[Draw]) -> None:
    """One dot per draw, for the mechanism per replay: errors by policy against their bars."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    def e2el(cell: Cell) -> list[float]:
        return [cell.error("e2el", "mean")]

    def throughput(cell: Cell) -> list[float]:
        return [cell.error("output_throughput")]

    def mechanism(cell: Cell) -> list[float]:
        return cell.mechanism("mean")

    panels: list[tuple[str, str, Value, float]] = [
        ("mean E2EL, open loop", "open", e2el, BARS["e2el"]),
        ("mean E2EL, closed loop", "closed", e2el, BARS["e2el"]),
        ("throughput, closed loop", "closed", throughput, BARS["throughput"]),
        ("mechanism on mean E2EL, open", "open", mechanism, BARS["mechanism"]),
        ("mechanism on mean E2EL, closed", "closed", mechanism, BARS["mechanism"]),
    ]
    figure, axes = plt.subplots(1, len(panels), figsize=(15, 3.6), sharey=True)
    for axis, (title, load, value, bar_pct) in zip(axes, panels, strict=True):
        for number, draw in enumerate(draws):
            dots = [(error, cell.policy) for cell in cells_of(draw, load) for error in value(cell)]
            axis.plot(*zip(*dots, strict=True), "o", alpha=0.75, label=f"draw {number + 1}")
        axis.axvspan(-bar_pct, bar_pct, color="tab:green", alpha=0.12)
        axis.axvline(0.0, color="black", linewidth=0.8)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("error, % of real")
        axis.grid(axis="x", alpha=0.3)
    axes[0].invert_yaxis()
    axes[0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    plt.close(figure)
