"""One engine and one set of limits for every policy of a comparison: obeyed, resolved, and in the JSON."""

from __future__ import annotations

import re
import warnings
from typing import Any

import msgspec
import pytest

from sim.compare.side_by_side import compare
from sim.costs.engine_costs import load_engine
from sim.costs.layer_kinds import Compressed, Indexer, Linear
from sim.costs.memory import kv_capacity_tokens, pool_bytes_per_token
from sim.costs.profile_files import load
from sim.metrics.records import RunRecord
from sim.policies.options import keys
from sim.policies.registry import POLICIES, PolicyOptions
from sim.run.checks import BeyondMemoryWarning, IgnoredKeyWarning, ignored_keys
from sim.run.resolve import resolve, resolve_all
from sim.run.scenario import GONE, Scenario
from sim.run.simulate import simulate
from tests.sim.support import most_in_flight

PAIR = "h100-sxm/llama-2-7b+tinyllama-1.1b"
EAGLE = "h100-sxm/llama-3.1-8b+eagle3"
LANES = [name for name, policy in POLICIES.items() if not policy.is_continuous]


def scenario(policy: Any, profile: str = PAIR, **changes: Any) -> Scenario:
    given = {"input_len": 300, "output_len": 40, "num_prompts": 30, "request_rate": 20} | changes
    return Scenario.of(profile=profile, policy=policy, **given)


def served(policy: str, profile: str = PAIR, *, with_works: bool = False, **changes: Any) -> RunRecord:
    return simulate(resolve(scenario(policy, profile, **changes), load(profile), policy), 0, record_works=with_works)


def test_sglang_seats_a_hybrid_model_as_its_states_fit_and_says_so() -> None:
    profile = load("h200-sxm/llama-3.1-8b")
    linear = Linear(layers=24, key_heads=16, key_dim=128, value_heads=32, value_dim=128)
    compressed = Compressed(query_rank=1, rope_dim=1, output_groups=1, output_rank=1, window=1, chosen_layers=1)
    hybrid = msgspec.structs.replace(profile, target=msgspec.structs.replace(profile.target, linear=linear))
    indexer = Indexer(heads=1, dim=1, tokens=1)
    target = msgspec.structs.replace(profile.target, compressed=compressed, indexer=indexer)
    whole = msgspec.structs.replace(profile, target=target)

    def seats(engine: str, **changes: Any) -> tuple[int, list[str]]:
        given = scenario("autoregressive", profile.name, engine=engine, max_concurrency=4000, **changes)
        resolved = resolve(given, hybrid, "autoregressive")
        return resolved.limits.max_num_seqs, resolved.assumed

    assert seats("sglang-0.5")[0] == 2048
    bound, (note,) = seats("sglang-0.5.23", max_num_seqs=3000)
    assert bound < seats("sglang-0.5.23", **{"engine.rules.enable_prefix_caching": False})[0] < 2048
    assert str(bound) in note
    assert "states" in note
    plain = resolve(scenario("autoregressive", profile.name, engine="sglang-0.5.23"), profile, "autoregressive")
    held = plain.num_blocks * 16
    assert plain.limits.max_num_seqs == max(2048, min(4096, int(held / profile.target.max_context * 512)))
    newest = load_engine("sglang-0.5.23", "h200-sxm")
    assert [newest.seats(whole, is_drafting=drafts) for drafts in (False, True)] == [256, 256]


def test_windows_of_gpt_oss_hold_every_token_under_sglang_0_5_and_most_tokens_later() -> None:
    models = load("h200-sxm/gpt-oss-120b").models
    layer_bytes = 2 * 8 * 64 * 2  # keys and values of eight heads
    token_bytes = {
        engine: pool_bytes_per_token(models, 1, load_engine(engine, "h200-sxm").rules.window_share)
        for engine in ("vllm-0.33", "sglang-0.5.23", "sglang-0.5")
    }
    assert token_bytes == {
        "vllm-0.33": 18 * layer_bytes,
        "sglang-0.5.23": round((18 + 0.8 * 18) * layer_bytes),
        "sglang-0.5": 36 * layer_bytes,
    }


@pytest.mark.parametrize("policy", POLICIES)
def test_two_seats_move_every_policy_and_hold_two(policy: str) -> None:
    free, tight = served(policy), served(policy, max_num_seqs=2)
    assert most_in_flight(free.requests) > 2
    assert most_in_flight(tight.requests) == 2
    assert all(request.is_finished for request in tight.requests)
    ends_s = [sum(request.last_token_s for request in record.requests) for record in (free, tight)]
    assert ends_s[1] != pytest.approx(ends_s[0], rel=0.03)


