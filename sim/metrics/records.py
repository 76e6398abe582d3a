"""The one output schema: what a run, simulated or real, leaves behind for metrics.

Not here: metrics themselves (sim.metrics.summary), files (sim.report.results).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from sim.engine.time_series import GapSamples
from sim.files.json_values import Json
from sim.interface.host import Stream
from sim.interface.request_columns import Requests
from sim.interface.work import Kind, Model, Work
from sim.metrics.energy import PowerTrace
from sim.workload.classes import SloClass

_NAMES: dict[str, str] = {each: each.value for each in (*Kind, *Model)}
REQUEST_COLUMNS = (
    "index", "id", "prompt_tokens", "output_tokens", "emitted_tokens", "arrival_s", "scheduled_s", "first_token_s",
    "last_token_s", "cached_tokens", "num_rounds", "drafted_tokens", "accepted_tokens",
)  # fmt: skip
"""Fields of a request that are columns of requests.parquet."""
PART_ROWS = 50_000
"""Requests whose columns are in memory at once: about 20 MB."""


class WorkRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One work as it happened; times in seconds on the run's clock. Columns of work.parquet."""

    kind: str
    model: str
    stream: str
    device: str
    submitted_s: float
    issue_start_s: float
    issued_s: float
    start_s: float
    end_s: float
    ready_s: float
    rows: int
    row_tokens: int
    context_tokens: int
    chunk_tokens: int
    draft_tokens: int
    is_cancelled: bool
    requests: tuple[int, ...]


class EndedTicket(Protocol):
    """A ticket, of any host, whose work is over; times in seconds on the run's clock."""

    @property
    def work(self) -> Work: ...
    @property
    def stream(self) -> Stream: ...

    submitted_s: float
    issue_start_s: float
    issued_s: float
    start_s: float
    end_s: float
    ready_s: float
    is_cancelled: bool


def work_record(ticket: EndedTicket) -> WorkRecord:
    work = ticket.work
    return WorkRecord(
        kind=_NAMES[work.kind],
        model=_NAMES[work.model],
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
        chunk_tokens=sum([chunk.new_tokens for chunk in work.chunks]) if work.chunks else 0,
        draft_tokens=work.draft_tokens,
        is_cancelled=ticket.is_cancelled,
        requests=tuple([request.index for request in work.requests]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamUsage:
    stream: str
    device: str
    kind: str
    num_works: int
    device_s: float
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    policy: str
    seed: int
    requests: Requests
    """Ordered by arrival index. Unfinished ones are censored."""
    slo_classes: Sequence[SloClass] = ()
    num_rejected: int = 0
    """Further ones whose prompts left no room for an answer."""
    gaps: GapSamples
    end_s: float
    """When the run stopped: last completion, or the window's end."""
    window_s: float | None
    """Length of the observation window where one was set and cut the run."""
    usage: list[StreamUsage]
    num_gpus: int = 1
    """All replicas' and pools', those of a tensor-parallel group one by one."""
    device_busy_s: float
    num_polls: int
    queue_mean: float
    queue_peak: int
    kv_tokens_mean: float
    kv_tokens_peak: int
    kv_capacity_tokens: int
    is_open_loop: bool
    """Arrivals at a rate, so that the run can be overloaded."""
    weight_bytes: int = 0
    kv_bytes_per_token: int = 0
    form: str = ""
    """Form of the simulator that it ran in (sim.run.compiled); empty of a real run."""
    engine: str = ""
    """Name of the engine whose costs were added to the GPU's time (sim.costs.engine_costs)."""
    is_async: bool | None = None
    """Steps were planned while the ones before them ran; None: lanes that plan each work when it is due."""
    cache_block_tokens: int | None = None
    """Tokens of a block of its prefix cache; None where what one request computed helps no other."""
    caps: dict[str, int | None] = field(default_factory=dict)
    """The limits that it was served under (sim.run.resolve.Caps)."""
    partition: dict[str, float | bool] | None = None
    """Shares of the GPU's multiprocessors by lane, and whether they hold only_together; None: shared by all."""
    works: list[WorkRecord] = field(default_factory=list)
    """Empty unless recording was requested."""
    power: PowerTrace | None = None


def request_parts(record: RunRecord) -> Iterator[dict[str, list[Json]]]:
    """The columns of PART_ROWS requests at a time: all at once would take more memory than the run."""
    for first in range(0, max(1, len(record.requests)), PART_ROWS):
        yield request_columns(record, record.requests[first : first + PART_ROWS])


def request_columns(record: RunRecord, requests: Requests | None = None) -> dict[str, list[Json]]:
    """The requests of a run, or some of them, as columns, unfinished ones marked censored."""
    requests = record.requests if requests is None else requests
    is_censored = requests.column("emitted_tokens") < requests.column("output_tokens")
    return {
        "policy": [record.policy] * len(requests),
        "seed": [record.seed] * len(requests),
        **{name: requests.column(name).tolist() for name in REQUEST_COLUMNS},
        "is_censored": is_censored.tolist(),
    }
