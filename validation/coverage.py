"""Shares of cases in which lanesim's statements hold: intervals of means in long runs, fleets in other draws of costs
and acceptance, speed-ups beside measured ones.

    python -m validation verdicts [--groups 100] [--workers 2] [--without-tails]
    python -m validation truths capacity|plan [--seed 0] [--count 20]
    python -m validation accuracy_intervals DATA [--draws 20] [--workers 2]

`verdicts`: 95 % intervals, four replications, against the means of long runs: open loops at 30, 60 and 85 % of
capacity on two GPUs, a closed loop and a trace; a p99 in runs so long that MIN_FOR_P99 requests count as independent.
`truths`: single draws of costs and acceptance from other seeds. A fleet that `capacity` or `plan` recommends should
meet its SLOs in 18 of 20 and have at most one replica more than the smallest that does in half of them.
`accuracy_intervals`: 90 % intervals of `tune` beside measured speed-ups that no fit saw, its acceptance quoted once, at
the longest draft that was logged. DATA as in `make accuracy-public`.
Not here: load verdicts (tests.sim.compare.test_verdicts), intervals of tune in fresh draws
(tests.sim.studies.test_cost_draws), constants without one of their sources (validation.left_out).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from sim.compare.capacity import Saturation
from sim.compare.point_runs import Point, attained_share, on_points, run_points
from sim.compare.pool import Runner
from sim.compare.run_length import choose_run_length
from sim.compare.run_length import settled as at_length
from sim.compare.side_by_side import MIN_FOR_P99
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.draws import child_seed
from sim.engine.fleet import Routing
from sim.metrics.stats import interval_95
from sim.metrics.summary import Run, number
from sim.run.resolve import Resolved, resolve, with_keys
from sim.run.scenario import Scenario, parse_scenario
from sim.studies.attainment import DEFAULT_SHARE, highest_load
from sim.studies.cost_draws import cost_draws
from sim.studies.fleet_size import REQUESTS_PER_REPLICA
from sim.studies.load_search import WARMUP_SHARE
from sim.studies.plan.candidate_ranking import Candidate
from sim.studies.plan.search import plan
from sim.studies.tune import tune
from sim.workload.generate import build_requests, is_trace
from validation.judge.sources import study
from validation.judge.specs import RunSpec
from validation.tables import markdown, write_csv

PAIRS = ("h100-sxm/llama-3.1-8b+llama-3.2-1b", "a100-sxm/llama-2-7b+tinyllama-1.1b")
EAGLE, APERTUS = "h100-sxm/llama-3.1-8b+eagle3", "gh200/apertus-8b+eagle3"
SHARES = (0.3, 0.6, 0.85)
METRICS, TAIL = ("mean_e2el_ms", "mean_ttft_ms", "mean_tpot_ms", "steady_output_throughput"), "p99_e2el_ms"
REPLICATIONS = 4
LONG_RUNS, TRACE_RUNS = 60, 400
"""Replications of the long runs whose mean is taken for the truth: 20,000 requests each, or the trace."""
TRACE_PROMPTS = 1000
TRUTH_SEED = 77
SHUFFLES = 100
TAIL_SHARE = 2
"""Runs whose p99 is judged are long, and so many times fewer."""

TRUTH_KEY = 1_000_051
"""Child of the seed that truths come from: none of the answers' draws does."""
RUNS = 2
"""Fresh runs of a fleet in a truth."""
REPLICAS = 4.1
"""Rate requested, in highest loads of one replica."""
CAPACITY = {
    "H100, llama-3.1-8b": Scenario.of(
        profile="h100-sxm/llama-3.1-8b", policy="autoregressive", num_speculative_tokens=0, input_len=512,
        output_len=64, **{"goodput.ttft_ms": 500.0, "goodput.tpot_ms": 40.0},
    ),
    "H100, llama-3.1-8b + eagle3": Scenario.of(
        profile=EAGLE, policy="continuous", acceptance="length:2.6@3", num_speculative_tokens=5, input_len=512,
        output_len=128, **{"goodput.ttft_ms": 500.0, "goodput.tpot_ms": 15.0},
    ),
    "GH200, apertus-8b + eagle3": Scenario.of(
        profile=APERTUS, policy="continuous", acceptance="vllm:.518,.31,.194", num_speculative_tokens=4, input_len=630,
        output_len=190, **{"goodput.ttft_ms": 1000.0, "goodput.tpot_ms": 20.0},
    ),
}  # fmt: skip
PLANS: dict[tuple[str, ...], tuple[float, dict[str, Any]]] = {
    ("h100-sxm/qwen3-32b", "h100-sxm/qwen3-32b-tp2"): (
        40.0, {"num_speculative_tokens": 0, "goodput.ttft_ms": 1000.0, "goodput.tpot_ms": 60.0},
    ),
    ("h200-sxm/llama-3.1-8b+eagle3", "h200-sxm/llama-3.1-8b-fp8+eagle3"): (
        200.0,
        {
            "num_speculative_tokens": 3, "acceptance": "length:2.6@3", "goodput.ttft_ms": 500.0,
            "goodput.tpot_ms": 15.0,
        },
    ),
}  # fmt: skip
"""Candidates -> requests per second, the rest of the scenario; rates are such that a fleet has several replicas."""
A100, GH200 = "unlicensed_local_only/a100_eagle3_study/runs_summary.csv", "unlicensed_local_only/apertus_gh200"
A100_WORKLOAD, FITTED_CONCURRENCY = "gsm8k", 1
"""Constants of engines were fitted on the A100's EAGLE-3 cells of this concurrency."""
PASSES = 8
"""Times that the study's list of prompts is gone through, so that no closed loop runs out of them."""


