"""Phases of the time of requests: queue, prefill, draft, verify, transfer, and waiting between them.

From the works that a run recorded. Not here: drawing it (sim.report.pictures.figures).
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from sim.metrics.records import RunRecord, WorkRecord

PHASES = ("queue", "prefill", "draft", "verify", "transfer", "waiting")
_PHASE_OF = {"prefill": "prefill", "draft": "draft", "verify": "verify", "step": "verify", "copy": "transfer"}


def mean_phases_s(record: RunRecord, measured: range | None = None) -> dict[str, float]:
    """Mean seconds in each of PHASES per finished request, of those with indices in `measured` if that is given; they
    add up to mean E2EL.

    A work counts for a request from its submission, or from the end of the request's previous work if that is later,
    until its result is on the host or the request has its last token. Time between works is waiting, time before
    admission is queue. A STEP counts as prefill until the first token and as verify (or decode) after it; a draft
    model's prefill counts as prefill.
    """
    finished = [each for each in record.requests if each.is_finished and (measured is None or each.index in measured)]
    totals = dict.fromkeys(PHASES, 0.0)
    if not finished:
        return totals
    by_request = _works_by_request(record.works)
    for request in finished:
        totals["queue"] += request.scheduled_s - request.arrival_s
        now_s = request.scheduled_s
        for work in by_request.get(request.index, ()):
            begin_s = min(max(work.submitted_s, now_s), request.last_token_s)
            end_s = min(max(work.ready_s, begin_s), request.last_token_s)
            phase = _PHASE_OF[work.kind]
            if work.kind == "step" and work.submitted_s < request.first_token_s:
                phase = "prefill"
            totals["waiting"] += begin_s - now_s
            totals[phase] += end_s - begin_s
            now_s = end_s
        totals["waiting"] += request.last_token_s - now_s
    return {phase: total / len(finished) for phase, total in totals.items()}


def _works_by_request(works: Sequence[WorkRecord]) -> dict[int, list[WorkRecord]]:
    by_request: dict[int, list[WorkRecord]] = {}
    for work in sorted(works, key=attrgetter("submitted_s", "start_s")):
        for index in dict.fromkeys(work.requests):
            by_request.setdefault(index, []).append(work)
    return by_request
