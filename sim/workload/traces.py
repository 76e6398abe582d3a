"""Recorded workloads from files: published traces, results of benchmarks, ShareGPT, and any CSV or JSON lines.

`read_trace(name, source, num_prompts)` takes the first requests of a file. `source` is FILE, or FILE#key=value,.. with
options of its format; docs/server.md is the table of all formats and options. What prompts have in common is read from
blocks (prefix_blocks, hash_ids), tokens (input_tok_ids) or sessions, whose next prompt goes on from the last prompt and
its answer. Any file may be packed with gzip (.gz). Errors are one line with file, line and field.
Not here: opening files (trace_files), what each format's columns mean (trace_rows), drawn arrivals (generate).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from math import isfinite
from typing import Any, NamedTuple

import msgspec
import numpy as np

from sim.draws import Floats, Integers
from sim.names import unknown
from sim.workload.bench import REQUESTS, RESULT_OPTIONS
from sim.workload.content import BLOCK_TOKENS, MOONCAKE_BLOCK_TOKENS, Content, common
from sim.workload.trace_files import TRACE, Row, TraceRow, column_names, csv_objects, json_objects, missing, tokens_of
from sim.workload.trace_rows import ALIASES, COLUMNS, ColumnMap, RowReader

TRACE_NAMES = ("trace-azure", "mooncake", "burstgpt", *REQUESTS, "csv", "jsonl")
MAX_SPAN_S = 1e9
"""Seconds from the first arrival to the last: thirty years."""


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
    count = span_s / SPANS_S[unit]
    return f"{count:.2g} {unit}" if count < 100.0 else f"{count:.0f} {unit}"


TURNS = ("whole", "new")
_NAMED = ["arrival", "prompt", "output", "unit", "id", "session", "blocks", "block_tokens", "tokens"]
OPTIONS = {
    **RESULT_OPTIONS,
    "mooncake": ["block_tokens", "turns"],
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
    return _collected(path, requests, num_prompts, content_tokens, is_in_order=is_in_order)


def _opened(name: str, path: str, options: dict[str, str]) -> tuple[ColumnMap, Iterator[tuple[str, Row | None]]]:
    """The columns of a file, and its rows with where each stands; None = a failed request."""
    if name in REQUESTS:
        return COLUMNS[name], REQUESTS[name](path, options)
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
            raise ValueError(f"trace option {part!r} must be key=value")
        options[key] = value
    return options


def _collected(
    path: str, rows: Iterable[tuple[str, TraceRow | None]], most: int | None, content_tokens: int, *, is_in_order: bool
) -> Trace:
    """The first `most` of `rows` in order of arrival, each with where it stands; None = a request that failed. Unless
    `is_in_order` is False, which reads all, rows must come in order. A million requests take about 40 MB."""
    arrivals, prompts, outputs = array("d"), array("q"), array("q")
    ids, contents, num_failed = list[str](), list[Sequence[int]](), 0
    for where, row in rows:
        if row is None:
            num_failed += 1
            continue
        if row.arrival_s is not None:
            _check_arrival(row.arrival_s, arrivals, where, is_in_order=is_in_order)
            arrivals.append(row.arrival_s)
        prompts.append(row.prompt_tokens)
        outputs.append(row.output_tokens)
        ids.append(row.id)
        contents.append(row.content)
        if is_in_order and len(ids) == most:
            break
    if not ids:
        failed = f" that did not fail ({num_failed} did)" if num_failed else ""
        raise ValueError(f"{TRACE} {path!r}: no requests in it{failed}")
    if most is not None and len(ids) < most:
        raise ValueError(f"{TRACE} {path!r}: {len(ids)} requests, num_prompts={most}. Lower num_prompts")
    arrival_s = np.array(arrivals) if arrivals else None
    order = np.arange(len(ids)) if arrival_s is None else np.argsort(arrival_s, kind="stable")
    places = order[:most].tolist()
    return Trace(
        source=path,
        arrival_s=None if arrival_s is None else arrival_s[places] - arrival_s[order[0]],
        prompt_tokens=np.array(prompts, dtype=np.int64)[places],
        output_tokens=np.array(outputs, dtype=np.int64)[places],
        ids=tuple(ids[place] or str(index) for index, place in enumerate(places)),
        contents=tuple(common([contents[place] for place in places])) if any(contents) else (),
        content_tokens=content_tokens,
        num_failed=num_failed,
    )


def _check_arrival(arrival_s: float, before: Sequence[float], where: str, *, is_in_order: bool) -> None:
    """Raise ValueError for an arrival before the last one of a file in order, or one that is too far from the first."""
    if not before:
        return
    if is_in_order and arrival_s < before[-1]:
        late = f"arrival is {before[-1] - arrival_s:.6g} s before the row above"
        raise ValueError(f"{where}: {late}. Sort the file by arrival")
    span_s = arrival_s - before[0]
    if abs(span_s) > MAX_SPAN_S:
        side = "after" if span_s > 0.0 else "before"
        raise ValueError(
            f"{where}: arrival is {abs(span_s):.3g} s {side} the first one. At most {MAX_SPAN_S:g} are simulated"
        )
