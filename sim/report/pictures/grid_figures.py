"""Pictures of a store over two keys at once: improvement, draft length by load, Pareto; and a timeline of one point.

Imports matplotlib and seaborn; only called where pictures were asked for. Not here: lines over the load
(sim.report.pictures.store_figures), the numbers (sim.report.store_points).
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from sim.costs.profile_files import load as load_profile
from sim.draws import child_seed
from sim.files.json_values import Json
from sim.metrics.records import RunRecord
from sim.metrics.stats import Floats
from sim.report.pictures.panels import canvas, headline, label_points, legend, panel
from sim.report.pictures.store_figures import (
    MAX_LINES,
    MAX_PANELS,
    TOKENS_PER_S,
    Lines,
    NotDrawn,
    Picture,
    draw_acceptance,
    draw_gpu_comparison,
    draw_hockey_stick,
    draw_throughput_latency,
    draw_utilisation,
    drawn_once,
    named,
    panels_of,
)
from sim.report.pictures.work_figures import timelines
from sim.report.store_points import ACCEPTANCE, K, Points, spoken
from sim.run.resolve import resolve
from sim.run.scenario import parse_scenario
from sim.run.scenario_file import set_dotted
from sim.run.simulate import simulate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRIC = "mean_e2el_ms"
PER_GPU = "output_throughput_per_gpu_tokens_per_s"
JOULES = "joules_per_output_token"
TIMELINE_PROMPTS = 60
HOUR_S, MILLION = 3600.0, 1e6


def pictures(*, price_per_hour: float | None = None) -> dict[str, Picture]:
    """All pictures of a store by name; `price_per_hour` of a GPU for the Pareto's second axis."""
    return {
        "throughput_latency": draw_throughput_latency,
        "hockey_stick": draw_hockey_stick,
        "improvement": draw_improvement,
        "draft_length": draw_draft_length,
        "pareto": lambda points: draw_pareto(points, price_per_hour),
        "acceptance": draw_acceptance,
        "utilisation": draw_utilisation,
        "gpu_comparison": draw_gpu_comparison,
        "timeline": draw_timeline,
    }


def draw_improvement(points: Points) -> Figure:
    """Change of mean latency from the first policy to each other one, over load and acceptance (or draft length).

    Cells carry the change in percent; in brackets where its interval holds zero, with a question mark where the ends
    of phi's bracket disagree, grey where a policy is overloaded.
    """
    policies = points.values("policy")
    if len(policies) < 2:
        raise NotDrawn("needs two policies")
    if points.load is None:
        raise NotDrawn("needs a grid over the load")
    rest = [key for key in points.keys if key not in (points.load, "policy")]
    if not rest:
        raise NotDrawn("needs a second key beside the load: acceptance, or any other")
    down = next((key for key in (ACCEPTANCE, K) if key in rest), rest[0])
    panels = [
        (f"{policy} against {policies[0]}\n{title}".strip(), own, policy)
        for title, own in panels_of(points, ["policy"], [points.load, down])
        for policy in policies[1:]
        if policy in own.values("policy") and policies[0] in own.values("policy")
    ]
    across = points.load
    left_out = _left_out(len(panels))

    def cells(own: Points, policy: str) -> tuple[Floats, list[list[str]]]:
        changes = Points(frame=own.rows[own.rows["policy"].isin([policies[0], policy])]).paired("policy", METRIC)
        shade = np.full((len(points.values(down)), len(points.values(across))), np.nan)
        texts = [["" for _ in points.values(across)] for _ in points.values(down)]
        for _, row in changes.iterrows():
            if down not in row or row["is_overloaded"]:
                continue
            y, x = points.values(down).index(row[down]), points.values(across).index(row[across])
            shade[y, x] = row["change_pct"]
            text = f"{round(row['change_pct']):+d}"
            texts[y][x] = f"{text}?" if row["is_open"] else text if row["is_clear"] else f"({text})"
        return shade, texts

    found = [(title, *cells(own, policy)) for title, own, policy in panels[:MAX_PANELS]]
    most = max([5.0, *(float(np.nanmax(np.abs(shade))) for _, shade, _ in found if not np.isnan(shade).all())])
    note = "(…): not clear; ?: depends on overlap; grey: no steady means"
    return _heat_maps(
        points, found, across, down, f"Mean E2EL against {policies[0]}, % (below 0: faster)\n{note}{left_out}",
        palette="vlag", bounds=(-most, most),
    )  # fmt: skip


