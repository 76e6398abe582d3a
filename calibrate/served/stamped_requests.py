"""Per-request timestamps of a real vLLM run, read from JSON lines and checked, on one clock.

Each line: request_id, input_toks, output_toks, arrival_time (epoch seconds), and on another, monotonic clock queued_ts,
scheduled_ts, first_token_ts, last_token_ts (seconds); further fields are ignored. The clocks' offset is not recorded:
it is taken as the least queued_ts - arrival_time, as if the request that waited least had been queued at once.
Not here: the comparison with a simulation (calibrate.served.as_sent).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import msgspec

from calibrate.served.load import ServedLoad, StampedRequest
from sim.files.json_values import Json, convert, json_lines
from sim.workload.content import BLOCK_TOKENS, Content, read_prompts

STAMPS = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
"""Ordered as they happen."""
OVERTAKING_S = 1.0
"""A frontend queues requests as they arrive; one that arrived this much earlier than another is queued before it."""

LONGEST_INTAKE_S = 10.0
"""No engine leaves all requests but one unqueued for longer: a step takes less than a second."""
MIN_TO_TELL = 3


Count = Annotated[int, msgspec.Meta(ge=1)]


class Stamped(msgspec.Struct, kw_only=True):
    """One line of the file."""

    request_id: Annotated[str, msgspec.Meta(min_length=1)] | int
    input_toks: Count
    output_toks: Count
    arrival_time: float
    queued_ts: float
    scheduled_ts: float
    first_token_ts: float
    last_token_ts: float
    line: int = 0
    """Its number."""

    @property
    def id(self) -> str:
        return str(self.request_id)


def read_requests(path: Path, prompts: Path | None = None, block_tokens: int = BLOCK_TOKENS) -> ServedLoad:
    """The run in `path`; `prompts` says row by row what they have in common, in blocks of `block_tokens`.

    Raises ValueError, one line naming file, line and field.
    """
    rows = [_row(raw, number, f"requests {str(path)!r}") for number, raw in json_lines(path, "requests")]
    if not rows:
        raise ValueError(f"requests {str(path)!r} is empty. Give one JSON object per request")
    where = f"requests {str(path)!r}"
    _check_ids(rows, where)
    contents = {} if prompts is None else _joined(rows, where, prompts, block_tokens)
    rows.sort(key=lambda row: (row.arrival_time, row.queued_ts, row.line))
    _check_overtaking(rows, where)
    offset_s = _clock_offset_s(rows, where)
    sent = tuple(_on_one_clock(rows, offset_s, contents))
    return ServedLoad(source=path.name, requests=sent, num_requests=len(sent), clock_offset_s=offset_s)


def _joined(rows: Sequence[Stamped], path: str, prompts: Path, block_tokens: int) -> dict[int, Content]:
    """Content by line of the requests' file: the first row's is in the first row of `prompts`, and so on."""
    read = read_prompts(prompts, block_tokens)
    if len(read) != len(rows):
        raise ValueError(f"prompts {str(prompts)!r} has {len(read)}, and {path} {len(rows)}. Give one per request")
    for number, (row, (_, length)) in enumerate(zip(rows, read, strict=True), start=1):
        if length is not None and length != row.input_toks:
            raise ValueError(
                f"prompts {str(prompts)!r}: prompt {number} has {length} tokens, request {row.id} on line {row.line} "
                f"of {path} has {row.input_toks}: want the prompts in the order of the requests"
            )
    return {row.line: content[: row.input_toks // block_tokens] for row, (content, _) in zip(rows, read, strict=True)}


def _row(raw: Json, number: int, path: str) -> Stamped:
    where = f"{path} line {number}"
    row = convert(raw, Stamped, where)
    row.line = number
    for earlier, later in pairwise(STAMPS):
        if getattr(row, later) < getattr(row, earlier):
            raise ValueError(
                f"{where}: timestamps out of order: {later}={getattr(row, later)} before "
                f"{earlier}={getattr(row, earlier)} (want {' <= '.join(STAMPS)})"
            )
    return row


def _check_ids(rows: Sequence[Stamped], path: str) -> None:
    lines: dict[str, int] = {}
    for row in rows:
        if row.id in lines:
            raise ValueError(
                f"{path} line {row.line}: request_id {row.id!r} again, it is on line {lines[row.id]} already"
            )
        lines[row.id] = row.line


def _check_overtaking(rows: Sequence[Stamped], path: str) -> None:
    """Refuse an arrival that cannot be right whatever the clocks' offset: queued before one that came OVERTAKING_S
    earlier. `rows` in order of arrival."""
    latest: Stamped | None = None
    index = 0
    for row in rows:
        while rows[index].arrival_time < row.arrival_time - OVERTAKING_S:
            if latest is None or rows[index].queued_ts > latest.queued_ts:
                latest = rows[index]
            index += 1
        if latest is not None and latest.queued_ts > row.queued_ts:
            raise ValueError(
                f"{path} line {row.line}: timestamps out of order: arrived "
                f"{row.arrival_time - latest.arrival_time:.3f} s after the request of line {latest.line}, and queued "
                f"{latest.queued_ts - row.queued_ts:.3f} s before it: arrival_time after queued_ts"
            )


def _clock_offset_s(rows: Sequence[Stamped], path: str) -> float:
    """The least queued_ts - arrival_time; refused where it is that of one request alone, and far from all others."""
    by_lag = sorted(rows, key=lambda row: row.queued_ts - row.arrival_time)
    lags_s = [row.queued_ts - row.arrival_time for row in by_lag]
    if len(rows) >= MIN_TO_TELL and lags_s[1] - lags_s[0] > LONGEST_INTAKE_S:
        raise ValueError(
            f"{path} line {by_lag[0].line}: timestamps out of order: arrival_time is {lags_s[1] - lags_s[0]:.3f} s "
            "after queued_ts, by the clocks of all other requests"
        )
    return lags_s[0]


def _on_one_clock(rows: Sequence[Stamped], offset_s: float, contents: Mapping[int, Content]) -> list[StampedRequest]:
    """`rows` in order of arrival; the first arrival is at 0."""
    start_s = rows[0].arrival_time
    return [
        StampedRequest(
            index=index,
            id=row.id,
            due_s=row.arrival_time - start_s,
            sent_s=row.arrival_time - start_s,
            prompt_tokens=row.input_toks,
            output_tokens=row.output_toks,
            content=contents.get(row.line, ()),
            queued_s=row.queued_ts - offset_s - start_s,
            scheduled_s=row.scheduled_ts - offset_s - start_s,
            first_s=row.first_token_ts - offset_s - start_s,
            last_s=row.last_token_ts - offset_s - start_s,
        )
        for index, row in enumerate(rows)
    ]
