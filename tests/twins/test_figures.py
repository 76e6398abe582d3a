"""Twins of the figures of one run and of its requests, and of runs that differ in one thing that physics orders.

Not here: sums over works and files (test_laws), settings that mean the same (test_same_settings).
"""

from __future__ import annotations

from math import ceil
from typing import Any

from hypothesis import strategies as st

import lanesim
from tests.twins.drawn import CONTINUOUS, FEW, PAIR, TABLE, TINY, questions
from tests.twins.twin import Asked, Pair, flat, twin, with_set

SMALL = {"num-prompts": 24, "output-len": 9}
LANE = st.sampled_from(("pd", "pdv", "unified"))


def simulated(asked: Asked, **changes: Any) -> Any:
    return lanesim.simulate(lanesim.Scenario.of(None, **flat(with_set(asked, **changes))))


@twin(questions(profiles=(TINY, PAIR, TABLE), policy=CONTINUOUS, **SMALL))
def test_drafts_that_are_all_accepted_take_the_fewest_rounds(asked: Asked) -> Pair:
    k, requests = asked["num-speculative-tokens"], simulated({**asked, "acceptance": "iid:1.0"}).record.requests
    return Pair([each.num_rounds for each in requests], [ceil((each.output_tokens - 1) / (k + 1)) for each in requests])


@twin(questions(profiles=(TINY, PAIR, TABLE), policy=CONTINUOUS, **SMALL))
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


@twin(questions(profiles=(TINY, PAIR, TABLE), policy=FEW, **SMALL), st.integers(1, 4))
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
