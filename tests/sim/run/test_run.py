"""Whole runs on shipped profiles: what more hardware and less draws may and may not do."""

from __future__ import annotations

import pytest

from sim.costs.profile_files import load
from sim.run.resolve import resolve
from sim.run.scenario import parse_scenario
from sim.run.simulate import simulate

PAIR = "h100-sxm/llama-2-7b+tinyllama-1.1b"


def scenario(policy: str, **workload: object) -> object:
    return parse_scenario(
        {"profile": PAIR, "policy": policy, "workload": {"input_len": 700, "output_len": 60, **workload}}
    )


def test_a_request_beyond_the_models_context_is_noted() -> None:
    raw = {"workload": {"num_prompts": 1, "input_len": 5000}, "engine": {"max_model_len": 6000}}
    resolved = resolve(parse_scenario({"profile": PAIR, "policy": "pd"} | raw), load(PAIR), "pd")
    with pytest.warns(UserWarning, match=r"requests longer than llama-2-7b's context of 4096 tokens"):
        simulate(resolved, 0)


@pytest.mark.parametrize(
    ("speculation", "num_models"),
    [({}, 2), ({"num_speculative_tokens": 0}, 1), ({"method": "ngram", "acceptance": "iid:0.3"}, 1)],
)
def test_only_a_draft_model_that_is_used_takes_memory(speculation: dict[str, object], num_models: int) -> None:
    raw = {"profile": PAIR, "policy": "continuous", "workload": {"num_prompts": 1}, "speculation": speculation}
    profile = load(PAIR)
    record = simulate(resolve(parse_scenario(raw), profile, "continuous"), 0)
    assert record.weight_bytes == sum(shape.weight_bytes for shape in profile.models[:num_models])
    assert record.kv_bytes_per_token == sum(shape.kv_bytes_per_token for shape in profile.models[:num_models])
