"""Errors by class of cells for docs/accuracy.md, what is decided on the cells, its figure, and every cell as a row.

A speed-up's sign, the concurrency at which it crosses 1, and the draft length that one would deploy are what a user
acts on; the regret is what deploying lanesim's choice loses in measured throughput. Not here: judging the cells
(validation.accuracy.sections).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import exp, log
from pathlib import Path
from statistics import fmean

from calibrate.judge.cell import JudgedCell
from sim.files.write import write_figure
from sim.metrics.compared import THROUGHPUT, Compared
from validation.accuracy.sections import SPEEDUP, JudgedSection
from validation.tables import grouped, markdown_table, off_pct, write_csv

NEAR_ONE = 0.05
"""A measured speed-up this close to 1 has no sign: jobs differ by as much."""
NO_CROSSING = "none"
FIGURE_INCHES, DPI = 6.4, 150
METRICS = {
    "tok/s": (THROUGHPUT,),
    "TPOT": ("tpot_ms", "itl_ms"),
    "TTFT": ("ttft_ms",),
    "speed-up": (SPEEDUP,),
    "acceptance length": ("acceptance_length",),
}
"""Column -> metrics of a cell, the first that it has."""
CELL_METRICS = ("output_throughput", "tpot_ms", "itl_ms", "ttft_ms", "e2el_ms", SPEEDUP, "acceptance_length")
CELL_FIELDS = ("gpu", "engine", "target", "method", "num_speculative_tokens")
Keyed = tuple[str, JudgedCell]
"""A cell, and what the summary has for its draft length."""


def matrix_text(sections: Sequence[JudgedSection], figure: str | None) -> str:
    """The errors by GPU, engine, model, method and k; what is decided on the cells; and `figure`."""
    parts = [
        "## Errors by class\n",
        "Mean size of the error over judged cells, percent, and the largest in brackets; peers on the same cells,\n"
        "where they have figures, behind the slash. TPOT is the time between chunks where a study records only that.\n",
        _summary(sections),
        "Decisions: the sign of (speed-up - 1) wherever the measured one is more than 5 % from 1; the concurrency at\n"
        "which it falls through 1; and the measured throughput lost by deploying the draft length that is best in the\n"
        "simulation.\n",
        _decisions(decided(sections)),
        "" if figure is None else f"![measured against predicted speed-up]({figure})\n",
    ]
    return "\n".join(part for part in parts if part)


def decided(sections: Sequence[JudgedSection]) -> list[JudgedCell]:
    """The cells of sections on which users choose by speed-up."""
    return [each for section in sections if section.spec.decides for each in section.judged]


def write_cells(sections: Sequence[JudgedSection], path: Path) -> None:
    """Every cell as a row: what was measured, what was simulated, what a peer predicts."""
    sides = [f"{name}{side}" for name in CELL_METRICS for side in ("", "_simulated")]
    peers = [f"peer_{name}{side}" for name in ("tpot_ms", "ttft_ms", "e2el_ms") for side in ("", "_real")]
    header = ["part", *CELL_FIELDS, "workload", "load", "num_prompts", "role", *sides, "peer", *peers]
    write_csv(path, header, (_row(section.spec.part, each) for section in sections for each in section.judged))


def _row(part: str, each: JudgedCell) -> Iterator[object]:
    cell = each.cell
    yield part
    yield from (getattr(cell, name) for name in CELL_FIELDS)
    yield from (workload(each), load_of(each), cell.num_prompts or "", cell.role)
    for metrics, names, keys in (
        (each.metrics, CELL_METRICS, ("real", "simulated")),
        (each.peer, ("tpot_ms", "ttft_ms", "e2el_ms"), ("simulated", "real")),
    ):
        if metrics is each.peer:
            yield cell.peer
        for name in names:
            values: Compared = metrics.get(name, {})
            yield from ("" if (value := values.get(key)) is None else f"{value:.6g}" for key in keys)


def workload(each: JudgedCell) -> str:
    return each.cell.label or f"{each.cell.input_len}->{each.cell.output_len}"


def load_of(each: JudgedCell) -> str:
    """Requests in flight, or arrivals per second; `open` for recorded arrivals."""
    cell = each.cell
    if cell.request_rate is not None:
        return f"{cell.request_rate:g}/s"
    return str(cell.concurrency) if cell.concurrency else "open"


def _summary(sections: Sequence[JudgedSection]) -> str:
    cells = [(section.spec.together or str(each.cell.num_speculative_tokens), each)
             for section in sections for each in section.judged]  # fmt: skip
    gpus = list(dict.fromkeys(each.cell.gpu for _, each in cells))

    def key(keyed: Keyed) -> tuple[str, str, str, str, str]:
        cell = keyed[1].cell
        return cell.gpu, cell.engine, cell.target, cell.method, keyed[0]

    groups = grouped(sorted(cells, key=lambda keyed: keyed[1].cell.num_speculative_tokens), key)
    lines = []
    for (gpu, *names), members in sorted(groups.items(), key=lambda group: gpus.index(group[0][0])):
        judged = [each for _, each in members if not each.is_fit]
        peer = next((each.cell.peer for _, each in members if each.cell.peer), "")
        texts = [_sizes(judged, metrics) for metrics in METRICS.values()]
        lines.append([gpu, *names, f"{len(judged)} of {len(members)}", *texts, peer])
    return markdown_table(["GPU", "engine", "model", "method", "k", "judged", *METRICS, "peer"], lines, left=4)


def _sizes(judged: Sequence[JudgedCell], names: Sequence[str]) -> str:
    ours = _spread(_error(each.metrics, names) for each in judged)
    theirs = _spread(_error(each.peer, names) for each in judged if _error(each.metrics, names) is not None)
    return f"{ours} / {theirs}" if theirs else ours or "–"


def _error(metrics: Mapping[str, Compared], names: Sequence[str]) -> float | None:
    return next((metrics[name]["error_pct"] for name in names if name in metrics), None)


def _spread(errors: Iterable[float | None]) -> str:
    sizes = [abs(error) for error in errors if error is not None]
    return f"{fmean(sizes):.1f} ({max(sizes):.1f})" if sizes else ""


def _sides(each: JudgedCell, metric: str) -> tuple[float, float]:
    """Measured and simulated."""
    return each.metrics[metric]["real"] or 0.0, each.metrics[metric]["simulated"] or 0.0


def _decisions(judged: Sequence[JudgedCell]) -> str:
    lines = []
    workloads = grouped(judged, lambda each: (each.cell.gpu, each.cell.engine, each.cell.target, workload(each)))
    for (gpu, _, model, name), members in workloads.items():
        pairs = [each for each in members if SPEEDUP in each.metrics]
        for method, drafting in grouped(pairs, lambda each: each.cell.method).items():
            regrets = _regrets_pct([each for each in members if each.cell.method in ("none", method)])
            by_k = grouped(drafting, lambda each: each.cell.num_speculative_tokens)
            for index, (k, cells) in enumerate(sorted(by_k.items())):
                signs = [sides for each in cells if abs((sides := _sides(each, SPEEDUP))[0] - 1.0) > NEAR_ONE]
                right = sum((real - 1.0) * (simulated - 1.0) > 0.0 for real, simulated in signs)
                crossings = [crossing([(float(each.cell.concurrency), _sides(each, SPEEDUP)[side]) for each in cells])
                             for side in (0, 1)]  # fmt: skip
                regret = f"{fmean(regrets):.2f} ({max(regrets):.2f})" if index == 0 and regrets else ""
                lines.append([gpu, model, name, method, str(k), f"{right} of {len(signs)}",
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
    error = "" if real is None or simulated is None else f"{off_pct(simulated, real):+.2f} %"
    return [*texts, error]


def _regrets_pct(cells: Sequence[JudgedCell]) -> list[float]:
    """Measured throughput, percent, that the draft length loses that is best in the simulation, at each concurrency
    with several lengths."""
    regrets = []
    with_throughput = [each for each in cells if THROUGHPUT in each.metrics]
    for same_load in grouped(with_throughput, lambda each: each.cell.concurrency).values():
        by_k = grouped(same_load, lambda each: each.cell.num_speculative_tokens)
        means = {
            k: tuple(map(fmean, zip(*(_sides(each, THROUGHPUT) for each in members), strict=True)))
            for k, members in by_k.items()
        }
        if len(means) > 1:
            chosen = max(means, key=lambda k: means[k][1])
            regrets.append(100.0 * (1.0 - means[chosen][0] / max(real for real, _ in means.values())))
    return regrets


def draw_speedups(judged: Sequence[JudgedCell], path: Path) -> None:
    """Measured against predicted speed-up, one point a cell, the 1 : 1 line, and where the signs differ shaded."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    from sim.report.pictures.panels import set_theme

    set_theme()
    points = grouped(
        [each for each in judged if SPEEDUP in each.metrics],
        lambda each: (each.cell.gpu, each.cell.method, each.cell.num_speculative_tokens),
    )
    figure, axis = plt.subplots(figsize=(FIGURE_INCHES, FIGURE_INCHES))
    values = [value for cells in points.values() for each in cells for value in _sides(each, SPEEDUP)]
    low, high = 0.9 * min(values), 1.06 * max(values)
    axis.fill_between([low, 1.0], 1.0, high, color="0.94", linewidth=0)
    axis.fill_between([1.0, high], low, 1.0, color="0.94", linewidth=0)
    axis.plot([low, high], [low, high], color="black", linewidth=1.0, label="1 : 1")
    colours = plt.get_cmap("tab10")
    markers = dict(zip(dict.fromkeys(gpu for gpu, _, _ in sorted(points)), "osD^v", strict=False))
    for index, ((gpu, method, k), cells) in enumerate(sorted(points.items())):
        for is_fit in (False, True):
            pairs = [_sides(each, SPEEDUP) for each in cells if each.is_fit is is_fit]
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
