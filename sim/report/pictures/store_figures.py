"""Pictures of a store: what it has the rows for, each a question with its axes, as PNG and as SVG.

Lines differ by marker and dash as well as by colour, cells carry their numbers, so that all of it reads in grey.
Imports matplotlib and seaborn; only called where pictures were asked for. Not here: the numbers
(sim.report.store_points), heat-maps and Pareto (sim.report.pictures.grid_figures).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from sim.report.pictures.panels import (
    canvas,
    headline,
    label_points,
    legend,
    panel,
    save,
    set_log_scale,
    set_theme,
    set_ticks,
)
from sim.report.store_points import ACCEPTANCE, LOADS, RATE, Draw, K, Points, Setting, spoken

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKS = "os^Dv<>p"
"""Marks with an inside, which is white where a point is overloaded."""
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 2)), (0, (8, 3)), (0, (3, 1)))
MAX_LINES = 8
MAX_PANELS = 6
MAX_BANDS = 3
"""Lines with bands; of more, intervals are whiskers: bands would hide each other."""
MARGIN = 1.25
"""Room from the means to the edges of a panel; whiskers may leave it."""


class NotDrawn(ValueError):
    """The store does not have what the picture shows; says what it would need."""


class Style(TypedDict):
    """What matplotlib draws a line with."""

    color: tuple[float, float, float]
    marker: str
    linestyle: str | tuple[int, tuple[int, ...]]
    linewidth: float
    markersize: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Colour, marker and dash of each line, the same in every panel."""

    names: tuple[str, ...]

    def style(self, name: str) -> Style:
        import seaborn as sns

        place = self.names.index(name)
        return {
            "color": sns.color_palette("colorblind", len(self.names))[place],
            "marker": MARKS[place % len(MARKS)],
            "linestyle": DASHES[place % len(DASHES)],
            "linewidth": 1.5,
            "markersize": 6.0,
        }


def named(row: Draw | pd.Series, keys: Sequence[str]) -> str:
    """The values of some keys in a few words: `pd, k=4, iid:0.7`."""
    known = [_short(key, row[key]) for key in keys if row[key] == row[key]]
    return ", ".join(known) or str(row.get("policy", ""))


def _short(key: str, value: Setting) -> str:
    if key == K:
        return f"k={value:g}"
    if key in ("policy", "profile", ACCEPTANCE):
        return str(value)
    return f"{spoken(key)} {value:g}" if isinstance(value, float | int) else f"{spoken(key)} {value}"


