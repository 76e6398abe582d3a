"""Writes the atlas: docs/atlas.html, one file that needs nothing else, and docs/atlas.json.

    python -m validation atlas [--pairs validation/pages/atlas.yaml] [--out docs] [--only TEXT] [--draws 10]

--only: pairs whose label has the text; --done: the folder of finished pairs, which are not
simulated again.
What is measured near a row stands in its last column, "no evidence" where nothing was. Not here: the numbers (atlas).
"""

from __future__ import annotations

import html
import json
import re
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import msgspec

from sim.files.write import write_text
from sim.report.page import Cell, document, table, td
from sim.studies.evidence import MEASURED
from validation.pages.atlas import (
    DONE,
    DRAWS,
    INPUT_TOKENS,
    MAX_IN_FLIGHT,
    OUT,
    OUTPUT_TOKENS,
    PAIRS,
    SCHEMA,
    AtlasRow,
    AtLoad,
    atlas,
    read_pairs,
)

TITLE = "Which draft length, and from which load does speculation lose?"
K_LOADS, GAIN_LOADS = (1, 8, 32, 128, 256), (1, 32, 256)
"""Requests in flight that have a column."""
UNMEASURED = "no evidence"
PLAIN_ONLY = "without drafts only: "
Refused = Sequence[tuple[str, str]]
_LINE = re.compile(
    rf"{MEASURED}: [^,]*, (?P<engine>[^,]*), [^,]*, (?P<drafts>.*?): (?P<errors>.*?) \((?P<count>\d+ cells?);"
)
"""A line of `sim.studies.evidence`: GPU, engine, model, drafts and loads, errors, how many cells, source."""
ASSUMED = (
    f"Every request has a prompt of {INPUT_TOKENS:,} and an output of {OUTPUT_TOKENS} tokens; a closed loop keeps 1 to "
    f"{MAX_IN_FLIGHT} of them in flight, or as many as memory holds.",
    "Acceptance is what is published of the drafter, on the data named with the pair, mostly MT-Bench: yours differs. "
    "It is carried to other draft lengths by a model with an error of its own (docs/acceptance.md). What your server "
    "logs goes into `lanesim tune --acceptance`.",
    "Profiles: kernel tables of aiconfigurator-core, composed by layer; verify passes and drafters' heads follow "
    "rules, since no table has them. Where tables of another engine stand in, the pair says so.",
    "Engine constants are fitted on few set-ups: sglang-0.5 on H200, vllm-0.24 on A100, vllm-0.23 on GH200. Elsewhere "
    "they are pooled, with 29 % (vLLM) and 46 % (SGLang) of error in the draws; TensorRT-LLM's drafting pass was never "
    "measured.",
    "Nothing overlaps: target and drafter share one stream, as these engines have it.",
    "The interval of a gain is 5 to 95 % of draws within the errors of costs and acceptance; of fewer than 19 draws, "
    "the least and the most. K is the draft length of least expected regret; none: no length from 1 on gains on "
    "average. One K: the one length that loses least over all loads against the best choice at each, no speculation "
    "among them.",
    "A row is grey where nothing was measured with that GPU and target within a factor of two of these loads. Errors "
    "beside the others are the simulator's, on real runs, of the engine that is named.",
    "Left out, since the simulator cannot judge them: trees of drafts, n-grams (no published number carries over), "
    "Llama 4 (no cost form for its layers), several nodes.",
)
HEAD = (
    "target", "GPUs", "engine", "drafter", "loses from", *(f"K at {load}" for load in K_LOADS),
    *(f"speed-up at {load}" for load in GAIN_LOADS), "one K", "its regret, %", "acceptance", "measured nearest, error",
)  # fmt: skip
OVER, SHOW, COLOUR = f"speed-up at {GAIN_LOADS[0]}", f"speed-up at {GAIN_LOADS[1]}", "engine"