def test_a_wait_before_the_queue_is_the_scenario_s_or_the_engine_s_and_no_replay_s() -> None:
    def first_token_s(**changes: Any) -> float:
        record = served("autoregressive", num_prompts=1, **changes)
        return record.requests[0].first_token_s - record.requests[0].arrival_s

    frontend_s = load_engine("trtllm-1.1", "h100-sxm").frontend_s
    own, none, longer = (
        first_token_s(engine={"name": "trtllm-1.1", "frontend_s": wait_s}) for wait_s in (None, 0.0, 0.2)
    )
    assert own - none == pytest.approx(frontend_s)
    assert longer - none == pytest.approx(0.2)
    with pytest.raises(ValueError, match=r"engine\.frontend_s is simulated only"):
        resolve(scenario("pd", engine={"frontend_s": 0.2}), load(PAIR), "pd", num_slots=4)


@pytest.mark.parametrize(
    ("engine", "limit", "by_itself", "key", "value"),
    [
        ("sglang-0.5", "mixes_prompts", False, "engine.rules.enable_mixed_chunk", True),
        ("vllm-0.32", "whole_prompts", False, "engine.rules.enable_chunked_prefill", False),
        ("trtllm-1.1", "whole_prompts", True, "engine.rules.enable_chunked_prefill", True),
        ("sglang-0.5", "async_scheduling", False, "engine.async_scheduling", True),
    ],
)
def test_the_engine_says_how_it_schedules_unless_the_scenario_does(
    engine: str, limit: str, by_itself: bool, key: str, value: bool
) -> None:
    made = [scenario("continuous", EAGLE, **{"engine.name": engine, **given}) for given in ({}, {key: value})]
    found = [getattr(resolve(each, load(EAGLE), "continuous").limits, limit) for each in made]
    assert found == [by_itself, not by_itself]


@pytest.mark.parametrize("key", GONE)
def test_a_former_key_says_what_to_use_instead(key: str) -> None:
    name, _, value = key.partition("=")
    with pytest.raises(ValueError, match=rf"^{key} is no key any more\. Use {re.escape(GONE[key])}$"):
        scenario("continuous", EAGLE, **{name: value or 1})


@pytest.mark.parametrize("policy", LANES)
def test_a_lanes_prompt_goes_in_chunks_of_the_budget_through_both_models(policy: str) -> None:
    """300 tokens within 128: 128, 128 and 44 of the target, then the same of the draft; the rows' limit is 25."""
    record = served(policy, with_works=True, max_num_batched_tokens=128, num_prompts=40, request_rate=80)
    for request in record.requests:
        chunks = [work for work in record.works if work.kind == "prefill" and work.requests == (request.index,)]
        for model in ("target", "draft"):
            assert [work.chunk_tokens for work in chunks if work.model == model] == [128, 128, 44]
        last = max(work.ready_s for work in chunks if work.model == "target")
        assert request.first_token_s >= last
    verified = [work.row_tokens for work in record.works if work.kind == "verify"]
    assert max(verified) <= 128
    assert max(work.rows for work in record.works) <= 128 // 5
    if policy not in ("baseline",):
        assert max(work.rows for work in record.works) > 6


@pytest.mark.parametrize(
    ("changes", "decode_batch", "verify_batch"),
    [
        ({}, 1024, 1024),
        ({"max_num_seqs": 8}, 8, 8),
        ({"policy_options.decode_batch": 6, "policy_options.verify_batch": 12}, 6, 12),
        ({"max_num_batched_tokens": 17}, 3, 3),
        ({"policy_options.batching": "per_request"}, 1, 1),
    ],
)
def test_lane_batches_are_told_as_they_act(changes: dict[str, Any], decode_batch: int, verify_batch: int) -> None:
    given = scenario("pdv", **changes)
    caps = resolve(given, load(PAIR), "pdv").caps
    assert (caps.decode_batch, caps.verify_batch) == (decode_batch, verify_batch)


def test_a_key_that_a_policy_ignores_is_a_note() -> None:
    given = scenario(
        ["continuous", "pd"],
        **{"policy_options.verify_batch": 12, "engine.rules.enable_prefix_caching": False, "max_num_seqs": 8},
    )
    assert ignored_keys(given) == [
        "policy_options.verify_batch=12 means nothing to continuous, pd",
        "engine.rules.enable_prefix_caching=False means nothing to pd",
    ]
    with pytest.warns(IgnoredKeyWarning, match="verify_batch=12 means nothing to continuous, pd"):
        resolve_all(given, load(PAIR))


