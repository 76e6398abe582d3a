"""The report of replay_accuracy.py: Markdown tables of every draw, and one figure.

Not here: any measuring.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

BARS = {"e2el": 15.0, "throughput": 10.0, "mechanism": 5.0}
"""Percent: mean E2EL, closed-loop throughput, mechanism error on mean and p95 E2EL."""
Row = dict[str, Any]
Draw = dict[str, Any]


def write_report(directory: Path, draws: Sequence[Draw]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    lines = [
        "# The tiny pair on a CPU, with a profile measured just before",
        "",
        f"Machine: {draws[0]['machine']}. {len(draws)} draws, all shown; each measured its profile, wrote its "
        "predictions down, then replayed. Errors are (simulated - real) / real, percent; **bold** misses its bar "
        f"(mean E2EL {BARS['e2el']:g}, closed-loop throughput {BARS['throughput']:g}, mechanism {BARS['mechanism']:g} "
        "on mean and p95 E2EL).",
        "",
        "*mechanism*: the simulator on each work's measured time, so that only scheduling can differ. *passes alone* "
        "and *together*: simulated over real mean time of works that had the device to themselves, and that did not. "
        "*speed*: a fixed pair of passes right after the replay, against the draw's first: what the machine drifted. "
        "*others*: cores that other processes used meanwhile.",
        "",
        *_summary(draws),
    ]
    for number, draw in enumerate(draws, start=1):
        lines += ["", f"## Draw {number}, open loop at {draw['rate']:g} requests/s", "", *_table(draw, "open")]
        lines += ["", f"## Draw {number}, closed loop", "", *_table(draw, "closed")]
        host, overlap = draw["profile"]["host"], draw["profile"]["overlap"]
        errors = {kind: error for kind, error in draw["profile"]["errors"].items() if error is not None}
        lines += [
            "",
            f"Profile: {1e6 * host['step_s']:.0f} us per work beside its pass, {1e6 * host['result_s']:.0f} us to the "
            f"next act, {1e6 * overlap['tau_s']:.1f} us per kernel while another work runs, after a long pause "
            f"{1e3 * (host['idle_ramp'] or {'lost_s': 0})['lost_s']:.1f} ms lost; held-out errors "
            + ", ".join(f"{kind} {error:.1f} %" for kind, error in errors.items()),
        ]
    (directory / "README.md").write_text("\n".join([*lines, "", "![Errors of every draw](errors.png)", ""]))
    _figure(directory / "errors.png", draws)


def _summary(draws: Sequence[Draw]) -> list[str]:
    lines = [
        "| policy | mean E2EL error, open | mean E2EL error, closed | throughput error, closed "
        "| mechanism, worst of mean and p95 E2EL, both loads | what dominates |",
        "|---|---|---|---|---|---|",
    ]
    for policy in dict.fromkeys(row["policy"] for row in draws[0]["rows"]):
        rows = {load: [_row(draw, load, policy) for draw in draws] for load in ("open", "closed")}
        cells = [
            ", ".join(_marked(_error(row, "contention", "e2el"), BARS["e2el"]) for row in rows["open"]),
            ", ".join(_marked(_error(row, "contention", "e2el"), BARS["e2el"]) for row in rows["closed"]),
            ", ".join(_marked(_throughput(row), BARS["throughput"]) for row in rows["closed"]),
            ", ".join(
                _marked(max((_mechanism(row) for row in pair), key=abs), BARS["mechanism"])
                for pair in zip(rows["open"], rows["closed"], strict=True)
            ),
            "; ".join(f"{load}: {', '.join(map(dominant, rows[load]))}" for load in rows),
        ]
        lines.append(f"| `{policy}` | " + " | ".join(cells) + " |")
    return lines


def _table(draw: Draw, load: str) -> list[str]:
    lines = [
        "| policy | mean E2EL real, simulated ms | error | p95 E2EL real, simulated ms | error "
        "| tokens/s real, simulated | error | mechanism mean, p95 | passes alone | together | speed | others "
        "| dominates |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    first = draw["rows"][0]
    for row in (row for row in draw["rows"] if row["load"] == load):
        total, mechanism = row["decomposition"]["contention"], row["decomposition"]["mechanism"]
        mean, p95, rate = total["e2el"]["mean"], total["e2el"]["p95"], total["output_throughput"]
        cells = [
            f"{mean['real']:.1f}, {mean['simulated']:.1f}",
            _marked(mean["error_pct"], BARS["e2el"]),
            f"{p95['real']:.1f}, {p95['simulated']:.1f}",
            f"{p95['error_pct']:+.1f}",
            f"{rate['real']:.0f}, {rate['simulated']:.0f}",
            _marked(rate["error_pct"], BARS["throughput"] if load == "closed" else 1e9),
            ", ".join(_marked(mechanism["e2el"][s]["error_pct"], BARS["mechanism"]) for s in ("mean", "p95")),
            *("-" if (ratio := works_ratio(row, how)) is None else f"{ratio:.2f}" for how in ("alone", "together")),
            f"{_speed(row) / _speed(first):.2f}",
            "-" if row["others_cores"] is None else f"{row['others_cores']:.2f}",
            dominant(row),
        ]
        lines.append(f"| `{row['policy']}` | " + " | ".join(cells) + " |")
    return lines


def works_ratio(row: Row, how: str) -> float | None:
    """Simulated over real mean device time, weighted by the real one; None where no work was `how` on both sides."""
    pairs = [(kind[f"real_{how}_s"], kind[f"simulated_{how}_s"]) for kind in row["works"].values()]
    known = [(real, simulated) for real, simulated in pairs if real and simulated]
    return sum(simulated for _, simulated in known) / sum(real for real, _ in known) if known else None


def dominant(row: Row) -> str:
    """The largest step of the error on mean E2EL: scheduling, the passes' own times, or works at the same time."""
    scheduling = _error(row, "mechanism", "e2el")
    alone, together = works_ratio(row, "alone"), works_ratio(row, "together")
    rest = {
        "scheduling": abs(scheduling),
        "passes alone": 100.0 * abs((alone or 1.0) - 1.0),
        "together": 100.0 * abs((together or 1.0) - 1.0),
    }
    return max(rest, key=lambda name: rest[name])


