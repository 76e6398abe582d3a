"""A bare lane: requests served one after the other, end to end, on one stream of the threaded host, with nothing of a
policy. Not here: what it says of serving (calibrate.measure.serving_overhead).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from realrun.host.garbage_collector import frozen_heap
from realrun.host.gpuhost import GpuHost
from realrun.replay.measured_costs import MeasuredWork, measured_work
from realrun.replay.pair_executor import PairExecutor
from sim.acceptance.draws import AcceptanceDraws
from sim.acceptance.models import IidAcceptance
from sim.costs.in_service import kind_in_service
from sim.engine.controllers import build_controller
from sim.engine.kv import KvPool
from sim.engine.serving import Serving
from sim.interface.host import Host, Stream
from sim.interface.request import Request
from sim.interface.wait import Signal
from sim.interface.work import Kind, Work
from sim.policies import rounds
from sim.policies.options import RoundOptions

REQUESTS = 8
PROMPT_TOKENS, OUTPUT_TOKENS = (32, 88, 48, 72), 24
"""Prompts in turn: what a long one leaves behind is part of service."""
DRAFT_TOKENS, ACCEPTANCE = 4, 0.6
SEED = 1009
"""Seed of arrivals' draws and prompts: of no use to any judged run."""
POLL_S = 0.001


class LaneSetting(NamedTuple):
    """How requests are served, and what runs beside them."""

    draft_tokens: int = 0
    coroutines: int = 1
    """Coroutines that share the lane."""
    rows: int = 1
    """Requests that each coroutine drafts and verifies together."""
    num_pollers: int = 0
    """Idle workers that look every POLL_S, out of step."""

    @property
    def looks_per_s(self) -> float:
        """Looks that were requested; a busy machine skips some."""
        return self.num_pollers / POLL_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedLane:
    """A lane that served its requests."""

    setting: LaneSetting
    works: list[MeasuredWork]
    submitted: list[Work]
    """The works of `works`, in the same order."""
    span_s: float
    """Seconds from the first submission to the last result."""

    def times_s(self) -> dict[str, list[float]]:
        """Device times of the works, by kind in service."""
        by_kind: dict[str, list[float]] = {}
        for work, submitted in zip(self.works, self.submitted, strict=True):
            by_kind.setdefault(kind_in_service(submitted), []).append(work.record.end_s - work.record.start_s)
        return by_kind


def serve(executor: PairExecutor, setting: LaneSetting) -> ServedLane:
    """One run on the threaded host."""
    with frozen_heap(), GpuHost(executor, AcceptanceDraws(IidAcceptance(ACCEPTANCE), SEED)) as host:
        serving = _start(host, setting)
        host.run_until()
        tickets = [ticket for ticket in host.works if ticket.work.kind is not Kind.HOST]
    executor.reset()
    assert serving.is_all_finished, setting
    return ServedLane(
        setting=setting,
        works=[measured_work(ticket) for ticket in tickets],
        submitted=[ticket.work for ticket in tickets],
        span_s=max(request.last_token_s for request in serving.requests),
    )


def _start(host: GpuHost, setting: LaneSetting) -> Serving:
    """Start the lane, its pollers and its requests, which come at once."""
    requests = [
        Request(
            index=i,
            id=str(i),
            arrival_s=0.0,
            prompt_tokens=PROMPT_TOKENS[i % len(PROMPT_TOKENS)],
            output_tokens=OUTPUT_TOKENS,
        )
        for i in range(REQUESTS)
    ]
    ahead = setting.draft_tokens + 1 if setting.draft_tokens else 0
    most = sum(request.prompt_tokens + request.output_tokens + ahead for request in requests)
    pool = KvPool(most, 1, ahead)
    serving = Serving(host, requests, pool, build_controller("fixed", setting.draft_tokens))
    stream = host.stream("lane 0")
    for _ in range(setting.coroutines):
        host.spawn(_serve(serving, stream, setting.rows))
    for number in range(setting.num_pollers):
        host.spawn(_poller(host, number / setting.num_pollers * POLL_S))
    host.spawn(serving.arrivals())
    return serving


async def _serve(serving: Serving, stream: Stream, rows: int) -> None:
    """So many requests at once, end to end, then the next."""
    options = RoundOptions()
    while True:
        batch: list[Request] = []
        while len(batch) < rows:
            request = await serving.admit()
            await rounds.submit_prefill(serving, request, stream)
            serving.commit_prefill(request)
            batch.append(request)
        while batch:
            batch = await rounds.run_round(serving, batch, options, stream, stream)


async def _poller(host: Host, after_s: float) -> None:
    """A worker that looks for work which never comes."""
    await host.sleep(after_s)
    await host.wait(Signal(), poll_s=POLL_S)
