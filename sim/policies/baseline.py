"""Baseline (colocated): workers that each take one request end to end, all on one GPU stream (reports 000, 004)."""

from __future__ import annotations

from sim.engine.serving import Serving
from sim.interface.host import Stream
from sim.interface.wait import Task
from sim.policies import rounds
from sim.policies.options import EngineLimits, PolicyOptions
from sim.policies.policy import Policy


def coroutines(serving: Serving, options: PolicyOptions, limits: EngineLimits) -> list[Task]:
    stream = serving.host.stream("gpu")
    return [_worker(serving, options, stream) for _ in range(options.workers)]


async def _worker(serving: Serving, options: PolicyOptions, stream: Stream) -> None:
    while True:
        request = await serving.admit()
        await rounds.submit_prefill(serving, request, stream)
        serving.commit_prefill(request)
        while not request.is_finished:
            await rounds.run_round(serving, (request,), options, stream, stream)


POLICY = Policy(
    name="baseline",
    summary="workers that take one request end to end, one stream",
    is_built_in=True,
    source="reports 000, 004",
    build=coroutines,
    chooses_drafter=True,
    has_workers=True,
    takes=("workers", "batching", "kv"),
)
