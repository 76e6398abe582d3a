"""Requests from the rows of trace files: which column of each format says what, and one reader for all.

Later turns of a session may have a delay in place of a time (ai-dynamo/aiperf docs/benchmark-modes/trace-replay.md;
ai-dynamo/dynamo spells created_time, delay_ms). It counts from the end of the answer before, which no trace knows: here
from that turn's arrival. Not here: opening files (trace_files), which rows a format has (traces).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from sim.files.json_values import Json, value_at
from sim.names import unknown
from sim.workload.content import BLOCK_FIELDS, BLOCK_TOKENS, Chains, blocks_of_tokens, listed, whole_blocks
from sim.workload.trace_files import (
    MAX_TOKENS,
    UNITS_S,
    Row,
    TraceRow,
    missing,
    number_of,
    seconds_of,
    tokens_of,
    unix_unit,
)

Names = tuple[str, ...]
"""Names of one column, or keys joined by dots; the first that a row has counts. Empty: the file has none."""


class ColumnMap(msgspec.Struct, frozen=True, kw_only=True):
    """Columns of a file by their meaning."""

    arrival: Names = ("arrival_s",)
    prompt: Names = ("prompt_tokens",)
    output: Names = ("output_tokens",)
    unit: str = ""
    """Unit of arrivals: s, ms, us, ns or datetime; empty = by the column's ending (_s, _ms, _us, _ns)."""
    id: Names = ()
    session: Names = ()
    """Requests of one session share the conversation so far: the session's last prompt and answer."""
    blocks: Names = ()
    """Chained ids of the prompt's blocks."""
    block_tokens: int = 0
    """Tokens behind one of them; 0 = as the column's name says: 512 of hash_ids, else 16."""
    tokens: Names = ()
    """The prompt's tokens themselves."""
    delay: Names = ()
    """Milliseconds after the last turn of a session, for a turn without an arrival."""
    adds_turns: bool = False
    """A prompt's length is what the turn adds to its session."""
    is_unit_guessed: bool = False
    """Nobody named the unit: Unix times tell theirs by their size."""
    may_lack_times: bool = False
    """Some versions of the tool write no arrivals."""
    failed: int | None = None
    """Prompt or output tokens of a request that failed; None: none did."""
    is_benchmark: bool = False
    """Requests are in any order, and what is no printable text is no id."""

    def __post_init__(self) -> None:
        for name in ("prompt", "output"):
            if not getattr(self, name):
                raise ValueError(f"column map: {name}= must name a column")
        if self.block_tokens < 0:
            raise ValueError(f"column map: block_tokens={self.block_tokens} must be at least 1")
        if self.unit and self.unit not in UNITS_S:
            raise ValueError(unknown("unit of arrivals", self.unit, UNITS_S))
        if self.arrival and self.arrival_unit not in UNITS_S:
            raise ValueError(
                f"column map: arrival={self.arrival[0]!r} does not end in its unit. Add unit=s|ms|us|ns|datetime"
            )

    @property
    def arrival_unit(self) -> str:
        return self.unit or (self.arrival[0].rpartition("_")[2] if self.arrival else "")

    @property
    def names(self) -> Names:
        """Columns that every row must have."""
        named = self.arrival, self.prompt, self.output, self.id, self.session, self.blocks or self.tokens
        return tuple(names[0] for names in named if names)

    def content_tokens(self, block_tokens: int) -> int:
        """Tokens behind one id of content, where an engine's blocks have `block_tokens`."""
        return (self.block_tokens or BLOCK_FIELDS.get(self.blocks[0], BLOCK_TOKENS)) if self.blocks else block_tokens


class _Tables(msgspec.Struct, frozen=True):
    aliases: dict[str, Names]
    """Columns that csv and jsonl files are searched for, in this order, where none is named. Times without a unit in
    their name are seconds, or what a Unix time's size says."""
    columns: dict[str, ColumnMap]
    """By format: Azure 2023 and 2024 (Azure/AzurePublicDataset, AzureLLMInferenceDataset2023.md and 2024.md), BurstGPT
    (HPMLL/BurstGPT, both releases), Mooncake (kvcache-ai/Mooncake, FAST25-release), and the tools of sim.workload.bench
    (its docstring has their sources)."""


_TABLES = msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes(), type=_Tables)
ALIASES, COLUMNS = _TABLES.aliases, _TABLES.columns


class _Turn(NamedTuple):
    arrival_s: float | None
    said_tokens: int
    """Its prompt and its answer."""


