"""Pictures of a store: what it has the rows for, each a question with its axes, as PNG and as SVG.

Lines differ by marker and dash as well as by colour, cells carry their numbers, so that all of it reads in grey.
Imports matplotlib; only called where pictures were requested. Not here: the numbers
(sim.report.store_points), and what all figures share (sim.report.pictures.panels).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sim.metrics.stats import Floats
from sim.report.pictures.panels import (
    COLOURS,
    INK,
    PAPER,
    RULE,
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
from sim.report.store_points import ACCEPTANCE, LOADS, Draw, K, Setting, StorePoints, spoken

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_LINES, MAX_PANELS = 4, 8
"""Lines in one panel; more of them have a panel each, with the others in grey. Panels of a metric."""
MAX_COLUMNS = 3
MARKERS, DASHES = "os^D", ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (3, 1.25, 1.5, 1.25)))
MARGIN = 1.25
"""Room from the means to the edges of a panel; intervals may leave it."""
TOKENS_PER_S, PER_GPU = "output_throughput_tokens_per_s", "output_throughput_per_gpu_tokens_per_s"
JOULES = "joules_per_output_token"
HOUR_S, MILLION = 3600.0, 1e6
PANEL, LINE = "panel", "line"
"""Columns of what is drawn."""


class NotDrawn(ValueError):
    """The store does not have what the picture shows; says what it would need."""


class LinePicture(NamedTuple):
    """Means over the load, or over another column, with a row of panels per metric."""

    title: str
    metrics: Mapping[str, tuple[str, float]]
    """Label with its unit, and scale, by column."""
    x: str | None = None
    """None: the load."""
    is_log: bool = False
    has_labels: bool = False
    """The load stands at each point."""
    over: str | None = None
    """Key that the store must go through; None: the load."""


LINE_PICTURES = {
    "throughput_latency": LinePicture(
        "Mean TTFT and TPOT against throughput; numbers: {load}",
        {"mean_ttft_ms": ("mean TTFT (ms)", 1.0), "mean_tpot_ms": ("mean TPOT (ms)", 1.0)},
        x=TOKENS_PER_S, is_log=True, has_labels=True,
    ),
    "hockey_stick": LinePicture(
        "P99 of TTFT and E2EL by {load}",
        {"p99_ttft_ms": ("P99 TTFT (ms)", 1.0), "p99_e2el_ms": ("P99 E2EL (ms)", 1.0)}, is_log=True,
    ),
    "acceptance": LinePicture(
        "Acceptance length and rate by draft length",
        {"acceptance_length_tokens": ("acceptance length (tokens per round)", 1.0),
         "acceptance_rate_pct": ("drafted tokens accepted (%)", 1.0)}, x=K, over=K,
    ),
    "utilisation": LinePicture(
        "GPU busy, and on rejected tokens, by {load}",
        {"device_utilization": ("GPU busy (% of time)", 100.0),
         "rejected_token_share": ("rejected tokens (% of GPU time)", 100.0)},
    ),
}  # fmt: skip


def pictures(*, price_per_hour: float | None = None) -> dict[str, Callable[[StorePoints], Figure]]:
    """All pictures of a store by name; `price_per_hour` of a GPU for the dollars of the Pareto's labels."""
    return {
        **{name: partial(draw_lines, picture=each) for name, each in LINE_PICTURES.items()},
        "improvement": draw_improvement,
        "draft_length": draw_draft_length,
        "pareto": partial(draw_pareto, price_per_hour=price_per_hour),
    }


def named(row: Draw | pd.Series, keys: Sequence[str]) -> str:
    """The values of some keys in a few words: `pd, k=4, iid:0.7`."""
    return ", ".join(_short(key, row[key]) for key in keys if row[key] == row[key]) or str(row.get("policy", ""))


