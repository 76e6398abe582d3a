"""Baseline (colocated): workers that each take one request end to end, all on one GPU stream (reports 000, 004)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from sim.bounds import Bounds
from sim.engine.serving import Serving
from sim.interface.host import Stream
from sim.interface.wait import Task
from sim.policies import rounds
from sim.policies.options import EngineLimits, RoundOptions, keys
from sim.policies.policy import Policy


@dataclass(frozen=True, kw_only=True)
class BaselineOptions(RoundOptions):
    """Options of `baseline`."""

    workers: Annotated[int, Bounds(1, 10_000)] = 4
    """baseline: workers, each with one request."""


def coroutines(serving: Serving, options: BaselineOptions, limits: EngineLimits) -> list[Task]:
    stream = serving.host.stream("gpu")
    return [_worker(serving, options, stream) for _ in range(options.workers)]


async def _worker(serving: Serving, options: BaselineOptions, stream: Stream) -> None:
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
    takes=keys(BaselineOptions),
)
