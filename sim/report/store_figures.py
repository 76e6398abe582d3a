"""Pictures of a store: what it has the rows for, each a question with its axes, as PNG and as SVG.

Lines differ by marker and dash as well as by colour, cells carry their numbers, so that all of it reads in grey.
Imports matplotlib and seaborn; only called where pictures were asked for. Not here: the numbers
(sim.report.store_points), heat-maps and Pareto (sim.report.grid_figures).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sim.report.figures import set_log_scale, set_theme
from sim.report.store_points import ACCEPTANCE, LOADS, RATE, K, Points, spoken

DPI = 130
MARKS = "os^DvPX*"
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 2)), (0, (8, 3)), (0, (3, 1)))
MAX_LINES = 8
MAX_PANELS = 6
MIN_OF_MEAN = 0.1
"""Bands are drawn down to this share of the mean."""


class NotDrawn(ValueError):
    """The store does not have what the picture shows; says what it would need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Colour, marker and dash of each line, the same in every panel."""

    names: tuple[str, ...]

    def style(self, name: str) -> dict[str, Any]:
        import seaborn as sns

        place = self.names.index(name)
        return {
            "color": sns.color_palette("colorblind", len(self.names))[place],
            "marker": MARKS[place % len(MARKS)],
            "linestyle": DASHES[place % len(DASHES)],
            "linewidth": 1.5,
            "markersize": 4.5,
        }


def named(row: Mapping[str, Any], keys: Sequence[str]) -> str:
    """The values of some keys in a few words: `pd, k=4, iid:0.7`."""
    return ", ".join(_short(key, row[key]) for key in keys) or str(row.get("policy", ""))


def _short(key: str, value: Any) -> str:
    if key == K:
        return f"k={value}"
    if key in ("policy", "profile", ACCEPTANCE):
        return str(value)
    return f"{spoken(key)} {value:g}" if isinstance(value, float | int) else f"{spoken(key)} {value}"


def panels_of(points: Points, lines_by: Sequence[str], across: Sequence[str]) -> Iterator[tuple[str, Points]]:
    """Title and rows of each panel: one per combination of the keys that are neither lines nor across.

    At most MAX_PANELS: where there are more, keys are held at their middle value, which the title says.
    """
    rest = [key for key in points.keys if key not in lines_by and key not in across]
    while rest and _num_combinations(points, rest) > MAX_PANELS:
        key = max(rest, key=lambda key: len(points.values(key)))
        values = points.values(key)
        points = points.where({key: values[len(values) // 2]})
        rest = [other for other in rest if other != key]
        yield from (
            (f"{title}{', ' if title else ''}{_short(key, values[len(values) // 2])} (of {len(values)})", own)
            for title, own in panels_of(points, lines_by, across)
        )
        return
    if not rest:
        yield "", points
        return
    for place, own in points.rows.groupby(rest, sort=False, dropna=False):
        fixed = dict(zip(rest, place if isinstance(place, tuple) else (place,), strict=True))
        yield named(fixed, rest), Points(frame=own)


def _num_combinations(points: Points, keys: Sequence[str]) -> int:
    return len(points.rows[list(keys)].drop_duplicates())


def _load_of(points: Points) -> str:
    if points.load is None:
        raise NotDrawn(f"needs a grid over {' or '.join(LOADS)}")
    return points.load


def _figure(num_columns: int, num_rows: int = 1, *, width: float = 5.2, height: float = 3.6) -> Any:
    import matplotlib.pyplot as plt

    return plt.subplots(num_rows, num_columns, figsize=(width * num_columns + 1.8, height * num_rows), squeeze=False)


def _legend(figure: Any, axes: Any) -> None:
    """One for all panels, of what any of them shows."""
    found: dict[str, Any] = {}
    for axis in axes.flat:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if len(found) > 1:
        figure.legend(found.values(), found.keys(), loc="upper left", bbox_to_anchor=(0.995, 0.95), frameon=False)


def _draw_lines(
    axis: Any, points: Points, lines: Lines, x: str, y: str, *, scale: float = 1.0, by: Sequence[str] = ("policy",)
) -> None:
    """Means of `y` over `x` with bands of their intervals; hollow where overloaded."""
    table = points.means([metric for metric in (x, y) if metric not in points.keys])
    if table[y].isna().all():
        axis.text(0.5, 0.5, "nothing to show", ha="center", va="center", transform=axis.transAxes, color="grey")
        return
    for name, own in _by_line(table, by):
        own = own.sort_values(points.load or x)
        style = lines.style(name)
        xs, ys = own[x].to_numpy(dtype=float), own[y].to_numpy(dtype=float) * scale
        axis.plot(xs, ys, label=name, markerfacecolor="none", **style)
        steady = ~own["is_overloaded"].to_numpy()
        axis.plot(
            xs[steady], ys[steady], linestyle="none", marker=style["marker"], color=style["color"], markersize=4.5
        )
        low, high = (own[f"{y}.{side}"].to_numpy(dtype=float) * scale for side in ("low", "high"))
        # An interval that reaches below zero would stretch a logarithmic axis without end.
        axis.fill_between(xs, np.maximum(low, ys * MIN_OF_MEAN), high, color=style["color"], alpha=0.18, linewidth=0)


def _by_line(table: Any, by: Sequence[str]) -> Iterator[tuple[str, Any]]:
    for _, own in table.groupby(list(by), sort=False, dropna=False):
        yield named(own.iloc[0], by), own


def _lines_by(points: Points, across: Sequence[str]) -> list[str]:
    """The policy, and further keys as long as the lines stay few."""
    keys = ["policy"]
    for key in points.keys:
        more = [*keys, key]
        if key not in (*across, "policy") and _num_combinations(points, more) <= MAX_LINES:
            keys = more
    return keys


def _lines(points: Points, by: Sequence[str]) -> Lines:
    table = points.rows[list(dict.fromkeys([*by, "policy"]))].drop_duplicates()
    return Lines(names=tuple(dict.fromkeys(named(row, by) for _, row in table.iterrows())))


def draw_throughput_latency(points: Points) -> Any:
    """Output tokens/s against mean TTFT and mean TPOT, a line through the loads, the load at each point."""
    load = _load_of(points)
    by = _lines_by(points, [load])
    lines = _lines(points, by)
    panels = list(panels_of(points, by, [load]))
    figure, axes = _figure(2, len(panels))
    for row, (title, own) in zip(axes, panels, strict=True):
        for axis, (metric, label) in zip(row, (("mean_ttft_ms", "TTFT"), ("mean_tpot_ms", "TPOT")), strict=True):
            x = "output_throughput_tokens_per_s"
            _draw_lines(axis, own, lines, x, metric, by=by)
            set_log_scale(axis, "y")
            axis.set_xlabel("output (tokens/s)")
            axis.set_ylabel(f"mean {label} (ms)")
            axis.set_title(title, loc="left", fontsize=9)
            _annotate_once(axis, own.means([x, metric]), load, x, metric)
    _legend(figure, axes)
    figure.suptitle(
        f"What a throughput costs in latency; numbers: {spoken(load)}; hollow: overloaded", x=0.01, ha="left"
    )
    return figure


def _annotate_once(axis: Any, table: Any, load: str, x: str, y: str) -> None:
    """The load at each point, once where several lie together."""
    placed: list[tuple[str, float, float]] = []
    for _, point in table.sort_values(y, ascending=False).iterrows():
        text = f"{point[load]:g}"
        across, up = axis.transData.transform((point[x], point[y]))
        near = [other for other in placed if other[0] == text and abs(other[1] - across) < 12.0]
        if not any(abs(up - other[2]) < 40.0 for other in near):
            axis.annotate(text, (point[x], point[y]), textcoords="offset points", xytext=(-2, 5), fontsize=7)
            placed.append((text, across, up))


def draw_hockey_stick(points: Points) -> Any:
    """P99 of TTFT and E2EL over the rate, with the measured capacity of each line."""
    load = _load_of(points)
    by = _lines_by(points, [load])
    lines = _lines(points, by)
    panels = list(panels_of(points, by, [load]))
    figure, axes = _figure(2, len(panels))
    for row, (title, own) in zip(axes, panels, strict=True):
        for axis, (metric, label) in zip(row, (("p99_ttft_ms", "TTFT"), ("p99_e2el_ms", "E2EL")), strict=True):
            _draw_lines(axis, own, lines, load, metric, by=by)
            set_log_scale(axis, "y")
            if load == RATE:
                for name, line in _by_line(own.means(["capacity_per_s"]), by):
                    capacity = line["capacity_per_s"].dropna()
                    if len(capacity):
                        style = lines.style(name)
                        axis.axvline(
                            capacity.iloc[-1], color=style["color"], linestyle=style["linestyle"], linewidth=0.8
                        )
            axis.set_xlabel(spoken(load))
            axis.set_ylabel(f"P99 {label} (ms)")
            axis.set_title(title, loc="left", fontsize=9)
    _legend(figure, axes)
    upright = "; upright: measured capacity" if load == RATE else ""
    figure.suptitle(f"Where the tail leaves the ground{upright}; hollow: overloaded", x=0.01, ha="left")
    return figure


def _draw_rows(
    axes: Any,
    panels: Sequence[tuple[str, Points]],
    lines: Lines,
    load: str,
    shown: Sequence[tuple[str, str, float]],
    by: Sequence[str],
) -> None:
    """A row per panel over the load, a column per (metric, label with its unit, scale), from 0 up."""
    for row, (title, own) in zip(axes, panels, strict=True):
        for axis, (metric, label, scale) in zip(row, shown, strict=True):
            _draw_lines(axis, own, lines, load, metric, scale=scale, by=by)
            axis.set_ylim(bottom=0.0)
            axis.set_xlabel(spoken(load))
            axis.set_ylabel(label)
            axis.set_title(title, loc="left", fontsize=9)


def draw_utilisation(points: Points) -> Any:
    """Share of time the GPU is busy, and share of its time spent on tokens that verify rejected."""
    load = _load_of(points)
    by = _lines_by(points, [load])
    lines = _lines(points, by)
    panels = list(panels_of(points, by, [load]))
    figure, axes = _figure(2, len(panels))
    shown = (
        ("device_utilization", "GPU busy (% of time)", 100.0),
        ("rejected_token_share", "rejected tokens (% of GPU time)", 100.0),
    )
    _draw_rows(axes, panels, lines, load, shown, by)
    _legend(figure, axes)
    figure.suptitle("What the GPU is busy with; hollow: overloaded", x=0.01, ha="left")
    return figure


def draw_gpu_comparison(points: Points) -> Any:
    """How busy each GPU is, and what it delivers, over the load, a panel per policy."""
    load = _load_of(points)
    if "profile" not in points.keys:
        raise NotDrawn("needs a grid over profile")
    lines = _lines(points, ["profile"])
    panels = list(panels_of(points, ["profile"], [load]))
    figure, axes = _figure(2, len(panels))
    shown = (("device_utilization", "GPU busy (% of time)", 100.0),
             ("output_throughput_tokens_per_s", "output (tokens/s)", 1.0))  # fmt: skip
    _draw_rows(axes, panels, lines, load, shown, ["profile"])
    _legend(figure, axes)
    figure.suptitle("GPUs side by side; hollow: overloaded", x=0.01, ha="left")
    return figure


def draw_acceptance(points: Points) -> Any:
    """Tokens per verify round, and the share of drafted tokens that are accepted, over the draft length."""
    points = Points(frame=points.rows[points.rows["acceptance_length_tokens"].notna()])
    if points.rows.empty or not {K, ACCEPTANCE} & set(points.keys):
        raise NotDrawn(f"needs a grid over {K} or {ACCEPTANCE}, and speculation")
    load = points.load
    if load is not None:
        # Acceptance belongs to the request, so the load changes nothing but which rounds are cut short at the end.
        points = points.where({load: points.values(load)[0]})
    across = [K, *([load] if load else [])]
    keys = [key for key in points.keys if key not in across]
    by = ["policy", *[key for key in keys if key == ACCEPTANCE]]
    lines = _lines(points, by)
    if len(lines.names) > MAX_LINES:
        points = points.where({"policy": points.values("policy")[0]})
        lines = _lines(points, by)
    panels = list(panels_of(points, by, across))
    figure, axes = _figure(2, len(panels))
    shown = (("acceptance_length_tokens", "acceptance length (tokens per round)"),
             ("acceptance_rate_pct", "drafted tokens accepted (%)"))  # fmt: skip
    for row, (title, each) in zip(axes, panels, strict=True):
        for axis, (metric, label) in zip(row, shown, strict=True):
            _draw_lines(axis, Points(frame=each.rows), lines, K, metric, by=by)
            axis.set_xticks(each.values(K))
            axis.set_xlabel(spoken(K))
            axis.set_ylabel(label)
            axis.set_title(title, loc="left", fontsize=9)
    _legend(figure, axes)
    figure.suptitle("What drafting longer brings", x=0.01, ha="left")
    return figure


Draw = Callable[[Points], Any]


def write_pictures(folder: Path, points: Points, pictures: Mapping[str, Draw]) -> tuple[list[Path], dict[str, str]]:
    """Draw each as FOLDER/NAME.png and .svg; the files, and why what is missing was not drawn."""
    import matplotlib.pyplot as plt

    from sim.files.write import write_figure

    set_theme()
    files: list[Path] = []
    missing: dict[str, str] = {}
    for name, draw in pictures.items():
        try:
            figure = draw(points)
        except NotDrawn as reason:
            missing[name] = str(reason)
            continue
        with plt.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
            for suffix in (".png", ".svg"):
                path = folder / f"{name}{suffix}"
                write_figure(path, partial(save, figure))
                files.append(path)
        plt.close(figure)
    return files, missing


def save(figure: Any, file: Any, kind: str | None = None) -> None:
    """To a path or an open file of that kind, the same bytes every time."""
    kind = kind or Path(file).suffix[1:]
    figure.tight_layout(rect=(0, 0, 1, 0.97))
    figure.savefig(file, dpi=DPI, bbox_inches="tight", format=kind, metadata={"Date": None} if kind == "svg" else None)
