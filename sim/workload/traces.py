"""Recorded workloads from files: published traces, results of benchmarks, ShareGPT, and any CSV or JSON lines.

`read_trace(name, source, num_prompts)` takes the first requests of a file; `source` is FILE, or FILE#key=value,.. where
a format has something to say about it (docs/guide.md is the table of all):

    trace-azure, burstgpt                                 PUBLISHED
    mooncake                                              sim.workload.mooncake
    guidellm, aiperf, inference-perf, vllm-bench          sim.workload.bench
    sharegpt      a JSON list of conversations, lengths given or counted: FILE#tokenizer=DIRECTORY
    csv, jsonl    FILE, with columns such as arrival_s or arrival_time (s), prompt_tokens or input_len, output_tokens or
                  output_len (ALIASES); or FILE#arrival=ts_ms,prompt=in,output=out[,unit=ms][,id=..][,session=..]
                  [,blocks=..[,block_tokens=16]][,tokens=..]

What prompts have in common is read from blocks (prefix_blocks, hash_ids), tokens (input_tok_ids) or sessions, whose
next prompt goes on from the last prompt and its answer. Any file may be packed with gzip (.gz).

Files are checked row by row: errors are one line with file, line and field. Not here: reading rows
(sim.workload.trace_files), what each format's columns mean, and drawn arrivals (sim.workload.generate).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from sim.draws import Floats, Integers
from sim.names import unknown
from sim.workload.bench import REQUESTS, RESULT_OPTIONS, result_rows
from sim.workload.content import (
    BLOCK_FIELDS,
    BLOCK_TOKENS,
    TOKEN_FIELDS,
    Chains,
    Content,
    blocks_of_tokens,
    common,
    listed,
    whole_blocks,
)
from sim.workload.mooncake import MOONCAKE_OPTIONS, mooncake_rows
from sim.workload.sharegpt import conversations
from sim.workload.trace_files import (
    UNITS_S,
    Row,
    TraceColumns,
    TraceRow,
    collect,
    column_names,
    csv_objects,
    json_objects,
    number_of,
    seconds_of,
    tokens_of,
    unix_unit,
)

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


ALIASES = {
    "arrival": ("arrival_s", "arrival_time", "arrived_at", "timestamp_s", "timestamp_ms", "arrival_time_ns"),
    "prompt": (
        "prompt_tokens",
        "input_len",
        "input_tokens",
        "input_length",
        "input_toks",
        "prompt_len",
        "prompt_length",
    ),
    "output": ("output_tokens", "output_len", "output_length", "output_toks", "num_output_tokens"),
    "blocks": tuple(BLOCK_FIELDS),
    "tokens": TOKEN_FIELDS,
}
"""Columns that csv and jsonl files are searched for, in this order, where none is named. Times without a unit in their
name are seconds, or what a Unix time's size says."""
SECONDS = ("arrival_time", "arrived_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnMap:
    """Columns of a CSV or JSON-lines file by their meaning; empty = the file has none."""

    arrival: str = "arrival_s"
    prompt: str = "prompt_tokens"
    output: str = "output_tokens"
    unit: str = ""
    """Unit of arrivals: s, ms, us, ns or datetime; empty = by the column's ending (_s, _ms, _us, _ns)."""
    id: str = ""
    session: str = ""
    """Requests of one session share the conversation so far: the session's last prompt and answer."""
    blocks: str = ""
    """Chained ids of the prompt's blocks."""
    is_unit_guessed: bool = False
    """Nobody named the unit: Unix times tell theirs by their size."""
    block_tokens: int = 0
    """Tokens behind one of them; 0 = as the column's name says: 512 of hash_ids, else 16."""
    tokens: str = ""
    """The prompt's tokens themselves."""
    failed: int | None = None
    """Prompt or output tokens of a request that failed; None: none did."""

    def __post_init__(self) -> None:
        for name in ("prompt", "output"):
            if not getattr(self, name):
                raise ValueError(f"column map: {name}= must name a column")
        if self.block_tokens < 0:
            raise ValueError(f"column map: block_tokens={self.block_tokens} must be at least 1")
        if self.unit and self.unit not in UNITS_S:
            raise ValueError(unknown("unit of arrivals", self.unit, UNITS_S))
        if self.arrival and not self.unit and self._ending not in UNITS_S:
            raise ValueError(
                f"column map: arrival={self.arrival!r} does not end in its unit; add unit=s|ms|us|ns|datetime"
            )

    @property
    def _ending(self) -> str:
        return self.arrival.rpartition("_")[2]

    @property
    def arrival_unit(self) -> str:
        return self.unit or self._ending

    @property
    def names(self) -> tuple[str, ...]:
        """Columns that every row must have."""
        named = self.arrival, self.prompt, self.output, self.id, self.session, self.blocks or self.tokens
        return tuple(filter(None, named))

    def content_tokens(self, block_tokens: int) -> int:
        """Tokens behind one id of content, where an engine's blocks have `block_tokens`."""
        return (self.block_tokens or BLOCK_FIELDS.get(self.blocks, BLOCK_TOKENS)) if self.blocks else block_tokens


_NAMED = [field.name for field in fields(ColumnMap) if field.name not in ("is_unit_guessed", "failed")]
OPTIONS = {**RESULT_OPTIONS, "mooncake": MOONCAKE_OPTIONS, "sharegpt": ["tokenizer"], "csv": _NAMED, "jsonl": _NAMED}
"""Options behind a file's `#`, by format."""


PUBLISHED = {
    "trace-azure": ColumnMap(arrival="TIMESTAMP", prompt="ContextTokens", output="GeneratedTokens", unit="datetime"),
    "burstgpt": ColumnMap(arrival="Timestamp", prompt="Request tokens", output="Response tokens", unit="s", failed=0),
    "mooncake": ColumnMap(arrival="timestamp_ms", prompt="input_length", output="output_length"),
}
"""Columns of published CSV files: Azure 2023 and 2024 (Azure/AzurePublicDataset, AzureLLMInferenceDataset2023.md and
2024.md), BurstGPT (HPMLL/BurstGPT, both releases), Mooncake trimmed to lengths."""


def read_trace(name: str, source: str, num_prompts: int | None = None, block_tokens: int = BLOCK_TOKENS) -> Trace:
    """The first `num_prompts` requests (None = all) of a file in format `name`, for an engine whose blocks have
    `block_tokens`. Raises ValueError, one line."""
    path, text = source, ""
    if "#" in source and "=" in source.rpartition("#")[2]:
        path, _, text = source.rpartition("#")
    if name not in TRACE_NAMES:
        raise ValueError(unknown("trace format", name, TRACE_NAMES))
    options = _options(text, OPTIONS.get(name, []))
    content_tokens = block_tokens
    if name in REQUESTS:
        rows = collect(path, result_rows(name, path, options), num_prompts, is_in_order=False)
    elif name == "mooncake" and not path.endswith((".csv", ".csv.gz")):
        rows, content_tokens = mooncake_rows(path, options, num_prompts, block_tokens)
    else:
        columns = PUBLISHED.get(name, ColumnMap())
        if name == "sharegpt":
            columns = ColumnMap(arrival="", id="id")
            objects = conversations(path, options.get("tokenizer"))
        else:
            if name in ("csv", "jsonl"):
                columns = _with_aliases(options, path, name)
            is_json = name == "jsonl"
            objects = json_objects(path, columns.names, has_all=True) if is_json else csv_objects(path, columns.names)
        content_tokens = columns.content_tokens(block_tokens)
        row = _mapped_row(columns, content_tokens)
        rows = collect(path, ((where, row(cells, where)) for where, cells in objects), num_prompts)
    if num_prompts is not None and len(rows) < num_prompts:
        raise ValueError(f"trace {path!r}: {len(rows)} requests, num_prompts={num_prompts}; lower num_prompts")
    return _to_trace(path, rows, content_tokens)


def _with_aliases(named: dict[str, str], path: str, name: str) -> ColumnMap:
    """The columns that somebody `named`, and for the others the names that the file has."""
    present = column_names(path, name)
    chosen: dict[str, Any] = {
        role: alias
        for role, aliases in ALIASES.items()
        if role not in named and (alias := next((each for each in aliases if each in present), None)) is not None
    }
    if named.get("blocks") or "blocks" in chosen:
        chosen.pop("tokens", None)
    if chosen.get("arrival") in SECONDS and "unit" not in named:
        chosen |= {"unit": "s", "is_unit_guessed": True}
    if "block_tokens" in named:
        chosen["block_tokens"] = tokens_of(named["block_tokens"], "column map", "block_tokens")
    return ColumnMap(**{**named, **chosen})


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


def _mapped_row(columns: ColumnMap, content_tokens: int) -> Callable[[Row, str], TraceRow | None]:
    """Reads a row in the light of those above it: a Unix clock's first reading tells its unit; None = it failed."""
    unit = columns.arrival_unit
    is_first = True
    chains = Chains()
    counted = tokens_of if columns.failed is None else number_of

    def content(row: Row, prompt: int, output: int, where: str) -> Sequence[int]:
        if columns.blocks:
            blocks = listed(row[columns.blocks], where, columns.blocks)
            return whole_blocks(blocks, prompt, content_tokens, where, columns.blocks)
        if columns.tokens:
            tokens = listed(row[columns.tokens], where, columns.tokens)
            if len(tokens) != prompt:
                raise ValueError(
                    f"{where}: {columns.tokens} has {len(tokens)} tokens, and {columns.prompt} says {prompt}"
                )
            return chains.of(blocks_of_tokens(tokens, content_tokens))
        if columns.session:
            session = str(row[columns.session])
            return chains.of((session, block) for block in range((prompt + output) // content_tokens))
        return ()

    def arrival(row: Row, where: str) -> float:
        nonlocal unit, is_first
        cell = row[columns.arrival]
        unix = unix_unit(cell) if unit == "s" else None
        if unix is not None and not (columns.is_unit_guessed and is_first):
            raise ValueError(
                f"{where}: {columns.arrival}={cell!r:.40} is a Unix time in {unix}, not in s: add unit={unix}"
            )
        unit, is_first = unix or unit, False
        return seconds_of(cell, unit, where, columns.arrival)

    def read(row: Row, where: str) -> TraceRow | None:
        arrival_s = arrival(row, where) if columns.arrival else None
        prompt, output = (counted(row.get(name), where, name) for name in (columns.prompt, columns.output))
        if columns.failed in (prompt, output):
            return None
        label = str(row[columns.id]) if columns.id else ""
        return TraceRow(arrival_s, prompt, output, label, content(row, prompt, output, where))

    return read


def _to_trace(path: str, rows: TraceColumns, content_tokens: int) -> Trace:
    arrival_s = None
    if rows.arrival_s:
        arrival_s = np.array(rows.arrival_s)
        arrival_s -= arrival_s[0]
    return Trace(
        source=path,
        arrival_s=arrival_s,
        prompt_tokens=np.array(rows.prompt_tokens, dtype=np.int64),
        output_tokens=np.array(rows.output_tokens, dtype=np.int64),
        ids=tuple(name or str(index) for index, name in enumerate(rows.ids)),
        contents=tuple(common(rows.contents)) if any(rows.contents) else (),
        content_tokens=content_tokens,
        num_failed=rows.num_failed,
    )
