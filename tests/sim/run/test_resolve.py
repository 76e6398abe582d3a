"""A scenario is resolved once: nothing downstream looks an engine, a policy or a limit up again."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.acceptance.forms import parse_quoted
from sim.cli.main import run
from sim.costs.profile_files import load
from sim.files.yaml_values import parse_yaml
from sim.policies.registry import POLICIES
from sim.run.resolve import resolve, with_keys
from sim.run.scenario import Scenario
from sim.run.scenario_file import parse_override
from sim.run.simulate import simulate

PAIR = "h100-sxm/llama-2-7b+tinyllama-1.1b"
LOOKUPS = ("load_engine", "find_policy", "build_controller", "limits_of", "engine_of", "parse_quoted", "best_partition")


def scenario(policy: str, **changes: Any) -> Scenario:
    given = {"num_prompts": 20, "request_rate": 8, "input_len": 64, "output_len": 16} | changes
    return Scenario.of(profile=PAIR, policy=policy, **given)


@contextmanager
def counted() -> Iterator[Counter[object]]:
    """Calls of Python functions by their name, and by their code."""
    calls: Counter[object] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            calls.update((frame.f_code.co_name, frame.f_code))

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


def test_a_comparison_resolves_each_policy_once_and_reads_its_acceptance_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """At two rates; its draws of costs and acceptance, the bracket of phi and its levels resolve nothing."""
    rates = ("--request-rate", "2,4", "--num-prompts", "5", "--input-len", "64", "--output-len", "4", "--draws", "2")
    policies = (
        "--policy",
        "continuous",
        "--policy",
        "pd",
        "--replications",
        "2",
        "--workers",
        "1",
        "--acceptance",
        "0.6",
    )
    with counted() as calls:
        assert run(["compare", "--profile", PAIR, *policies, *rates]) == 0
    assert "latency" in capsys.readouterr().out
    assert (calls[resolve.__code__], calls[parse_quoted.__code__]) == (4, 4)


@pytest.mark.parametrize(
    "changes",
    [
        {"workload": {"request_rate": 2.0, "num_prompts": 30}},
        {"speculation": {"num_speculative_tokens": 2}},
        {"devices": {"count": 2}},
        {"policy_options": {"partition": {"prefill": 0.5, "decode": 0.5}}},
    ],
)
def test_a_variant_is_what_its_scenario_resolves_to(changes: dict[str, Any]) -> None:
    profile = load(PAIR)
    for partition in (None, {"prefill": 0.4, "decode": 0.6}):
        given = scenario("pd", **{"policy_options.partition": partition})
        variant = resolve(given, profile, "pd").changed(**changes)
        afresh = resolve(with_keys(given, **changes), profile, "pd")
        assert (variant.scenario, variant.options.partition, variant.lengths) == (
            afresh.scenario,
            afresh.options.partition,
            afresh.lengths,
        )
        theirs, ours = simulate(afresh, 1).requests, simulate(variant, 1).requests
        assert [r.last_token_s for r in ours] == [r.last_token_s for r in theirs]


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
    ("policy", "options", "targets", "drafts"),
    [
        ("pd", {}, 1, 1),
        ("pd", {"devices.overlap": "processes"}, 2, 2),
        ("pd", {"devices.count": 3}, 3, 3),
        ("disaggregated", {"policy_options.pools.prefill": 2}, 3, 3),
        ("disaggregated", {"policy_options.pools.prefill": 2, "policy_options.pools.draft": 2}, 3, 2),
        ("pipelined", {"policy_options.pools.draft": 1}, 1, 1),
    ],
)
def test_weights_count_on_every_gpu_that_has_them(
    policy: str, options: dict[str, Any], targets: int, drafts: int
) -> None:
    profile = load(PAIR)
    record = simulate(resolve(scenario(policy, num_prompts=1, **options), profile, policy), 0)
    target, draft = (shape.weight_bytes for shape in profile.models)
    assert record.weight_bytes == targets * target + drafts * draft


def test_kv_that_every_gpu_of_a_group_keeps_counts_on_each() -> None:
    """One KV head on two GPUs; 64 layers of 128."""
    profile = load("h100-sxm/qwen3-32b-tp2")
    profile = msgspec.structs.replace(profile, target=msgspec.structs.replace(profile.target, kv_heads=1))
    record = simulate(resolve(scenario("autoregressive", num_prompts=1), profile, "autoregressive"), 0)
    assert record.kv_bytes_per_token == 2 * 64 * 2 * 128 * 2


@given(st.from_regex(r"\A[A-Za-z0-9_-]{1,15}\Z") | st.sampled_from(("on", "off", "null", "True", "010", "1e5", "inf")))
def test_a_plain_value_is_set_as_yaml_reads_it(text: str) -> None:
    try:
        wanted = parse_yaml(text, f"--set {f'seed={text}'!r}")
    except ValueError as error:
        with pytest.raises(ValueError, match=re.escape(str(error))):
            parse_override(f"seed={text}")
    else:
        assert repr(parse_override(f"seed={text}")) == repr(("seed", wanted))
