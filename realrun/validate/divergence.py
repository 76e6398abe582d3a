"""Divergence of a real run and its simulation: the first scheduling decision that differs.

Not here: what the difference costs (realrun.validate.error_parts).
"""

from __future__ import annotations

from collections.abc import Sequence

from sim.files.json_values import Json
from sim.metrics.records import WorkRecord


def first_divergence(works: Sequence[WorkRecord], simulated: Sequence[WorkRecord]) -> dict[str, Json] | None:
    """The first decision, stream by stream, in which the two differ; None if they scheduled alike throughout.

    A decision is which requests the next work of a stream carries, and what it does. Of several streams that diverge
    the one whose decision came first in the real run is told.
    """
    earliest: tuple[float, int, str] | None = None
    ours, theirs = _by_stream(works), _by_stream(simulated)
    for stream in ours:
        pairs = zip(ours[stream], theirs.get(stream, []), strict=False)
        differing = (number for number, (a, b) in enumerate(pairs) if _decision(a) != _decision(b))
        number = next(differing, min(len(ours[stream]), len(theirs.get(stream, []))))
        if number < len(ours[stream]) and (earliest is None or ours[stream][number].submitted_s < earliest[0]):
            earliest = ours[stream][number].submitted_s, number, stream
    if earliest is None:
        return None
    _, number, stream = earliest
    simulated_works = theirs.get(stream, [])
    other = simulated_works[number] if number < len(simulated_works) else None
    return {
        "stream": stream,
        "number": number,
        "real": _told(ours[stream][number]),
        "simulated": _told(other) if other is not None else None,
    }


def _by_stream(works: Sequence[WorkRecord]) -> dict[str, list[WorkRecord]]:
    streams: dict[str, list[WorkRecord]] = {}
    for work in sorted(works, key=lambda work: work.submitted_s):
        streams.setdefault(work.stream, []).append(work)
    return streams


def _decision(work: WorkRecord) -> tuple[str, str, tuple[int, ...], int, int]:
    return work.kind, work.model, tuple(sorted(work.requests)), work.draft_tokens, work.chunk_tokens


def _told(work: WorkRecord) -> dict[str, Json]:
    return {
        "time_s": work.submitted_s,
        "kind": work.kind,
        "model": work.model,
        "requests": list(work.requests),
        "draft_tokens": work.draft_tokens,
    }
