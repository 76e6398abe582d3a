"""Where queueing theory is exact the simulator must agree: M/M/1 and M/D/c.

Of M/M/1 and M/D/c every request's wait is that of the recursion of a queue in order of arrival (Kiefer and Wolfowitz
1955), on the same draws; its mean, of many more draws, is that of theory.
"""

from __future__ import annotations

from heapq import heapreplace
from math import factorial

import numpy as np
import pytest

from sim.costs.cost import Cost, Demands
from sim.engine.serving import Serving
from sim.hosts.simulated import SimHost
from sim.interface.host import Stream
from sim.interface.request import Request
from sim.interface.work import Model, Work
from sim.metrics.stats import interval_95
from sim.policies import works
from sim.policies.options import EngineLimits
from sim.policies.registry import PolicyOptions
from tests.sim.constant_costs import ConstantCosts
from tests.sim.support import PeriodicDraws, SimRun, request, serve

pytestmark = pytest.mark.slow
TOKEN_S = 1e-6
"""Service time per prompt token: prompts stand for service demands."""
NUM_REQUESTS = 20_000
"""Per replication of what is compared with theory in the mean."""
NUM_SIMULATED = 1_500
"""Per replication, where every request's wait is compared with the queue's recursion, and that with theory."""
ROUNDING_S = TOKEN_S * NUM_SIMULATED
"""Prompts are whole tokens: as many roundings as requests in a busy period can add up."""
WHOLE_PROMPTS = EngineLimits(max_num_batched_tokens=10**9)


class ServiceByPrompt(ConstantCosts):
    """A prefill takes TOKEN_S per prompt token; nothing else costs."""

    def cost(self, work: Work) -> Cost:
        return Cost(0.0, 0.0, TOKEN_S * sum(chunk.new_tokens for chunk in work.chunks), 1)


def arrivals_s(rate_per_s: float, count: int, seed: int) -> np.ndarray:
    return np.cumsum(np.random.default_rng([seed, 1]).exponential(1.0 / rate_per_s, count))


def requests(rate_per_s: float, service_s: np.ndarray, seed: int) -> list[Request]:
    arrivals = arrivals_s(rate_per_s, len(service_s), seed)
    return [
        request(i, arrival_s=float(at_s), prompt=max(1, round(float(demand_s) / TOKEN_S)), output=1)
        for i, (at_s, demand_s) in enumerate(zip(arrivals, service_s, strict=True))
    ]


def waits_s(served: list[Request]) -> list[float]:
    """Times before service."""
    return [r.last_token_s - r.arrival_s - TOKEN_S * r.prompt_tokens for r in served]


def recursion_s(rate_per_s: float, service_s: np.ndarray, seed: int, servers: int) -> list[float]:
    """Waits of a queue in order of arrival: whoever is first takes the server that is free first."""
    free_s, waits = [0.0] * servers, []
    for arrival_s, taken_s in zip(arrivals_s(rate_per_s, len(service_s), seed).tolist(), service_s, strict=True):
        start_s = max(arrival_s, free_s[0])
        waits.append(start_s - arrival_s)
        heapreplace(free_s, start_s + taken_s)
    return waits


def mean_after_warmup(waits: list[float]) -> float:
    """The first tenth left out."""
    return float(np.mean(waits[len(waits) // 10 :]))


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_one_worker_is_an_mm1_queue(load: float) -> None:
    """Mean wait = load / (1 - load) x mean service, within the 95 % interval of 8 replications and 6 %."""
    waits = []
    for seed in range(8):
        service_s = np.random.default_rng([seed, 2]).exponential(1.0, NUM_REQUESTS)
        exact_s = recursion_s(load, service_s, seed, servers=1)
        waits.append(mean_after_warmup(exact_s))
        run = SimRun(
            "baseline",
            requests(load, service_s, seed)[:NUM_SIMULATED],
            costs=ServiceByPrompt(device_s={}),
            options=PolicyOptions(workers=1),
            limits=WHOLE_PROMPTS,
            draft_tokens=0,
            kv_blocks=10**12,
        )
        np.testing.assert_allclose(waits_s(run.serving.requests), exact_s[:NUM_SIMULATED], atol=ROUNDING_S)
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
        service_s = np.full(NUM_REQUESTS // 2, 1.0)
        exact_s = recursion_s(load * servers, service_s, seed, servers)
        waits.append(mean_after_warmup(exact_s))
        asked = requests(load * servers, service_s, seed)[:NUM_SIMULATED]
        host = SimHost(FixedDemand(device_s={}), PeriodicDraws())
        serving = serve(host, "baseline", asked, draft_tokens=0, kv_blocks=10**12)
        streams = [host.stream(f"server{i}") for i in range(servers)]
        for task in [*(_server(serving, stream) for stream in streams), serving.arrivals()]:
            host.spawn(task)
        host.run_until()
        np.testing.assert_allclose(waits_s(asked), exact_s[:NUM_SIMULATED], atol=ROUNDING_S)
    assert np.mean(waits) == pytest.approx(mdc_mean_wait(servers, load), rel=0.05)


def mdc_mean_wait(servers: int, load: float) -> float:
    """Mean wait in service times: half of M/M/c's, times Cosmetatos' correction."""
    offered = servers * load
    tail = offered**servers / factorial(servers) / (1.0 - load)
    queueing = tail / (sum(offered**i / factorial(i) for i in range(servers)) + tail)
    mmc = queueing / (servers * (1.0 - load))
    correction = (1.0 - load) * (servers - 1) * ((4.0 + 5.0 * servers) ** 0.5 - 2.0) / (16.0 * load * servers)
    return mmc / 2.0 * (1.0 + correction)
