"""Perfetto traces: every policy a process, every stream a track of works, every lane a counter of waiting requests.

The format is Chrome's trace event JSON, which ui.perfetto.dev opens; times in microseconds. Not here: recording works
(sim.run.simulate).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from sim.files.json_values import Json
from sim.metrics.records import RunRecord, WorkRecord

Event = dict[str, Json]
Span = tuple[int, float, float, float, float]
"""(index, arrival, scheduled, first token, last token) of a request; times in seconds."""
MAX_WORKS = 5_000
"""Works per run that a trace shows: about 2 MB."""


Run = tuple[str, Sequence[WorkRecord], Sequence[Span]]
"""Name, works and finished requests of a run."""


def trace_json(runs: Iterable[Run]) -> str:
    """The trace of all `runs`, one process each, from their first MAX_WORKS."""
    events: list[Event] = []
    for pid, (name, works, spans) in enumerate(runs, start=1):
        events += run_events(pid, name, works[:MAX_WORKS], spans)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}) + "\n"


def recorded_runs(records: Sequence[RunRecord]) -> Iterator[Run]:
    """Those that recorded works."""
    for record in records:
        if record.works:
            finished = [request for request in record.requests if request.is_finished]
            spans = [(r.index, r.arrival_s, r.scheduled_s, r.first_token_s, r.last_token_s) for r in finished]
            yield f"{record.policy} (seed {record.seed})", record.works, spans


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
        moments_s, counts = zip(*sorted(changes), strict=True)
        events += [
            {"name": f"lane {lane}", "ph": "C", "ts": _us(time_s), "pid": pid, "args": {"waiting": waiting}}
            for time_s, waiting in zip(moments_s, accumulate(counts), strict=True)
        ]
    for index, *times_s in spans:
        if times_s[0] > end_s:
            continue
        for phase, start_s, end_s in zip(("queue", "prefill", "decode"), times_s, times_s[1:], strict=False):
            common: Event = {"cat": "request", "id": f"{pid}.{index}", "pid": pid, "tid": 0, "name": phase}
            events.append({**common, "ph": "b", "ts": _us(start_s)})
            events.append({**common, "ph": "e", "ts": _us(end_s)})
    return events


def waiting_by_lane(works: Sequence[WorkRecord]) -> dict[str, list[tuple[float, int]]]:
    """Times by stream at which a request starts (+1) and ceases (-1) to wait for it.

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
