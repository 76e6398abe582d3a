"""Works as they were measured in a replay, and a simulated host on their times: of each work, of the reaction to it,
and of waking after a signal.

A simulated work is looked up by kind, model, its requests and where each of them stood. If the replay had no such work
it is given the mean of the nearest shapes of its kind, of equal ones those nearest in time, and that is counted. Not
here: the replay (realrun.replay.replays), the verdict (realrun.validate.error_parts). No torch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, log1p
from typing import Any, NamedTuple

from realrun.host.ticket import GpuTicket
from sim.costs.cost import Cost, Demands
from sim.devices.contention import Contention
from sim.devices.ticket import SimTicket
from sim.files.json_values import Json
from sim.hosts.simulated import RunLength, SimHost
from sim.interface.host import Stream
from sim.interface.wait import HostWait
from sim.interface.work import Kind, Work
from sim.metrics.records import WorkRecord, work_record

NEAREST = 6
"""Measured works that a miss is given the mean of: one alone would hand on its noise."""
SHAPE_DIGITS = 1
"""Distances of shapes that agree to this many decimals (contexts within about 25 %) count as equal."""

Key = tuple[str, str, tuple[tuple[int, int], ...], int]
"""Kind, model, (arrival index, output tokens out) of each request, chunk tokens."""
Shape = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredWork:
    """A work of a real run: the simulator's columns, and what only a real run has."""

    record: WorkRecord
    eligible_s: float
    """Time from when on nothing but the waking of threads kept it from being issued."""
    reacted_s: float
    """When the coroutine that awaited it had acted on its result; nan if none did."""
    emitted: tuple[int, ...]
    """Output tokens of each request at submission."""
    accepted: tuple[int, ...] = ()
    """Drafted tokens accepted of each row; of VERIFY and STEP works."""
    work: Work | None = None
    """As it was submitted; None of one that is read back."""

    @property
    def key(self) -> Key:
        record = self.record
        return _key(record.kind, record.model, record.requests, self.emitted, record.chunk_tokens)

    @property
    def cost(self) -> Cost:
        """Times of host and device. Issuing up to the first kernel is the host's, where the device waited for it."""
        record = self.record
        waited = record.issue_start_s <= record.start_s <= record.issued_s
        launching_s = record.start_s if waited else record.issue_start_s
        return Cost(
            max(0.0, launching_s - self.eligible_s),
            record.issued_s - launching_s,
            record.end_s - record.start_s,
            0,
        )


def measured_work(ticket: GpuTicket) -> MeasuredWork:
    return MeasuredWork(
        record=work_record(ticket),
        eligible_s=ticket.eligible_s,
        reacted_s=ticket.reacted_s,
        emitted=ticket.job.emitted,
        # As the policy was told: dictated by a tape, or decided by the models.
        accepted=ticket.job.forced or ticket.accepted or (),
        work=ticket.work,
    )


class Lasted(NamedTuple):
    cost: Cost
    reaction_s: float
    """Seconds from its end on the device until whoever awaited it had acted on it; nan if nobody did."""


class _Group(NamedTuple):
    shapes: list[Shape]
    submitted_s: list[float]
    lasted: list[Lasted]


class MeasuredCosts:
    """A cost model that replays measured times. Contention is in them, so works demand nothing and slow nobody."""

    result_s = 0.0

    def __init__(self, works: Sequence[MeasuredWork]) -> None:
        self.num_hits = self.num_misses = 0
        self._mean_reaction_s = mean([work.reacted_s - work.record.end_s for work in works])
        self._exact: dict[Key, deque[Lasted]] = {}
        """Works in the order of issue: equal chunks of one prompt have one key."""
        self._groups: dict[tuple[str, str], _Group] = {}
        self.now_s = 0.0
        """Time of the run that asks."""
        self.newest_reaction_s = 0.0
        """Reaction to the work that was priced last."""
        for work in sorted(works, key=lambda work: work.record.issue_start_s):
            if work.record.is_cancelled or work.record.kind == Kind.HOST:
                continue
            lasted = Lasted(work.cost, work.reacted_s - work.record.end_s)
            self._exact.setdefault(work.key, deque()).append(lasted)
            group = self._groups.setdefault((work.record.kind, work.record.model), _Group([], [], []))
            group.shapes.append(_shape(work.record))
            group.submitted_s.append(work.record.submitted_s)
            group.lasted.append(lasted)

    def cost(self, work: Work) -> Cost:
        if work.kind is Kind.HOST:
            self.newest_reaction_s = self._mean_reaction_s
            return Cost(work.host_s, 0.0, 0.0, 0)
        chunk_tokens = sum(chunk.new_tokens for chunk in work.chunks)
        indices = [request.index for request in work.requests]
        emitted = [request.emitted_tokens for request in work.requests]
        same = self._exact.get(_key(work.kind.value, work.model.value, indices, emitted, chunk_tokens))
        if same is None:
            self.num_misses += 1
            lasted = self._nearest(work, chunk_tokens)
        else:
            self.num_hits += 1
            lasted = same.popleft() if len(same) > 1 else same[0]
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
        # Of equal shapes those measured about this time: disturbances of a real machine come and go.
        order = sorted(
            (round(_distance(shape, wanted), SHAPE_DIGITS), abs(submitted_s - self.now_s), number)
            for number, (shape, submitted_s) in enumerate(zip(group.shapes, group.submitted_s, strict=True))
        )
        nearest = [group.lasted[number] for _, _, number in order[:NEAREST]]
        prepare_s, launch_s, device_s = (mean([lasted.cost[part] for lasted in nearest]) for part in range(3))
        return Lasted(
            Cost(prepare_s, launch_s, device_s, 0),
            mean([lasted.reaction_s for lasted in nearest], default=self._mean_reaction_s),
        )