class RowReader:
    """Reads rows of one file, each in the light of those above it."""

    def __init__(self, columns: ColumnMap, content_tokens: int) -> None:
        self._columns, self._content_tokens = columns, content_tokens
        self._unit = columns.arrival_unit
        self._is_first = True
        self._has_times = True
        self._turns: dict[str, _Turn] = {}
        """The newest of each session."""
        self._chains = Chains()

    def read(self, row: Row, where: str) -> TraceRow | None:
        """The request of `row`; None = it failed."""
        columns, session = self._columns, self._session(row, where)
        last = self._turns.get(session)
        arrival_s = self._arrival(row, last, where) if columns.arrival else None
        self._is_first = False
        prompt, output = (self._tokens(row, names, where) for names in (columns.prompt, columns.output))
        if columns.failed in (prompt, output):
            return None
        if columns.adds_turns and last is not None:
            prompt += last.said_tokens
        if columns.delay and prompt + output > MAX_TOKENS:
            raise ValueError(f"{where}: the conversation so far has {prompt + output} tokens, more than {MAX_TOKENS}")
        if columns.session:
            self._turns[session] = _Turn(arrival_s, prompt + output)
        content = self._content(row, session, prompt, output, where)
        return TraceRow(arrival_s, prompt, output, self._id(row, where), content)

    def _session(self, row: Row, where: str) -> str:
        columns = self._columns
        if not columns.session:
            return ""
        name, session = _cell(row, columns.session, where)
        if columns.delay and (type(session) not in (str, int) or session == ""):
            raise ValueError(f"{where}: {name}={session!r:.40} must be a name or a number")
        return str(session)

    def _arrival(self, row: Row, last: _Turn | None, where: str) -> float | None:
        columns = self._columns
        name, cell = _found(row, columns.arrival)
        if columns.delay:
            self._has_times = cell is not None if self._is_first else self._has_times
            if not self._has_times and cell is not None:
                raise ValueError(f"{where}: {name}={cell!r:.40}, and the rows above have none")
            if cell is None:
                return self._delayed(row, last, where) if self._has_times else None
        if cell is None and name not in row:
            if columns.may_lack_times:
                return None
            raise ValueError(f"{where}: {missing('field', name, list(row))}")
        unix = unix_unit(cell) if self._unit == "s" and not columns.is_benchmark else None
        if unix is not None and not (columns.is_unit_guessed and self._is_first):
            raise ValueError(f"{where}: {name}={cell!r:.40} is a Unix time in {unix}, not in s: add unit={unix}")
        self._unit = unix or self._unit
        return seconds_of(cell, self._unit, where, name)

    def _delayed(self, row: Row, last: _Turn | None, where: str) -> float:
        """The arrival of a turn that says how long after the last one it came."""
        if last is None or last.arrival_s is None:
            name = self._columns.arrival[0]
            raise ValueError(f"{where}: {missing('field', name, list(row))}. The first of a session needs one")
        name, delay = _found(row, self._columns.delay)
        waited_s = 0.0 if delay is None else seconds_of(delay, "ms", where, name)
        if waited_s < 0.0:
            raise ValueError(f"{where}: {name}={delay!r:.40} must not be negative")
        return last.arrival_s + waited_s

    def _tokens(self, row: Row, names: Names, where: str) -> int:
        """Tokens; a count that was written as 12.0 is 12."""
        name, cell = _cell(row, names, where)
        whole = int(cell) if isinstance(cell, float) and cell.is_integer() else cell
        return tokens_of(whole, where, name) if self._columns.failed is None else number_of(whole, where, name)

    def _id(self, row: Row, where: str) -> str:
        columns = self._columns
        if columns.is_benchmark:
            name = _found(row, columns.id)[1] if columns.id else None
            return name if isinstance(name, str) and name.isprintable() else ""
        return str(_cell(row, columns.id, where)[1]) if columns.id else ""

    def _content(self, row: Row, session: str, prompt: int, output: int, where: str) -> Sequence[int]:
        """Ids of the prompt's blocks; those of a session stand for its prompt and answer."""
        columns, block_tokens = self._columns, self._content_tokens
        if columns.blocks:
            name, cell = _cell(row, columns.blocks, where)
            return whole_blocks(listed(cell, where, name), prompt, block_tokens, where, name)
        if columns.tokens:
            name, cell = _cell(row, columns.tokens, where)
            tokens = listed(cell, where, name)
            if len(tokens) != prompt:
                raise ValueError(f"{where}: {name} has {len(tokens)} tokens, and {columns.prompt[0]} says {prompt}")
            return self._chains.of(blocks_of_tokens(tokens, block_tokens))
        if columns.session:
            return self._chains.of((session, block) for block in range((prompt + output) // block_tokens))
        return ()


def _found(row: Row, names: Names) -> tuple[str, Json]:
    """The first of `names` that `row` has, and what it has there; None where it has none."""
    for name in names:
        cell = row[name] if name in row else value_at(row, name)
        if cell is not None:
            return name, cell
    return next((name for name in names if name in row), names[0]), None


def _cell(row: Row, names: Names, where: str) -> tuple[str, Json]:
    """The same; raises ValueError where it has none."""
    name, cell = _found(row, names)
    if cell is None and name not in row:
        raise ValueError(f"{where}: {missing('field', name, list(row))}")
    return name, cell
