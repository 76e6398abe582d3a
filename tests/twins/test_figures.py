"""Twins of the figures of one run and of its requests, and of runs that differ in one thing that physics orders.

Not here: sums over works and files (test_laws), settings that mean the same (test_same_settings).
"""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np
from hypothesis import strategies as st

import lanesim
from tests.twins.drawn import PAIR, PAIRS, TABLE, TINY, questions
from tests.twins.twin import Asked, Pair, flat, twin, with_set

SMALL = {"num-prompts": 24, "output-len": 9}
CONTINUOUS = st.sampled_from(("autoregressive", "continuous"))
LANE = st.sampled_from(("pd", "pdv", "unified"))
ENDS = st.tuples(st.sampled_from((0, 3)), st.sampled_from((0, 2)))
"""Warm-ups and cool-downs."""
PERCENTS = (50, 90, 95, 99)


def simulated(asked: Asked, **changes: Any) -> Any:
    return lanesim.simulate(lanesim.Scenario.of(None, **flat(with_set(asked, **changes))))


@twin(questions(profiles=PAIRS, **SMALL), ENDS, rel=1e-9)
def test_means_and_percentiles_are_those_of_the_requests_between_warm_up_and_cool_down(
    asked: Asked, ends: tuple[int, int]
) -> Pair:
    given = {"random_range_ratio": 0.5, "workload.num_warmups": ends[0], "workload.num_cooldowns": ends[1]}
    found = simulated({**asked, "set": given})
    measured = [each for each in found.record.requests if ends[0] <= each.index < 24 - ends[1]]
    latencies = {
        "ttft": [each.first_token_s - each.arrival_s for each in measured],
        "e2el": [each.last_token_s - each.arrival_s for each in measured],
        "tpot": [
            (each.last_token_s - each.first_token_s) / (each.output_tokens - 1)
            for each in measured
            if each.output_tokens > 1
        ],
    }
    own = {f"mean_{name}_ms": 1e3 * np.mean(values) for name, values in latencies.items()}
    for percent in PERCENTS:
        for name, values in latencies.items():
            own[f"p{percent}_{name}_ms"] = 1e3 * float(np.percentile(values, percent))
    return Pair({key: found.metrics[key] for key in own}, {key: float(value) for key, value in own.items()})


@twin(questions(**SMALL), rel=1e-9)
def test_throughputs_are_counts_over_the_time(asked: Asked) -> Pair:
    run, requests = (found := simulated(asked)).metrics, found.record.requests
    tokens = [sum(each.prompt_tokens for each in requests), sum(each.output_tokens for each in requests)]
    keys = ("total_input_tokens", "total_output_tokens", "request_throughput", "output_throughput")
    own = [*tokens, len(requests) / run["duration"], tokens[1] / run["duration"]]
    one = [run[key] for key in (*keys, "total_token_throughput", "output_throughput_per_gpu")]
    return Pair(one, [*own, sum(tokens) / run["duration"], run["output_throughput"] / run["num_gpus"]])


@twin(questions(**SMALL, goodput=["ttft:40", "tpot:12"]), rel=1e-9)
def test_goodput_is_the_requests_within_their_bounds_over_the_time(asked: Asked) -> Pair:
    own = {name: value for name, value in asked.items() if name != "goodput"}
    found = simulated(own, **{"goodput.ttft_ms": 40.0, "goodput.tpot_ms": 12.0})
    good = [
        each
        for each in found.record.requests
        if each.first_token_s - each.arrival_s <= 0.04
        and each.last_token_s - each.first_token_s <= 0.012 * (each.output_tokens - 1)
    ]
    return Pair(found.metrics["request_goodput"], len(good) / found.metrics["duration"])


@twin(questions(**SMALL), rel=1e-9)
def test_drafts_are_counted_in_the_requests(asked: Asked) -> Pair:
    run, requests = (found := simulated(asked)).metrics, found.record.requests
    sums = [sum(getattr(each, name) for each in requests) for name in ("num_rounds", "drafted_tokens")]
    accepted = sum(each.accepted_tokens for each in requests)
    keys = ("spec_decode_num_drafts", "spec_decode_draft_tokens", "spec_decode_accepted_tokens")
    rate = 100.0 * accepted / sums[1] if sums[1] else None
    covered = all(each.accepted_tokens + each.num_rounds + 1 >= each.emitted_tokens for each in requests) or not sums[0]
    one = [*(run[key] or 0 for key in keys), run["spec_decode_acceptance_rate"], covered]
    return Pair(one, [*sums, accepted, rate, True])


@twin(questions(profiles=(TINY, PAIR, TABLE), policy=st.just("continuous"), **SMALL))
def test_drafts_that_are_all_accepted_take_the_fewest_rounds(asked: Asked) -> Pair:
    k, requests = asked["num-speculative-tokens"], simulated({**asked, "acceptance": "iid:1.0"}).record.requests
    return Pair([each.num_rounds for each in requests], [ceil((each.output_tokens - 1) / (k + 1)) for each in requests])


@twin(questions(profiles=(TINY, PAIR, TABLE), policy=st.just("continuous"), **SMALL))
def test_more_acceptance_is_no_slower(asked: Asked) -> Pair:
    low, high = (simulated({**asked, "acceptance": f"iid:{alpha}"}).metrics["mean_e2el_ms"] for alpha in (0.05, 0.95))
    return Pair(high <= 1.001 * low, True)


@twin(questions(**SMALL))
def test_a_higher_rate_is_no_faster(asked: Asked) -> Pair:
    slow, fast = (simulated({**asked, "request-rate": factor * asked["request-rate"]}) for factor in (1, 20))
    return Pair(fast.metrics["mean_e2el_ms"] >= 0.97 * slow.metrics["mean_e2el_ms"], True)


@twin(questions(profiles=(PAIR,), policy=LANE, **SMALL))
def test_more_overlap_is_no_slower(asked: Asked) -> Pair:
    found = [simulated(asked, devices__phi=phi).metrics["mean_e2el_ms"] for phi in (0.0, 0.5, 1.0)]
    return Pair([found[1] <= 1.03 * found[0], found[2] <= 1.03 * found[1]], [True, True])


@twin(questions(profiles=(TINY, PAIR, TABLE), policy=CONTINUOUS, **SMALL), st.integers(1, 4))
def test_a_shared_prefix_is_found_by_all_who_follow_one_by_one(asked: Asked, blocks: int) -> Pair:
    """A head that reads the target's features has its last block again."""
    prefix = 16 * blocks
    alone = {**asked, "request-rate": "inf", "max-concurrency": 1, "engine": "vllm-0.32"}
    found = simulated(alone, **{"workload.sharing.prefix_len": prefix})
    again = 16 * (asked["profile"] == TABLE and asked["policy"] == "continuous")
    cached = [each.cached_tokens for each in found.record.requests]
    return Pair([sum(cached), found.metrics["prefix_cache_hit_tokens"]], [(len(cached) - 1) * (prefix - again)] * 2)


@twin(questions(**SMALL))
def test_shares_of_a_run_are_shares(asked: Asked) -> Pair:
    run = simulated(asked, energy=True).metrics
    busy = run["device_utilization"]
    bounds = {
        "busy": 0.0 <= busy <= 1.0 + 1e-9,
        "kinds": sum(run["kind_utilization"].values()) >= busy - 1e-9,
        "memory": 0.0 <= run["mean_kv_usage"] <= run["max_kv_usage"] <= 1.0 + 1e-9,
    }
    return Pair(bounds, dict.fromkeys(bounds, True))
