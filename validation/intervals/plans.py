"""Whether what `plan` recommends holds where costs and acceptance are others within their errors.

    python -m validation plan_truths [--seed 0] [--truths 20] [--draws 20]

Truths are single draws from seeds of their own, as in capacity_truths; rates are such that a fleet has several
replicas. The recommended fleet should hold the SLOs in 18 of 20 truths and have at most one
replica more than the smallest that holds in the median, that is in half of them. Candidates are shipped profiles.
Not here: the measured cells near them.
"""

from __future__ import annotations

from sim.costs.profile_files import load
from sim.engine.fleet import Routing
from sim.files.json_values import Json
from sim.run.scenario import Scenario, parse_scenario
from sim.studies.plan.candidate_ranking import Candidate
from sim.studies.plan.search import plan
from validation.intervals.fleets import held_by_replicas, told, truths_of

QUESTIONS: dict[str, tuple[float, tuple[str, ...], dict[str, Json]]] = {
    "H100, qwen3-32b, 1 or 2 GPUs a replica": (
        40.0,
        ("h100-sxm/qwen3-32b", "h100-sxm/qwen3-32b-tp2"),
        {"num_speculative_tokens": 0, "goodput.ttft_ms": 1000.0, "goodput.tpot_ms": 60.0},
    ),
    "H200, llama-3.1-8b, bf16 or fp8, eagle3": (
        200.0,
        ("h200-sxm/llama-3.1-8b+eagle3", "h200-sxm/llama-3.1-8b-fp8+eagle3"),
        {
            "num_speculative_tokens": 3, "acceptance": "length:2.6@3", "goodput.ttft_ms": 500.0,
            "goodput.tpot_ms": 15.0,
        },
    ),
}  # fmt: skip
"""Requests per second, shipped profiles, the rest of the scenario."""
LENGTHS: dict[str, Json] = {"input_len": 512, "output_len": 128}


def main(seed: int = 0, truths: int = 20, draws: int = 20) -> None:
    print("question: recommended; truths in which so many replicas hold; replicas above the median")
    for name, (rate_per_s, profiles, changes) in QUESTIONS.items():
        scenario = Scenario.of(
            profile=profiles[0], policy="continuous", seed=seed, **LENGTHS, **changes,
        )  # fmt: skip
        candidates = [Candidate(each, load(each)) for each in profiles]
        found = plan(scenario, candidates, rate_per_s=rate_per_s, draws=draws)
        best = found.deployments[0]
        assert best.replicas is not None
        simulated, profile = parse_scenario(found.scenario), load(best.profile)
        drawn = truths_of(simulated, profile, truths)
        held = held_by_replicas(simulated, drawn, Routing.ROUND_ROBIN, best.replicas, rate_per_s)
        print(
            f"{name}: {best.replicas} of {best.profile} ({best.worlds_met} of {draws} draws); {told(held, truths)}",
            flush=True,
        )
