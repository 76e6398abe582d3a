"""A scenario is resolved once: nothing downstream looks an engine, a policy or a limit up again."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from sim.costs.profile_files import load
from sim.policies.registry import POLICIES
from sim.run.resolve import resolve
from sim.run.scenario import Scenario
from sim.run.simulate import simulate

PAIR = "h100-sxm/llama-2-7b+tinyllama-1.1b"
LOOKUPS = (
    "load_engine",
    "find_policy",
    "build_controller",
    "limits_on",
    "engine_of",
    "build_acceptance",
    "best_shares",
)


def scenario(policy: str, **changes: Any) -> Scenario:
    given = {"num_prompts": 20, "request_rate": 8, "input_len": 64, "output_len": 16} | changes
    return Scenario.of(profile=PAIR, policy=policy, **given)


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Calls of Python functions by their name."""
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            calls[frame.f_code.co_name] += 1

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("policy", list(POLICIES))
def test_a_run_looks_everything_up_at_most_twice(policy: str) -> None:
    profile = load(PAIR)
    with counted() as calls:
        simulate(resolve(scenario(policy), profile, policy), 0)
    assert calls["_serving"] == 1
    assert {name: calls[name] for name in LOOKUPS if calls[name] > 2} == {}


@pytest.mark.parametrize("policy", ["continuous", "pd", "pdv", "unified"])
def test_one_resolved_scenario_serves_any_number_of_runs(policy: str) -> None:
    """In any order, each as if it were the only one: nothing of a run stays in what was resolved."""
    profile = load(PAIR)
    one = resolve(scenario(policy, **{"speculation.controller": "goodput"}), profile, policy)
    alone = [simulate(resolve(one.scenario, profile, policy), seed) for seed in (1, 2)]
    for seed in (2, 1, 2):
        record = simulate(one, seed)
        assert [r.last_token_s for r in record.requests] == [r.last_token_s for r in alone[seed - 1].requests]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine": "vllm-0.2"}, "did you mean 'vllm-0.24'"),
        ({"engine.max_num_batched_tokens": 4}, "no room to verify"),
        ({"engine.gpu_memory_utilization": 0.1}, "leave no room for KV"),
        ({"speculation.drafts": [{"draft": "llama-2-7", "acceptance": "iid:.5"}]}, "llama-2-7"),
        ({"policy_options.partition": {"prefil": 0.4}}, "did you mean 'prefill'"),
    ],
)
def test_what_cannot_be_is_refused_as_it_is_resolved(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve(scenario("pd", **changes), load(PAIR), "pd")
