"""Works as they were measured in a replay, and a simulated host that gives each work its measured time.

A simulated work is looked up by kind, model, its requests and where each of them stood; if the replay had no such work,
by kind and nearest shape, and that is counted. Not here: the replay (realrun.replay), what the comparison says
(realrun.validation). No torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, inf, log1p
from typing import Any, NamedTuple

from realrun.experiment import useful_tokens
from realrun.threads import GpuTicket
from sim.costs.cost import Cost, Demands
from sim.devices.contention import Contention
from sim.devices.ticket import SimTicket
from sim.host import HostWait, Signal, Stream, Wait
from sim.records import WorkRecord
from sim.simhost import RunLength, SimHost
from sim.tasks import POLL_GRID_SLACK
from sim.work import Kind, Work

NEAREST = 16
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
    reacted_s: float
    """When the coroutine that awaited it had acted on its result; nan if none did."""
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
        reacted_s=ticket.reacted_s,
        padded_tokens=outcome.padded_tokens if outcome is not None else 0,
        emitted=ticket.job.emitted,
    )


class Lasted(NamedTuple):
    """What one work took."""

    cost: Cost
    reaction_s: float
    """From its end on the device until whoever awaited it had acted on it; nan if nobody did."""


class _Group(NamedTuple):
    """Measured works of one kind and model."""

    shapes: list[Shape]
    lasted: list[Lasted]


class WakeLatency(NamedTuple):
    """Mean seconds from a notification until the coroutine that waited for it had acted on it."""

    plain_s: float
    polled_s: float
    """From the look that found it."""


class MeasuredCosts:
    """A cost model that replays measured times. Contention is in them, so works demand nothing and slow nobody."""

    result_s = 0.0

    def __init__(self, works: Sequence[MeasuredWork]) -> None:
        self.num_hits = self.num_misses = 0
        self._mean_reaction_s = mean([work.reacted_s - work.record.end_s for work in works])
        self._exact: dict[Key, Lasted] = {}
        self._groups: dict[tuple[str, str], _Group] = {}
        self.newest_reaction_s = 0.0
        """Of the work that was priced last."""
        for work in works:
            if work.record.is_cancelled or work.record.kind == Kind.HOST:
                continue
            lasted = Lasted(work.cost, work.reacted_s - work.record.end_s)
            self._exact.setdefault(work.key, lasted)
            group = self._groups.setdefault((work.record.kind, work.record.model), _Group([], []))
            group.shapes.append(_shape(work.record))
            group.lasted.append(lasted)

    def cost(self, work: Work) -> Cost:
        if work.kind is Kind.HOST:
            self.newest_reaction_s = self._mean_reaction_s
            return Cost(work.host_s, 0.0, 0.0, 0)
        chunk_tokens = sum(chunk.new_tokens for chunk in work.chunks)
        indices = [request.index for request in work.requests]
        emitted = [request.emitted_tokens for request in work.requests]
        lasted = self._exact.get(_key(work.kind.value, work.model.value, indices, emitted, chunk_tokens))
        if lasted is None:
            self.num_misses += 1
            lasted = self._nearest(work, chunk_tokens)
        else:
            self.num_hits += 1
        known = lasted.reaction_s == lasted.reaction_s
        self.newest_reaction_s = lasted.reaction_s if known else self._mean_reaction_s
        return lasted.cost

    def demands(self, work: Work) -> Demands:
        return Demands(0.0, 0.0)

    def host_inflation(self, num_issuers: int) -> float:
        return 1.0

    def _nearest(self, work: Work, chunk_tokens: int) -> Lasted:
        group = self._groups.get((work.kind.value, work.model.value))
        if group is None:
            raise ValueError(
                f"the replay holds no {work.kind.value} work of the {work.model.value} model, and the simulation "
                "has one: was it cut short?"
            )
        sizes = (work.rows, work.row_tokens, chunk_tokens, work.draft_tokens, work.context_tokens)
        wanted = tuple(map(log1p, sizes))
        order = sorted(range(len(group.shapes)), key=lambda index: _distance(group.shapes[index], wanted))[:NEAREST]
        nearest = [group.lasted[index] for index in order]
        prepare_s, launch_s, device_s = (mean([lasted.cost[part] for lasted in nearest]) for part in range(3))
        return Lasted(
            Cost(prepare_s, launch_s, device_s, 0),
            mean([lasted.reaction_s for lasted in nearest], default=self._mean_reaction_s),
        )


class MeasuredHost(SimHost):
    """The simulated host on measured times: of each work, of the reaction to it, and of waking up after a signal."""

    def __init__(self, costs: MeasuredCosts, luck: RunLength, wake: WakeLatency, **options: Any) -> None:
        super().__init__(costs, luck, contention=Contention(eta_compute=inf, eta_bandwidth=inf), **options)
        self._measured, self._wake = costs, wake
        self._reactions_s: dict[SimTicket, float] = {}

    def run(self, work: Work, stream: Stream, *, after: Sequence[Any] = ()) -> SimTicket:
        ticket = super().run(work, stream, after=after)
        reaction_s = self._measured.newest_reaction_s
        if ticket.ready_s == ticket.ready_s:
            ticket.ready_s += reaction_s
        else:
            self._reactions_s[ticket] = reaction_s
        return ticket

    def ended(self, ticket: SimTicket) -> None:
        """On a device with several streams the result becomes ready only now."""
        reaction_s = self._reactions_s.pop(ticket, None)
        if reaction_s is not None:
            ticket.ready_s += reaction_s
            if ticket.posts or ticket.watchers:
                ticket.arm()
        super().ended(ticket)

    def wait(self, signal: Signal, *, poll_s: float | None = None) -> Wait[None]:
        wait: HostWait[None] = HostWait()
        signal.pending.append((wait, poll_s, self.now_s))
        return wait

    def notify(self, signal: Signal) -> None:
        signal.version += 1
        pending, signal.pending = signal.pending, []
        for wait, poll_s, since_s in pending:
            if poll_s:
                num_looks = max(1, ceil((self.now_s - since_s) / poll_s - POLL_GRID_SLACK))
                self.num_polls += num_looks
                wake_s = max(self.now_s, since_s + num_looks * poll_s) + self._wake.polled_s
            else:
                wake_s = self.now_s + self._wake.plain_s
            self.at(wake_s, partial(self._go_on, wait))

    def _go_on(self, wait: HostWait[None], _: Any) -> None:
        self.announce(wait)


def mean(values: Sequence[float], *, default: float = 0.0) -> float:
    """Mean of what is not nan."""
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else default


def real_columns(works: Sequence[MeasuredWork]) -> dict[str, list[object]]:
    """Columns of work.parquet that only a real run has."""
    return {
        "eligible_s": [work.eligible_s for work in works],
        "reacted_s": [work.reacted_s for work in works],
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
