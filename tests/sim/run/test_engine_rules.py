"""What one version of an engine does beside its steps: slots for drafts, the last cached block, captured sizes, the end
of an answer. Each rule is in the engine's file; an engine without it is as before."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.costs.engine_costs import Rules, engine_names, load_engine
from sim.costs.profile_files import load
from sim.drafters.drafter import Drafter
from sim.drafters.registry import DRAFTERS
from sim.interface.work import Model
from sim.metrics.records import RunRecord
from sim.run.limits import limits_of
from sim.run.resolve import resolve
from sim.run.scenario import RULES, Scenario
from sim.run.simulate import simulate
from tests.properties import assert_refused

PAIR = "h100-sxm/llama-2-7b+tinyllama-1.1b"
RANKS = "rtx-pro-6000-server/qwen3-30b-a3b-dp2"
EAGLE = "h100-sxm/llama-3.1-8b+eagle3"
DSPARK = "gh200/apertus-8b+dspark"
WITHOUT_RULES = ("sglang-0.5", "trtllm-1.0", "ideal")
VLLM_BEFORE_SLOTS, VLLM, NEWEST = "vllm-0.12", "vllm-0.24", "vllm-0.33"


def scenario(profile: str, engine: str, policy: str = "continuous", **changes: Any) -> Scenario:
    asked: dict[str, Any] = {"input_len": 600, "output_len": 8, "num_prompts": 6, "request_rate": 50} | changes
    return Scenario.of(profile=profile, policy=policy, engine=engine, **asked)


def served(made: Scenario) -> RunRecord:
    return simulate(resolve(made, load(made.profile), made.policy[0]), 0, record_works=True)


@pytest.mark.parametrize(
    ("profile", "method", "slots"),
    [
        (EAGLE, DRAFTERS["eagle3"], 0),
        (EAGLE, DRAFTERS["parallel"], 6),
        (PAIR, DRAFTERS["draft_model"], 1),
        (PAIR, DRAFTERS["parallel"], 7),
        (PAIR, DRAFTERS["ngram"], 0),
        (DSPARK, DRAFTERS["dspark"], 6),
    ],
)
def test_drafts_of_seven_tokens_keep_slots_of_every_seat_by_how_they_are_drafted(
    profile: str, method: Drafter, slots: int
) -> None:
    """8,192 tokens and 1,024 seats: under DSpark 8,192 - 6 x 1,024 = 2,048 are planned."""
    asked: dict[str, Any] = {"num_speculative_tokens": 7, "max_num_seqs": 1024, "max_num_batched_tokens": 8192}
    for engine, kept in ((VLLM, slots), (VLLM_BEFORE_SLOTS, 0), *((name, 0) for name in WITHOUT_RULES)):
        limits = limits_of(scenario(profile, engine, **asked, **{"speculation.method": method.name}), load(profile))
        assert limits.draft_slots == kept
        assert limits.max_num_scheduled_tokens == 8192 - 1024 * kept
        assert limits.max_num_batched_tokens == 8192


@pytest.mark.parametrize("threshold", [0, 4096])
def test_no_step_is_larger_than_what_the_slots_leave(threshold: int) -> None:
    """600-token prompts all at once: 2,048 tokens a step with slots, and without drafts all 8,192; rows as totals, and
    one by one where there is a threshold."""
    asked: dict[str, Any] = {
        "max_num_seqs": 1024,
        "max_num_batched_tokens": 8192,
        "num_prompts": 40,
        "request_rate": "inf",
    }
    largest = {}
    for k in (0, 7):
        limits = asked | {"num_speculative_tokens": k, "engine.rules.long_prefill_token_threshold": threshold}
        record = served(scenario(DSPARK, VLLM, **limits))
        steps = [work for work in record.works if work.kind == "step"]
        largest[k] = max(work.row_tokens + work.chunk_tokens for work in steps)
    assert largest == {0: 8192, 7: 2048}


def test_slots_leave_something_where_an_engine_keeps_none_or_nothing_is_drafted() -> None:
    made = scenario(PAIR, VLLM, max_num_seqs=64, max_num_batched_tokens=64)
    assert_refused(lambda: resolve(made, load(PAIR), "continuous"), "=64 has no room beside the 1 slots", "at least 65")
    resolve(made, load(PAIR), "autoregressive")
    for engine in (VLLM_BEFORE_SLOTS, *WITHOUT_RULES):
        resolve(scenario(PAIR, engine, max_num_seqs=64, max_num_batched_tokens=64), load(PAIR), "continuous")


def test_prompts_of_a_rank_wait_for_those_of_the_others() -> None:
    """Where two ranks wait for each other's prompts one begins, at load, every so many steps or behind a second one."""
    asked: dict[str, Any] = {"num_speculative_tokens": 0, "request_rate": 20, "output_len": 100}
    rule = "engine.rules.attention_dp_timeout_iters"
    made = [scenario(RANKS, "trtllm-1.1", "autoregressive", **asked, **{rule: steps}) for steps in (0, 20)]
    assert limits_of(made[1], load(RANKS)).balance == (20, 1.5)
    at_once, waiting = ([each.first_token_s - each.arrival_s for each in served(one).requests] for one in made)
    assert at_once[0] == waiting[0]
    assert sum(waiting) > sum(at_once)


