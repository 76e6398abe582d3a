"""Twins by laws that hold whatever is simulated: scales, sums over requests and works, what more cannot worsen."""

from __future__ import annotations

import json
from math import inf
from typing import Any

import pyarrow.parquet as parquet
from hypothesis import strategies as st

import lanesim
from sim.costs.profile import Profile
from tests.twins.drawn import PAIR, PAIRS, SPLIT, TINY, constants, questions, scaled, several
from tests.twins.twin import Asked, Pair, answer, flat, folder, runs, said, twin, with_set, words

LANE = st.sampled_from(("autoregressive", "continuous", "pd", "pdv", "unified", "baseline"))


def simulated(profile: Profile, asked: Asked) -> dict[str, Any]:
    """Metrics of one run on a profile in memory."""
    return dict(
        lanesim.compare(profile=profile, **{key: value for key, value in flat(asked).items() if key != "profile"}).runs[
            0
        ]
    )


# -- scales

POLLED = {
    "pd": {"policy_options.poll_s": 0.001},
    "pdv": {"policy_options.poll_s": 0.001},
    "unified": {"policy_options.poll_s": 1e-5},
}


@twin(constants(), questions(profiles=(TINY,)), st.sampled_from((0.5, 2.0, 7.0)), rel=1e-6)
def test_costs_and_gaps_so_many_times_as_long_make_latencies_so_many_times_as_long(
    profile: Profile, asked: Asked, factor: float
) -> Pair:
    lazy = POLLED.get(asked["policy"], {})
    slower = {key: factor * value for key, value in lazy.items()}
    one = simulated(profile, {**asked, "set": lazy})
    other = simulated(scaled(profile, factor), {**asked, "request-rate": asked["request-rate"] / factor, "set": slower})
    keys = ("mean_ttft_ms", "mean_tpot_ms", "mean_itl_ms", "mean_e2el_ms", "duration")
    return Pair([factor * one[key] for key in keys], [other[key] for key in keys])


CAPACITY = {"goodput": ["ttft:3000", "tpot:900"], "max-num-seqs": 4, "draws": 0, "request-rate": None}
FEW = st.sampled_from(("autoregressive", "continuous"))


@twin(questions(profiles=(SPLIT,), policy=st.just("autoregressive"), **CAPACITY), rel=1e-9, share=0.05)
def test_dollars_follow_the_price_and_a_replica_of_two_gpus_costs_two(asked: Asked) -> Pair:
    own = {name: value for name, value in asked.items() if name not in ("num-speculative-tokens", "acceptance")}
    (two,), (six,) = (answer("capacity", {**own, "price": f"{usd}/gpu-h"})["highest"] for usd in (2, 6))
    million_per_h = 3600.0 * (two["output_tokens_per_s"] or inf) / 1e6
    return Pair(
        [4.0 / million_per_h, 12.0 / million_per_h], [each["usd_per_million_tokens"] or 0.0 for each in (two, six)]
    )


# -- loops and loads


@twin(questions(**{"request-rate": "inf", "max-concurrency": 1}), rel=1e-6)
def test_one_in_flight_completes_one_per_latency(asked: Asked) -> Pair:
    (run,) = runs(asked, "--save-detailed")
    return Pair(sum(run["e2els"]), run["duration"])


@twin(questions(policy=FEW), st.integers(1, 5), rel=1e-6)
def test_requests_in_flight_are_rate_times_latency(asked: Asked, in_flight: int) -> Pair:
    """Little's law, over the whole of a closed loop: each slot is taken until no request is left for it."""
    loop = {**asked, "request-rate": "inf", "max-concurrency": in_flight}
    (run,) = runs(loop, "--save-detailed")
    ends = [start + e2el for start, e2el in zip(run["start_times"], run["e2els"], strict=True)]
    idle = sum(run["duration"] - end for end in sorted(ends)[-in_flight:])
    return Pair(sum(run["e2els"]) + idle, min(in_flight, run["completed"]) * run["duration"])


@twin(questions(), st.floats(1.0, 500.0), st.floats(1.0, 4.0))
def test_a_looser_slo_is_met_by_no_fewer(asked: Asked, ms: float, looser: float) -> Pair:
    tight, loose = (
        runs({**asked, "goodput": [f"ttft:{bound!r}", f"e2el:{10 * bound!r}"]})[0] for bound in (ms, ms * looser)
    )
    return Pair(True, tight["request_goodput"] <= loose["request_goodput"])


@twin(questions(profiles=(TINY, PAIR), policy=FEW, **CAPACITY), rel=0.02, share=0.05)
def test_a_looser_slo_holds_no_less_load(asked: Asked) -> Pair:
    tight, loose = (
        answer("capacity", {**asked, "goodput": bounds})["highest"][0]["load"] or 0.0
        for bounds in (["ttft:300", "tpot:100"], ["ttft:600", "tpot:200"])
    )
    return Pair(max(tight, loose), loose)


