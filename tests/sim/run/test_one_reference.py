"""The reference of every speed-up runs as the engine is deployed, whatever the policies beside it draft with."""

from __future__ import annotations

import pytest

from sim.costs.profile_files import load
from sim.metrics.summary import summarise
from sim.run.resolve import resolve
from sim.run.scenario import Scenario
from sim.run.simulate import simulate

PROFILES = (
    "h100-sxm/llama-2-7b+tinyllama-1.1b",
    "a100-sxm/llama-3.1-8b+eagle3",
    "gh200/apertus-8b+dspark",
    "h200-sxm/gpt-oss-120b+eagle3",
    "rtx-3070-laptop/qwen2.5-7b-int4+qwen2.5-0.5b",
    "cpu/tiny",
)
SPECULATION = (
    {"num_speculative_tokens": 7},
    {"acceptance": "iid:0.2", "num_speculative_tokens": 1},
    {"method": "ngram"},
    {"controller": "feedback"},
    {"acceptance": "synthetic:2.0"},
)


def scenario(profile: str, **speculation: object) -> Scenario:
    return Scenario.of(
        profile=profile,
        policy="autoregressive",
        request_rate=4,
        num_prompts=24,
        input_len=96,
        output_len=24,
        speculation=speculation,
    )


@pytest.mark.parametrize("name", PROFILES)
def test_nothing_of_speculation_changes_a_result_of_autoregressive(name: str) -> None:
    profile = load(name)
    plain = scenario(name, num_speculative_tokens=0)
    reference = summarise(simulate(resolve(plain, profile, "autoregressive"), 3))
    for speculation in SPECULATION:
        beside_drafts = scenario(name, **speculation)
        assert summarise(simulate(resolve(beside_drafts, profile, "autoregressive"), 3)) == reference, speculation
