"""Mooncake's JSON-lines traces, with and without sessions.

    timestamp (ms), input_length, output_length, hash_ids (kvcache-ai/Mooncake, FAST25-release); with sessions
    session_id, and delay (ms) instead of timestamp on later turns (ai-dynamo/aiperf docs/benchmark-modes/
    trace-replay.md; ai-dynamo/dynamo also spells input_tokens, output_tokens, created_time, delay_ms)

A delay counts from the end of the answer before, which no trace knows: here it counts from that turn's arrival. Without
hash_ids a session's prompt begins with its last prompt and answer. input_length is the whole prompt; with
FILE#turns=new it is what a turn adds, as AIPerf replays sessions. hash_ids stand for 512 tokens, or for what
FILE#block_tokens= says. Not here: opening files and rows (sim.workload.trace_files).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sim.workload.content import MOONCAKE_BLOCK_TOKENS, Chains, listed, whole_blocks
from sim.workload.trace_files import (
    MAX_TOKENS,
    Row,
    TraceColumns,
    TraceRow,
    collect,
    json_objects,
    missing,
    seconds_of,
    tokens_of,
)

MOONCAKE_OPTIONS = ["block_tokens", "turns"]
TURNS = ("whole", "new")
SPELLINGS = {
    "timestamp": ("timestamp", "created_time"),
    "delay": ("delay", "delay_ms"),
    "input_length": ("input_length", "input_tokens"),
    "output_length": ("output_length", "output_tokens"),
}


def mooncake_rows(
    path: str, options: dict[str, str], most: int | None, engine_block_tokens: int
) -> tuple[TraceColumns, int]:
    """The first `most` requests, and the tokens behind one id of content."""
    if (turns := options.get("turns", TURNS[0])) not in TURNS:
        raise ValueError(f"trace {path!r}: turns={turns!r} must be {' or '.join(TURNS)}")
    hashed = tokens_of(options.get("block_tokens", MOONCAKE_BLOCK_TOKENS), f"trace {path!r}", "block_tokens")
    names = tuple(SPELLINGS)
    where, first = next(json_objects(path, names), ("", {}))
    has_hashes, has_sessions = "hash_ids" in first, "session_id" in first
    if first and not has_hashes and not has_sessions and _spelled(first, "timestamp") not in first:
        raise ValueError(f"{where}: {missing('field', 'timestamp', list(first))}")
    block_tokens = hashed if has_hashes else engine_block_tokens
    reader = _Mooncake(path, block_tokens, has_hashes, has_sessions, is_new=turns == "new")
    return collect(path, reader.rows(), most, is_in_order=not has_sessions), block_tokens


def _spelled(row: Row, name: str) -> str:
    """The spelling of `name` that `row` has, the usual one where it has none."""
    return next((spelling for spelling in SPELLINGS[name] if spelling in row), name)


class _Turn(NamedTuple):
    arrival_s: float | None
    said_tokens: int
    """Its prompt and its answer."""


class _Mooncake:
    """Rows of one file, each read in the light of those above."""

    def __init__(self, path: str, block_tokens: int, has_hashes: bool, has_sessions: bool, *, is_new: bool) -> None:
        self._path, self._block_tokens = path, block_tokens
        self._has_hashes, self._has_sessions, self._is_new = has_hashes, has_sessions, is_new
        self._has_times: bool | None = None
        self._sessions: dict[str, _Turn] = {}
        self._chains = Chains()

    def rows(self) -> Iterator[tuple[str, TraceRow]]:
        names = [
            *SPELLINGS,
            *(["hash_ids"] if self._has_hashes else []),
            *(["session_id"] if self._has_sessions else []),
        ]
        for where, row in json_objects(self._path, names):
            yield where, self._row(row, where)

    def _row(self, row: Row, where: str) -> TraceRow:
        session = self._session(row, where)
        last = self._sessions.get(session)
        arrival_s = self._arrival(row, last, where)
        prompt, output = (self._tokens(row, name, where) for name in ("input_length", "output_length"))
        said = last.said_tokens if last is not None else 0
        if self._is_new:
            prompt += said
        if prompt + output > MAX_TOKENS:
            raise ValueError(f"{where}: the conversation so far has {prompt + output} tokens; at most {MAX_TOKENS}")
        if self._has_sessions:
            self._sessions[session] = _Turn(arrival_s, prompt + output)
        return TraceRow(arrival_s, prompt, output, content=self._content(row, session, prompt, output, where))

    def _session(self, row: Row, where: str) -> str:
        session = row.get("session_id", "") if self._has_sessions else ""
        if self._has_sessions and (not isinstance(session, str | int) or isinstance(session, bool) or session == ""):
            raise ValueError(f"{where}: session_id={session!r:.40} must be a name or a number")
        return str(session)

    def _arrival(self, row: Row, last: _Turn | None, where: str) -> float | None:
        timestamp, delay = (_spelled(row, name) for name in ("timestamp", "delay"))
        has_time = row.get(timestamp) is not None
        if self._has_times is None:
            self._has_times = has_time
        if has_time and self._has_times:
            return seconds_of(row[timestamp], "ms", where, timestamp)
        if not self._has_times:
            if has_time:
                raise ValueError(f"{where}: {timestamp}={row[timestamp]!r:.40}, and the rows above have none")
            return None
        if last is None or last.arrival_s is None:
            raise ValueError(f"{where}: {missing('field', 'timestamp', list(row))}; the first of a session needs one")
        waited_s = seconds_of(row[delay], "ms", where, delay) if row.get(delay) is not None else 0.0
        if waited_s < 0.0:
            raise ValueError(f"{where}: {delay}={row[delay]!r:.40} must not be negative")
        return last.arrival_s + waited_s

    def _tokens(self, row: Row, name: str, where: str) -> int:
        spelling = _spelled(row, name)
        if spelling not in row:
            raise ValueError(f"{where}: {missing('field', name, list(row))}")
        return tokens_of(row[spelling], where, spelling)

    def _content(self, row: Row, session: str, prompt: int, output: int, where: str) -> Sequence[int]:
        """Chained ids."""
        if self._has_hashes:
            if "hash_ids" not in row:
                raise ValueError(f"{where}: {missing('field', 'hash_ids', list(row))}")
            hashes = listed(row["hash_ids"], where, "hash_ids")
            return whole_blocks(hashes, prompt, self._block_tokens, where, "hash_ids")
        if not self._has_sessions:
            return ()
        num_blocks = (prompt + output) // self._block_tokens
        return self._chains.of((session, index) for index in range(num_blocks))
