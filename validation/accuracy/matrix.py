"""Errors by class of cells for docs/accuracy.md, what is decided on the cells, its figure, and every cell on one line.

A speed-up's sign, the concurrency at which it crosses 1, and the draft length that one would deploy are what a user
acts on; the regret is what deploying lanesim's choice loses in measured throughput. Not here: simulating anything
(validation.accuracy.closed_loops, gh200, timed_runs), the other words (validation.accuracy.sections).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import exp, log
from pathlib import Path
from statistics import fmean

from calibrate.judge.cell import JudgedCell
from calibrate.judge.cells import speedups
from sim.files.write import write_figure
from validation.accuracy.sections import Row, Section, number, percent
from validation.tables import grouped, markdown_table, off_pct

THROUGHPUT = "output_throughput"
NEAR_ONE = 0.05
"""A measured speed-up this close to 1 has no sign: jobs differ by as much."""
NO_CROSSING = "none"
FIGURE_INCHES, DPI = 6.4, 150
EVERY_CELL = "## Every cell"


COLUMNS = ("tok/s", "TPOT", "TTFT", "speed-up", "acceptance length")
METRICS = {"tok/s": (THROUGHPUT,), "TPOT": ("tpot_ms", "itl_ms"), "TTFT": ("ttft_ms",)}
"""Column -> metrics of a cell, the first that it has."""
RUN_LINES = {"tok/s": "output tok/s", "TPOT": "TPOT mean (ms)", "TTFT": "TTFT mean (ms)"}
"""Column -> line of an open-loop run."""


def rows_of_cells(
    judged: Sequence[JudgedCell],
    *,
    gpu: str,
    engine: str,
    model: str,
    method: str,
    peer: str = "",
    peer_errors_pct: Mapping[int, Mapping[str, float | None]] | None = None,
) -> list[Row]:
    """One row per cell; `peer_errors_pct` by the cell's line in its table."""
    pairs = {pair["line"]: pair for pair in speedups(judged)}
    rows = []
    for each in judged:
        cell, pair = each.cell, pairs.get(each.cell.line)
        errors = {
            column: next((each.metrics[name]["error_pct"] for name in names if name in each.metrics), None)
            for column, names in METRICS.items()
        }
        values = each.metrics.get(THROUGHPUT)
        rows.append(
            Row(
                gpu=gpu,
                engine=engine,
                model=model,
                method=method if cell.num_speculative_tokens else "none",
                k=cell.num_speculative_tokens,
                workload=cell.label or f"{cell.input_len}->{cell.output_len}",
                concurrency=str(cell.concurrency),
                is_fit=each.is_fit,
                throughput=None if values is None else (values["real"] or 0.0, values["simulated"] or 0.0),
                errors_pct={**errors, "speed-up": None if pair is None else pair["error_pct"]},
                speedup=None if pair is None else (pair["real"], pair["simulated"]),
                peer=peer,
                peer_errors_pct=(peer_errors_pct or {}).get(cell.line, {}),
            )
        )
    return rows


def row_of_run(section: Section, *, gpu: str, workload: str) -> Row:
    """An open-loop run of LLMServingSim: its means beside that simulator's; a metric that a constant was fitted on is
    left out."""
    lines = {line.what: line for line in section.lines}
    found = {column: lines[what] for column, what in RUN_LINES.items() if what in lines}
    judged = {column: line for column, line in found.items() if not line.is_fit}
    return Row(
        gpu=gpu,
        engine="vllm-0.19",
        model="llama-3.1-8b",
        workload=workload,
        concurrency="open",
        errors_pct={column: line.error_pct for column, line in judged.items()},
        peer="LLMServingSim",
        peer_errors_pct={column: line.peer_error_pct for column, line in judged.items()},
    )


def matrix_text(rows: Sequence[Row], figure: str | None) -> str:
    """The errors by GPU, engine, model, method and k; what is decided on the cells; and `figure`."""
    parts = [
        "## Errors by class\n",
        "Mean size of the error over judged cells, percent, and the largest in brackets; peers on the same cells,\n"
        "where they have figures, behind the slash. TPOT is the time between chunks where a study records only that.\n",
        _summary(rows),
        "Decisions: the sign of (speed-up - 1) wherever the measured one is more than 5 % from 1; the concurrency at\n"
        "which it falls through 1; and the measured throughput lost by deploying the draft length that is best in the\n"
        "simulation.\n",
        _decisions(rows),
        "" if figure is None else f"![measured against predicted speed-up]({figure})\n",
    ]
    return "\n".join(part for part in parts if part)