def test_kv_blocks_beyond_the_gpus_memory_are_a_note_that_says_how_many_fit() -> None:
    """Without the draft's weights and KV more fit."""
    profile = load(PAIR)
    for policy, with_draft in (("pd", True), ("autoregressive", False)):
        most = kv_capacity_tokens(profile, 1.0, with_draft=with_draft) // 16
        with pytest.warns(
            BeyondMemoryWarning, match=rf"num_gpu_blocks={most + 1} is beyond .* has room for {most} blo"
        ):
            resolve_all(scenario(policy, num_gpu_blocks=most + 1), profile)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            resolve_all(scenario(policy, num_gpu_blocks=most), profile)


@pytest.mark.parametrize(
    ("acceptance", "noted"),
    [("vllm:.7", "vllm:.7 has 1 rate for"), ("per-position:.8,.6~1.1", "has 2 rates for"), ("iid:.7", None)],
)
def test_fewer_rates_than_drafted_tokens_are_a_note(acceptance: str, noted: str | None) -> None:
    def said(policy: str, draft_tokens: int) -> list[str]:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            resolve_all(scenario(policy, acceptance=acceptance, num_speculative_tokens=draft_tokens), load(PAIR))
        return [str(each.message) for each in found]

    assert [noted in text and "drafts of 3 tokens" in text for text in said("pd", 3) if noted] == [True] * bool(noted)
    assert said("pd", 1) == said("autoregressive", 3) == []


def test_every_option_means_something_to_some_policy() -> None:
    """A key that none takes would be called ignored whatever runs."""
    for key in keys(PolicyOptions):
        assert any(policy.takes_option(key) for policy in POLICIES.values()), key


def test_a_scenario_at_its_defaults_is_quiet() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resolve_all(scenario(list(POLICIES)), load(PAIR))


# -- engines


@pytest.mark.parametrize(
    ("profile", "changes", "are_async"),
    [
        (PAIR, {}, [True, True]),
        (PAIR, {"engine": "vllm-0.24"}, [True, False]),
        (PAIR, {"engine": "vllm-0.12", "num_speculative_tokens": 0}, [False, False]),
        (PAIR, {"engine.async_scheduling": True}, [True, True]),
        (PAIR, {"engine.async_scheduling": False, "num_speculative_tokens": 0}, [False, False]),
        (PAIR, {"speculation.method": "ngram"}, [True, False]),
        (EAGLE, {}, [True, True]),
    ],
)
def test_each_arm_of_a_speedup_is_scheduled_as_its_engine_does_by_itself(
    profile: str, changes: dict[str, Any], are_async: list[bool]
) -> None:
    given = scenario(["autoregressive", "continuous"], profile, num_prompts=3, **changes)
    assert [run["async_scheduling"] for run in compare(resolve_all(given, load(profile))).runs] == are_async


def alone_tpot_s(engine: str, **changes: Any) -> float:
    """Of one request that decodes by itself."""
    record = served("autoregressive", engine=engine, num_speculative_tokens=0, num_prompts=1, output_len=100, **changes)
    request = record.requests[0]
    return (request.last_token_s - request.first_token_s) / 99


def test_asynchronous_scheduling_hides_the_step_and_a_zero_constant_does_not() -> None:
    """One row on H100 decodes longer than vLLM 0.24 prepares a step, so all of it is hidden. Planned synchronously
    it is paid in full, and a lane pays it for its draft."""
    costs = load_engine("vllm-0.24", "h100-sxm")
    ideal, hidden = alone_tpot_s("ideal"), alone_tpot_s("vllm-0.24")
    paid = alone_tpot_s("vllm-0.24", **{"engine.async_scheduling": False})
    assert hidden == pytest.approx(ideal, abs=1e-6)
    assert paid == pytest.approx(ideal + costs.step_s + costs.row_s, abs=1e-6)
    lane = [served("pd", engine=name, num_prompts=1).requests[0].last_token_s for name in ("ideal", "vllm-0.24")]
    assert lane[1] > lane[0] + 8 * costs.step_s


# -- the reports' own numbers


def test_a_budget_of_fewer_tokens_than_a_block_is_refused() -> None:
    """One token a step once took 13 CPU seconds for one request."""
    with pytest.raises(ValueError, match=r"engine.max_num_batched_tokens=1 must be at least 16"):
        Scenario.of(profile=PAIR, policy="continuous", engine={"max_num_batched_tokens": 1})
