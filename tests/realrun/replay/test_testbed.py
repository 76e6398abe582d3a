"""What a replay runs: streams are counted, and no other attention than the profile was measured with."""

from __future__ import annotations

import warnings

import pytest

pytest.importorskip("torch")

from click.testing import CliRunner

from calibrate.measure.command import measure_command
from realrun.cli.replay import replay_command
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


@pytest.mark.parametrize("gpu", ["h100-sxm", "h200-sxm"])
def test_a_profile_measured_with_a_removed_attention_is_simulated_and_not_replayed(gpu: str) -> None:
    """The refusal is one line and ends with a command line that parses."""
    name = f"{gpu}/llama-3.1-8b+llama-3.2-1b-measured"
    given = Scenario.of(profile=name, policy="pd", num_prompts=2, request_rate=40.0, output_len=4)
    assert simulate(resolve(given, load(name), "pd"), 0).requests[1].is_finished
    done = CliRunner().invoke(
        replay_command, ["--profile", name, "--device", "cpu", "--out", "never", "--policy", "pd"]
    )
    assert isinstance(done.exception, ValueError)
    refusal = str(done.exception)
    assert "flash-3" in refusal
    assert "\n" not in refusal
    command = refusal.partition("lanesim calibrate measure ")[2].split()
    assert measure_command.make_context("measure", command).params["target"] == "llama-3.1-8b"