def panels_of(points: Points, lines_by: Sequence[str], across: Sequence[str]) -> Iterator[tuple[str, Points]]:
    """Title and rows of each panel: one per combination of the keys that are neither lines nor across.

    At most MAX_PANELS: where there are more, keys are held at their middle value, which the title says.
    """
    rest = [key for key in points.keys if key not in lines_by and key not in across]
    while rest and _num_combinations(points, rest) > MAX_PANELS:
        key = max([key for key in rest if key != "policy"] or rest, key=lambda key: len(points.values(key)))
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A metric that a picture shows in each of its rows."""

    metric: str
    label: str
    """Its name, with the unit."""
    scale: float = 1.0
    is_log: bool = False
    max_shown: float = float("inf")


def line_figure(
    points: Points, title: str, columns: Sequence[Column], *, x: str, by: Sequence[str], across: Sequence[str]
) -> tuple[Figure, list[tuple[Axes, Column, Points]], Lines]:
    """Means over `x`, a row per panel and a column per metric: the figure, its panels, its lines."""
    from matplotlib.lines import Line2D

    points = drawn_once(points, by)
    lines = _lines(points, by)
    rows = list(panels_of(points, by, across))
    figure, axes = canvas(len(rows), len(columns))
    panels = [
        (axis, column, own)
        for row, (_, own) in zip(axes, rows, strict=True)
        for axis, column in zip(row, columns, strict=True)
    ]
    for number, (axis, column, own) in enumerate(panels):
        _draw_lines(axis, own, lines, x, column, by)
        panel(axis, rows[number // len(columns)][0], spoken(x) if x in own.rows else x, column.label)
        if x in points.keys:
            set_ticks(axis, points.values(x))
    is_hollow = bool(points.rows["unstable"].any())
    hollow = Line2D([], [], color="grey", marker="o", linestyle="none", markerfacecolor="white", label="overloaded")
    legend(figure, axes, [hollow] if is_hollow else [])
    headline(figure, f"{title}\n{_of_one(points)}".strip())
    return figure, panels, lines


def _of_one(points: Points) -> str:
    """Profile and policy, where all rows are of the same."""
    fixed = [key for key in ("profile", "policy") if key in points.rows and points.rows[key].nunique() == 1]
    return ", ".join(str(points.rows[key].iloc[0]) for key in fixed)


def drawn_once(points: Points, by: Sequence[str]) -> Points:
    """Policies that draft nothing at one draft length, which is then none: they are the same at each."""
    if K not in by or "policy" not in by:
        return points
    rows = points.rows
    lengths = rows.groupby("policy")["acceptance_length_tokens"].transform("max")
    is_plain = lengths.isna()
    rows = rows[~is_plain | (rows[K] == rows[K].min())]
    return Points(frame=rows.assign(**{K: rows[K].where(~is_plain)}), path=points.path, series=points.series)


def _draw_lines(axis: Axes, points: Points, lines: Lines, x: str, column: Column, by: Sequence[str]) -> None:
    """Means over `x` with their intervals; hollow where overloaded."""
    from matplotlib.transforms import ScaledTranslation

    y = column.metric
    table = points.means([metric for metric in (x, y) if metric not in points.keys])
    if table[y].isna().all():
        axis.text(0.5, 0.5, "nothing to show", ha="center", va="center", transform=axis.transAxes, color="grey")
        return
    for name, own in _by_line(table, by):
        own = own.sort_values(points.load or x)
        style = lines.style(name)
        colour = style["color"]
        xs, ys = own[x].to_numpy(dtype=float), own[y].to_numpy(dtype=float) * column.scale
        low, high = (own[f"{y}.{side}"].to_numpy(dtype=float) * column.scale for side in ("low", "high"))
        axis.plot(xs, ys, label=name, **style)
        over = own["is_overloaded"].to_numpy()
        axis.plot(xs[over], ys[over], linestyle="none", marker=style["marker"], markersize=style["markersize"],
                  color=colour, markerfacecolor="white", markeredgewidth=1.3, zorder=3)  # fmt: skip
        if len(lines.names) <= MAX_BANDS:
            axis.fill_between(xs, low, high, color=colour, alpha=0.18, linewidth=0)
        else:
            # Side by side, since loads are the same for all.
            aside = ScaledTranslation(
                (lines.names.index(name) - len(lines.names) / 2) / 80, 0, axis.figure.dpi_scale_trans
            )
            axis.vlines(xs, low, high, color=colour, linewidth=0.8, transform=axis.transData + aside)
    means = table[y].dropna() * column.scale
    top = min(float(means.max()) * MARGIN, column.max_shown)
    if top > 0.0:
        axis.set_ylim(float(means.min()) / MARGIN if column.is_log else 0.0, top)
    if column.is_log:
        set_log_scale(axis, "y")


def _by_line(table: pd.DataFrame, by: Sequence[str]) -> Iterator[tuple[str, pd.DataFrame]]:
    for _, own in table.groupby(list(by), sort=False, dropna=False):
        yield named(own.iloc[0], by), own


def _lines_by(points: Points, across: Sequence[str]) -> list[str]:
    """The series that were chosen; else the policy, and further keys as long as the lines stay few."""
    keys = [key for key in points.series if key not in across] or ["policy"]
    for key in () if points.series else points.keys:
        more = [*keys, key]
        if key not in (*across, "policy") and _num_combinations(points, more) <= MAX_LINES:
            keys = more
    if _num_combinations(points, keys) > MAX_LINES:
        raise NotDrawn(
            f"would have {_num_combinations(points, keys)} lines; want at most {MAX_LINES}: choose by --where"
        )
    return keys


def _lines(points: Points, by: Sequence[str]) -> Lines:
    table = points.rows[list(dict.fromkeys([*by, "policy"]))].drop_duplicates()
    return Lines(names=tuple(dict.fromkeys(named(row, by) for _, row in table.iterrows())))


TOKENS_PER_S = "output_throughput_tokens_per_s"
BUSY = Column(metric="device_utilization", label="GPU busy (% of time)", scale=100.0, max_shown=103.0)


def draw_throughput_latency(points: Points) -> Figure:
    """Output tokens/s against mean TTFT and mean TPOT, a line through the loads, the load at each point."""
    load = _load_of(points)
    figure, panels, _ = line_figure(
        points, f"Mean TTFT and TPOT against throughput; numbers: {spoken(load)}",
        [Column(metric=f"mean_{name.lower()}_ms", label=f"mean {name} (ms)", is_log=True) for name in ("TTFT", "TPOT")],
        x=TOKENS_PER_S, by=_lines_by(points, [load]), across=[load],
    )  # fmt: skip
    for axis, column, own in panels:
        axis.set_xlabel("output (tokens/s)")
        table = own.means([TOKENS_PER_S, column.metric]).sort_values(column.metric, ascending=False)
        axis.set_xlim(0.0, float(table[TOKENS_PER_S].max()) * 1.08)
        label_points(
            figure, axis, [(row[TOKENS_PER_S], row[column.metric], f"{row[load]:g}") for _, row in table.iterrows()]
        )
    return figure


def draw_hockey_stick(points: Points) -> Figure:
    """P99 of TTFT and E2EL over the load, and over the rate the measured capacity of each line."""
    load = _load_of(points)
    by = _lines_by(points, [load])
    note = "; upright: capacity" if load == RATE else ""
    figure, panels, lines = line_figure(
        points, f"P99 of TTFT and E2EL by {spoken(load)}{note}",
        [Column(metric=f"p99_{name.lower()}_ms", label=f"P99 {name} (ms)", is_log=True) for name in ("TTFT", "E2EL")],
        x=load, by=by, across=[load],
    )  # fmt: skip
    for axis, _, own in panels if load == RATE else ():
        for name, line in _by_line(own.means(["capacity_per_s"]), by):
            for capacity in line["capacity_per_s"].dropna().tail(1):
                style = lines.style(name)
                axis.axvline(capacity, color=style["color"], linestyle=style["linestyle"], linewidth=0.8, zorder=1)
    return figure


def draw_utilisation(points: Points) -> Figure:
    """Share of time the GPU is busy, and share of its time spent on tokens that verify rejected."""
    load = _load_of(points)
    rejected = Column(metric="rejected_token_share", label="rejected tokens (% of GPU time)", scale=100.0)
    return line_figure(
        points, f"GPU busy, and on rejected tokens, by {spoken(load)}", [BUSY, rejected],
        x=load, by=_lines_by(points, [load]), across=[load],
    )[0]  # fmt: skip


def draw_gpu_comparison(points: Points) -> Figure:
    """How busy each GPU is, and what it delivers, over the load, a panel per policy."""
    load = _load_of(points)
    if "profile" not in points.keys:
        raise NotDrawn("needs a grid over profile")
    output = Column(metric=TOKENS_PER_S, label="output (tokens/s)")
    return line_figure(
        points, f"GPUs: time busy and output by {spoken(load)}", [BUSY, output],
        x=load, by=["profile"], across=[load],
    )[0]  # fmt: skip


def draw_acceptance(points: Points) -> Figure:
    """Tokens per verify round, and the share of drafted tokens that are accepted, over the draft length."""
    points = replace(points, frame=points.rows[points.rows["acceptance_length_tokens"].notna()])
    if points.rows.empty or not {K, ACCEPTANCE} & set(points.keys):
        raise NotDrawn(f"needs a grid over {K} or {ACCEPTANCE}, and speculation")
    load = points.load
    if load is not None:
        # Acceptance belongs to the request, so the load changes nothing but which rounds are cut short at the end.
        points = points.where({load: points.values(load)[0]})
    by = [key for key in ("policy", ACCEPTANCE) if key == "policy" or key in points.keys]
    if _num_combinations(points, by) > MAX_LINES:
        points = points.where({"policy": points.values("policy")[0]})
    return line_figure(
        points, "Acceptance length and rate by draft length",
        [Column(metric="acceptance_length_tokens", label="acceptance length (tokens per round)"),
         Column(metric="acceptance_rate_pct", label="drafted tokens accepted (%)")],
        x=K, by=by, across=[K, *([load] if load else [])],
    )[0]  # fmt: skip


Picture = Callable[[Points], "Figure"]
SUFFIXES = (".png", ".svg")


def picture_files(folder: Path, names: Iterable[str]) -> list[Path]:
    """Files that `write_pictures` may write."""
    return [folder / f"{name}{suffix}" for name in names for suffix in SUFFIXES]


def write_pictures(folder: Path, points: Points, pictures: Mapping[str, Picture]) -> tuple[list[Path], dict[str, str]]:
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
            for path in picture_files(folder, [name]):
                write_figure(path, partial(save, figure))
                files.append(path)
        plt.close(figure)
    return files, missing
