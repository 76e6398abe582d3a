"""Per-request timestamps of a real vLLM run, read from JSON lines and checked, on one clock.

Each line: request_id, input_toks, output_toks, arrival_time (epoch seconds), and on another, monotonic clock queued_ts,
scheduled_ts, first_token_ts, last_token_ts (seconds); further fields are ignored. The clocks' offset is not recorded:
it is taken as the least queued_ts - arrival_time, as if the request that waited least had been queued at once.
Not here: the comparison with a simulation (calibrate.served.as_sent).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from calibrate.served.load import ServedLoad, StampedRequest
from sim.files.json_values import convert, json_lines
from sim.workload.content import BLOCK_TOKENS, Content, read_prompts

STAMPS = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
"""Ordered as they happen."""
OVERTAKING_S = 1.0
"""A frontend queues requests as they arrive; one that arrived this much earlier than another is queued before it."""
LONGEST_INTAKE_S = 10.0
"""No engine leaves all requests but one unqueued for longer: a step takes less than a second."""
MIN_TO_TELL = 3
OUT_OF_ORDER = "timestamps out of order: "
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


def read_requests(path: Path, prompts: Path | None = None, block_tokens: int = BLOCK_TOKENS) -> ServedLoad:
    """The run in `path`; `prompts` says row by row what they have in common, in blocks of `block_tokens`.

    Raises ValueError, one line naming file, line and field.
    """
    where, rows = f"requests {str(path)!r}", list[Stamped]()
    lines: dict[str, int] = {}
    for number, raw in json_lines(path, "requests"):
        row = convert(raw, Stamped, f"{where} line {number}")
        row.line, name = number, str(row.request_id)
        for earlier, later in pairwise(STAMPS):
            if getattr(row, later) < getattr(row, earlier):
                raise ValueError(
                    f"{where} line {number}: {OUT_OF_ORDER}{later}={getattr(row, later)} before "
                    f"{earlier}={getattr(row, earlier)} (needed: {' <= '.join(STAMPS)})"
                )
        if name in lines:
            raise ValueError(f"{where} line {number}: request_id {name!r} again, it is on line {lines[name]} already")
        lines[name] = number
        rows.append(row)
    if not rows:
        raise ValueError(f"{where} is empty. Give one JSON object per request")
    contents = {} if prompts is None else _joined(rows, where, prompts, block_tokens)
    rows.sort(key=lambda row: (row.arrival_time, row.queued_ts, row.line))
    offset_s, start_s = _clock_offset_s(rows, where), rows[0].arrival_time
    sent = tuple(
        StampedRequest(
            index=index,
            id=str(row.request_id),
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
    )
    return ServedLoad(source=path.name, requests=sent, num_requests=len(sent), clock_offset_s=offset_s)


def _joined(rows: Sequence[Stamped], path: str, prompts: Path, block_tokens: int) -> dict[int, Content]:
    """Content by line of the requests' file: the first row's is in the first row of `prompts`, and so on."""
    read = read_prompts(prompts, block_tokens)
    if len(read) != len(rows):
        raise ValueError(f"prompts {str(prompts)!r} has {len(read)}, and {path} {len(rows)}. Give one per request")
    for number, (row, (_, length)) in enumerate(zip(rows, read, strict=True), start=1):
        if length is not None and length != row.input_toks:
            raise ValueError(
                f"prompts {str(prompts)!r}: prompt {number} has {length} tokens, request {row.request_id} on line "
                f"{row.line} of {path} has {row.input_toks}. Give prompts in the order of the requests"
            )
    return {row.line: content[: row.input_toks // block_tokens] for row, (content, _) in zip(rows, read, strict=True)}


def _clock_offset_s(rows: Sequence[Stamped], path: str) -> float:
    """The least queued_ts - arrival_time of `rows`, which are in order of arrival. Refused are an arrival that cannot
    be right whatever the offset, queued before one that came OVERTAKING_S earlier, and an offset that is that of one
    request alone, and far from all others."""
    arrived_s, queued_s = np.array([(row.arrival_time, row.queued_ts) for row in rows]).T
    num_earlier = np.searchsorted(arrived_s, arrived_s - OVERTAKING_S)
    overtakes = np.maximum.accumulate(queued_s)[num_earlier - 1] > queued_s
    for index in map(int, np.flatnonzero((num_earlier > 0) & overtakes)):
        latest = int(queued_s[: num_earlier[index]].argmax())
        raise ValueError(
            f"{path} line {rows[index].line}: {OUT_OF_ORDER}arrived {arrived_s[index] - arrived_s[latest]:.3f} s "
            f"after the request of line {rows[latest].line}, and queued {queued_s[latest] - queued_s[index]:.3f} s "
            "before it: arrival_time after queued_ts"
        )
    lags_s = queued_s - arrived_s
    first, second = (int(place) for place in (*lags_s.argsort(kind="stable"), 0)[:2])
    if len(rows) >= MIN_TO_TELL and lags_s[second] - lags_s[first] > LONGEST_INTAKE_S:
        raise ValueError(
            f"{path} line {rows[first].line}: {OUT_OF_ORDER}arrival_time is {lags_s[second] - lags_s[first]:.3f} s "
            "after queued_ts, by the clocks of all other requests"
        )
    return float(lags_s[first])