@pytest.mark.parametrize(
    ("profile", "engine", "k", "cached"),
    [
        (EAGLE, VLLM, 3, 496),
        (EAGLE, "vllm-0.9", 3, 496),
        (EAGLE, VLLM, 0, 512),
        (DSPARK, VLLM, 3, 496),
        (DSPARK, NEWEST, 3, 512),
        (EAGLE, NEWEST, 0, 512),
        (PAIR, VLLM, 3, 512),
        *((EAGLE, name, 3, 512) for name in WITHOUT_RULES),
    ],
)
def test_a_drafter_that_reads_features_has_the_last_cached_block_computed_again(
    profile: str, engine: str, k: int, cached: int
) -> None:
    """A system prompt of 512 tokens is 32 blocks."""
    asked: dict[str, Any] = {
        "workload.sharing.prefix_len": 512,
        "input_len": 100,
        "num_speculative_tokens": k,
        "request_rate": 2,
    }
    record = served(scenario(profile, engine, **asked))
    assert [request.cached_tokens for request in record.requests] == [0, *[cached] * 5]


@pytest.mark.parametrize(("prefix", "before", "since"), [(512, 496, 496), (520, 496, 512)])
def test_the_last_cached_block_is_found_where_the_token_behind_it_is_common_too(
    prefix: int, before: int, since: int
) -> None:
    """32 blocks, and in 520 tokens eight more that all prompts have in common."""
    asked: dict[str, Any] = {"workload.sharing.prefix_len": prefix, "input_len": 100, "request_rate": 2}
    for engine, cached in ((VLLM, before), (NEWEST, since)):
        record = served(scenario(EAGLE, engine, num_speculative_tokens=3, **asked))
        assert [request.cached_tokens for request in record.requests] == [0, *[cached] * 5]


@pytest.mark.parametrize(("method", "kept", "seats"), [("dspark", 6, 146), ("dflash", 7, 128)])
def test_a_drafter_s_pass_bounds_the_requests_of_a_step_in_place_of_slots(method: str, kept: int, seats: int) -> None:
    """1,024 tokens hold 146 requests of 7 queries, and 128 of 8: DFlash has one for the token that was sampled."""
    asked: dict[str, Any] = {"num_speculative_tokens": 7, "max_num_seqs": 256, "max_num_batched_tokens": 1024}
    profile = load(DSPARK if method == "dspark" else PAIR)
    for engine, wanted in (("vllm-0.32", (256, kept)), (NEWEST, (seats, 0))):
        limits = limits_of(scenario(profile.name, engine, **asked, **{"speculation.method": method}), profile)
        assert (limits.max_num_seqs, limits.slots_per_request) == wanted
        assert limits.lookahead(7) == (7 if method == "dspark" else 8)


@given(st.integers(1, 2048), st.integers(0, 15), st.integers(1, 16384))
def test_captured_sizes_are_multiples_of_a_row_up_to_two_steps_of_all_seats(seats: int, k: int, budget: int) -> None:
    sizes = load_engine(VLLM, "h100-sxm").rules.graph_sizes(seats, k, budget)
    assert sizes is not None
    end = min(2 * seats * (k + 1), 512, budget)
    assert sizes == sorted(set(sizes))
    assert all(size % (k + 1) == 0 and size <= end for size in sizes)
    if end >= 16 * (k + 1):
        assert sizes[-1] > end - 16 - k
    assert Rules().graph_sizes(seats, k, budget) is None


def test_few_seats_leave_fewer_captured_sizes() -> None:
    """8 seats, no drafts: 16 tokens at most are captured. Elsewhere the profile's sizes hold."""
    profile = load("h100-sxm/llama-3.1-8b")

    def sizes(engine: str, **changes: Any) -> tuple[int, int]:
        made = scenario(profile.name, engine, "autoregressive", **changes)
        passes = resolve(made, profile, "autoregressive").costs.passes(Model.TARGET)
        return passes.padded_tokens(9), passes.padded_tokens(17)

    assert sizes(VLLM, max_num_seqs=8) == (16, 17)
    assert sizes(VLLM) == (16, 24)
    for engine in WITHOUT_RULES:
        assert sizes(engine, max_num_seqs=8) == (16, 24)


