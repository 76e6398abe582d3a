"""Twins of two commands that are asked one thing: compare, capacity, tune, plan; their intervals, their sentences."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import strategies as st

import lanesim
from sim.costs.profile import KindError, Profile
from sim.studies.plan.candidate_ranking import Candidate
from sim.studies.plan.search import plan
from tests.twins.drawn import CONTINUOUS, FEW, PAIR, PAIRS, TABLE, TINY, constants, questions, several
from tests.twins.twin import Asked, Pair, answer, flat, folder, runs, said, twin

KNOWN = KindError(
    mean_error_pct=0.0, max_error_pct=0.0, points=1, held_out="constant, so that draws differ in requests"
)
CAPACITY = {"goodput": ["ttft:2000", "tpot:400"], "max-num-seqs": 4, "request-rate": None, "num-prompts": 30}


def certain(profile: Profile) -> Profile:
    """`profile` whose costs no draw moves."""
    return msgspec.structs.replace(profile, errors=dict.fromkeys((*profile.errors, "draft_prefill"), KNOWN))


# -- points within their intervals


def strays(value: Any, where: str = "") -> list[str]:
    """Points outside the interval that stands beside them, and intervals that begin after their end."""
    beside = {
        "ci95": ("difference", "load", "rate_per_s_known"),
        "interval": ("speedup", "mean", "mean_e2el_ms"),
        "draws_interval": ("load",),
        "break_even_interval": ("break_even_concurrency",),
        "rate_interval": ("rate_per_replica",),
    }
    found = []
    if isinstance(value, dict):
        for key, names in beside.items():
            interval = value.get(key)
            if isinstance(interval, dict):  # By metric, beside a mean of each.
                means = value.get("mean") or {}
                pairs = [(f"{key}.{name}", means.get(name), held) for name, held in interval.items()]
            else:
                pairs = [(f"{key} of {name}", value.get(name), interval) for name in names]
            for name, point, held in pairs:
                if held is None or not isinstance(point, int | float):
                    continue
                low, high = (float("inf") if end is None else end for end in held)
                slack = 1e-9 * max(abs(point), 1.0)
                if not low - slack <= point <= high + slack:
                    found.append(f"{where}.{name}: {point} is not in {held}")
        for key, each in value.items():
            found += strays(each, f"{where}.{key}")
    elif isinstance(value, list):
        for place, each in enumerate(value):
            found += strays(each, f"{where}[{place}]")
    return found


@twin(questions(policy=several, profiles=PAIRS, replications=3), rel=1e-9)
def test_means_of_a_comparison_are_over_its_runs_differ_as_it_says_and_lie_in_their_intervals(asked: Asked) -> Pair:
    found, key = answer("compare", asked), "mean_e2el_ms"
    means = {row["policy"]: row["mean"] for row in found["policies"]}
    by_policy = {name: [run[key] for run in found["runs"] if run["policy"] == name] for name in means}
    pairs: list[tuple[Any, Any]] = [(strays(found), [])]
    pairs += [(mean[key], sum(by_policy[name]) / len(by_policy[name])) for name, mean in means.items()]
    for row in found["paired"]:
        if row["difference"] is not None:
            pairs.append((row["difference"], means[row["a"]][row["metric"]] - means[row["b"]][row["metric"]]))
    return Pair(*zip(*pairs, strict=True))


@twin(questions(policy=several, profiles=(TINY, PAIR), replications=2), share=0.05)
def test_differences_in_draws_lie_in_their_intervals(asked: Asked) -> Pair:
    return Pair(strays(answer("compare", asked, "--draws", "4")), [])


@twin(questions(profiles=(TINY, PAIR), policy=FEW, **CAPACITY), share=0.05)
def test_a_capacity_lies_in_its_intervals(asked: Asked) -> Pair:
    return Pair(strays(answer("plan", asked, "--draws", "20")), [])


@twin(questions(profiles=(TINY, PAIR, TABLE), policy=CONTINUOUS, **{"request-rate": None}), share=0.05)
def test_gains_of_a_draft_length_lie_in_their_intervals(asked: Asked) -> Pair:
    return Pair(strays(answer("tune", asked, "--draws", "5", "--concurrencies", "1,4")), [])


@twin(st.integers(0, 50), share=0.025)
def test_a_plan_lies_in_its_intervals(seed: int) -> Pair:
    """A8."""
    return Pair(strays(planned(seed, draws=19)), [])


def planned(seed: int, *, draws: int) -> Any:
    profile = lanesim.load_profile("h100-sxm/llama-2-7b")
    scenario = lanesim.Scenario.of(
        profile=profile.name, policy="continuous", input_len=300, output_len=12, num_prompts=60, seed=seed,
        num_speculative_tokens=0, **{"engine.max_num_seqs": 4, "goodput": {"ttft_ms": 1000.0, "tpot_ms": 50.0}},
    )  # fmt: skip
    found = plan(scenario, [Candidate(profile.name, profile)], rate_per_s=25.0, draws=draws, workers=1)
    return msgspec.to_builtins(found)


@twin(st.integers(0, 50), rel=0.03, share=0.025)
def test_a_row_of_a_plan_is_what_capacity_says_of_it(seed: int) -> Pair:
    """A8."""
    (row, *_), scenario = (found := planned(seed, draws=2))["deployments"], found["scenario"]
    with folder() as place:
        path = place / "scenario.json.yaml"
        path.write_text(json.dumps(scenario))
        flags = ["--draws", "2", "--rate", "25", "--json", "-"]
        checked = json.loads(said("plan", str(path), *flags))
    (fleet, *_), (highest,) = checked["fleets"], checked["highest"]
    return Pair((row["replicas"], row["rate_per_replica"]), (fleet["replicas"], highest["load"]))


# -- loads


@twin(questions(profiles=(TINY, PAIR), policy=FEW, **CAPACITY), share=0.05)
def test_policies_capacities_are_each_its_own_and_hold_what_they_say(asked: Asked) -> Pair:
    """A tenth of it takes one replica, and at half of it compare finds requests within the SLOs."""
    names = ["autoregressive", "continuous"]
    both = answer("plan", {**asked, "policy": names}, "--draws", "2")["highest"]
    alone = [answer("plan", {**asked, "policy": name}, "--draws", "2")["highest"][0] for name in names]
    (load,) = (each["load"] for each in both if each["policy"] == asked["policy"])
    if not load:
        return Pair(both, alone)
    fleets = answer("plan", asked, "--draws", "0", "--rate", str(0.1 * load))["fleets"]
    (run,) = runs({**asked, "request-rate": 0.5 * load, "num-prompts": 200})
    held = [[fleet["replicas"] for fleet in fleets], run["slo_attainment"]["all"] >= 0.95]
    return Pair([both, *held], [alone, [1], True])


# -- draft lengths


@twin(constants(), st.integers(1, 4), st.integers(1, 4), st.floats(0.3, 0.9), rel=0.05, share=0.05)
def test_the_gain_that_tune_states_is_the_one_that_compare_measures(
    profile: Profile, in_flight: int, k: int, alpha: float
) -> Pair:
    """Costs that no draw moves: gains differ by requests alone."""
    asked = {"profile": certain(profile), "policy": "continuous", "input_len": 20, "output_len": 30,
             "num_prompts": 60, "acceptance": f"iid:{alpha!r}"}  # fmt: skip
    found = lanesim.tune(**asked, concurrencies=(in_flight,), lengths=(0, k), draws=3, workers=1)
    (point,) = found.points
    gain = next(each.speedup for each in point.lengths if each.k == k)
    loop = {"request_rate": "inf", "max_concurrency": in_flight, "num_warmups": in_flight, "replications": 2}
    rates = [
        [run["steady_output_throughput"] for run in lanesim.compare(**asked, **loop, num_speculative_tokens=each).runs]
        for each in (k, 0)
    ]
    return Pair(gain, sum(rates[0]) / sum(rates[1]))


def length_at(table: list[list[int]], batch: int) -> int:
    """The draft length that a vLLM table has for a batch."""
    return next(k for start, end, k in table if start <= batch <= end)


@twin(questions(profiles=(TINY, PAIR), policy=CONTINUOUS, **{"request-rate": None}), share=0.05)
def test_tune_is_the_same_in_python(asked: Asked) -> Pair:
    flags = ("--draws", "2", "--concurrencies", "1,4", "--lengths", "0,2")
    mine = lanesim.tune(**flat(asked), concurrencies=(1, 4), lengths=(0, 2), draws=2, workers=1)
    return Pair(answer("tune", asked, *flags), json.loads(json.dumps(mine.plain)))