def draw_draft_length(points: Points) -> Figure:
    """Mean time per output token by draft length and load; the best of each load boxed."""
    if K not in points.keys or points.load is None:
        raise NotDrawn(f"needs a grid over {K} and the load")
    load, metric = points.load, "mean_tpot_ms"
    drafts = points.rows.groupby("policy")["acceptance_length_tokens"].transform("max").notna()
    speculative = Points(frame=points.rows[drafts])
    found, boxes = [], []
    panels = list(panels_of(speculative, [], [load, K]))
    for title, own in panels[:MAX_PANELS]:
        means = own.means([metric])
        shade = np.full((len(points.values(K)), len(points.values(load))), np.nan)
        for _, row in means.iterrows():
            if not row["is_overloaded"]:
                shade[points.values(K).index(row[K]), points.values(load).index(row[load])] = row[metric]
        texts = [["" if np.isnan(value) else f"{value:.3g}" for value in line] for line in shade]
        found.append((title, shade, texts))
        boxes.append([(int(np.nanargmin(column)), x) for x, column in enumerate(shade.T) if not np.isnan(column).all()])
    if not found:
        raise NotDrawn("needs a policy that drafts")
    values = [value for _, shade, _ in found for value in shade[~np.isnan(shade)].tolist()] or [0.0]
    note = f"boxed: the shortest of each load; grey: overloaded{_left_out(len(panels))}"
    figure = _heat_maps(
        points, found, load, K, f"Mean TPOT (ms) of {', '.join(speculative.values('policy'))} by draft length\n{note}",
        palette="crest", bounds=(min(values), max(values)),
    )  # fmt: skip
    from matplotlib.patches import Rectangle

    for axis, own_boxes in zip([axis for axis in figure.axes if axis.get_label() != "<colorbar>"], boxes, strict=False):
        for y, x in own_boxes:
            axis.add_patch(Rectangle((x + 0.04, y + 0.04), 0.92, 0.92, fill=False, edgecolor="black", linewidth=1.8))
    return figure


def _left_out(num_panels: int) -> str:
    return f"; {MAX_PANELS} of {num_panels} panels, --where chooses" if num_panels > MAX_PANELS else ""