def mean(values: Sequence[float], *, default: float = 0.0) -> float:
    """Mean of what is not nan."""
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else default


def real_columns(works: Sequence[MeasuredWork]) -> dict[str, list[Json]]:
    return {
        "eligible_s": [work.eligible_s for work in works],
        "reacted_s": [work.reacted_s for work in works],
        "emitted": [list(work.emitted) for work in works],
        "accepted": [list(work.accepted) for work in works],
    }


def _key(kind: str, model: str, indices: Sequence[int], emitted: Sequence[int], chunk_tokens: int) -> Key:
    return kind, model, tuple(sorted(zip(indices, emitted, strict=True))), chunk_tokens


def _shape(record: WorkRecord) -> Shape:
    sizes = (record.rows, record.row_tokens, record.chunk_tokens, record.draft_tokens, record.context_tokens)
    return tuple(map(log1p, sizes))


def _distance(one: Shape, other: Shape) -> float:
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))


class WakeLatency(NamedTuple):
    """Mean seconds from a notification until the coroutine that waited for it had acted on it."""

    plain_s: float
    polled_s: float
    """Mean seconds from the look that found the notification, where the coroutine polls."""


class MeasuredHost(SimHost):
    """The simulated host on measured times: of each work, of the reaction to it, and of waking up after a signal."""

    def __init__(self, costs: MeasuredCosts, draws: RunLength, wake: WakeLatency, **options: Any) -> None:
        super().__init__(costs, draws, contention=Contention(eta_compute=inf, eta_bandwidth=inf), **options)
        self._measured, self._wake = costs, wake
        self._reactions_s: dict[SimTicket, float] = {}

    def run(self, work: Work, stream: Stream, *, after: Sequence[Any] = ()) -> SimTicket:
        self._measured.now_s = self.now_s
        ticket = super().run(work, stream, after=after)
        reaction_s = self._measured.newest_reaction_s
        if ticket.ready_s == ticket.ready_s:
            ticket.ready_s += reaction_s
        else:
            self._reactions_s[ticket] = reaction_s
        return ticket

    def ended(self, ticket: SimTicket) -> None:
        """The result becomes ready; of a work that takes no time before `run` knows it."""
        ticket.ready_s += self._reactions_s.pop(ticket, 0.0)
        super().ended(ticket)

    def wake(self, wait: HostWait[None], at_s: float, *, is_polled: bool) -> None:
        latency_s = self._wake.polled_s if is_polled else self._wake.plain_s
        self.at(at_s + latency_s, lambda _: self.complete(wait))


class RecordedDraws:
    """The acceptance that a replay recorded, as a simulation's draws: any gap is then timing only."""

    def __init__(self, works: Iterable[MeasuredWork]) -> None:
        """Raises ValueError for records without accepted counts."""
        self._accepted: dict[tuple[int, int], int] = {}
        for work in works:
            record = work.record
            if record.kind not in (Kind.VERIFY, Kind.STEP) or record.is_cancelled:
                continue
            if len(work.accepted) != record.rows:
                raise ValueError(
                    f"the replay recorded accepted counts of {len(work.accepted)} of {record.rows} rows of a "
                    f"{record.kind} work. Without them it cannot be simulated: replay it again"
                )
            rows = zip(record.requests, work.emitted, work.accepted, strict=False)
            self._accepted.update(((index, emitted), count) for index, emitted, count in rows)

    def run_length(self, index: int, position: int, most: int) -> int:
        """Accepted tokens of a draft of `most`. Raises ValueError where the replay drafted nothing there."""
        count = self._accepted.get((index, position))
        if count is None:
            raise ValueError(
                f"the simulation drafts for request {index} with {position} output tokens out, where the replay "
                "did not (it was cut short, or shortened a draft): what the models would accept there is unknown. "
                "Validate a whole replay, or one whose acceptance a tape dictates"
            )
        return min(count, most)
