"""Bare lanes: requests served one after the other, end to end, on one stream or several, with nothing of a policy.

Real runs of them on the threaded host, and the same simulated. Not here: what they say of serving
(calibrate.measure.serving_overhead).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from realrun.host.garbage_collector import frozen_heap
from realrun.host.gpuhost import GpuHost
from realrun.replay.measured_costs import MeasuredWork, measured_work
from realrun.replay.pair_executor import PairExecutor
from sim.acceptance.draws import AcceptanceDraws
from sim.acceptance.models import IidAcceptance
from sim.costs.forms.build import build_costs
from sim.costs.in_service import kind_in_service
from sim.costs.profile import Profile
from sim.devices.contention import contention_of
from sim.devices.ticket import SimTicket
from sim.engine.controllers import build_controller
from sim.engine.kv import KvPool
from sim.engine.serving import Serving
from sim.hosts.simulated import SimHost
from sim.interface.host import Host, Stream
from sim.interface.request import Request
from sim.interface.wait import Signal
from sim.interface.work import Kind, Work
from sim.metrics.records import work_record
from sim.policies import rounds
from sim.policies.options import RoundOptions
from sim.run.experiment import SpawningHost

REQUESTS_PER_LANE = 8
PROMPT_TOKENS, OUTPUT_TOKENS = (32, 88, 48, 72), 24
"""Prompts in turn: what a long one leaves behind is part of service."""
DRAFT_TOKENS, ACCEPTANCE = 4, 0.6
SEED = 1009
"""Seed of arrivals' draws and prompts: of no use to any judged run."""
POLL_S = 0.001


class LaneSetting(NamedTuple):
    """Requests to be served, and what runs beside them."""

    lanes: int = 1
    """Lanes at once, every one on a separate stream."""
    draft_tokens: int = 0
    period_s: float = 0.0
    """Seconds between two arrivals; 0 = all at once."""
    burst: int = 1
    """Requests that arrive together."""
    coroutines: int = 1
    """Coroutines that share each lane."""
    rows: int = 1
    """Requests that each coroutine drafts and verifies together."""
    is_split: bool = False
    """Prefill, draft and verify on separate streams, which all lanes share."""
    num_pollers: int = 0
    """Idle workers that look every POLL_S, out of step."""

    @property
    def looks_per_s(self) -> float:
        """Looks that were requested; a busy machine skips some."""
        return self.num_pollers / POLL_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedLanes:
    """Lanes that served their requests, in reality or in simulation."""

    setting: LaneSetting
    works: list[MeasuredWork]
    submitted: list[Work]
    """The works of `works`, in the same order."""
    span_s: float
    """Seconds from the first submission to the last result."""
    e2els_s: list[float]
    """Seconds of every request, from admission, in order of arrival."""

    def times_s(self) -> dict[str, list[float]]:
        """Device times of the works, by kind in service."""
        by_kind: dict[str, list[float]] = {}
        for work, submitted in zip(self.works, self.submitted, strict=True):
            by_kind.setdefault(kind_in_service(submitted), []).append(work.record.end_s - work.record.start_s)
        return by_kind

    @property
    def length_s(self) -> float:
        """Seconds that runs are compared by: the requests' time where pauses lie between them, else the whole of
        it."""
        return sum(self.e2els_s) if self.setting.period_s else self.span_s


def serve(executor: PairExecutor, setting: LaneSetting) -> ServedLanes:
    """One real run."""
    with frozen_heap(), GpuHost(executor, _draws()) as host:
        serving = start(host, setting)
        host.run_until()
        tickets = [ticket for ticket in host.works if ticket.work.kind is not Kind.HOST]
    executor.reset()
    return _served(setting, serving, [(ticket.work, measured_work(ticket)) for ticket in tickets])


def simulate(profile: Profile, setting: LaneSetting) -> ServedLanes:
    """The same lanes according to `profile`."""
    works: list[tuple[Work, MeasuredWork]] = []

    def on_work(ticket: SimTicket) -> None:
        record = work_record(ticket)
        measured = MeasuredWork(
            record=record, eligible_s=record.issue_start_s, reacted_s=record.ready_s, padded_tokens=0, emitted=()
        )
        works.append((ticket.work, measured))

    costs, contention = build_costs(profile, cuda_graph=False), contention_of(profile.overlap)
    host = SimHost(costs, _draws(), contention=contention, on_work=on_work)
    serving = start(host, setting)
    host.run_until()
    return _served(setting, serving, works)


def _served(setting: LaneSetting, serving: Serving, works: Sequence[tuple[Work, MeasuredWork]]) -> ServedLanes:
    assert serving.is_all_finished, setting
    requests = serving.requests
    return ServedLanes(
        setting=setting,
        works=[measured for _, measured in works],
        submitted=[submitted for submitted, _ in works],
        span_s=max(request.last_token_s for request in requests),
        e2els_s=[request.last_token_s - request.scheduled_s for request in requests],
    )


def start(host: SpawningHost, setting: LaneSetting) -> Serving:
    """Start the lanes, their pollers and the arrivals of their requests on any host."""
    requests = [
        Request(
            index=i,
            id=str(i),
            arrival_s=i // setting.burst * setting.period_s,
            prompt_tokens=PROMPT_TOKENS[i % len(PROMPT_TOKENS)],
            output_tokens=OUTPUT_TOKENS,
        )
        for i in range(REQUESTS_PER_LANE * setting.lanes)
    ]
    ahead = setting.draft_tokens + 1 if setting.draft_tokens else 0
    most = sum(request.prompt_tokens + request.output_tokens + ahead for request in requests)
    pool = KvPool(most, 1, ahead)
    serving = Serving(host, requests, pool, build_controller("fixed", setting.draft_tokens), max_concurrency=None)
    if setting.is_split:
        tracks = [tuple(host.stream(name) for name in ("prefill", "draft", "verify"))] * setting.lanes
    else:
        tracks = [(host.stream(f"lane {number}"),) * 3 for number in range(setting.lanes)]
    for streams in tracks * setting.coroutines:
        host.spawn(_lane(serving, streams, setting.rows))
    for number in range(setting.num_pollers):
        host.spawn(_poller(host, number / setting.num_pollers * POLL_S))
    host.spawn(serving.arrivals())
    return serving


async def _lane(serving: Serving, streams: Sequence[Stream], rows: int) -> None:
    """So many requests at once, end to end, then the next; `streams` of prefill, draft and verify."""
    options = RoundOptions()
    prefill, draft, verify = streams
    while True:
        batch: list[Request] = []
        while len(batch) < rows:
            request = await serving.admit()
            await rounds.submit_prefill(serving, request, prefill)
            serving.commit_prefill(request)
            batch.append(request)
        while batch:
            batch = await rounds.run_round(serving, batch, options, draft, verify)


async def _poller(host: Host, after_s: float) -> None:
    """A worker that looks for work which never comes."""
    await host.sleep(after_s)
    await host.wait(Signal(), poll_s=POLL_S)


def _draws() -> AcceptanceDraws:
    return AcceptanceDraws(IidAcceptance(ACCEPTANCE), SEED)