def sentence(rows: Sequence[AtlasRow]) -> str:
    """The answer."""
    many = len(rows)
    losing = [(row.answer.break_even_concurrency, row) for row in rows if row.answer.break_even_concurrency is not None]
    measured = sum(row.has_evidence for row in rows)
    regret, worst = fmean(row.one_k_regret for row in rows), max(row.one_k_worst for row in rows)
    at_times = sum(row.answer.break_even_concurrency is None and any(at.k == 0 for at in row.loads) for row in rows)
    gaining = many - len(losing) - at_times
    parts = [f"Of {many} published pairs, drafting raises throughput at every load tried in {gaining or 'none'}."]
    if losing:
        first, row = min(losing, key=lambda each: each[0])
        start = f"above {first:.0f} requests in flight" if first >= 1.0 else "at any load"
        parts.append(
            f"In {len(losing)} it lowers throughput once enough requests are in flight; {row.target} on {row.gpu} "
            f"under {row.engine} is the first, {start}."
        )
    if at_times:
        parts.append(f"In {at_times}{' more' * bool(losing)} it lowers throughput at single loads.")
    parts.append(
        f"A server that keeps one draft length at all loads loses {100 * regret:.1f} % of its throughput on average, "
        f"{100 * worst:.0f} % at worst. Drafts were measured near these loads for {measured} pairs; the rest is "
        "predicted."
    )
    return " ".join(parts)