def _short(key: str, value: Setting) -> str:
    if key == K:
        return f"k={value:g}"
    if key in ("policy", "profile", ACCEPTANCE):
        return str(value)
    return f"{spoken(key)} {value:g}" if isinstance(value, float | int) else f"{spoken(key)} {value}"


def _num(points: StorePoints, keys: Sequence[str]) -> int:
    return len(points.rows[list(keys)].drop_duplicates())


def _named_rows(table: pd.DataFrame, keys: Sequence[str]) -> list[str]:
    return [named(row, keys) if keys else "" for _, row in table.iterrows()]


def _load_of(points: StorePoints) -> str:
    if points.load is None:
        raise NotDrawn(f"needs a grid over {' or '.join(LOADS)}")
    return points.load


def _held(points: StorePoints, used: Sequence[str], max_panels: int = MAX_PANELS) -> tuple[StorePoints, list[str], str]:
    """`points` with so many keys held at their middle value that those neither held nor `used` make at most
    `max_panels` panels; these keys, and the words for what is held."""
    rest, held = [key for key in points.keys if key not in used], ""
    while rest and _num(points, rest) > max_panels:
        key = max([key for key in rest if key != "policy"] or rest, key=lambda key: len(points.values(key)))
        values = points.values(key)
        points = points.where({key: values[len(values) // 2]})
        rest = [other for other in rest if other != key]
        held += f", {_short(key, values[len(values) // 2])} (of {len(values)})"
    return points, rest, held


def _plain_once(points: StorePoints, by: Sequence[str]) -> StorePoints:
    """Policies that draft nothing at one draft length, which is then none: they are the same at each."""
    if K not in by or "policy" not in by:
        return points
    rows = points.rows
    is_plain = rows.groupby("policy")["acceptance_length_tokens"].transform("max").isna()
    rows = rows[~is_plain | (rows[K] == rows[K].min())]
    return points.with_rows(rows.assign(**{K: rows[K].where(~is_plain)}))


def _lines_by(points: StorePoints, across: Sequence[str]) -> list[str]:
    """The series that were chosen; else the policy, and further keys as long as the lines stay few."""
    keys = [key for key in points.series if key not in across] or ["policy"]
    for key in () if points.series else points.keys:
        if key not in (*across, "policy") and _num(points, [*keys, key]) <= MAX_LINES:
            keys = [*keys, key]
    if _num(points, keys) > MAX_PANELS:
        raise NotDrawn(f"would have {_num(points, keys)} lines; want at most {MAX_PANELS}: choose by --where")
    return keys


def _of_one(points: StorePoints) -> str:
    """Profile and policy, where all rows are of the same."""
    fixed = [key for key in ("profile", "policy") if key in points.rows and points.rows[key].nunique() == 1]
    return ", ".join(str(points.rows[key].iloc[0]) for key in fixed)


def draw_lines(points: StorePoints, picture: LinePicture) -> Figure:
    """Means with their intervals, hollow where overloaded; more than MAX_LINES lines have a panel each."""
    if picture.over is not None:
        points = points.with_rows(points.rows[points.rows["acceptance_length_tokens"].notna()])
        if points.rows.empty or picture.over not in points.keys:
            raise NotDrawn(f"needs a grid over {picture.over}, and speculation")
    load = _load_of(points) if picture.over is None else points.load
    if picture.over is not None and load is not None:
        # Acceptance belongs to the request: the load changes nothing but which rounds are cut short at the end.
        points = points.where({load: points.values(load)[0]})
    x = picture.x or str(load)
    across = [key for key in (load, picture.over) if key is not None]
    by = _lines_by(points, across)
    points = _plain_once(points, by)
    is_apart = _num(points, by) > MAX_LINES
    points, rest, held = _held(points, [*by, *across], 1 if is_apart else MAX_PANELS)
    table = points.means([metric for metric in (x, *picture.metrics) if metric not in points.keys])
    table[LINE], table[PANEL] = _named_rows(table, by), _named_rows(table, by if is_apart else rest)
    rows = [row for row in table.to_dict("records") if any(row[metric] == row[metric] for metric in picture.metrics)]
    if not rows:
        raise NotDrawn("needs a point with the metric")
    names = list(dict.fromkeys(row[PANEL] for row in rows))
    styles = list(zip(dict.fromkeys(row[LINE] for row in rows), cycle(COLOURS), cycle(MARKERS), cycle(DASHES)))
    figure, metrics = _panels_by_metric(names, picture.metrics)
    for (metric, (label, scale)), axes in zip(picture.metrics.items(), metrics, strict=True):
        known = [row for row in rows if row[metric] == row[metric]]
        values = [scale * row[metric] for row in known] or [1.0]
        for axis, name in zip(axes, names, strict=True):
            for line, colour, marker, dash in styles:
                is_own = not is_apart or line == name
                shown = [row for row in known if row[LINE] == line and (is_apart or row[PANEL] == name)]
                _line(axis, shown, x, metric, scale, line, colour if is_own else RULE, marker if is_own else "", dash)
            axis.set_ylim(min(values) / MARGIN if picture.is_log else 0.0, max(*values, 1e-9) * MARGIN)
            if picture.is_log:
                set_log_scale(axis, "y")
            axis.tick_params(axis="y", labelleft=names.index(name) % MAX_COLUMNS == 0)
            if x in points.keys:
                set_ticks(axis, points.values(x))
            panel(axis, name, "output (tokens/s)" if x == TOKENS_PER_S else spoken(x), label if axis is axes[0] else "")
            if picture.has_labels:
                axis.set_xlim(0.0, max(row[x] for row in rows if is_apart or row[PANEL] == name) * 1.08)
                label_points(
                    axis, [(row[x], scale * row[metric], f"{row[load]:g}") for row in known if row[PANEL] == name]
                )
    if not is_apart:
        legend(figure, [metrics[0][: min(len(names), MAX_COLUMNS)]])
    title = picture.title.format(load=spoken(load) if load else "")
    title += "; hollow: overloaded" if table["is_overloaded"].any() else ""
    headline(figure, f"{title}\n{_of_one(points)}{held}".strip())
    return figure


def _panels_by_metric(names: Sequence[str], metrics: Iterable[str]) -> tuple[Figure, list[list[Axes]]]:
    """A figure and, for each metric, its axes: one per name, in as many rows as they need."""
    columns, metrics = min(len(names), MAX_COLUMNS), list(metrics)
    rows = -(-len(names) // columns)
    small = len(names) > columns
    figure, axes = canvas(rows * len(metrics), columns, width=3.6 if columns > 2 else 4.6, height=2.7 if small else 3.3)
    blocks = [list(chain.from_iterable(axes[rows * each : rows * (each + 1)])) for each in range(len(metrics))]
    for axis in chain.from_iterable(block[len(names) :] for block in blocks):
        axis.set_visible(False)
    return figure, [block[: len(names)] for block in blocks]


def _line(
    axis: Axes, rows: Sequence[Draw], x: str, metric: str, scale: float, label: str, colour: str, marker: str, dash: Any
) -> None:
    """One series through its loads; without a marker it is there for comparison, thin and without intervals."""
    xs, ys = [row[x] for row in rows], [scale * row[metric] for row in rows]
    if not marker:
        axis.plot(xs, ys, color=colour, linewidth=1.0, zorder=1)
        return
    axis.plot(xs, ys, color=colour, linestyle=dash, marker=marker, markersize=5, label=label)
    hollow = [at for at, row in enumerate(rows) if row["is_overloaded"]]
    axis.scatter(
        [xs[at] for at in hollow], [ys[at] for at in hollow], s=25, marker=marker, facecolors=PAPER, edgecolors=colour,
        zorder=3,
    )  # fmt: skip
    ends = [[scale * row[f"{metric}.{end}"] for row in rows] for end in ("low", "high")]
    axis.vlines(xs, *ends, color=colour, linewidth=0.8)


LIGHT_TEXT, DARK_TEXT, NO_MEAN = "#fdfdfd", "#111111", "#d9d9d9"
"""Texts of cells, whose ground is the same in the light and in the dark."""
Panel = tuple[str, Floats, list[list[str]]]
"""Title, shades [down, across], and texts of the cells."""


def draw_improvement(points: StorePoints) -> Figure:
    """Change of mean latency from the first policy to each other one, over load and acceptance (or draft length).

    Cells carry the change in percent; in brackets where its interval holds zero, with a question mark where the ends
    of phi's bracket disagree, grey where a policy is overloaded.
    """
    first, *others = points.values("policy")
    if not others:
        raise NotDrawn("needs two policies")
    load = _load_of(points)
    rest = [key for key in points.keys if key not in (load, "policy")]
    if not rest:
        raise NotDrawn("needs a second key beside the load: acceptance, or any other")
    down = next((key for key in (ACCEPTANCE, K) if key in rest), rest[0])
    panels: list[Panel] = []
    for title, panel_points in _apart(points, ["policy", load, down]):
        changes = (
            panel_points.paired("policy", "mean_e2el_ms")
            if first in panel_points.values("policy")
            else panel_points.rows[:0]
        )
        for policy in others:
            cells = [
                (row[load], row[down], row["change_pct"], _change_text(row))
                for _, row in changes.iterrows()
                if row["policy"] == policy and not row["is_overloaded"] and row["change_pct"] == row["change_pct"]
            ]
            panels.append((f"{policy} against {first}\n{title}".strip(), *_cells(points, load, down, cells)))
    most = max(5.0, *(np.nan_to_num(np.abs(shade)).max() for _, shade, _ in panels))
    note = "(…): not clear; ?: depends on overlap; grey: no steady means"
    title = f"Mean E2EL against {first}, % (below 0: faster)\n{note}"
    return _heat_maps(points, panels, load, down, title, palette="RdBu_r", bounds=(-most, most))


def draw_draft_length(points: StorePoints) -> Figure:
    """Mean time per output token by draft length and load; the best of each load boxed."""
    if K not in points.keys or points.load is None:
        raise NotDrawn(f"needs a grid over {K} and the load")
    load, metric = points.load, "mean_tpot_ms"
    drafts = points.rows.groupby("policy")["acceptance_length_tokens"].transform("max").notna()
    speculative = points.with_rows(points.rows[drafts])
    panels: list[Panel] = []
    for title, panel_points in _apart(speculative, [load, K]) if drafts.any() else ():
        cells = [
            (row[load], row[K], row[metric], f"{row[metric]:.3g}")
            for _, row in panel_points.means([metric]).iterrows()
            if not row["is_overloaded"]
        ]
        panels.append((title, *_cells(points, load, K, cells)))
    if not panels:
        raise NotDrawn("needs a policy that drafts")
    values = [value for _, shade, _ in panels for value in shade[~np.isnan(shade)].tolist()] or [0.0]
    title = f"Mean TPOT (ms) of {', '.join(speculative.values('policy'))} by draft length"
    note = "boxed: the shortest of each load; grey: overloaded"
    bounds = min(values), max(values)
    return _heat_maps(points, panels, load, K, f"{title}\n{note}", palette="YlGnBu", bounds=bounds, is_boxed=True)


def _apart(points: StorePoints, used: Sequence[str]) -> list[tuple[str, StorePoints]]:
    """Title and rows of each panel: one per combination of the keys that are not `used`."""
    points, rest, held = _held(points, used)
    if not rest:
        return [(held.removeprefix(", "), points)]
    groups = points.rows.groupby(rest, sort=False, dropna=False)
    return [(named(group.iloc[0], rest) + held, points.with_rows(group)) for _, group in groups]


def _change_text(row: pd.Series) -> str:
    text = f"{round(row['change_pct']):+d}"
    return f"{text}?" if row["is_open"] else text if row["is_clear"] else f"({text})"


def _cells(
    points: StorePoints, across: str, down: str, known: Iterable[tuple[Setting, Setting, float, str]]
) -> tuple[Floats, list[list[str]]]:
    """Shades and texts of the cells of a panel, by the values of the keys `across` and `down`; empty if not `known`."""
    xs, ys = points.values(across), points.values(down)
    shades, texts = np.full((len(ys), len(xs)), np.nan), [["" for _ in xs] for _ in ys]
    for x, y, shade, text in known:
        row, column = ys.index(y), xs.index(x)
        shades[row, column], texts[row][column] = shade, text
    return shades, texts


def _heat_maps(
    points: StorePoints,
    panels: Sequence[Panel],
    across: str,
    down: str,
    title: str,
    *,
    palette: str,
    bounds: tuple[float, float],
    is_boxed: bool = False,
) -> Figure:
    from matplotlib.patches import Rectangle

    left_out = f"; {MAX_PANELS} of {len(panels)} panels, --where chooses" if len(panels) > MAX_PANELS else ""
    panels = panels[:MAX_PANELS]
    xs, ys = points.values(across), points.values(down)
    columns = min(max(1, 14 // len(xs)), MAX_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    width, height = 1.6 + 0.62 * len(xs), 1.5 + 0.42 * len(ys)
    figure, axes = canvas(rows, columns, width=max(width, 5.0 / columns), height=height)
    for number, (axis, (name, shade, texts)) in enumerate(zip(chain.from_iterable(axes), panels, strict=False)):
        image = axis.pcolormesh(shade, cmap=palette, vmin=bounds[0], vmax=bounds[1], edgecolors=PAPER, linewidth=0.5)
        luminance = image.to_rgba(shade)[..., :3] @ (0.21, 0.72, 0.07)
        for y, x in np.ndindex(shade.shape):
            colour = LIGHT_TEXT if luminance[y, x] < 0.5 else DARK_TEXT
            axis.text(x + 0.5, y + 0.5, texts[y][x], ha="center", va="center", fontsize=8, color=colour)
        axis.set_xticks(np.arange(len(xs)) + 0.5, [f"{x:g}" for x in xs])
        axis.set_yticks(np.arange(len(ys)) + 0.5, [str(y) for y in ys])
        axis.set_facecolor(NO_MEAN)
        axis.grid(visible=False)
        panel(axis, name, spoken(across), spoken(down) if number % columns == 0 else "")
        axis.tick_params(axis="y", labelleft=number % columns == 0)
        for x, column in enumerate(shade.T if is_boxed else ()):
            if not np.isnan(column).all():
                corner = x + 0.04, int(np.nanargmin(column)) + 0.04
                axis.add_patch(Rectangle(corner, 0.92, 0.92, fill=False, edgecolor=DARK_TEXT, linewidth=1.8))
    for axis in list(chain.from_iterable(axes))[len(panels) :]:
        axis.set_visible(False)
    headline(figure, f"{title}{left_out}")
    return figure


def draw_pareto(points: StorePoints, price_per_hour: float | None = None) -> Figure:
    """Tokens per second that a user sees against what a GPU delivers; nothing beats the line in both."""
    across = [key for key in (points.load, K) if key in points.keys]
    if not across:
        raise NotDrawn("needs a grid over the load or the draft length")
    by = ["policy", *[key for key in ("profile",) if key in points.keys]]
    points, rest, held = _held(_plain_once(points, [*by, *across]), [*by, *across])
    table = points.means([TOKENS_PER_S, PER_GPU, "mean_tpot_ms", JOULES])
    table = table[table["mean_tpot_ms"].notna() & ~table["is_overloaded"]].copy()
    if table.empty:
        raise NotDrawn("needs a point that is not overloaded")
    table["user"], table["gpu"] = 1e3 / table["mean_tpot_ms"], table[PER_GPU].fillna(table[TOKENS_PER_S])
    table[LINE], table[PANEL] = _named_rows(table, by), _named_rows(table, rest)
    names = list(table[PANEL].unique())
    styles = list(zip(table[LINE].unique(), cycle(COLOURS), cycle(MARKERS)))
    figure, (axes,) = _panels_by_metric(names, ["user"])
    for axis, name in zip(axes, names, strict=True):
        shown = table[table[PANEL] == name].sort_values(["user", "gpu"], ascending=False)
        best = shown[shown["gpu"] > shown["gpu"].cummax().shift(fill_value=0.0)]
        for line, colour, marker in styles:
            own = shown[shown[LINE] == line]
            axis.scatter(own["user"], own["gpu"], s=30, color=colour, marker=marker, label=line)
        axis.plot(best["user"], best["gpu"], color=INK, linewidth=1.0, zorder=1)
        is_first = names.index(name) % MAX_COLUMNS == 0
        panel(axis, str(name), "output (tokens/s per user)", "output (tokens/s per GPU)" if is_first else "")
        axis.margins(x=0.2)
        axis.set_ylim(bottom=0.0)
        texts = [(row["user"], row["gpu"], _label(row, across, price_per_hour)) for _, row in best.iterrows()]
        label_points(axis, texts)
    legend(figure, [axes[:MAX_COLUMNS]])
    dollars = "" if price_per_hour is None else ", $ per million output tokens"
    numbers = f"line: the best of all; numbers: {', '.join(spoken(key) for key in across)}{dollars}{held}"
    headline(figure, f"Output per user against output per GPU, without overloaded points\n{numbers}")
    return figure


def _label(row: pd.Series, across: Sequence[str], price_per_hour: float | None) -> str:
    """`8, k=4, 0.31 J, $0.42`: joules per output token and dollars per million of them where they are known."""
    texts = [f"k={row[key]:g}" if key == K else f"{row[key]:g}" for key in across if row[key] == row[key]]
    texts += [f"{row[JOULES]:.2g} J"] if row[JOULES] == row[JOULES] else []
    texts += [] if price_per_hour is None else [f"${price_per_hour / HOUR_S / row['gpu'] * MILLION:.2g}"]
    return ", ".join(texts)


SUFFIXES = (".png", ".svg")


def picture_files(folder: Path, names: Iterable[str]) -> list[Path]:
    """Files that `write_pictures` may write."""
    return [folder / f"{name}{suffix}" for name in names for suffix in SUFFIXES]


def write_pictures(
    folder: Path, points: StorePoints, pictures: Mapping[str, Callable[[StorePoints], Any]]
) -> tuple[list[Path], dict[str, str]]:
    """Draw each as FOLDER/NAME.png and .svg; the files, and why what is missing was not drawn."""
    from sim.files.write import write_figure

    set_theme()
    files: list[Path] = []
    missing: dict[str, str] = {}
    for name, figure in drawn(points, pictures, fonts="none"):
        if isinstance(figure, NotDrawn):
            missing[name] = str(figure)
            continue
        for path in picture_files(folder, [name]):
            write_figure(path, partial(save, figure))
            files.append(path)
    return files, missing


def drawn(
    points: StorePoints, pictures: Mapping[str, Callable[[StorePoints], Any]], *, fonts: str
) -> Iterator[tuple[str, Figure | NotDrawn]]:
    """Each picture by its name, or why it is not drawn; a figure is there for its turn. `fonts` as matplotlib's
    `svg.fonttype`."""
    import matplotlib.pyplot as plt

    for name, draw in pictures.items():
        try:
            figure = draw(points)
        except NotDrawn as reason:
            yield name, reason
            continue
        with plt.rc_context({"svg.hashsalt": name, "svg.fonttype": fonts}):
            yield name, figure
        plt.close(figure)
