"""Where queueing theory is exact the simulator must agree: M/M/1, M/D/c, M/G/1 with priorities."""

from __future__ import annotations

from math import factorial

import numpy as np
import pytest

from sim.costs.cost import ConstantCosts, Cost, Demands
from sim.engine.serving import Serving
from sim.hosts.simulated import SimHost
from sim.interface.host import Stream
from sim.interface.request import Request
from sim.interface.work import Model, Work
from sim.metrics.stats import interval_95
from sim.policies import works
from sim.policies.options import EngineLimits, PolicyOptions
from tests.sim.support import PeriodicDraws, SimRun, serve

pytestmark = pytest.mark.slow
TOKEN_S = 1e-6
"""Service time per prompt token: prompts stand for service demands."""
NUM_REQUESTS = 20_000
"""Per replication; half as many where no interval is asserted, only a share of the mean."""
WHOLE_PROMPTS = EngineLimits(max_num_batched_tokens=10**9)


class ServiceByPrompt(ConstantCosts):
    """A prefill takes TOKEN_S per prompt token; nothing else costs."""

    def cost(self, work: Work) -> Cost:
        return Cost(0.0, 0.0, TOKEN_S * sum(chunk.new_tokens for chunk in work.chunks), 1)


def requests(rate_per_s: float, service_s: np.ndarray, seed: int) -> list[Request]:
    arrivals = np.cumsum(np.random.default_rng([seed, 1]).exponential(1.0 / rate_per_s, len(service_s)))
    return [
        Request(
            index=i,
            id=str(i),
            arrival_s=float(at_s),
            prompt_tokens=max(1, round(float(demand_s) / TOKEN_S)),
            output_tokens=1,
        )
        for i, (at_s, demand_s) in enumerate(zip(arrivals, service_s, strict=True))
    ]


def mean_wait_s(served: list[Request]) -> float:
    """Mean time before service, the first tenth cut as warm-up."""
    kept = served[len(served) // 10 :]
    return float(np.mean([r.last_token_s - r.arrival_s - TOKEN_S * r.prompt_tokens for r in kept]))


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_one_worker_is_an_mm1_queue(load: float) -> None:
    """Mean wait = load / (1 - load) x mean service, within the 95 % interval of 8 replications and 6 %."""
    waits = []
    for seed in range(8):
        service_s = np.random.default_rng([seed, 2]).exponential(1.0, NUM_REQUESTS)
        run = SimRun(
            "baseline",
            requests(load, service_s, seed),
            costs=ServiceByPrompt(device_s={}),
            options=PolicyOptions(workers=1),
            limits=WHOLE_PROMPTS,
            draft_tokens=0,
            kv_blocks=10**12,
        )
        waits.append(mean_wait_s(run.serving.requests))
    expected = load / (1.0 - load)
    low, high = interval_95(waits) or (0.0, 0.0)
    assert low <= expected <= high
    assert np.mean(waits) == pytest.approx(expected, rel=0.06)


class FixedDemand(ServiceByPrompt):
    """Works of different streams do not slow each other: every stream is a server of its own."""

    demand: Demands = Demands(0.0, 0.0)


async def _server(serving: Serving, stream: Stream) -> None:
    while True:
        request = await serving.admit()
        await serving.host.run(works.prefill(request, Model.TARGET)[0], stream)
        serving.commit_prefill(request)


@pytest.mark.parametrize(("servers", "load"), [(2, 0.7), (4, 0.8)])
def test_c_servers_with_fixed_service_are_an_mdc_queue(servers: int, load: float) -> None:
    """Mean wait of M/D/c against Cosmetatos' approximation (1975), itself within 1-2 % here; tolerance 5 %."""
    waits = []
    for seed in range(6):
        asked = requests(load * servers, np.full(NUM_REQUESTS // 2, 1.0), seed)
        host = SimHost(FixedDemand(device_s={}), PeriodicDraws())
        serving = serve(host, "baseline", asked, draft_tokens=0, kv_blocks=10**12)
        streams = [host.stream(f"server{i}") for i in range(servers)]
        for task in [*(_server(serving, stream) for stream in streams), serving.arrivals()]:
            host.spawn(task)
        host.run_until()
        waits.append(mean_wait_s(asked))
    assert np.mean(waits) == pytest.approx(mdc_mean_wait(servers, load), rel=0.05)


def mdc_mean_wait(servers: int, load: float) -> float:
    """Mean wait in service times: half of M/M/c's, times Cosmetatos' correction."""
    offered = servers * load
    tail = offered**servers / factorial(servers) / (1.0 - load)
    queueing = tail / (sum(offered**i / factorial(i) for i in range(servers)) + tail)
    mmc = queueing / (servers * (1.0 - load))
    correction = (1.0 - load) * (servers - 1) * ((4.0 + 5.0 * servers) ** 0.5 - 2.0) / (16.0 * load * servers)
    return mmc / 2.0 * (1.0 + correction)


async def _priority_server(classes: list[Serving], stream: Stream) -> None:
    """One server, the first class first; a service that has begun is finished."""
    host = classes[0].host
    while True:
        for serving in classes:
            request = serving.admit_now()
            if request is not None:
                await host.run(works.prefill(request, Model.TARGET)[0], stream)
                serving.commit_prefill(request)
                break
        else:
            await host.first(*(host.wait(serving.intake) for serving in classes))


def test_a_server_that_takes_one_class_first_is_a_priority_mg1_queue() -> None:
    """Mean waits of both classes without preemption (Cobham 1954), exponential service; tolerance 6 %."""
    load = (0.3, 0.4)
    waits: tuple[list[float], list[float]] = ([], [])
    for seed in range(8):
        host = SimHost(ServiceByPrompt(device_s={}), PeriodicDraws())
        classes = []
        for rank, share in enumerate(load):
            service_s = np.random.default_rng([seed, rank, 2]).exponential(1.0, NUM_REQUESTS // 2)
            asked = requests(share, service_s, seed * 10 + rank)
            classes.append((serve(host, "baseline", asked, draft_tokens=0, kv_blocks=10**12), asked))
        host.spawn(_priority_server([serving for serving, _ in classes], host.stream("server")))
        for serving, _ in classes:
            host.spawn(serving.arrivals())
        host.run_until()
        last_s = min(asked[-1].arrival_s for _, asked in classes)
        for samples, (_, asked) in zip(waits, classes, strict=True):
            samples.append(mean_wait_s([request for request in asked if request.arrival_s <= last_s]))
    residual = sum(load)
    assert np.mean(waits[0]) == pytest.approx(residual / (1.0 - load[0]), rel=0.06)
    assert np.mean(waits[1]) == pytest.approx(residual / ((1.0 - load[0]) * (1.0 - sum(load))), rel=0.06)
