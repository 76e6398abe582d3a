"""Twins of settings that mean the same: a default that is given, a form of acceptance in another, one of many.

Not here: spellings of one setting (test_ways_of_asking).
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

import lanesim
from sim.run.resolve import resolve
from tests.twins.drawn import CONTINUOUS, ENGINE, ENGINES, PAIR, PAIRS, TABLE, TINY, questions
from tests.twins.twin import Asked, Pair, answer, flat, folder, only, runs, twin, with_set, without, write_lines

LATENCIES = ("mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms", "p99_e2el_ms", "output_throughput", "duration")
CONTINUOUSLY = ("autoregressive", "continuous", "unified", "baseline")


def resolved(asked: Asked) -> Any:
    return resolve(lanesim.Scenario.of(**flat(asked)), lanesim.load_profile(asked["profile"]), asked["policy"])


# -- defaults that are given


@twin(questions())
def test_the_blocks_that_fit_are_what_null_means(asked: Asked) -> Pair:
    return Pair(runs(asked), runs(with_set(asked, engine__num_gpu_blocks=resolved(asked).num_blocks)))


@twin(questions())
def test_values_that_change_nothing_change_nothing(asked: Asked) -> Pair:
    idle = {
        "workload.sharing.num_turns": 1,
        "workload.sharing.num_forks": 1,
        "workload.sharing.prefix_len": 0,
        "workload.burstiness": 1.0,
        "workload.num_warmups": 0,
        "workload.num_cooldowns": 0,
        "window.stop_s": 1e6,
        "engine.rules.scheduler_recv_interval": 1,
        "engine.rules.batch_wait_timeout_iters": 0,
        "devices.count": 1,
        "devices.routing": "least-outstanding",
        "workload.random_range_ratio": 0.0,
    }
    once = idle | {"workload.random_range_ratio": [1.0, 1.0]}
    own = {**asked, "engine": ENGINE}
    context = {"engine.max_model_len": lanesim.load_profile(asked["profile"]).target.max_context}
    one, named = runs(asked), runs(own)
    return Pair(
        [one, one, named], [runs({**asked, "set": each}) for each in (idle, once)] + [runs({**own, "set": context})]
    )


@twin(questions(), st.booleans())
def test_a_bound_that_nobody_reaches_is_none(asked: Asked, is_at_once: bool) -> Pair:
    """Of an open loop, and of all at once: as many may be in flight as there are."""
    own = {**asked, "request-rate": "inf"} if is_at_once else asked
    bound = {**own, "max-concurrency": asked["num-prompts"]}
    return Pair(only(runs(own), *LATENCIES), only(runs(bound), *LATENCIES))


# -- drafting


@twin(questions(policy=CONTINUOUS, profiles=(*PAIRS, TABLE)), st.sampled_from(ENGINES))
def test_continuous_that_drafts_nothing_is_autoregressive(asked: Asked, engine: str) -> Pair:
    own = {**asked, "engine": engine if asked["profile"] in (TINY, PAIR) else None, "num-speculative-tokens": 0}
    plain = {**own, "policy": "autoregressive"}
    return Pair(without(runs(own), "policy"), without(runs(plain), "policy"))


ALPHA, K = st.just(0.0) | st.floats(0.05, 0.95), st.integers(1, 6)


@twin(questions(profiles=PAIRS, policy=CONTINUOUS), st.floats(0.1, 0.9), st.integers(2, 6))
def test_one_logged_rate_says_as_much_as_a_length_measured_with_one_draft(asked: Asked, rate: float, k: int) -> Pair:
    """A10: at longer drafts both leave the further places open, and say so."""
    own = {**asked, "num-speculative-tokens": k}
    found = []
    for text in (f"vllm:{rate!r}", f"length:{1.0 + rate!r}@1"):
        result = answer("compare", {**own, "acceptance": text})
        found.append((only(result["runs"], *LATENCIES), ["standard error" in note.lower() for note in result["notes"]]))
    return Pair(*found)


@twin(questions(profiles=PAIRS, policy=CONTINUOUS), st.lists(st.floats(0.1, 0.9), min_size=1, max_size=5))
def test_vllms_synthetic_rates_are_logged_rates(asked: Asked, rates: list[float]) -> Pair:
    falling = sorted(rates, reverse=True)
    own = {**asked, "num-speculative-tokens": len(falling)}
    config = {"num_speculative_tokens": len(falling), "synthetic_acceptance_rates": falling}
    return Pair(
        only(runs({**own, "acceptance": "vllm:" + ",".join(map(repr, falling)) + "~0"}), *LATENCIES),
        only(runs({**own, "acceptance": None, "speculative-config": json.dumps(config)}), *LATENCIES),
    )


# -- workloads


@twin(questions(profiles=(TINY, PAIR)), rel=1e-9)
def test_generated_requests_that_are_recorded_and_replayed_are_served_alike(asked: Asked) -> Pair:
    # Polls fall on a grid of the clock, which begins with the first request of a trace.
    asked = asked if asked["policy"] in CONTINUOUSLY else with_set(asked, policy_options__poll_s=0.0)
    (run,) = runs(asked, "--verbose")
    rows = [
        {"arrival_s": arrival - run["start_times"][0], "input_len": prompt, "output_len": output}
        for arrival, prompt, output in zip(run["start_times"], run["input_lens"], run["output_lens"], strict=True)
    ]
    left_out = ("input-len", "output-len", "num-prompts", "request-rate")
    with folder() as place:
        trace = {"dataset-name": "jsonl", "dataset-path": write_lines(place / "trace.jsonl", rows)}
        again = runs({key: value for key, value in asked.items() if key not in left_out} | trace, "--verbose")
    return Pair(only([run], "ttfts", "e2els", "tpots"), only(again, "ttfts", "e2els", "tpots"))