def _row(draw: Draw, load: str, policy: str) -> Row:
    return next(row for row in draw["rows"] if (row["load"], row["policy"]) == (load, policy))


def _error(row: Row, part: str, metric: str, statistic: str = "mean") -> float:
    return float(row["decomposition"][part][metric][statistic]["error_pct"])


def _throughput(row: Row) -> float:
    return float(row["decomposition"]["contention"]["output_throughput"]["error_pct"])


def _mechanism(row: Row) -> float:
    return max((_error(row, "mechanism", "e2el", statistic) for statistic in ("mean", "p95")), key=abs)


def _speed(row: Row) -> float:
    return float(row["probe_verify_ms"] + row["probe_prefill_ms"])


def _marked(error_pct: float, bar_pct: float) -> str:
    return f"{error_pct:+.1f}" if abs(error_pct) <= bar_pct else f"**{error_pct:+.1f}**"


def _figure(path: Path, draws: Sequence[Draw]) -> None:
    """One dot per draw: errors by policy against their bars."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    policies = list(dict.fromkeys(row["policy"] for row in draws[0]["rows"]))
    panels = [
        ("mean E2EL, open loop", "open", lambda row: _error(row, "contention", "e2el"), BARS["e2el"]),
        ("mean E2EL, closed loop", "closed", lambda row: _error(row, "contention", "e2el"), BARS["e2el"]),
        ("throughput, closed loop", "closed", _throughput, BARS["throughput"]),
        ("mechanism on mean E2EL, open", "open", lambda row: _error(row, "mechanism", "e2el"), BARS["mechanism"]),
        ("mechanism on mean E2EL, closed", "closed", lambda row: _error(row, "mechanism", "e2el"), BARS["mechanism"]),
    ]
    figure, axes = plt.subplots(1, len(panels), figsize=(15, 3.6), sharey=True)
    for axis, (title, load, value, bar_pct) in zip(axes, panels, strict=True):
        for number, draw in enumerate(draws):
            axis.plot(
                [value(_row(draw, load, policy)) for policy in policies],
                policies,
                "o",
                alpha=0.75,
                label=f"draw {number + 1}",
            )
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
