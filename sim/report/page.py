"""A store as one HTML page that needs nothing else: question, answer, pictures, tables, assumptions, how to rerun it.

No address in it: pictures are inside, and its policy forbids the browser to fetch anything and to run anything but the
one script that sorts and filters (page.js), without which all can be read. Light or dark as the reader
has it, and printable. Not here: the numbers (sim.report.store_points), the pictures (sim.report.pictures).
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence
from hashlib import sha256
from io import BytesIO
from math import floor, isfinite, log10
from pathlib import Path
from typing import TYPE_CHECKING

from sim.costs.profile_files import load as load_profile
from sim.files.yaml_values import yaml_text
from sim.names import in_words, span
from sim.report.pictures.panels import INK, PAPER, RULE, save, set_theme
from sim.report.pictures.store_pictures import NotDrawn, drawn, named, pictures
from sim.report.store_frame import plain_value
from sim.report.store_points import Rank, Setting, StorePoints, read_points, spoken
from sim.studies.sweeps.store import GridRun, Store

if TYPE_CHECKING:
    import pandas as pd

METRIC, METRIC_NAME = "mean_e2el_ms", "mean E2EL"
IN_SIGHT = 3
"""Pictures that are not folded."""
MAX_ROWS = 300
"""Rows of the table of points; the store has the others."""
COLUMNS = (
    ("output_throughput_tokens_per_s", "output tokens/s"),
    ("mean_ttft_ms", "mean TTFT, ms"),
    ("p99_ttft_ms", "P99 TTFT, ms"),
    ("mean_tpot_ms", "mean TPOT, ms"),
    ("mean_e2el_ms", "mean E2EL, ms"),
    ("p99_e2el_ms", "P99 E2EL, ms"),
    ("device_utilization", "GPU busy, %"),
    ("rejected_token_share", "rejected, % of GPU time"),
)
SHARES = ("device_utilization", "rejected_token_share")
STYLE, SCRIPT = (Path(__file__).with_name(f"page.{kind}") for kind in ("css", "js"))
"""Plain DOM, texts set as texts, nothing evaluated or fetched."""
DARK = {"ink": "#e6e6ea", "rule": "#3c3c44", "paper": "#17171a"}
"""Colours of pictures in the dark, as the style has them."""


def page(path: Path, *, price_per_hour: float | None = None) -> str:
    """The page of the store at `path`. Raises ValueError where there is no store or no point that ran."""
    set_theme()
    points = read_points(path)
    grids = [begun for begun in Store(path).grids() if begun.model_version == points.frame["model_version"].iloc[0]]
    asked = _question(points)
    figures, missing = _drawn(points, price_per_hour)
    parts = [
        f"<h1>{_safe(asked)}</h1>",
        _section("Answer", _answers(points)),
        _section("Pictures", _columns(figures) + _list(missing, "Not drawn:")),
        _section("Points", _points_table(points)),
        _section("What it rests on", _assumptions(points)),
        _section("Points that failed", _failures(points)) if len(points.failed) else "",
        _section("Run it again", _rerun(grids)),
    ]
    return document(asked, "\n".join(part for part in parts if part))


def document(title: str, body: str) -> str:
    """A whole page under the policy that lets it fetch nothing and run no script but its own, by its hash."""
    style, script = (f"\n{path.read_text(encoding='utf-8')}" for path in (STYLE, SCRIPT))
    allowed = f"'sha256-{base64.b64encode(sha256(script.encode()).digest()).decode()}'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" '
        f"content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {allowed}\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,">\n<title>{_safe(title)}</title>\n<style>{style}</style>\n</head>\n'
        f"<body>\n{body}\n<script>{script}</script>\n</body>\n</html>\n"
    )


def _question(points: StorePoints) -> str:
    choices = [spoken(key).partition(" (")[0] for key in points.keys if key not in points.conditions]
    which = in_words(choices) or "setting"
    loads = (
        ""
        if points.load is None
        else f" at {span(f'{load:g}' for load in points.values(points.load))} {spoken(points.load)}"
    )
    return f"Which {which} serves fastest{loads}?"


def _answers(points: StorePoints) -> str:
    ranks = points.ranked(METRIC)
    settings = [key for key in points.keys if key not in points.conditions]
    head = ["best", *(spoken(key) for key in points.conditions), f"{METRIC_NAME}, ms", "next best", "slower by, %", "",
            "keep up"]  # fmt: skip
    rows = []
    for rank in ranks:
        best, *others = _answer(rank, settings)
        rows.append([best, *map(_value, rank.condition.values()), *others])
    num_settings = max(rank.num_settings for rank in ranks)
    notes = []
    if num_settings > 2:
        notes.append(
            f"Each line is the best of up to {num_settings} settings. The best of many is also the luckiest of those "
            "near it, so trust its interval against the next one, not its rank alone."
        )
    if any(rank.second is not None for rank in ranks):
        notes.append(
            "Intervals are over other draws of the same workload. Errors of costs and acceptance are not in them. "
            "`lanesim compare --draws` has those."
        )
    if points.rows.groupby("scenario_hash").size().min() < 2:
        notes.append("One replication has no interval. Add `replications: 5`.")
    if bool(points.rows["is_transient"].any()):
        notes.append("Some points are transients, too short for steady means: `num_prompts: auto` finds the length.")
    return _table(head, rows) + "".join(f"<p>{_prose(note)}</p>" for note in notes)


def _answer(rank: Rank, settings: Sequence[str]) -> list[str]:
    """Cells of one line of the answer: the best setting and the next one, each under what tells them apart."""
    keep_up = f"{rank.num_steady} of {rank.num_settings}"
    if rank.best is None:
        return ["none keeps up", "–", "–", "–", "", keep_up]
    half = 0.0 if rank.interval is None else rank.interval[1] - rank.mean
    best = [named(rank.best, settings), with_half(rank.mean, half)]
    if rank.second is None or rank.change is None:
        return [*best, "–", "–", "", keep_up]
    change = rank.change
    apart = f"{change['change_pct']:.1f}" + (
        f" ({change['low']:.1f} to {change['high']:.1f})" if change["high"] > change["low"] else ""
    )
    verdict = "depends on overlap" if change["is_open"] else "clear" if change["is_clear"] else "not clear"
    return [*best, named(rank.second, settings), apart, verdict, keep_up]


def _value(value: Setting) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _drawn(points: StorePoints, price_per_hour: float | None) -> tuple[list[str], list[str]]:
    """Figures, and why others are missing."""
    figures, missing = [], []
    for name, figure in drawn(points, pictures(price_per_hour=price_per_hour)):
        if isinstance(figure, NotDrawn):
            missing.append(f"{name}: {figure}")
            continue
        image = BytesIO()
        save(figure, image)
        text = base64.b64encode(_in_both_schemes(image.getvalue().decode()).encode()).decode()
        caption = figure.get_suptitle().split("\n")[0]
        figures.append(
            f'<figure><img alt="{_safe(name)}" src="data:image/svg+xml;base64,{text}">'
            f"<figcaption>{_safe(caption)}</figcaption></figure>\n"
        )
    return figures, missing


def _columns(figures: Sequence[str]) -> str:
    """Pictures side by side, the first few in sight and the others folded."""
    shown, folded = ("".join(each) for each in (figures[:IN_SIGHT], figures[IN_SIGHT:]))
    more = f'<details><summary>More pictures</summary><div class="figures">{folded}</div></details>' if folded else ""
    return f'<div class="figures">{shown}</div>{more}'


def _in_both_schemes(svg: str) -> str:
    """A picture whose text, grid and ground are those of the page, in the light and in the dark."""
    names = {"ink": INK, "rule": RULE, "paper": PAPER}
    for name, colour in names.items():
        svg = svg.replace(colour, f"var(--{name})")
    light, dark = (";".join(f"--{name}:{colour}" for name, colour in each.items()) for each in (names, DARK))
    style = f"<style>svg{{{light}}}@media(prefers-color-scheme:dark){{svg{{{dark}}}}}</style>"
    return re.sub(r"(<svg\b[^>]*>)", lambda tag: tag[0] + style, svg, count=1)


def _points_table(points: StorePoints) -> str:
    table = points.means([metric for metric, _ in COLUMNS])
    keys = points.keys or ["policy"]
    head = [spoken(key) for key in keys] + [label for _, label in COLUMNS] + ["load"]
    rows: list[list[Cell]] = []
    for _, row in table.head(MAX_ROWS).iterrows():
        cells: list[Cell] = [(_value(row[key]), row[key]) for key in keys]
        cells += [(_cell(row, metric), row[metric] * _scale(metric)) for metric, _ in COLUMNS]
        rows.append([*cells, "overloaded" if row["is_overloaded"] else "steady" if row["is_steady"] else "undecided"])
    count = len(table)
    more = (
        f"<p>The first {MAX_ROWS} of {count} points. <code>lanesim.load</code> has all.</p>" if count > MAX_ROWS else ""
    )
    return (
        more
        + "<p>Means over replications, ± half of the 95 % interval where there is one.</p>"
        + _table(head, rows, "points")
    )


def _cell(row: pd.Series, metric: str) -> str:
    scale = _scale(metric)
    value, high = float(row[metric]) * scale, float(row[f"{metric}.high"]) * scale
    return "–" if value != value else with_half(value, high - value)


def _scale(metric: str) -> float:
    return 100.0 if metric in SHARES else 1.0


def with_half(value: float, half: float) -> str:
    """A mean and half of its interval for people; three digits that count where there is none.

    >>> with_half(778.4, 183.0), with_half(5.14, 0.0059), with_half(1057.2, 1210.0), with_half(0.0, 0.0)
    ('778 ± 180', '5.1400 ± 0.0059', '1,057 ± 1,200', '0')
    >>> [with_half(value, 0.0) for value in (27.31, 12345.6, 0.01234)]
    ['27.3', '12,346', '0.0123']
    """
    size = half if half > 0.0 else abs(value)
    if size == 0.0:
        return "0"
    decimals = (1 if half > 0.0 else 2) - floor(log10(size))
    text = f"{value:,.{max(0, decimals)}f}"
    return f"{text} ± {round(half, decimals):,.{max(0, decimals)}f}" if half > 0.0 else text


def _assumptions(points: StorePoints) -> str:
    lines = []
    for name in points.values("profile"):
        profile = load_profile(name)
        errors = [f"{kind} {error:.1f} %" for kind, error in profile.mean_errors_pct.items() if error is not None]
        held_out = (
            f"mean error on held-out points: {', '.join(errors)}" if errors else "not validated on held-out points"
        )
        overlap = "measured" if profile.overlap.is_known else "assumed"
        lines += [f"{name}: {part}" for part in (profile.source, held_out, f"overlap of streams {overlap}")]
    engines = ", ".join(dict.fromkeys(map(str, points.rows["engine"])))
    lines.append(f"Engine: {engines}. Model {points.frame['model_version'].iloc[0]}.")
    scenario = points.scenario(points.rows["key"].iloc[0])
    for key in ("speculation.acceptance", "workload.dataset_name", "workload.num_prompts"):
        if key not in points.keys and key in scenario:
            lines.append(f"{key}: {plain_value(scenario[key], key)}")
    lines += list(dict.fromkeys(str(note) for note in points.rows["notes"].dropna()))
    return _list(lines)


def _failures(points: StorePoints) -> str:
    keys = [key for key in points.keys if key in points.failed]
    errors: dict[str, list[str]] = {}
    for _, row in points.failed.iterrows():
        errors.setdefault(str(row["error"]), []).append(named(row, keys or ["policy"]))
    lines = [f"{len(names)} points, first {names[0]}: {error}" for error, names in errors.items()]
    return _list(lines)


def _rerun(grids: Sequence[GridRun]) -> str:
    given = [{key: value for key, value in begun.grid.items() if value} for begun in grids]
    texts = [f"<p>grid.yaml:</p><pre>{_safe(yaml_text(grid))}</pre>" for grid in given]
    return (
        "".join(texts) + "<p><code>lanesim sweep grid.yaml --out STORE</code>, then "
        "<code>lanesim report STORE --out page.html</code></p>"
    )


def _section(title: str, content: str) -> str:
    return f"<h2>{_safe(title)}</h2>\n{content}"


def _list(lines: Sequence[str], title: str = "") -> str:
    if not lines:
        return ""
    items = "".join(f"<li>{_prose(line)}</li>" for line in lines)
    return (f"<p>{_safe(title)}</p>" if title else "") + f"<ul>{items}</ul>"


Cell = str | tuple[str, Setting]
"""A text, and what it is sorted by where that is a number."""


def _table(head: Sequence[str], rows: Sequence[Sequence[Cell]], name: str = "") -> str:
    """A table; with the name `points` it filters and has a chart."""
    top = "".join(f"<th>{_safe(cell)}</th>" for cell in head)
    body = "".join(f"<tr>{''.join(map(_td, row))}</tr>\n" for row in rows)
    marked = f' id="{name}"' if name else ""
    return f'<div class="wide"><table{marked}><thead><tr>{top}</tr></thead>\n<tbody>{body}</tbody></table></div>'


def _td(cell: Cell) -> str:
    text, value = (cell, None) if isinstance(cell, str) else cell
    if isinstance(value, int | float) and isfinite(value):
        return f'<td data-v="{float(value)!r}">{_safe(text)}</td>'
    return f"<td>{_safe(text)}</td>"


def _safe(text: str) -> str:
    return html.escape(text)


def _prose(text: str) -> str:
    """A sentence in which names stand between backticks."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", _safe(text))
