"""Room for a replay: every stream that a policy can ask for is counted."""

from __future__ import annotations

import warnings

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from realrun.replay.testbed import MAX_STREAMS
from sim.costs.profile_files import load
from sim.policies.registry import POLICIES
from sim.run.resolve import resolve
from sim.run.scenario import Scenario
from sim.run.simulate import simulate


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "disaggregated"])
def test_streams_of_a_policy_are_no_more_than_are_counted_for(policy: str) -> None:
    given = Scenario.of(profile="cpu/tiny", policy=policy, num_prompts=12, request_rate=40.0, num_speculative_tokens=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        record = simulate(resolve(given, load("cpu/tiny"), policy), 0)
    assert len({usage.stream for usage in record.usage if usage.kind != "host"}) <= MAX_STREAMS