def coverage(intervals: ArrayLike, truths: ArrayLike) -> float:
    """Share of the `intervals` [..., 2] that hold their truth; one truth may stand for all."""
    low, high = np.moveaxis(np.asarray(intervals, float), -1, 0)
    return float(np.mean((low <= truths) & (truths <= high)))


def runs_of(cases: Iterable[tuple[Scenario, Profile, int]], workers: int = 1) -> list[Run]:
    """Metrics of every scenario of one policy on its profile with its seed."""
    points = [Point(resolved=resolve(each, of, each.policy[0]), seed=seed) for each, of, seed in cases]
    return [outcome.run for outcome in run_points(points, Runner(workers))]


def loops(folder: Path) -> Iterator[tuple[str, Scenario, int]]:
    """Open loops at SHARES of capacity, a closed one of answers of very different lengths, and a bursty trace: name,
    scenario of one policy, replications of the long run."""
    given: dict[str, Any] = {"policy": "continuous", "replications": REPLICATIONS}
    for name in PAIRS:
        scenario = Scenario.of(profile=name, dataset_name="azure-conv", **given)
        rate, _ = Saturation(resolve(scenario, load(name), "continuous"), scenario.seed).capacity
        for share in SHARES:
            yield f"{name} {share:.0%}", with_keys(scenario, workload={"request_rate": share * rate}), LONG_RUNS
    closed = Scenario.of(profile=EAGLE, dataset_name="azure-code", request_rate="inf", max_concurrency=32, **given)
    yield "closed", closed, LONG_RUNS
    bursty = with_keys(scenario, workload={"request_rate": SHARES[0] * rate, "burstiness": 0.5})
    path, requests = folder / "trace.csv", build_requests(bursty.workload.sized(TRACE_PROMPTS), TRUTH_SEED)
    rows = ((each.arrival_s, each.prompt_tokens, each.output_tokens) for each in requests)
    write_csv(path, ["arrival_s", "prompt_tokens", "output_tokens"], rows)
    recorded = {"dataset_path": str(path), "workload.trace_arrivals": "recorded"}
    yield "trace", Scenario.of(profile=name, dataset_name="csv", **given, **recorded), TRACE_RUNS


