"""Whether what `capacity` recommends and `tune` states hold where costs and acceptance are others within their errors.

    python -m validation capacity_truths [capacity|tune] [--seed 0] [--truths 20] [--fresh 100]

`capacity`: the rate is 4.1 times the highest load of one replica as given. Truths are single draws from seeds of their
own; a fleet holds in one if over RUNS fresh runs the SLOs are met by the share asked for. The recommended fleet should
hold in 18 of 20 truths and be at most one replica above the smallest that holds in the median, that is in half of them.
`tune`: 90 % intervals of the answer's speed-ups should hold 82 to 96 % of fresh draws pooled over the settings, and the
regret that is stated be that which the answer has in them.
Not here: measured cells (validation.intervals.speedups).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from sim.compare.point_runs import Point, run_points
from sim.compare.pool import Runner
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.draws import child_seed
from sim.run.scenario import Scenario
from sim.studies.attainment import DEFAULT_SHARE, highest_load
from sim.studies.cost_draws import Draw, cost_draws
from sim.studies.length_choice import PLAIN, length_in
from sim.studies.load_search import REQUESTS_PER_REPLICA, WARMUP_SHARE, joint_share
from sim.studies.tune import simulate_grid, tune

TRUTH_KEY = 1_000_051
"""Child of the seed that truths come from: none of the answers' draws does."""
RUNS = 2
LOADS = 4.1
CAPACITY = {
    "H100, llama-3.1-8b": Scenario.of(
        profile="h100-sxm/llama-3.1-8b", policy="autoregressive", num_speculative_tokens=0, input_len=512,
        output_len=64, **{"goodput.ttft_ms": 500.0, "goodput.tpot_ms": 40.0},
    ),
    "H100, llama-3.1-8b + eagle3": Scenario.of(
        profile="h100-sxm/llama-3.1-8b+eagle3", policy="continuous", acceptance="length:2.6@3",
        num_speculative_tokens=5, input_len=512, output_len=128, **{"goodput.ttft_ms": 500.0, "goodput.tpot_ms": 15.0},
    ),
    "GH200, apertus-8b + eagle3": Scenario.of(
        profile="gh200/apertus-8b+eagle3", policy="continuous", acceptance="vllm:.518,.31,.194",
        num_speculative_tokens=4, input_len=630, output_len=190, **{"goodput.ttft_ms": 1000.0, "goodput.tpot_ms": 20.0},
    ),
}  # fmt: skip
LENGTHS, CONCURRENCIES = (1, 3, 5), (1, 8, 32)
TUNE = {
    "H100, llama-3.1-8b + eagle3": ("h100-sxm/llama-3.1-8b+eagle3", "length:2.6@3"),
    "GH200, apertus-8b + eagle3": ("gh200/apertus-8b+eagle3", "vllm:.518,.31,.194"),
    "H100, llama-2-7b + tinyllama-1.1b": ("h100-sxm/llama-2-7b+tinyllama-1.1b", "length:2.6@3"),
}


def truths_of(scenario: Scenario, profile: Profile, count: int) -> list[Draw]:
    """Plain random draws, one by one."""
    seeds = [child_seed(scenario.seed, TRUTH_KEY, index) for index in range(count)]
    return [cost_draws(scenario, profile, 1, seed)[0] for seed in seeds]


def holding(scenario: Scenario, truths: Sequence[Draw], routing: str, count: int, rate_per_s: float) -> list[bool]:
    """[truths] whether so many replicas meet the SLOs."""
    length = REQUESTS_PER_REPLICA * count
    workload = msgspec.structs.replace(
        scenario.workload, num_prompts=length, num_warmups=int(WARMUP_SHARE * length), request_rate=rate_per_s
    )
    devices = msgspec.structs.replace(scenario.devices, count=count, routing=routing)
    settled = msgspec.structs.replace(scenario, workload=workload, devices=devices)
    points = [
        Point(
            scenario=truth.scenario(settled),
            policy=scenario.policy[0],
            seed=child_seed(truth.seed, run),
            profile=truth.profile,
        )
        for truth in truths
        for run in range(RUNS)
    ]
    shares = np.array([joint_share(outcome.run) for outcome in run_points(points)]).reshape(len(truths), RUNS)
    held: list[bool] = (shares.mean(axis=1) >= DEFAULT_SHARE).tolist()
    return held


