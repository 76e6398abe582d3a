"""Where queueing theory is exact the simulator must agree: M/M/1, M/D/c, M/G/1 with priorities."""

from __future__ import annotations

import numpy as np
import pytest

from sim.costs.constant import ConstantCosts
from sim.costs.cost import Cost
from sim.policies.options import PolicyOptions
from sim.request import Request
from sim.stats import interval_95
from sim.work import Work
from tests.sim.support import SimRun

pytestmark = pytest.mark.slow
TOKEN_S = 1e-6
"""Service time per prompt token: prompts stand for service demands."""
NUM_REQUESTS = 20_000


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
            draft_tokens=0,
            kv_blocks=10**12,
        )
        waits.append(mean_wait_s(run.serving.requests))
    expected = load / (1.0 - load)
    low, high = interval_95(waits) or (0.0, 0.0)
    assert low <= expected <= high
    assert np.mean(waits) == pytest.approx(expected, rel=0.06)
