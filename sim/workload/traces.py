"""Recorded workloads from files: published traces, results of benchmarks, ShareGPT, and any CSV or JSON lines.

`read_trace(name, source, num_prompts)` takes the first requests of a file; `source` is FILE, or FILE#key=value,.. where
a format has something to say about it (docs/guide.md is the table of all):

    trace-azure, burstgpt, mooncake                       CSV; of mooncake also JSON lines, with and without sessions:
                  FILE#turns=new where input_length is what a turn adds, FILE#block_tokens= where hash_ids stand for
                  another number of tokens than 512
    guidellm, aiperf, inference-perf, vllm-bench          sim.workload.bench
    sharegpt      a JSON list of conversations, lengths given or counted: FILE#tokenizer=DIRECTORY
    csv, jsonl    FILE, with columns such as arrival_s or arrival_time (s), prompt_tokens or input_len, output_tokens or
                  output_len (ALIASES); or FILE#arrival=ts_ms,prompt=in,output=out[,unit=ms][,id=..][,session=..]
                  [,blocks=..[,block_tokens=16]][,tokens=..]

What prompts have in common is read from blocks (prefix_blocks, hash_ids), tokens (input_tok_ids) or sessions, whose
next prompt goes on from the last prompt and its answer. Any file may be packed with gzip (.gz).

Files are checked row by row: errors are one line with file, line and field. Not here: opening files
(sim.workload.trace_files), what each format's columns mean (trace_rows), and drawn arrivals (sim.workload.generate).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Any, NamedTuple

import msgspec
import numpy as np

from sim.draws import Floats, Integers
from sim.names import unknown
from sim.workload.bench import REQUESTS, RESULT_OPTIONS
from sim.workload.content import BLOCK_TOKENS, MOONCAKE_BLOCK_TOKENS, Content, common
from sim.workload.sharegpt import conversations
from sim.workload.trace_files import (
    Row,
    TraceColumns,
    collect,
    column_names,
    csv_objects,
    json_objects,
    missing,
    tokens_of,
)
from sim.workload.trace_rows import ALIASES, COLUMNS, ColumnMap, RowReader

TRACE_NAMES = ("trace-azure", "mooncake", "burstgpt", "sharegpt", *REQUESTS, "csv", "jsonl")


class Trace(NamedTuple):
    """A recorded workload in columns, in order of arrival."""

    source: str
    arrival_s: Floats | None
    """[requests] seconds since the first arrival; None where the file has no times."""
    prompt_tokens: Integers
    output_tokens: Integers
    ids: tuple[str, ...]
    contents: tuple[Content, ...] = ()
    """[requests] chained ids of whole blocks, as far as another has them; empty where the file does not tell."""
    content_tokens: int = BLOCK_TOKENS
    """Tokens behind one id."""
    num_failed: int = 0
    """Requests that the file says failed, which are left out."""

    @property
    def rate_per_s(self) -> float | None:
        """Requests per second of the recorded clock; None where there is none, or all arrive at once."""
        span_s = 0.0 if self.arrival_s is None else float(self.arrival_s[-1])
        return (len(self.ids) - 1) / span_s if span_s > 0.0 else None

    @property
    def in_words(self) -> str:
        """Span, rate and mean lengths: `50 requests in 3.4 h, 0.004/s, 270 in, 110 out`."""
        pace = "all at once" if self.arrival_s is not None else "without times"
        if self.rate_per_s is not None and self.arrival_s is not None:
            pace = f"in {_span(float(self.arrival_s[-1]))}, {self.rate_per_s:.3g}/s"
        lengths = f"{self.prompt_tokens.mean():.0f} in, {self.output_tokens.mean():.0f} out"
        failed = f", {self.num_failed} failed and left out" if self.num_failed else ""
        return f"{len(self.ids)} requests {pace}, {lengths}{failed}"

    @property
    def note(self) -> str | None:
        """A remark on an odd clock."""
        least, most = USUAL_RATES_PER_S
        rate = self.rate_per_s
        if rate is None or least <= rate <= most:
            return None
        beyond = f"below {least:g}" if rate < least else f"above {most:,.0f}"
        return (
            f"{self.source}: {rate:.3g} requests per second is {beyond}: if its times are in another unit, say so "
            "(csv, jsonl: FILE#unit=ms), or give --request-rate"
        )


USUAL_RATES_PER_S = (0.05, 1000.0)
"""Rates of a server that somebody studies; others are mostly a clock that was read in the wrong unit."""
SPANS_S = {"d": 86_400.0, "h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}


def _span(span_s: float) -> str:
    unit = next((unit for unit, each_s in SPANS_S.items() if span_s >= 2.0 * each_s), "us")
    return (
        f"{span_s / SPANS_S[unit]:.2g} {unit}"
        if span_s < 100.0 * SPANS_S[unit]
        else f"{span_s / SPANS_S[unit]:.0f} {unit}"
    )


TURNS = ("whole", "new")
_NAMED = ["arrival", "prompt", "output", "unit", "id", "session", "blocks", "block_tokens", "tokens"]
OPTIONS = {
    **RESULT_OPTIONS,
    "mooncake": ["block_tokens", "turns"],
    "sharegpt": ["tokenizer"],
    "csv": _NAMED,
    "jsonl": _NAMED,
}
"""Options behind a file's `#`, by format."""
SECONDS = ("arrival_time", "arrived_at")
"""Columns whose name says no unit."""