def intervals_of_means(groups: int, workers: int, folder: Path, *, has_tails: bool) -> None:
    """Coverage of every metric in every loop, and of the groups as they come over all loops."""
    pooled: dict[str, list[float]] = {}
    for name, scenario, num_long in loops(folder):
        profile = load(scenario.profile)
        resolved = resolve(scenario, profile, scenario.policy[0])
        length = choose_run_length([resolved], [Saturation(resolved)])
        settled = at_length(resolved, length).scenario
        workload = settled.workload
        long = workload if is_trace(workload) else workload.sized(20_000, 1000, 1000 * bool(length.num_cooldowns))
        seeds = [child_seed(TRUTH_SEED, run) for run in range(num_long)]
        truths = runs_of([(msgspec.structs.replace(settled, workload=long), profile, seed) for seed in seeds], workers)
        cases: list[tuple[tuple[str, ...], Scenario, int]] = [(METRICS, settled, groups)]
        if has_tails and num_long == LONG_RUNS:
            completed, independent = (np.mean(values_of(truths, key)) for key in ("completed", "effective_requests"))
            most = ceil(MIN_FOR_P99 / REPLICATIONS * completed / independent) + length.num_warmups
            longer = with_keys(settled, workload={"num_prompts": max(length.num_prompts, most)})
            cases.append(((TAIL,), longer, groups // TAIL_SHARE))
        for metrics, sized, num_groups in cases:
            seeds = [child_seed(1000 + group, run) for group in range(num_groups) for run in range(REPLICATIONS)]
            runs = runs_of([(sized, profile, seed) for seed in seeds], workers)
            print(
                f"{name}, {sized.workload.num_prompts} requests, {length.num_warmups} and {length.num_cooldowns} apart:"
            )
            for metric in metrics:
                truth, samples = float(np.mean(values_of(truths, metric))), values_of(runs, metric)
                held, half = covered(samples, truth)
                pooled.setdefault(metric, []).append(coverage(intervals(samples), truth))
                off = 100.0 * (float(np.mean(samples)) / truth - 1.0)
                print(f"  {metric} {100.0 * held:.1f} % (±{100.0 * half:.1f} %, {off:+.2f} % off)", flush=True)
    shares = (f"{metric} {100.0 * fmean(held):.1f} %" for metric, held in pooled.items())
    print(f"pooled, groups as they come: {', '.join(shares)}")


def intervals(samples: ArrayLike) -> np.ndarray:
    """95 % intervals [groups, 2] of the `samples`, REPLICATIONS of them each, as they come."""
    return np.array([interval_95(group) for group in np.reshape(samples, (-1, REPLICATIONS)).tolist()])


def values_of(runs: Sequence[Run], metric: str) -> list[float]:
    return [number(run, metric) or 0.0 for run in runs]


def covered(samples: Sequence[float], truth: float) -> tuple[float, float]:
    """Share of the intervals of REPLICATIONS of the `samples` that hold the `truth`, and the median half-width over it,
    by SHUFFLES ways of taking them together."""
    generator, values = np.random.default_rng(0), np.array(samples)
    drawn = np.concatenate([intervals(generator.permutation(values)) for _ in range(SHUFFLES)])
    return coverage(drawn, truth), float(np.median(np.diff(drawn))) / 2.0 / truth


def truths_of(scenario: Scenario, profile: Profile, count: int) -> list[Resolved]:
    """Plain random draws, one by one, each with a seed for its requests."""
    resolved = resolve(scenario, profile, scenario.policy[0])
    seeds = [child_seed(scenario.seed, TRUTH_KEY, index) for index in range(count)]
    return [cost_draws(resolved.changed(seed=seed), 1, seed)[0] for seed in seeds]


def holding(truths: Sequence[Resolved], routing: str, count: int, rate_per_s: float) -> int:
    """Truths in which so many replicas meet the SLOs, by the share requested, in the mean of RUNS runs."""
    length = REQUESTS_PER_REPLICA * count
    workload = {"num_prompts": length, "num_warmups": int(WARMUP_SHARE * length), "request_rate": rate_per_s}
    fleets = [truth.changed(workload=workload, devices={"count": count, "routing": routing}) for truth in truths]
    points = [
        Point(resolved=fleet, seed=child_seed(child_seed(fleet.scenario.seed, 0), run))
        for fleet in fleets
        for run in range(RUNS)
    ]
    shares = np.array(on_points(attained_share, points, Runner(1))).reshape(len(truths), RUNS)
    return int(np.sum(shares.mean(axis=1) >= DEFAULT_SHARE))


def replicas_that_hold(
    scenario: Scenario, profile: Profile, routing: str, replicas: int, rate_per_s: float, count: int
) -> str:
    """Such as: 4 in 20 of 20, 3 in 6 of 20; 0 above the median. The recommended number of replicas, and fewer as long
    as they hold in half of the truths."""
    truths = truths_of(scenario, profile, count)
    held: dict[int, int] = {}
    number_of = replicas
    while number_of and (not held or held[number_of + 1] * 2 >= count):
        held[number_of] = holding(truths, routing, number_of, rate_per_s)
        number_of -= 1
    smallest = min((number for number, hold in held.items() if hold * 2 >= count), default=replicas)
    by_replicas = ", ".join(f"{number} in {hold} of {count}" for number, hold in held.items())
    return f"{by_replicas}; {replicas - smallest} above the median"


def capacity_truths(seed: int, count: int) -> None:
    print("setting, routing: rate/s; replicas as given, recommended with its confidence; truths in which so many hold")
    for name, given in CAPACITY.items():
        scenario, profile = msgspec.structs.replace(given, seed=seed), load(given.profile)
        one = highest_load(scenario, profile, draws=0).highest[0].load
        assert one is not None
        for routing in (Routing.ROUND_ROBIN, Routing.LEAST_OUTSTANDING):
            routed, rate_per_s = with_keys(scenario, devices={"routing": routing}), REPLICAS * one
            as_given, drawn = (
                highest_load(routed, profile, target_rate=rate_per_s, draws=draws).fleets[0] for draws in (0, None)
            )
            assert drawn.replicas is not None
            told = replicas_that_hold(scenario, profile, routing, drawn.replicas, rate_per_s, count)
            recommended = f"{as_given.replicas}, {drawn.replicas} ({100 * (drawn.confidence or 0.0):.0f} %)"
            print(f"{name}, {routing}: {rate_per_s:.1f}; {recommended}; {told}", flush=True)


def plan_truths(seed: int, count: int) -> None:
    print("recommended of candidates; truths in which so many replicas hold; replicas above the median")
    for names, (rate_per_s, changes) in PLANS.items():
        given = {"input_len": 512, "output_len": 128, **changes}
        scenario = Scenario.of(profile=names[0], policy="continuous", seed=seed, **given)
        answer = plan(scenario, [Candidate(name, load(name)) for name in names], rate_per_s=rate_per_s, draws=20)
        best, planned = answer.deployments[0], parse_scenario(answer.scenario)
        assert best.replicas is not None
        profile = load(best.profile)
        told = replicas_that_hold(planned, profile, Routing.ROUND_ROBIN, best.replicas, rate_per_s, count)
        print(f"{best.replicas} of {best.profile} ({best.worlds_met} of 20 draws); {told}", flush=True)


MeasuredTuning = tuple[str, Scenario, Mapping[tuple[int, int], float]]
"""Title and scenario of a drafter whose speed-ups were measured, and output tokens per second by concurrency and draft
length, 0 = without a drafter."""


def gh200_case(folder: Path, method: str, profile: str, scratch: Path) -> MeasuredTuning:
    """Chat on the GH200; acceptance by position as logged with the longest drafts, all concurrencies together, weighted
    by drafts."""
    import pandas as pd

    cells, logged = (pd.read_csv(folder / f"{name}.csv") for name in ("cells", "per_position"))
    cells = cells[(cells["workload"] == "chat") & cells["method"].isin(["none", method])]
    longest = int(cells["k"].max())
    logged = logged[(logged["method"] == method) & (logged["workload"] == "chat") & (logged["k"] == longest)]
    accepted = logged.assign(accepted=logged["accept_rate_at_position"] * logged["drafts"]).groupby("position")
    rates = accepted["accepted"].sum() / accepted["drafts"].sum()
    path, lengths = scratch / "chat.csv", pd.read_csv(folder / "lengths_chat.csv")[["prompt_tokens", "output_tokens"]]
    requests = pd.concat([lengths] * PASSES, ignore_index=True).set_axis(["input_len", "output_len"], axis=1)
    requests.to_csv(path, index_label="arrival_time")
    scenario = Scenario.of(
        profile=profile, policy="continuous", engine="vllm-0.23",
        acceptance="vllm:" + ",".join(f"{rate:.4f}" for rate in rates), num_speculative_tokens=longest,
        max_num_seqs=256, max_num_batched_tokens=16384, dataset_name="csv", dataset_path=str(path),
        **{
            "engine.gpu_memory_utilization": 0.8,
            "speculation.method": "eagle3" if method == "eagle31" else method,
        },
    )  # fmt: skip
    measured = cells.groupby(["concurrency", "k"])["output_tok_per_s"].mean().to_dict()
    return f"GH200, Apertus 8B, chat, {method}", scenario, measured


def a100_case(path: Path) -> MeasuredTuning:
    """EAGLE-3 of vLLM 0.24 on the A100; one draft length, so its acceptance is that length's."""
    cells = [cell for cell in study(path, RunSpec()) if cell["label"] == A100_WORKLOAD]
    drafting = [cell for cell in cells if cell["num_speculative_tokens"]]
    kept = {cell["concurrency"] for cell in drafting} - {FITTED_CONCURRENCY}
    k = drafting[0]["num_speculative_tokens"]
    scenario = Scenario.of(
        profile="a100-sxm/llama-3.1-8b+eagle3", policy="continuous", engine="vllm-0.24",
        acceptance=f"length:{fmean(cell['acceptance_length'] for cell in drafting):.3f}@{k}", num_speculative_tokens=k,
        max_num_seqs=256, max_num_batched_tokens=2048, input_len=cells[0]["input_len"],
        output_len=cells[0]["output_len"],
    )  # fmt: skip
    measured = {
        (cell["concurrency"], cell["num_speculative_tokens"]): cell["output_throughput"]
        for cell in cells
        if cell["concurrency"] in kept
    }
    return f"A100, Llama-3.1-8B, {A100_WORKLOAD}, EAGLE-3", scenario, measured


def accuracy_intervals(data: Path, draws: int = 20, workers: int = 2) -> None:
    import pandas as pd

    warnings.simplefilter("ignore")
    every = []
    with TemporaryDirectory() as scratch:
        cases = [
            gh200_case(data / GH200, "eagle31", "gh200/apertus-8b+eagle3", Path(scratch)),
            gh200_case(data / GH200, "dspark", "gh200/apertus-8b+dspark", Path(scratch)),
            a100_case(data / A100),
        ]
        for title, scenario, measured in cases:
            concurrencies, lengths = (sorted(set(each)) for each in zip(*measured, strict=True))
            answer = tune(
                scenario, load(scenario.profile), lengths=lengths, concurrencies=concurrencies, draws=draws,
                workers=workers,
            )  # fmt: skip
            rows = [
                [at, each.k, measured[at, each.k] / measured[at, 0], each.speedup, *each.interval]
                for point in answer.points
                for at in (point.concurrency,)
                for each in point.lengths
                if each.k and (at, each.k) in measured and each.speedup is not None and each.interval is not None
            ]
            pairs = pd.DataFrame(rows, columns=["c", "K", "measured", "stated", "low", "high"])
            every.append(pairs)
            best = pd.Series(measured).groupby(level=0).max()
            lost = [1.0 - measured[point.concurrency, point.k] / best[point.concurrency] for point in answer.points]
            print(f"\n{title}; {scenario.speculation.acceptance}; {answer.verdict}")
            print(f"regret against the best measured length: mean {fmean(lost):.2%}, worst {max(lost):.2%}\n")
            texts = pairs[["measured", "stated", "low", "high"]].map("{:.3f}".format)
            interval = texts["low"] + " to " + texts["high"]
            print(markdown(pairs[["c", "K"]].join(texts[["measured", "stated"]].assign(**{"90 % interval": interval}))))
            print()
    pairs = pd.concat(every)
    held = f"{coverage(pairs[['low', 'high']], pairs['measured']):.1%} of {len(pairs)} measured speed-ups within the"
    print(f"{held} 90 % interval; median width {((pairs['high'] - pairs['low']) / pairs['stated']).median():.1%} of it")


def truths(what: Literal["capacity", "plan"], seed: int = 0, count: int = 20) -> None:
    {"capacity": capacity_truths, "plan": plan_truths}[what](seed, count)


def verdicts(groups: int = 100, workers: int = 2, without_tails: bool = False) -> None:
    warnings.simplefilter("ignore")
    with TemporaryDirectory() as folder:
        intervals_of_means(groups, workers, Path(folder), has_tails=not without_tails)
