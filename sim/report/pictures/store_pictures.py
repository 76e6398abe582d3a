"""Pictures of a store: what it has the rows for, each a question with its axes.

Lines differ by marker and dash as well as by colour, cells carry their numbers, so that all of it reads in grey.
Imports seaborn; only called where pictures were requested. Not here: the numbers (sim.report.store_points), and what
all figures share (sim.report.pictures.panels).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from sim.report.pictures.panels import (
    COLOURS,
    DASHES,
    INK,
    MARKERS,
    PAPER,
    headline,
    label_points,
    panel,
    set_log_scale,
    set_ticks,
)
from sim.report.store_points import ACCEPTANCE, LOADS, Draw, K, Setting, StorePoints, spoken

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

MAX_LINES, MAX_PANELS, PER_ROW = len(COLOURS), 4, 2
"""Lines in one panel, panels of a picture, and those side by side that can be read in half of a page."""
TOKENS_PER_S, PER_GPU = "output_throughput_tokens_per_s", "output_throughput_per_gpu_tokens_per_s"
JOULES = "joules_per_output_token"
HOUR_S, MILLION = 3600.0, 1e6
PANEL, LINE, VALUE, METRIC = "panel", "line", "value", "metric"
"""Columns of what is drawn."""
LIGHT_TEXT, DARK_TEXT, NO_MEAN = "#fdfdfd", "#111111", "#d9d9d9"
"""Texts of cells, whose ground is the same in the light and in the dark."""


class NotDrawn(ValueError):
    """The store does not have what the picture shows; says what it would need."""


class LinePicture(NamedTuple):
    """Means over the load, or over another column, with a row of panels per metric."""

    title: str
    metrics: Mapping[str, str]
    """Label with its unit, by column."""
    x: str | None = None
    """None: the load. Otherwise the load stands at each point."""


LINE_PICTURES = {
    "throughput_latency": LinePicture(
        "Mean TTFT and TPOT against throughput; numbers: {load}",
        {"mean_ttft_ms": "mean TTFT (ms)", "mean_tpot_ms": "mean TPOT (ms)"}, x=TOKENS_PER_S,
    ),
    "hockey_stick": LinePicture(
        "P99 of TTFT and E2EL by {load}", {"p99_ttft_ms": "P99 TTFT (ms)", "p99_e2el_ms": "P99 E2EL (ms)"}
    ),
}  # fmt: skip


def pictures(*, price_per_hour: float | None = None) -> dict[str, Callable[[StorePoints], Figure]]:
    """All pictures of a store by name; `price_per_hour` of a GPU for the dollars of the Pareto's labels."""
    throughput, hockey_stick = (partial(draw_lines, picture=each) for each in LINE_PICTURES.values())
    return {
        "throughput_latency": throughput,
        "improvement": draw_improvement,
        "draft_length": draw_draft_length,
        "pareto": partial(draw_pareto, price_per_hour=price_per_hour),
        "hockey_stick": hockey_stick,
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


# -- what is drawn of a store


def _num(points: StorePoints, keys: Sequence[str]) -> int:
    return len(points.rows[list(keys)].drop_duplicates())


def _named_rows(table: pd.DataFrame, keys: Sequence[str]) -> list[str]:
    return [named(row, keys) if keys else "" for _, row in table.iterrows()]


def _held(points: StorePoints, used: Sequence[str]) -> tuple[StorePoints, list[str], str]:
    """`points` with so many keys held at their middle value that those neither held nor `used` make at most MAX_PANELS
    panels; these keys, and the words for what is held."""
    rest, held = [key for key in points.keys if key not in used], ""
    while rest and _num(points, rest) > MAX_PANELS:
        key = max([key for key in rest if key != "policy"] or rest, key=lambda key: len(points.values(key)))
        values = points.values(key)
        points = points.where(key, values[len(values) // 2])
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
    """The policy, and further keys as long as the lines stay few."""
    keys = ["policy"]
    for key in points.keys:
        if key not in (*across, "policy") and _num(points, [*keys, key]) <= MAX_PANELS:
            keys = [*keys, key]
    if _num(points, keys) > MAX_LINES:
        raise NotDrawn(f"would have {_num(points, keys)} lines. It draws at most {MAX_LINES}")
    return keys


def _load_of(points: StorePoints) -> str:
    if points.load is None:
        raise NotDrawn(f"needs a grid over {' or '.join(LOADS)}")
    return points.load


def _grid(kind: str, table: pd.DataFrame, x: str, y: str, **more: Any) -> Any:
    """Panels of a table, whose lines or points differ by colour, marker and dash."""
    import seaborn

    lines = list(dict.fromkeys(table[LINE]))
    look: dict[str, Any] = {
        "palette": dict(zip(lines, COLOURS, strict=False)),
        "markers": dict(zip(lines, MARKERS, strict=False)),
    }
    if kind == "line":
        look |= {"dashes": dict(zip(lines, DASHES, strict=False)), "errorbar": None, "sort": False}
    by = {"hue": LINE, "style": LINE, "legend": "full" if len(lines) > 1 else False}
    return seaborn.relplot(table, kind=kind, x=x, y=y, col=PANEL, height=3.0, aspect=1.35, **look, **by, **more)


# -- lines


def draw_lines(points: StorePoints, picture: LinePicture) -> Figure:
    """Means with their intervals, hollow where overloaded."""
    import pandas as pd

    load = _load_of(points)
    x, by = picture.x or load, _lines_by(points, [load])
    points, rest, held = _held(_plain_once(points, by), [*by, load])
    means = points.means([metric for metric in (x, *picture.metrics) if metric not in points.keys])
    means[LINE], means[PANEL] = _named_rows(means, by), _named_rows(means, rest)
    ends = {VALUE: "", "low": ".low", "high": ".high"}
    table = pd.concat(
        means.assign(**{METRIC: label}, **{end: means[f"{metric}{of}"] for end, of in ends.items()})
        for metric, label in picture.metrics.items()
    )
    table = table[table[VALUE].notna()]
    if table.empty:
        raise NotDrawn("needs a point with the metric")
    grid = _grid("line", table, x, VALUE, row=METRIC, facet_kws={"sharey": "row", "sharex": False})
    colours = dict(zip(dict.fromkeys(table[LINE]), COLOURS, strict=False))
    for (label, name), axis in grid.axes_dict.items():
        shown = table[(table[METRIC] == label) & (table[PANEL] == name)]
        own = [colours[line] for line in shown[LINE]]
        axis.vlines(shown[x], shown["low"], shown["high"], colors=own, linewidth=0.8)
        hollow = shown["is_overloaded"].to_numpy(bool)
        edges = [colour for colour, is_hollow in zip(own, hollow, strict=True) if is_hollow]
        axis.scatter(shown[x][hollow], shown[VALUE][hollow], s=20, facecolors=PAPER, edgecolors=edges, zorder=3)
        is_first = name == table[PANEL].iloc[0]
        panel(axis, name, "output (tokens/s)" if x == TOKENS_PER_S else spoken(x), label if is_first else "")
        set_log_scale(axis, "y")
        if x in points.keys:
            set_ticks(axis, points.values(x))
        if x != load:
            label_points(axis, [(row[x], row[VALUE], f"{row[load]:g}") for _, row in shown.iterrows()])
    title = picture.title.format(load=spoken(load))
    title += "; hollow: overloaded" if table["is_overloaded"].any() else ""
    fixed = [key for key in ("profile", "policy") if key in points.rows and points.rows[key].nunique() == 1]
    of_one = ", ".join(str(points.rows[key].iloc[0]) for key in fixed)
    grid.tight_layout()
    return headline(grid.figure, f"{title}\n{of_one}{held}".strip())


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
    grid = _grid("scatter", table, "user", "gpu", s=40)
    for name, axis in grid.axes_dict.items():
        shown = table[table[PANEL] == name].sort_values(["user", "gpu"], ascending=False)
        best = shown[shown["gpu"] > shown["gpu"].cummax().shift(fill_value=0.0)]
        axis.plot(best["user"], best["gpu"], color=INK, linewidth=1.0, zorder=1)
        is_first = name == table[PANEL].iloc[0]
        panel(axis, str(name), "output (tokens/s per user)", "output (tokens/s per GPU)" if is_first else "")
        axis.margins(x=0.2)
        axis.set_ylim(bottom=0.0)
        texts = [(row["user"], row["gpu"], _label(row, across, price_per_hour)) for _, row in best.iterrows()]
        label_points(axis, texts)
    dollars = "" if price_per_hour is None else ", $ per million output tokens"
    numbers = f"line: the best of all; numbers: {', '.join(spoken(key) for key in across)}{dollars}{held}"
    return headline(grid.figure, f"Output per user against output per GPU, without overloaded points\n{numbers}")


def _label(row: pd.Series, across: Sequence[str], price_per_hour: float | None) -> str:
    """`8, k=4, 0.31 J, $0.42`: joules per output token and dollars per million of them where they are known."""
    texts = [f"k={row[key]:g}" if key == K else f"{row[key]:g}" for key in across if row[key] == row[key]]
    texts += [f"{row[JOULES]:.2g} J"] if row[JOULES] == row[JOULES] else []
    texts += [] if price_per_hour is None else [f"${price_per_hour / HOUR_S / row['gpu'] * MILLION:.2g}"]
    return ", ".join(texts)


# -- cells


def draw_improvement(points: StorePoints) -> Figure:
    """Change of mean latency from the first policy to each other one, over load and acceptance (or draft length).

    Cells carry the change in percent; in brackets where its interval holds zero, with a question mark where the ends
    of phi's bracket disagree, grey where a policy is overloaded.
    """
    import pandas as pd

    first, *others = points.values("policy")
    if not others:
        raise NotDrawn("needs two policies")
    load = _load_of(points)
    rest = [key for key in points.keys if key not in (load, "policy")]
    if not rest:
        raise NotDrawn("needs a second key beside the load: acceptance, or any other")
    down = next((key for key in (ACCEPTANCE, K) if key in rest), rest[0])
    panels, most = [], 5.0
    for title, of_panel in _apart(points, ["policy", load, down]):
        has_first = first in of_panel.values("policy")
        changes = of_panel.paired("mean_e2el_ms").to_dict("records") if has_first else []
        steady = [row | {"text": _change_text(row)} for row in changes if not row["is_overloaded"]]
        most = max([most, *(abs(row["change_pct"]) for row in steady)])
        for policy in others:
            own = pd.DataFrame([row for row in steady if row["policy"] == policy])
            panels.append((f"{policy} against {first}\n{title}".strip(), own))
    note = "(…): not clear; ?: depends on overlap; grey: no steady means"
    title = f"Mean E2EL against {first}, % (below 0: faster)\n{note}"
    return _heat_maps(points, panels, (load, down, "change_pct"), title, cmap="RdBu_r", bounds=(-most, most))


def draw_draft_length(points: StorePoints) -> Figure:
    """Mean time per output token by draft length and load; the best of each load boxed."""
    if K not in points.keys or points.load is None:
        raise NotDrawn(f"needs a grid over {K} and the load")
    load, metric = points.load, "mean_tpot_ms"
    drafts = points.rows.groupby("policy")["acceptance_length_tokens"].transform("max").notna()
    if not drafts.any():
        raise NotDrawn("needs a policy that drafts")
    speculative = points.with_rows(points.rows[drafts])
    panels = []
    for title, of_panel in _apart(speculative, [load, K]):
        means = of_panel.means([metric])
        means = means[~means["is_overloaded"]]
        panels.append((title, means.assign(text=[f"{value:.3g}" for value in means[metric]])))
    values = [value for _, means in panels for value in means[metric]] or [0.0]
    title = f"Mean TPOT (ms) of {', '.join(speculative.values('policy'))} by draft length"
    note = "boxed: the shortest of each load; grey: overloaded"
    bounds = min(values), max(values)
    return _heat_maps(
        points, panels, (load, K, metric), f"{title}\n{note}", cmap="YlGnBu", bounds=bounds, is_boxed=True
    )


def _apart(points: StorePoints, used: Sequence[str]) -> list[tuple[str, StorePoints]]:
    """Title and rows of each panel: one per combination of the keys that are not `used`."""
    points, rest, held = _held(points, used)
    if not rest:
        return [(held.removeprefix(", "), points)]
    groups = points.rows.groupby(rest, sort=False, dropna=False)
    return [(named(group.iloc[0], rest) + held, points.with_rows(group)) for _, group in groups]


def _change_text(row: Draw) -> str:
    text = f"{round(row['change_pct']):+d}"
    return f"{text}?" if row["is_open"] else text if row["is_clear"] else f"({text})"


def _heat_maps(
    points: StorePoints,
    panels: Sequence[tuple[str, pd.DataFrame]],
    keys: tuple[str, str, str],
    title: str,
    *,
    cmap: str,
    bounds: tuple[float, float],
    is_boxed: bool = False,
) -> Figure:
    """Panels of cells by the keys across and down, shaded by a metric, with the texts of the rows."""
    import matplotlib.pyplot as plt
    import seaborn
    from matplotlib.patches import Rectangle

    left_out = f"; {MAX_PANELS} of {len(panels)} panels" if len(panels) > MAX_PANELS else ""
    panels, (across, down, metric) = panels[:MAX_PANELS], keys
    xs, ys = points.values(across), points.values(down)
    columns = min(len(panels), PER_ROW)
    size = (2.0 + 0.62 * len(xs)) * columns, (1.2 + 0.42 * len(ys)) * -(-len(panels) // columns) + 1.0
    figure, axes = plt.subplots(-(-len(panels) // columns), columns, figsize=size, squeeze=False, layout="constrained")
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    for axis, (name, rows) in zip(axes.flat, panels, strict=False):
        cells = rows.reindex(columns=[down, across, metric, "text"]).drop_duplicates([down, across])
        table = cells.pivot(index=down, columns=across).reindex(index=ys)
        shades, texts = (table[each].reindex(columns=xs) for each in (metric, "text"))
        seaborn.heatmap(
            shades.astype(float), annot=texts.fillna(""), fmt="", cmap=cmap, vmin=bounds[0], vmax=bounds[1], cbar=False,
            ax=axis, linewidths=0.5, linecolor=PAPER, annot_kws={"fontsize": 8},
            xticklabels=[f"{x:g}" for x in xs], yticklabels=ys,
        )  # fmt: skip
        for text in axis.texts:
            text.set_color(LIGHT_TEXT if text.get_color() == "w" else DARK_TEXT)
        axis.set_facecolor(NO_MEAN)
        axis.invert_yaxis()
        axis.tick_params(rotation=0)
        panel(axis, name, spoken(across), spoken(down) if axis in axes[:, 0] else "")
        for place, column in enumerate(shades.columns if is_boxed else ()):
            if shades[column].notna().any():
                corner = place + 0.04, list(shades.index).index(shades[column].idxmin()) + 0.04
                axis.add_patch(Rectangle(corner, 0.92, 0.92, fill=False, edgecolor=DARK_TEXT, linewidth=1.8))
    return headline(figure, f"{title}{left_out}")


def drawn(
    points: StorePoints, pictures: Mapping[str, Callable[[StorePoints], Any]]
) -> Iterator[tuple[str, Figure | NotDrawn]]:
    """Each picture by its name, or why it is not drawn; a figure is there for its turn."""
    import matplotlib.pyplot as plt

    for name, draw in pictures.items():
        try:
            figure = draw(points)
        except NotDrawn as reason:
            yield name, reason
            continue
        with plt.rc_context({"svg.hashsalt": name, "svg.fonttype": "path"}):
            yield name, figure
        plt.close(figure)