def read_trace(name: str, source: str, num_prompts: int | None = None, block_tokens: int = BLOCK_TOKENS) -> Trace:
    """The first `num_prompts` requests (None = all) of a file in format `name`, for an engine whose blocks have
    `block_tokens`. Raises ValueError, one line."""
    path, text = source, ""
    if "#" in source and "=" in source.rpartition("#")[2]:
        path, _, text = source.rpartition("#")
    if name not in TRACE_NAMES:
        raise ValueError(unknown("trace format", name, TRACE_NAMES))
    options = _options(text, OPTIONS.get(name, []))
    columns, entries = _opened(name, path, options)
    content_tokens = columns.content_tokens(block_tokens)
    reader = RowReader(columns, content_tokens)
    requests = ((where, None if row is None else reader.read(row, where)) for where, row in entries)
    is_in_order = not (columns.is_benchmark or (columns.delay and columns.session))
    rows = collect(path, requests, num_prompts, is_in_order=is_in_order)
    if num_prompts is not None and len(rows) < num_prompts:
        raise ValueError(f"trace {path!r}: {len(rows)} requests, num_prompts={num_prompts}. Lower num_prompts")
    return _to_trace(path, rows, num_prompts, content_tokens)


def _opened(name: str, path: str, options: dict[str, str]) -> tuple[ColumnMap, Iterator[tuple[str, Row | None]]]:
    """The columns of a file, and its rows with where each stands; None = a failed request."""
    if name in REQUESTS:
        return COLUMNS[name], REQUESTS[name](path, options)
    if name == "sharegpt":
        return COLUMNS[name], conversations(path, options.get("tokenizer"))
    is_json = name == "jsonl"
    if is_json or name == "csv":
        columns = _with_aliases(options, path, name)
    elif name == "mooncake" and not path.endswith((".csv", ".csv.gz")):
        is_json, columns = True, _mooncake(path, options)
    else:
        columns = COLUMNS.get(f"{name}.csv") or COLUMNS[name]
    return columns, json_objects(path, columns.names) if is_json else csv_objects(path, columns.names)


def _mooncake(path: str, options: dict[str, str]) -> ColumnMap:
    """Columns of Mooncake's JSON lines, as the first one has hashes and sessions."""
    if (turns := options.get("turns", TURNS[0])) not in TURNS:
        raise ValueError(f"trace {path!r}: turns={turns!r} must be {' or '.join(TURNS)}")
    block_tokens = tokens_of(options.get("block_tokens", MOONCAKE_BLOCK_TOKENS), f"trace {path!r}", "block_tokens")
    columns: ColumnMap = COLUMNS["mooncake"]
    where, first = next(json_objects(path, columns.names), ("", {}))
    has = {key: (name,) for key, name in (("blocks", "hash_ids"), ("session", "session_id")) if name in first}
    if first and not has and not any(name in first for name in columns.arrival):
        raise ValueError(f"{where}: {missing('field', columns.arrival[0], list(first))}")
    return msgspec.structs.replace(columns, **has, block_tokens=block_tokens, adds_turns=turns == "new")


def _with_aliases(named: dict[str, str], path: str, name: str) -> ColumnMap:
    """The columns that somebody `named`, and for the others the names that the file has."""
    present = column_names(path, name)
    chosen: dict[str, Any] = {
        role: (alias,)
        for role, aliases in ALIASES.items()
        if role not in named and (alias := next((each for each in aliases if each in present), None)) is not None
    }
    if named.get("blocks") or "blocks" in chosen:
        chosen.pop("tokens", None)
    if chosen.get("arrival", [""])[0] in SECONDS and "unit" not in named:
        chosen |= {"unit": "s", "is_unit_guessed": True}
    for key, value in named.items():
        chosen[key] = value if key in ("unit", "block_tokens") else tuple(filter(None, [value]))
    if "block_tokens" in named:
        chosen["block_tokens"] = tokens_of(named["block_tokens"], "column map", "block_tokens")
    return ColumnMap(**chosen)


def rescaled(arrival_s: Floats, request_rate: float, source: str) -> Floats:
    """[requests] the same arrivals with the clock stretched to `request_rate` requests per second on average."""
    if not (isfinite(request_rate) and request_rate > 0.0):
        raise ValueError(f"request_rate={request_rate!r} must be a finite number above 0")
    gaps = len(arrival_s) - 1
    if gaps < 1:
        return np.zeros(len(arrival_s))
    span_s = float(arrival_s[-1] - arrival_s[0])
    if span_s <= 0.0:
        raise ValueError(f"{source}: its {gaps + 1} requests all arrive at once: no shape to rescale to a rate")
    stretched: Floats = (arrival_s - arrival_s[0]) * (gaps / request_rate / span_s)
    return stretched


def _options(text: str, known: list[str]) -> dict[str, str]:
    options = {}
    for part in filter(None, text.split(",")):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if key not in known:
            raise ValueError(unknown("trace option", key, known) if known else f"trace option {key!r}: none known here")
        if not equals:
            raise ValueError(f"trace option {part!r}: want key=value")
        options[key] = value
    return options


def _to_trace(path: str, rows: TraceColumns, most: int | None, content_tokens: int) -> Trace:
    """The first `most` in order of arrival; of equal ones in order of the file."""
    arrival_s = np.array(rows.arrival_s) if rows.arrival_s else None
    order = np.arange(len(rows)) if arrival_s is None else np.argsort(arrival_s, kind="stable")
    places = order[:most].tolist()
    contents = [rows.contents[place] for place in places]
    return Trace(
        source=path,
        arrival_s=None if arrival_s is None else arrival_s[places] - arrival_s[order[0]],
        prompt_tokens=np.array(rows.prompt_tokens, dtype=np.int64)[places],
        output_tokens=np.array(rows.output_tokens, dtype=np.int64)[places],
        ids=tuple(rows.ids[place] or str(index) for index, place in enumerate(places)),
        contents=tuple(common(contents)) if any(contents) else (),
        content_tokens=content_tokens,
        num_failed=rows.num_failed,
    )