def cells_text(rows: Sequence[Row]) -> str:
    """Every cell on one line, errors in percent."""
    return f"{EVERY_CELL}\n\nErrors in percent.\n\n{_cells(rows)}"


def _key(row: Row) -> tuple[str, str, str, str, str]:
    return row.gpu, row.engine, row.model, row.method, row.together or str(row.k)


def _summary(rows: Sequence[Row]) -> str:
    groups = grouped(sorted(rows, key=lambda row: row.k), _key)
    gpus = list(dict.fromkeys(row.gpu for row in rows))
    lines = []
    for (gpu, engine, model, method, k), members in sorted(groups.items(), key=lambda group: gpus.index(group[0][0])):
        judged = [row for row in members if not row.is_fit]
        peer = next((row.peer for row in members if row.peer), "")
        texts = [_sizes(judged, column) for column in COLUMNS]
        lines.append([gpu, engine, model, method, k, f"{len(judged)} of {len(members)}", *texts, peer])
    return markdown_table(["GPU", "engine", "model", "method", "k", "judged", *COLUMNS, "peer"], lines, left=4)


def _sizes(rows: Iterable[Row], column: str) -> str:
    rows = list(rows)
    ours = _spread([row.errors_pct.get(column) for row in rows])
    theirs = _spread([row.peer_errors_pct.get(column) for row in rows])
    return f"{ours} / {theirs}" if theirs else ours or "–"


def _spread(errors: Iterable[float | None]) -> str:
    sizes = [abs(error) for error in errors if error is not None]
    return f"{fmean(sizes):.1f} ({max(sizes):.1f})" if sizes else ""


def _decisions(rows: Sequence[Row]) -> str:
    lines = []
    workloads = grouped(rows, lambda row: (row.gpu, row.engine, row.model, row.workload))
    for (gpu, _, model, workload), members in workloads.items():
        for method in dict.fromkeys(row.method for row in members if row.speedup is not None):
            drafting = [row for row in members if row.speedup is not None and row.method == method]
            regrets = _regrets_pct([row for row in members if row.k == 0 or row.method == method])
            for index, k in enumerate(sorted({row.k for row in drafting})):
                own = [row for row in drafting if row.k == k]
                signs = [row.speedup for row in own if row.speedup and abs(row.speedup[0] - 1.0) > NEAR_ONE]
                right = sum((real - 1.0) * (simulated - 1.0) > 0.0 for real, simulated in signs)
                crossings = [crossing([(float(row.concurrency), row.speedup[side]) for row in own if row.speedup])
                             for side in (0, 1)]  # fmt: skip
                regret = f"{fmean(regrets):.2f} ({max(regrets):.2f})" if index == 0 and regrets else ""
                lines.append([gpu, model, workload, method, str(k), f"{right} of {len(signs)}",
                              *_crossing_texts(*crossings), regret])  # fmt: skip
    headings = ["GPU", "model", "workload", "method", "k", "signs right", "crosses 1 at c, real", "lanesim", "error",
                "regret of the best k, %: mean (most)"]  # fmt: skip
    return markdown_table(headings, lines, left=4)


def crossing(points: Sequence[tuple[float, float]]) -> float | None:
    """The concurrency at which the speed-up falls through 1, between two cells on their logs; None where it does not.

    >>> crossing([(1, 1.5), (8, 1.2), (32, 0.8)])
    16.0
    """
    ordered = sorted(points)
    for (low, before), (high, after) in pairwise(ordered):
        if before >= 1.0 > after:
            share = (before - 1.0) / (before - after)
            return round(exp(log(low) + share * log(high / low)), 6)
    return None


def _crossing_texts(real: float | None, simulated: float | None) -> list[str]:
    texts = [NO_CROSSING if value is None else f"{value:.0f}" for value in (real, simulated)]
    error = "" if real is None or simulated is None else percent(off_pct(simulated, real))
    return [*texts, error]