def held_by_replicas(
    scenario: Scenario, truths: Sequence[Draw], routing: str, replicas: int, rate_per_s: float
) -> dict[int, int]:
    """Truths in which so many replicas hold: `replicas`, and fewer as long as half of the truths do."""
    held: dict[int, int] = {}
    while replicas and (not held or held[replicas + 1] * 2 >= len(truths)):
        held[replicas] = sum(holding(scenario, truths, routing, replicas, rate_per_s))
        replicas -= 1
    return held


def told(held: dict[int, int], count: int) -> str:
    """Such as: 4 in 20 of 20, 3 in 6 of 20; 0 above the median."""
    recommended = max(held)
    smallest = min((number for number, hold in held.items() if hold * 2 >= count), default=recommended)
    by_replicas = ", ".join(f"{number} in {hold} of {count}" for number, hold in held.items())
    return f"{by_replicas}; {recommended - smallest} above the median"


def capacity(seed: int, count: int) -> None:
    print("setting, routing: rate/s; replicas as given, recommended with its confidence; truths in which so many hold")
    for name, given in CAPACITY.items():
        scenario = msgspec.structs.replace(given, seed=seed)
        profile = load(scenario.profile)
        one = highest_load(scenario, profile, draws=0).highest[0]
        assert one.load is not None
        rate_per_s = LOADS * one.load
        truths = truths_of(scenario, profile, count)
        for fleet in highest_load(scenario, profile, target_rate=rate_per_s).fleets:
            assert fleet.replicas is not None
            assert fleet.enough is not None
            held = held_by_replicas(scenario, truths, fleet.routing, fleet.replicas, rate_per_s)
            confidence = 100 * (fleet.confidence or 0.0)
            print(
                f"{name}, {fleet.routing}: {rate_per_s:.1f}; {fleet.enough.replicas}, {fleet.replicas} "
                f"({confidence:.0f} %); {told(held, count)}",
                flush=True,
            )


def tuning(seed: int, count: int) -> None:
    print("setting: share of fresh speed-ups within the 90 % interval; regret stated, realised")
    pooled = []
    for name, (profile_name, acceptance) in TUNE.items():
        scenario = Scenario.of(
            profile=profile_name, policy="continuous", acceptance=acceptance, num_speculative_tokens=max(LENGTHS),
            max_num_seqs=max(CONCURRENCIES), input_len=256, output_len=64, seed=seed,
        )  # fmt: skip
        profile = load(profile_name)
        answer = tune(scenario, profile, lengths=LENGTHS, concurrencies=CONCURRENCIES)
        fresh = truths_of(scenario, profile, count)
        grid = simulate_grid(scenario, fresh, CONCURRENCIES, LENGTHS, Runner())
        plain, best = grid.of(PLAIN), grid.values.max(axis=1)
        held, lost = [], []
        for place, point in enumerate(answer.points):
            own = grid.of(length_in(answer.table, point.concurrency) or PLAIN)[place]
            assert point.interval is not None
            low, high = point.interval
            held += [low <= speedup <= high for speedup in own / plain[place]]
            lost.append(float((1.0 - own / best[place]).mean()))
        pooled += held
        print(
            f"{name}: {100 * np.mean(held):.0f} %; {100 * answer.expected_regret:.2f} %, {100 * np.mean(lost):.2f} %",
            flush=True,
        )
    print(f"pooled: {100 * np.mean(pooled):.1f} % of {len(pooled)}")


def main(questions: list[str], seed: int = 0, truths: int = 20, fresh: int = 100) -> None:
    if "capacity" in questions or not questions:
        capacity(seed, truths)
    if "tune" in questions or not questions:
        tuning(seed, fresh)
