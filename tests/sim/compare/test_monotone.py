"""More work never makes requests faster: host time, delays per kernel, a slower memory, a higher rate.

Open loops, stable, no polling, a fixed draft length and the same draws on both sides; mean E2EL within 1 %.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from sim.costs.profile import Profile
from sim.costs.profile_files import changed, load
from sim.devices.contention import Regime
from sim.metrics.summary import summarise
from sim.policies.registry import POLICIES
from sim.run.resolve import resolve
from sim.run.scenario import Scenario
from sim.run.simulate import simulate

pytestmark = pytest.mark.slow
PAIR = "h100-sxm/llama-2-7b+tinyllama-1.1b"
SLACK = 1.01
ON_ONE_STREAM = ("autoregressive", "baseline", "continuous", "disaggregated")
"""On any GPU; every regime says the same of them (tests/sim/compare/test_verdicts.py)."""
CASES = [
    (policy, overlap)
    for policy in POLICIES
    for overlap in (Regime if policy not in ON_ONE_STREAM else [Regime.LEFTOVER])
    if overlap is not Regime.PROCESSES or policy == "pd"
]


def mean_e2el_ms(profile: Profile, policy: str, rate: float, overlap: str) -> float:
    scenario = Scenario.of(
        profile=profile.name,
        policy=policy,
        input_len=256,
        output_len=48,
        num_prompts=60,
        request_rate=rate,
        num_speculative_tokens=4,
        policy_options={"poll_s": 0.0, "workers": 8},
        devices={"overlap": overlap},
        max_num_seqs=64,
        max_num_batched_tokens=2048,
    )
    found = summarise(simulate(resolve(scenario, profile, policy), 5))["mean_e2el_ms"]
    assert isinstance(found, float)
    return found


def own_host(**constants: float) -> Profile:
    """The pair with an engine of its own."""
    profile = load(PAIR)
    return changed(profile, host=msgspec.structs.replace(profile.host, engine="own", **constants))


def rising(values: list[float]) -> bool:
    return all(low <= SLACK * high for low, high in pairwise(values))


@pytest.mark.parametrize(("policy", "overlap"), CASES)
def test_latency_never_falls_with_host_time_per_step(policy: str, overlap: str) -> None:
    values = [mean_e2el_ms(own_host(step_s=step_s), policy, 3.0, overlap) for step_s in (0.0, 3e-4, 3e-3)]
    assert rising(values), values


@pytest.mark.parametrize(("policy", "overlap"), CASES)
def test_latency_never_falls_with_a_slower_memory(policy: str, overlap: str) -> None:
    values = []
    for share in (1.5, 0.9, 0.5):
        profile = own_host(step_s=3e-4)
        gpu = msgspec.structs.replace(profile.gpu, bandwidth_bytes_per_s=share * profile.gpu.bandwidth_bytes_per_s)
        values.append(mean_e2el_ms(changed(profile, gpu=gpu), policy, 2.0, overlap))
    assert rising(values), values


@pytest.mark.parametrize("policy", ["pd", "pdv", "unified"])
def test_latency_never_falls_with_the_delay_per_kernel_where_overlap_was_measured(policy: str) -> None:
    values = []
    for tau_s in (0.0, 2e-6, 1e-5, 3e-5):
        profile = own_host(step_s=3e-4)
        overlap = msgspec.structs.replace(profile.overlap, measured=True, tau_s=tau_s, demand_floor=0.5)
        values.append(mean_e2el_ms(changed(profile, overlap=overlap), policy, 2.0, "leftover"))
    assert rising(values), values
