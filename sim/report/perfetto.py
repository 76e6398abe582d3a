"""Perfetto traces: every policy a process, every stream a track of works, every lane a counter of waiting requests.

The format is Chrome's trace event JSON, which ui.perfetto.dev opens; times in microseconds. Not here: recording works
(sim.run.simulate).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sim.metrics.records import RunRecord, WorkRecord

Event = dict[str, Any]
Span = tuple[int, float, float, float, float]
"""(index, arrival, scheduled, first token, last token) of a request; times in seconds."""
MAX_WORKS = 5_000
"""Works per run that a trace shows unless told otherwise: about 2 MB."""
SPAN_COLUMNS = ("index", "arrival_s", "scheduled_s", "first_token_s", "last_token_s")


def trace_json(records: Sequence[RunRecord], max_works: int | None = MAX_WORKS) -> str:
    """The trace of all runs that recorded works, one process each, from their first `max_works` (None: all)."""
    events: list[Event] = []
    for pid, record in enumerate((record for record in records if record.works), start=1):
        name = f"{record.policy} (seed {record.seed})"
        events += run_events(pid, name, record.works[:max_works], request_spans(record))
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}) + "\n"


def trace_json_from_columns(
    works: Mapping[str, list[Any]], requests: Mapping[str, list[Any]], max_works: int | None = MAX_WORKS
) -> str:
    """The same from the columns of work.parquet and requests.parquet. Raises ValueError for a missing column."""
    fields = WorkRecord.__struct_fields__
    for table, names in ((works, ["policy", "seed", *fields]), (requests, ["policy", "seed", *SPAN_COLUMNS])):
        missing = [name for name in names if name not in table]
        if missing:
            raise ValueError(f"results lack the column {missing[0]!r}: written by another version?")
    by_run: dict[tuple[str, int], list[WorkRecord]] = {}
    for policy, seed, *values in zip(works["policy"], works["seed"], *(works[name] for name in fields), strict=True):
        record = WorkRecord(**dict(zip(fields, values, strict=True)))
        by_run.setdefault((policy, seed), []).append(record)
    spans: dict[tuple[str, int], list[Span]] = {}
    columns = (requests[name] for name in SPAN_COLUMNS)
    for policy, seed, *span in zip(requests["policy"], requests["seed"], *columns, strict=True):
        if None not in span:
            spans.setdefault((policy, seed), []).append(tuple(span))
    events: list[Event] = []
    for pid, ((policy, seed), records) in enumerate(by_run.items(), start=1):
        events += run_events(pid, f"{policy} (seed {seed})", records[:max_works], spans.get((policy, seed), []))
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}) + "\n"


def request_spans(record: RunRecord) -> list[Span]:
    """The spans of every finished request."""
    return [
        (r.index, r.arrival_s, r.scheduled_s, r.first_token_s, r.last_token_s) for r in record.requests if r.is_finished
    ]


def run_events(pid: int, name: str, works: Sequence[WorkRecord], spans: Iterable[Span]) -> list[Event]:
    """Events of one run: works by stream, waiting requests by lane, and each request's phases until the last work."""
    end_s = max(work.end_s for work in works)
    streams = {stream: tid for tid, stream in enumerate(dict.fromkeys(work.stream for work in works), start=1)}
    events = [_named("process_name", pid, 0, name)]
    events += [_named("thread_name", pid, tid, f"stream {stream}") for stream, tid in streams.items()]
    for work in works:
        events.append(
            {
                "name": work.kind if work.model == "target" or work.kind == "draft" else f"{work.kind} ({work.model})",
                "cat": work.kind,
                "ph": "X",
                "ts": _us(work.start_s),
                # Of rounded ends, so that neighbours never overlap: such slices would be dropped.
                "dur": round(_us(work.end_s) - _us(work.start_s), 3),
                "pid": pid,
                "tid": streams[work.stream],
                "args": {
                    "rows": work.rows,
                    "row_tokens": work.row_tokens,
                    "context_tokens": work.context_tokens,
                    "chunk_tokens": work.chunk_tokens,
                    "draft_tokens": work.draft_tokens,
                    "requests": list(work.requests),
                },
            }
        )
    for lane, changes in waiting_by_lane(works).items():
        waiting = 0
        for time_s, change in sorted(changes):
            waiting += change
            events.append(
                {"name": f"lane {lane}", "ph": "C", "ts": _us(time_s), "pid": pid, "args": {"waiting": waiting}}
            )
    for index, *times_s in spans:
        if times_s[0] > end_s:
            continue
        for phase, start_s, end_s in zip(("queue", "prefill", "decode"), times_s, times_s[1:], strict=False):
            common = {"cat": "request", "id": f"{pid}.{index}", "pid": pid, "tid": 0, "name": phase}
            events.append({**common, "ph": "b", "ts": _us(start_s)})
            events.append({**common, "ph": "e", "ts": _us(end_s)})
    return events


def waiting_by_lane(works: Sequence[WorkRecord]) -> dict[str, list[tuple[float, int]]]:
    """Per stream the times at which a request starts (+1) and ceases (-1) to wait for it.

    A request waits for a stream from the result of its previous work until the work there is submitted.
    """
    ready_s: dict[int, float] = {}
    changes: dict[str, list[tuple[float, int]]] = {}
    for work in sorted(works, key=lambda work: work.submitted_s):
        for index in dict.fromkeys(work.requests):
            since_s = ready_s.get(index)
            if since_s is not None and since_s < work.submitted_s:
                changes.setdefault(work.stream, []).extend([(since_s, 1), (work.submitted_s, -1)])
            ready_s[index] = max(work.ready_s, ready_s.get(index, 0.0))
    return changes


def _named(kind: str, pid: int, tid: int, name: str) -> Event:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def _us(time_s: float) -> float:
    return round(time_s * 1e6, 3)