def test_an_answer_ends_where_the_context_does() -> None:
    asked: dict[str, Any] = {"input_len": 600, "output_len": 100, "engine.max_model_len": 640}
    with pytest.warns(UserWarning, match=r"6 of 6 answers end where prompt and answer are 640 tokens"):
        record = served(scenario(EAGLE, VLLM, **asked))
    assert {request.emitted_tokens for request in record.requests} == {40}


@pytest.mark.parametrize("engine", engine_names())
@pytest.mark.filterwarnings("ignore")
def test_every_engine_keeps_to_the_models_context(engine: str) -> None:
    """Llama-2's 4,096 tokens: vLLM and TensorRT-LLM end an answer there, the others reject a request beyond them."""
    asked: dict[str, Any] = {"output_len": 100, "num_prompts": 1}
    ends = engine.startswith(("vllm", "trtllm"))

    def emitted(prompt_tokens: int, **changes: Any) -> list[int]:
        made = scenario(PAIR, engine, "autoregressive", input_len=prompt_tokens, **asked, **changes)
        return [request.emitted_tokens for request in served(made).requests]

    assert emitted(3996) == [100]
    for prompt_tokens, limit in ((3997, {}), (9000, {}), (3000, {"engine.max_model_len": 3099})):
        if ends and prompt_tokens < 4096:
            assert emitted(prompt_tokens, **limit) == [99]
        else:
            with pytest.raises(ValueError, match=r"^every request is rejected: .* at most (4096|3099) "):
                emitted(prompt_tokens, **limit)
    assert emitted(9000, **{"engine.max_model_len": 10_000}) == [100]


OTHERS_FLAGS = [
    ("vllm-0.32", "prefill_schedule_interval", 8, "data-parallel ranks"),
    ("vllm-0.19", "prefill_schedule_interval", 8, "from 0.24 on"),
    ("sglang-0.5", "prefill_decode_interval", 8, "from 0.5.23 on"),
    (NEWEST, "enable_mixed_chunk", False, "a flag of sglang"),
    ("vllm-0.32", "scheduler_recv_interval", 8, "a flag of sglang"),
    ("vllm-0.32", "enable_mixed_chunk", False, "a flag of sglang"),
    ("vllm-0.32", "batch_wait_timeout_iters", 20, "a flag of trtllm"),
    ("sglang-0.5", "batch_wait_max_tokens_ratio", 0.5, "a flag of trtllm"),
    ("sglang-0.5", "long_prefill_token_threshold", 64, "a flag of vllm"),
    ("trtllm-1.1", "long_prefill_token_threshold", 64, "a flag of vllm"),
    ("trtllm-1.1", "attention_dp_timeout_iters", 20, "data-parallel ranks"),
]


@pytest.mark.parametrize(("engine", "key", "value", "why"), OTHERS_FLAGS)
def test_a_key_that_the_engine_does_not_act_on_is_refused(engine: str, key: str, value: Any, why: str) -> None:
    given = scenario(EAGLE, engine, **{f"engine.rules.{key}": value})
    assert_refused(lambda: limits_of(given, load(EAGLE)), f"engine.rules.{key}={value} is ", why)


def test_prompts_go_apart_only_by_rules_of_admission_that_the_engine_has() -> None:
    given = scenario(EAGLE, "ideal", **{"engine.rules.enable_mixed_chunk": False})
    assert_refused(lambda: limits_of(given, load(EAGLE)), "'ideal'", "Leave engine.rules.enable_mixed_chunk out")


@pytest.mark.parametrize("engine", engine_names())
def test_the_value_of_a_key_that_changes_nothing_is_taken_by_every_engine(engine: str) -> None:
    idle = {key: value for key, (*_, value, _, _) in RULES.items() if value is not None}
    idle["enable_mixed_chunk"] = load_engine(engine, "h100-sxm").mixes_prompts
    given = {f"engine.rules.{key}": value for key, value in idle.items()}
    plain, same = (limits_of(scenario(EAGLE, engine, **each), load(EAGLE)) for each in ({}, given))
    assert same == plain


def test_tensorrt_llm_admits_no_more_than_it_can_finish() -> None:
    asked: dict[str, Any] = {"input_len": 64, "output_len": 200, "num_gpu_blocks": 40, "request_rate": "inf"}
    for engine, preempts in (("vllm-0.19", True), ("trtllm-1.1", False)):
        record = served(scenario(EAGLE, engine, "autoregressive", **asked))
        assert any(request.num_preemptions for request in record.requests) == preempts