def _heat_maps(
    points: Points,
    found: Sequence[tuple[str, Floats, list[list[str]]]],
    across: str,
    down: str,
    title: str,
    *,
    palette: str,
    bounds: tuple[float, float],
) -> Figure:
    import seaborn as sns

    xs, ys = points.values(across), points.values(down)
    columns = min(max(1, 14 // len(xs)), 3, len(found))
    rows = -(-len(found) // columns)
    width, height = 1.6 + 0.62 * len(xs), 1.2 + 0.42 * len(ys)
    figure, axes = canvas(rows, columns, width=max(width, 5.0 / columns), height=height + 0.6 / rows)
    for axis, (name, shade, texts) in zip(chain.from_iterable(axes), found, strict=False):
        sns.heatmap(
            shade, ax=axis, annot=np.array(texts), fmt="", cmap=palette, vmin=bounds[0], vmax=bounds[1], cbar=False,
            linewidths=0.5, annot_kws={"fontsize": 8}, xticklabels=[f"{x:g}" for x in xs], yticklabels=ys,
        )  # fmt: skip
        axis.invert_yaxis()
        axis.set_facecolor("#d9d9d9")
        axis.grid(visible=False)
        axis.tick_params(axis="y", rotation=0)
        panel(axis, name, spoken(across), spoken(down))
    for axis in list(chain.from_iterable(axes))[len(found) :]:
        axis.set_visible(False)
    headline(figure, title)
    return figure


def draw_pareto(points: Points, price_per_hour: float | None = None) -> Figure:
    """Tokens per second that a user sees against what a GPU delivers; nothing beats the line in both."""
    across = [key for key in (points.load, K) if key in points.keys]
    if not across:
        raise NotDrawn("needs a grid over the load or the draft length")
    by = ["policy", *[key for key in ("profile",) if key in points.keys]]
    panels = list(panels_of(drawn_once(points, [*by, *across]), by, across))[:MAX_PANELS]
    names = tuple(dict.fromkeys(named(row, by) for _, row in points.rows[by].drop_duplicates().iterrows()))
    lines = Lines(names=names[:MAX_LINES])
    figure, axes = canvas(1, len(panels), width=5.4, height=4.2)
    headline(figure, f"Output per user against output per GPU, without overloaded points\nnumbers: "
                     f"{', '.join(spoken(key) for key in across)}")  # fmt: skip
    for axis, (title, own) in zip(axes[0], panels, strict=True):
        table = own.means([TOKENS_PER_S, PER_GPU, "mean_tpot_ms", JOULES])
        table = table[table["mean_tpot_ms"].notna() & ~table["is_overloaded"]]
        users = 1e3 / table["mean_tpot_ms"].to_numpy()
        gpus = table[PER_GPU if PER_GPU in own.rows else TOKENS_PER_S].to_numpy()
        labels = [named(row, by) for _, row in table.iterrows()]
        for name in lines.names:
            mine = [place for place, label in enumerate(labels) if label == name]
            axis.plot(users[mine], gpus[mine], label=name, **lines.style(name) | {"linestyle": "none"})
        best = _front(users, gpus)
        axis.plot(users[best], gpus[best], color="black", linewidth=1.0, zorder=1, label="best of all")
        panel(axis, title, "output (tokens/s per user)", "output (tokens/s per GPU)")
        axis.margins(0.1)
        axis.set_ylim(bottom=0.0)
        texts = [
            ", ".join(_label(key, row[key]) for key in (*across, JOULES) if row[key] == row[key])
            for _, row in table.iloc[best].iterrows()
        ]
        label_points(figure, axis, zip(users[best], gpus[best], texts, strict=True))
        if price_per_hour is not None:
            cost = axis.secondary_yaxis("right")
            ticks = [tick for tick in axis.get_yticks() if tick > 0.0]
            cost.set_yticks(ticks, [f"{price_per_hour / HOUR_S / tick * MILLION:.2g}" for tick in ticks])
            cost.set_ylabel("$ per million output tokens")
    legend(figure, axes)
    return figure


def _label(key: str, value: float) -> str:
    """`k=4`, `0.31 J` per output token, or a load."""
    return f"k={value:g}" if key == K else f"{value:.2g} J" if key == JOULES else f"{value:g}"


def _front(xs: Floats, ys: Floats) -> list[int]:
    """Places of the points that no other one beats in both, by x."""
    order = sorted(range(len(xs)), key=lambda place: (-xs[place], -ys[place]))
    front: list[int] = []
    for place in order:
        if not front or ys[place] > ys[front[-1]]:
            front.append(place)
    return front[::-1]


def draw_timeline(points: Points) -> Figure:
    """What runs when on the GPU's streams, for every policy at the middle of the other keys; simulated again, short."""
    rows = points.rows
    for key in points.keys:
        if key != "policy":
            values = points.values(key)
            rows = rows[rows[key] == values[len(values) // 2]]
    records, title = [], ""
    for policy in points.values("policy"):
        own = rows[rows["policy"] == policy]
        if own.empty:
            continue
        raw: dict[str, Json] = {"policy": policy}
        for name, text in points.scenario(own.iloc[0]["key"]).items():
            if json.loads(text) is not None:
                set_dotted(raw, name, json.loads(text))
        set_dotted(raw, "workload.num_prompts", min(TIMELINE_PROMPTS, int(own.iloc[0]["num_prompts"])))
        for name in ("num_warmups", "num_cooldowns"):
            set_dotted(raw, f"workload.{name}", 0)
        try:
            records.append(_again(raw, policy))
        except ValueError as error:
            # A policy or an acceptance model that was registered where the sweep ran, say.
            raise NotDrawn(f"cannot run {policy} again: {error}") from None
        title = named(own.iloc[0], [key for key in points.keys if key != "policy"])
    if not records:
        raise NotDrawn("needs a point that ran at the middle of the grid")
    return timelines(f"What runs when: {title}", records)


def _again(raw: dict[str, Json], policy: str) -> RunRecord:
    scenario = parse_scenario(raw)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        resolved = resolve(scenario, load_profile(scenario.profile), policy)
        return simulate(resolved, child_seed(scenario.seed, 0), record_works=True)