def as_json(rows: Sequence[AtlasRow], refused: Refused, draws: int) -> str:
    content = {
        "schema": SCHEMA,
        "sentence": sentence(rows),
        "input_len": INPUT_TOKENS,
        "output_len": OUTPUT_TOKENS,
        "draws": draws,
        "assumed": list(ASSUMED),
        "pairs": msgspec.to_builtins(rows, str_keys=True),
        "left_out": [{"pair": label, "why": why} for label, why in refused],
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def as_html(rows: Sequence[AtlasRow], refused: Refused, draws: int) -> str:
    bodies = [
        f'<td><a href="#pair-{index}">{html.escape(row.target)}</a></td>' + "".join(map(td, cells(row)[1:]))
        for index, row in enumerate(rows, start=1)
    ]
    grey = [index for index, row in enumerate(rows) if measured(row) == UNMEASURED]
    marks = {"id": "points", "data-over": OVER, "data-show": SHOW, "data-colour": COLOUR, "data-hollow": UNMEASURED}
    parts = [
        f"<h1>{TITLE}</h1>\n<p><strong>{html.escape(sentence(rows))}</strong></p>",
        "<p>Speed-up: output tokens per second over the same engine without a drafter, requests in flight as said. A "
        "target's name leads to its line to copy.</p>",
        table(HEAD, bodies, marks, grey),
        "<h2>What is assumed</h2><ul>" + "".join(f"<li>{_coded(line)}</li>" for line in _assumed(draws)) + "</ul>",
        _left_out(refused),
        "<h2>Each pair, and its line</h2>",
        *(_details(index, row) for index, row in enumerate(rows, start=1)),
    ]
    return document(TITLE, "\n".join(part for part in parts if part))


# -- cells


def cells(row: AtlasRow) -> list[Cell]:
    """Cells of the table; a number stands beside its text."""
    by_load = {each.concurrency: each for each in row.loads}
    form, _, figures = row.quote.acceptance.partition(":")
    quoted = figures if form == "length" else row.quote.acceptance
    return [
        row.target,
        f"{row.gpus} x {row.gpu}",
        row.engine,
        row.method,
        _loses(row),
        *(_k(by_load.get(load)) for load in K_LOADS),
        *(_gain(by_load.get(load)) for load in GAIN_LOADS),
        (str(row.one_k), row.one_k),
        (f"{100 * row.one_k_regret:.1f} (at worst {100 * row.one_k_worst:.0f})", 100 * row.one_k_regret),
        quoted,
        measured(row),
    ]


def _k(at: AtLoad | None) -> Cell:
    return "–" if at is None else (str(at.k) if at.k else "none", at.k)


def _gain(at: AtLoad | None) -> Cell:
    return "–" if at is None else (f"{at.speedup:.2f} ({at.interval[0]:.2f}–{at.interval[1]:.2f})", at.speedup)


def _loses(row: AtlasRow) -> Cell:
    middle, most = row.answer.break_even_concurrency, row.loads[-1].concurrency
    low, high = (f"> {most}" if each is None else f"{each:.0f}" for each in row.break_even_interval)
    if middle is None:
        return f"> {most}" if low == high else f"> {most} ({low}–)"
    return (f"{middle:.0f} ({low}–{high})" if middle >= 1.0 else f"any load ({low}–{high})", middle)


def measured(row: AtlasRow) -> str:
    """The nearest measured cells with drafts, else those without, and the simulator's errors there."""
    near = [line for line in row.answer.evidence if line.startswith(MEASURED)]
    drafted = [line for line in near if f", {row.method}, K = " in line]
    if not near:
        return UNMEASURED
    parsed = _LINE.match((drafted or near)[0])
    assert parsed is not None, near[0]
    return (
        f"{'' if drafted else PLAIN_ONLY}{parsed['engine']}, {parsed['drafts']}: {parsed['errors']} ({parsed['count']})"
    )


# -- pairs


def _details(index: int, row: AtlasRow) -> str:
    head = ["in flight", "K", *(f"K = {k}" for k in row.loads[0].speedups)]
    loads = [
        "".join(map(td, [str(at.concurrency), _k(at), *((f"{gain:.2f}", gain) for gain in at.speedups.values())]))
        for at in row.loads
    ]
    lengths = "; ".join(f"{start} to {end}: {k}" for start, end, k in row.answer.k_table)
    quote = row.quote
    facts = [
        f"acceptance {quote.acceptance}, {quote.data}: {quote.source}, {quote.date}",
        f"drafter {row.drafter or row.method}",
        f"draft lengths by batch size that `lanesim tune` answers: {lengths}",
        *row.answer.evidence,
        *row.notes,
        f"profile {row.profile}: {row.profile_source}",
    ]
    return (
        f'<details id="pair-{index}"><summary>{html.escape(f"{row.target}, {row.gpus} x {row.gpu}, {row.engine}")}, '
        f"{html.escape(quote.acceptance)}</summary>\n<pre><code>{html.escape(row.line)}</code></pre>\n"
        + table(head, loads, {})
        + "<ul>"
        + "".join(f"<li>{_coded(fact)}</li>" for fact in facts)
        + "</ul></details>"
    )


def _assumed(draws: int) -> list[str]:
    return [*ASSUMED, f"Draws of each pair: {draws}."]


def _left_out(refused: Refused) -> str:
    if not refused:
        return ""
    items = "".join(f"<li>{html.escape(label)}: {html.escape(why)}</li>" for label, why in refused)
    return f"<p>Pairs that are not in it, and why:</p><ul>{items}</ul>"


def _coded(line: str) -> str:
    """A line in which names stand between backticks, as HTML."""
    parts = html.escape(line).split("`")
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))


def main(
    pairs: Path = PAIRS,
    out: Path = OUT,
    done: Path = DONE,
    only: str = "",
    draws: int = DRAWS,
    workers: int | None = None,
) -> int:
    warnings.simplefilter("ignore")
    plots = [plot for plot in read_pairs(pairs) if only in plot.label]
    rows, refused = atlas(plots, draws=draws, workers=workers, done=done)
    if not rows:
        print(f"no pair of {len(plots)} can be judged", file=sys.stderr)
        return 1
    out.mkdir(parents=True, exist_ok=True)
    for name, write in (("json", as_json), ("html", as_html)):
        write_text(out / f"atlas.{name}", write(rows, refused, draws))
    return 0
