"""Works as they were measured in a replay, and a cost model that gives each simulated work its measured time.

A simulated work is looked up by kind, model, its requests and where each of them stood; if the replay had no such work,
by kind and nearest shape, and that is counted. Not here: the replay (realrun.replay), what the comparison says
(realrun.validation). No torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log1p
from typing import NamedTuple

from realrun.experiment import useful_tokens
from realrun.threads import GpuTicket
from sim.costs.cost import Cost, Demands
from sim.records import WorkRecord
from sim.work import Kind, Work

NEAREST = 5
"""Measured works of the nearest shapes that a miss is given the mean of: one alone would hand on its noise."""

Key = tuple[str, str, tuple[tuple[int, int], ...], int]
"""Kind, model, (arrival index, output tokens out) of each request, chunk tokens."""
Shape = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredWork:
    """A work of a real run: the simulator's columns, and what only a real run has."""

    record: WorkRecord
    eligible_s: float
    """From when on nothing but the threads' own hand-over kept it from being issued."""
    padded_tokens: int
    """Token positions computed, padding included."""
    emitted: tuple[int, ...]
    """Output tokens of each request at submission."""

    @property
    def key(self) -> Key:
        record = self.record
        return _key(record.kind, record.model, record.requests, self.emitted, record.chunk_tokens)

    @property
    def cost(self) -> Cost:
        record = self.record
        return Cost(
            max(0.0, record.issue_start_s - self.eligible_s),
            record.issued_s - record.issue_start_s,
            record.end_s - record.start_s,
            0,
        )


def measured_work(ticket: GpuTicket) -> MeasuredWork:
    """The record of a work that is over."""
    work, outcome = ticket.work, ticket.outcome
    record = WorkRecord(
        kind=work.kind.value,
        model=work.model.value,
        stream=ticket.stream.name,
        device=str(ticket.stream.device),
        submitted_s=ticket.submitted_s,
        issue_start_s=ticket.issue_start_s,
        issued_s=ticket.issued_s,
        start_s=ticket.start_s,
        end_s=ticket.end_s,
        ready_s=ticket.ready_s,
        rows=work.rows,
        row_tokens=work.row_tokens,
        context_tokens=work.context_tokens,
        chunk_tokens=sum(chunk.new_tokens for chunk in work.chunks),
        draft_tokens=work.draft_tokens,
        is_cancelled=ticket.is_cancelled,
        requests=tuple(request.index for request in work.requests),
    )
    return MeasuredWork(
        record=record,
        eligible_s=ticket.eligible_s,
        padded_tokens=outcome.padded_tokens if outcome is not None else 0,
        emitted=ticket.job.emitted,
    )


class _Group(NamedTuple):
    """Measured works of one kind and model."""

    shapes: list[Shape]
    costs: list[Cost]


class MeasuredCosts:
    """A cost model that replays measured times. Contention is in them, so works demand nothing and slow nobody."""

    def __init__(self, works: Sequence[MeasuredWork], result_s: float) -> None:
        self.result_s = result_s
        self.num_hits = self.num_misses = 0
        self._exact: dict[Key, Cost] = {}
        self._groups: dict[tuple[str, str], _Group] = {}
        for work in works:
            if work.record.is_cancelled or work.record.kind == Kind.HOST:
                continue
            self._exact.setdefault(work.key, work.cost)
            group = self._groups.setdefault((work.record.kind, work.record.model), _Group([], []))
            group.shapes.append(_shape(work.record))
            group.costs.append(work.cost)

    def cost(self, work: Work) -> Cost:
        if work.kind is Kind.HOST:
            return Cost(work.host_s, 0.0, 0.0, 0)
        emitted = tuple(request.emitted_tokens for request in work.requests)
        chunk_tokens = sum(chunk.new_tokens for chunk in work.chunks)
        indices = tuple(request.index for request in work.requests)
        found = self._exact.get(_key(work.kind.value, work.model.value, indices, emitted, chunk_tokens))
        if found is not None:
            self.num_hits += 1
            return found
        self.num_misses += 1
        return self._nearest(work, chunk_tokens)

    def demands(self, work: Work) -> Demands:
        return Demands(0.0, 0.0)

    def host_inflation(self, num_issuers: int) -> float:
        return 1.0

    def _nearest(self, work: Work, chunk_tokens: int) -> Cost:
        group = self._groups.get((work.kind.value, work.model.value))
        if group is None:
            raise ValueError(
                f"the replay holds no {work.kind.value} work of the {work.model.value} model, and the simulation "
                "has one: was it cut short?"
            )
        wanted = (*map(log1p, (work.rows, work.row_tokens, chunk_tokens, work.draft_tokens, work.context_tokens)),)
        order = sorted(range(len(group.shapes)), key=lambda index: _distance(group.shapes[index], wanted))[:NEAREST]
        parts = [group.costs[index] for index in order]
        count = len(parts)
        return Cost(
            sum(cost.prepare_s for cost in parts) / count,
            sum(cost.launch_s for cost in parts) / count,
            sum(cost.device_s for cost in parts) / count,
            0,
        )


def real_columns(works: Sequence[MeasuredWork]) -> dict[str, list[object]]:
    """Columns of work.parquet that only a real run has."""
    return {
        "eligible_s": [work.eligible_s for work in works],
        "padded_tokens": [work.padded_tokens for work in works],
        "useful_tokens": [useful_tokens(work.record) for work in works],
        "emitted": [list(work.emitted) for work in works],
    }


def _key(kind: str, model: str, indices: Sequence[int], emitted: Sequence[int], chunk_tokens: int) -> Key:
    return kind, model, tuple(sorted(zip(indices, emitted, strict=True))), chunk_tokens


def _shape(record: WorkRecord) -> Shape:
    sizes = (record.rows, record.row_tokens, record.chunk_tokens, record.draft_tokens, record.context_tokens)
    return tuple(map(log1p, sizes))


def _distance(one: Shape, other: Shape) -> float:
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))
