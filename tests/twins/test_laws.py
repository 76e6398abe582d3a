"""Twins by laws that hold whatever is simulated: scales, sums over requests and works, what more cannot worsen."""

from __future__ import annotations

import json
from typing import Any

import pyarrow.parquet as parquet
from hypothesis import strategies as st

import lanesim
from sim.costs.profile import Profile
from tests.twins.drawn import PAIR, PAIRS, TINY, constants, questions, scaled, several
from tests.twins.twin import Asked, Pair, flat, folder, runs, said, twin, with_set, words


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


# -- loops and loads


@twin(questions(), st.integers(1, 5), rel=1e-6)
def test_requests_in_flight_are_rate_times_latency(asked: Asked, in_flight: int) -> Pair:
    """Little's law, over the whole of a closed loop: each slot is taken until no request is left for it."""
    loop = {**asked, "request-rate": "inf", "max-concurrency": in_flight}
    (run,) = runs(loop, "--verbose")
    ends = [start + e2el for start, e2el in zip(run["start_times"], run["e2els"], strict=True)]
    idle = sum(run["duration"] - end for end in sorted(ends)[-in_flight:])
    return Pair(sum(run["e2els"]) + idle, min(in_flight, run["completed"]) * run["duration"])


@twin(questions(profiles=(PAIR,), policy=st.sampled_from(("pd", "pdv", "unified"))))
def test_more_overlap_is_no_slower(asked: Asked) -> Pair:
    found = [runs(with_set(asked, devices__phi=phi))[0]["mean_e2el_ms"] for phi in (0.0, 0.5, 1.0)]
    return Pair([found[1] <= 1.03 * found[0], found[2] <= 1.03 * found[1]], [True, True])


# -- sums within one answer


@twin(questions(policy=several, profiles=PAIRS, replications=2), rel=1e-9, share=0.025)
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