def _regrets_pct(rows: Sequence[Row]) -> list[float]:
    """What the draft length that is best in the simulation loses, percent, at each concurrency with several lengths."""
    regrets = []
    for own in grouped(rows, lambda row: row.concurrency).values():
        by_k = grouped([row for row in own if row.throughput is not None], lambda row: row.k)
        if len(by_k) < 2:
            continue
        means = {
            k: tuple(fmean(side) for side in zip(*(row.throughput or () for row in same), strict=True))
            for k, same in by_k.items()
        }
        chosen = max(means, key=lambda k: means[k][1])
        best = max(real for real, _ in means.values())
        regrets.append(100.0 * (1.0 - means[chosen][0] / best))
    return regrets


def _cells(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        errors = [row.errors_pct.get(column) for column in COLUMNS]
        speedup = ["", ""] if row.speedup is None else [number(value) for value in row.speedup]
        theirs = ", ".join(
            f"{column} {error:+.1f}" for column, error in row.peer_errors_pct.items() if error is not None
        )  # fmt: skip
        lines.append(
            [row.gpu, row.engine, row.method, row.workload, str(row.k), row.concurrency, "fit" if row.is_fit else ""]
            + ["" if error is None else f"{error:+.1f}" for error in errors[:3]]
            + [*speedup, *("" if error is None else f"{error:+.1f}" for error in errors[3:])]
            + [f"{row.peer}: {theirs}" if theirs else ""]
        )
    headings = ["GPU", "engine", "method", "workload", "k", "c", "role", "tok/s", "TPOT", "TTFT", "speed-up, real",
                "lanesim", "error", "acceptance length", "peer"]  # fmt: skip
    return markdown_table(headings, lines, left=4)


def draw_speedups(rows: Sequence[Row], path: Path) -> None:
    """Measured against predicted speed-up, one point a cell, the 1 : 1 line, and where the signs differ shaded."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    from sim.report.pictures.panels import set_theme

    set_theme()
    points = [row for row in rows if row.speedup is not None]
    groups = sorted({(row.gpu, row.method, row.k) for row in points})
    figure, axis = plt.subplots(figsize=(FIGURE_INCHES, FIGURE_INCHES))
    values = [value for row in points for value in row.speedup or ()]
    low, high = 0.9 * min(values), 1.06 * max(values)
    axis.fill_between([low, 1.0], 1.0, high, color="0.94", linewidth=0)
    axis.fill_between([1.0, high], low, 1.0, color="0.94", linewidth=0)
    axis.plot([low, high], [low, high], color="black", linewidth=1.0, label="1 : 1")
    colours = plt.get_cmap("tab10")
    markers = dict(zip(dict.fromkeys(gpu for gpu, _, _ in groups), "osD^v", strict=False))
    for index, (gpu, method, k) in enumerate(groups):
        own = [row for row in points if (row.gpu, row.method, row.k) == (gpu, method, k)]
        for is_fit in (False, True):
            pairs = [row.speedup for row in own if row.is_fit is is_fit and row.speedup]
            label = f"{gpu}, {method} k={k}" + (", fitted on" if is_fit else "")
            if pairs:
                face = "white" if is_fit else colours(index)
                axis.scatter(*zip(*pairs, strict=True), s=34, marker=markers[gpu], facecolor=face,
                             edgecolor=colours(index), label=label, zorder=3)  # fmt: skip
    axis.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    ticks = [tick for tick in (0.5, 0.6, 0.8, 1.0, 1.2, 1.5, 2.0, 2.5, 3.0) if low <= tick <= high]
    for side in (axis.xaxis, axis.yaxis):
        side.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
        side.set_minor_locator(mpl.ticker.NullLocator())
    axis.set_xlabel("measured speed-up in output throughput")
    axis.set_ylabel("predicted by lanesim")
    axis.set_aspect("equal")
    axis.legend(frameon=False, loc="upper left", fontsize="small")
    write_figure(path, lambda scratch: figure.savefig(scratch, dpi=DPI, bbox_inches="tight"))
    plt.close(figure)