# -- sums within one answer


@twin(questions(policy=several, profiles=PAIRS), st.sampled_from((None, 0.4, 2.0)))
def test_what_was_sent_is_completed_or_censored(asked: Asked, stop_s: float | None) -> Pair:
    found = runs(with_set(asked, window__stop_s=stop_s), "--save-detailed")
    return Pair([run["completed"] + run["censored"] for run in found], [len(run["e2els"]) for run in found])


@twin(questions(policy=several, profiles=PAIRS, goodput=["ttft:1e9", "tpot:1e9", "e2el:1e9"]), rel=1e-9)
def test_figures_of_a_run_follow_from_those_of_its_requests_and_from_each_other(asked: Asked) -> Pair:
    """Means; busy and idle time; acceptance; an SLO that all meet; first tokens and the others are the whole."""
    pairs: list[tuple[Any, Any]] = []
    for run in runs(asked, "--save-detailed"):
        tpots = [each for each in run["tpots"] if each is not None]
        for name, values in (("ttft", run["ttfts"]), ("e2el", run["e2els"]), ("tpot", tpots)):
            pairs.append((1e3 * sum(values) / len(values), run[f"mean_{name}_ms"]))
        tokens, count = sum(run["output_lens"]), len(run["e2els"])
        pairs += [(sum(run["input_lens"]), run["total_input_tokens"]), (tokens, run["total_output_tokens"])]
        pairs += [
            (each / run["duration"], run[f"{name}_throughput"])
            for each, name in ((count, "request"), (tokens, "output"))
        ]
        pairs += [(run["device_utilization"] + run["device_idle_share"], 1.0)]
        pairs += [(run["request_goodput"], run["request_throughput"])]
        if rounds := run["spec_decode_num_drafts"]:
            pairs += [(run["spec_decode_acceptance_length"], 1.0 + run["spec_decode_accepted_tokens"] / rounds)]
        parts = zip(run["ttfts"], run["tpots"], run["output_lens"], strict=True)
        pairs += [([ttft + (tpot or 0.0) * (tokens - 1) for ttft, tpot, tokens in parts], run["e2els"])]
    return Pair(*zip(*pairs, strict=True))


@twin(questions(profiles=(PAIR,)), rel=1e-9)
def test_energy_is_power_times_time(asked: Asked) -> Pair:
    (run,) = runs({**asked, "set": {"energy": True}})
    joules = run["joules_per_output_token"] * run["output_throughput"] * run["duration"]
    return Pair(joules, run["power_w"] * run["num_gpus"] * run["duration"])


@twin(questions(policy=several, profiles=PAIRS, replications=2), rel=1e-9, share=0.05)
def test_the_tables_of_a_results_folder_sum_to_its_summary(asked: Asked) -> Pair:
    with folder() as place:
        said("compare", *words(asked), "--workers", "1", "--out", str(place / "r"), "--plots")
        summary = json.loads((place / "r" / "summary.json").read_text())
        requests = parquet.read_table(place / "r" / "requests.parquet").to_pandas()
        works = parquet.read_table(place / "r" / "work.parquet").to_pandas()
    held, stated = [], []
    for run in summary["runs"]:
        own = requests[(requests["policy"] == run["policy"]) & (requests["seed"] == run["seed"])]
        e2el_s = own["last_token_s"] - own["arrival_s"]
        held.append([len(own), own["emitted_tokens"].sum(), 1e3 * e2el_s.mean(), own["num_rounds"].sum()])
        stated.append([run[k] for k in ("completed", "total_output_tokens", "mean_e2el_ms", "spec_decode_num_drafts")])
        done = works[(works["policy"] == run["policy"]) & (works["seed"] == run["seed"])]
        if len(done):
            held.append({kind: len(part) for kind, part in done[~done["is_cancelled"]].groupby("kind")})
            stated.append({kind: count for kind, count in run["num_works"].items() if count})
    return Pair(held, stated)


@twin(questions(policy=LANE, profiles=(TINY, PAIR)), rel=1e-6)
def test_one_stream_is_busy_as_long_as_its_works_last(asked: Asked) -> Pair:
    with folder() as place:
        said("compare", *words(asked), "--workers", "1", "--out", str(place / "r"), "--plots")
        (run,) = json.loads((place / "r" / "summary.json").read_text())["runs"]
        works = parquet.read_table(place / "r" / "work.parquet").to_pandas()
    busy, end = 0.0, 0.0
    for start_s, end_s in sorted(works[works["kind"] != "host"][["start_s", "end_s"]].values.tolist()):
        busy += max(0.0, end_s - max(start_s, end))
        end = max(end, end_s)
    return Pair(busy, run["device_utilization"] * run["duration"])
