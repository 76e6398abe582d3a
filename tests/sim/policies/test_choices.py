"""The choices of the lane policies, and that an overloaded run is called so."""

from __future__ import annotations

import pytest

from sim.costs.profile_files import load
from sim.experiment.run import simulate
from sim.experiment.scenario import resolve
from sim.metrics.summary import summarise
from sim.policies.choices import is_atomic, may_prefill, verify_goes_first

PAIR = "h100-sxm/llama-2-7b+tinyllama-1.1b"


@pytest.mark.parametrize(("decode", "verify", "is_first"), [(0, 2, False), (0, 3, True), (5, 7, False), (5, 8, True)])
def test_verify_goes_first_when_its_queue_leads_by_more_than_two(decode: int, verify: int, is_first: bool) -> None:
    assert verify_goes_first(decode, verify, 2) is is_first


@pytest.mark.parametrize(("queue", "may"), [(0, True), (12, True), (13, False)])
def test_unified_takes_prompts_while_its_queue_is_within_its_factor(queue: int, may: bool) -> None:
    assert may_prefill(queue, 10, 1.2) is may


def test_one_active_request_is_served_atomically() -> None:
    assert [is_atomic(number) for number in (0, 1, 2)] == [True, True, False]


@pytest.mark.parametrize(("policy", "rate", "is_unstable"), [("pd", 2, False), ("pd", 20, True), ("baseline", 4, True)])
def test_arrivals_above_capacity_are_called_unstable(policy: str, rate: int, is_unstable: bool) -> None:
    workload = {"input_len": 256, "output_len": 200, "num_prompts": 150, "request_rate": rate}
    scenario = resolve({"profile": PAIR, "policy": policy, "workload": workload})
    assert summarise(simulate(scenario, policy, 0, load(PAIR)))["unstable"] is is_unstable


def test_a_cut_run_counts_only_what_arrived_and_can_be_unstable() -> None:
    workload = {"input_len": 256, "output_len": 200, "num_prompts": 200, "request_rate": 20}
    scenario = resolve({"profile": PAIR, "policy": "pd", "workload": workload, "window": {"stop_s": 6.0}})
    result = summarise(simulate(scenario, "pd", 0, load(PAIR)))
    assert result["unstable"]
    assert 80 < result["num_prompts"] < 160
    assert result["completed"] + result["censored"] == result["num_prompts"]
