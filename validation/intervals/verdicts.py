"""How often lanesim's verdicts hold: load verdicts of queues whose capacity is known, coverage of its intervals.

    python -m validation verdicts load [--groups 100]
    python -m validation verdicts coverage [--groups 200] [--workers 2] [--without-tails]
    python -m validation verdicts kinds [--groups 100]

`load`: an M/D/1 queue (one request at a time, one length), `continuous` and `pd`, at 0.5 to 1.2 of their capacity, the
mean of several saturated runs; the share of runs per verdict, and the CPU of a run and of a verdict, nothing kept.
`coverage`: the share of 95 % intervals, four replications, that hold the mean of a long run, at 30, 60 and 85 % of
capacity on two GPUs, over SHUFFLES ways of taking the runs by fours. A p99 has an interval only where so many requests
are measured that MIN_FOR_P99 of them count as independent: those runs take most of the time, and need a group in
TAIL_SHARE.
`kinds`: the same of means alone, for an open loop, a closed one and a trace, at the lengths that `auto` finds, with the
pooled share, and the CPU seconds that the runs took, in one process. `--without-tails`: means only.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import msgspec
import numpy as np

from sim.compare import capacity as capacities
from sim.compare.capacity import capacity
from sim.compare.point_runs import Point, run_points
from sim.compare.pool import Runner
from sim.compare.run_length import choose_run_length, load_of
from sim.compare.side_by_side import MIN_FOR_P99
from sim.costs.profile import Profile
from sim.costs.profile_files import load as load_profile
from sim.draws import child_seed
from sim.metrics.load import needs_capacity
from sim.metrics.stats import interval_95
from sim.metrics.summary import Run, number
from sim.run.resolve import resolve
from sim.run.scenario import Scenario
from sim.run.simulate import simulate
from sim.workload.generate import build_requests, is_trace

PAIRS = ("h100-sxm/llama-3.1-8b+llama-3.2-1b", "a100-sxm/llama-2-7b+tinyllama-1.1b")
SHARES = (0.3, 0.6, 0.85)
METRICS = ("mean_e2el_ms", "p99_e2el_ms", "steady_output_throughput")
MEANS = ("mean_e2el_ms", "mean_ttft_ms", "mean_tpot_ms", "steady_output_throughput")
REPLICATIONS = 4
LONG_RUNS = {"open": 40, "closed": 40, "trace": 400}
"""Replications of the long runs of `kinds`, whose mean is taken for the truth: 20,000 requests, or the trace."""
TRACE_PROMPTS = 1000
LONG_RUN = 60
"""Replications of the long run, whose mean is taken for the truth."""
TRUTH_SEED = 77
SHUFFLES = 100
TAIL_SHARE = 2
REFERENCES = range(1001, 1009)
"""Seeds of the saturated runs whose mean is taken for the capacity."""


def queue(**changes: object) -> tuple[Scenario, Profile]:
    """M/D/1: one request at a time, a single pass over a prompt of one length."""
    scenario = Scenario.of(
        profile="h100-sxm/llama-2-7b",
        policy="autoregressive",
        input_len=512,
        output_len=1,
        max_num_seqs=1,
        num_speculative_tokens=0,
        **changes,
    )
    return scenario, load_profile(scenario.profile)


def engine(policy: str) -> tuple[Scenario, Profile]:
    scenario = Scenario.of(profile=PAIRS[0], policy=policy, dataset_name="azure-conv")
    return scenario, load_profile(scenario.profile)


def load_verdicts(groups: int) -> None:
    for name, (scenario, profile) in {
        "M/D/1": queue(),
        "continuous": engine("continuous"),
        "pd": engine("pd"),
    }.items():
        policy = scenario.policy[0]
        rates = [capacity(msgspec.structs.replace(scenario, seed=seed), policy, profile)[0] for seed in REFERENCES]
        rate = float(np.mean(rates))
        print(f"{name}: capacity {rate:.3f} requests/s, ±{100.0 * float(np.std(rates)) / rate:.1f} % from seed to seed")
        for share in (0.5, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2):
            found: Counter[str] = Counter()
            runs_s = verdicts_s = 0.0
            for group in range(groups if name == "M/D/1" else max(10, groups // 4)):
                workload = msgspec.structs.replace(scenario.workload, num_prompts=1000, request_rate=share * rate)
                fresh = msgspec.structs.replace(scenario, workload=workload, seed=group)
                started_s = time.process_time()
                record = simulate(resolve(fresh, profile, policy), child_seed(group, 0))
                runs_s += time.process_time() - started_s
                capacities.forget()
                started_s = time.process_time()
                load = load_of(fresh, profile, policy, is_in_doubt=needs_capacity(record), seed=group)
                verdicts_s += time.process_time() - started_s
                found[load.verdict.value] += 1
            total = sum(found.values())
            shares = ", ".join(f"{verdict} {100.0 * count / total:.0f} %" for verdict, count in found.most_common())
            print(f"  {share:4.2f}: {shares}; CPU-s: {runs_s / total:.3f} a run, {verdicts_s / total:.3f} a verdict")


def settings() -> Iterator[tuple[str, float, Scenario, Profile]]:
    for name in PAIRS:
        profile = load_profile(name)
        scenario = Scenario.of(profile=name, policy="continuous", dataset_name="azure-conv", replications=REPLICATIONS)
        rate, _ = capacity(scenario, "continuous", profile)
        for share in SHARES:
            workload = msgspec.structs.replace(scenario.workload, request_rate=share * rate)
            yield name, share, msgspec.structs.replace(scenario, workload=workload), profile


def coverage(groups: int, workers: int, *, has_tails: bool) -> None:
    metrics_asked = METRICS if has_tails else tuple(metric for metric in METRICS if not metric.startswith("p99"))
    for name, share, scenario, profile in settings():
        settled, length = choose_run_length(scenario, profile)
        long_workload = msgspec.structs.replace(settled.workload, num_prompts=20_000, num_warmups=1000)
        long = msgspec.structs.replace(settled, workload=long_workload)
        long_runs = _runs(long, profile, [child_seed(TRUTH_SEED, run) for run in range(LONG_RUN)], workers)
        keys = (*METRICS, "completed", "effective_requests")
        truth = {key: float(np.mean(values_of(long_runs, key))) for key in keys}
        measured: dict[tuple[int | str, int], list[Run]] = {}
        held: dict[str, float] = {}
        half: dict[str, float] = {}
        lengths = dict.fromkeys(metrics_asked, settled)
        tail = ceil(MIN_FOR_P99 / REPLICATIONS * truth["completed"] / truth["effective_requests"])
        if has_tails:
            lengths["p99_e2el_ms"] = msgspec.structs.replace(
                settled,
                workload=msgspec.structs.replace(
                    settled.workload, num_prompts=max(length.num_prompts, tail + length.num_warmups)
                ),
            )
        for metric in metrics_asked:
            num_runs = REPLICATIONS * (groups // TAIL_SHARE if metric.startswith("p99") else groups)
            key = lengths[metric].workload.num_prompts, num_runs
            if key not in measured:
                measured[key] = _runs(lengths[metric], profile, seeds_of(num_runs), workers)
            held[metric], half[metric] = covered(values_of(measured[key], metric), truth[metric])
        told = "  ".join(
            f"{metric} {100.0 * held[metric]:5.1f} % (±{100.0 * half[metric]:.1f} %)" for metric in metrics_asked
        )
        print(
            f"{name} {share:.0%}: {length.num_prompts} requests ({tail} for a p99), "
            f"{length.num_warmups} left out: {told}",
            flush=True,
        )


def kinds(folder: Path) -> Iterator[tuple[str, Scenario]]:
    """An open loop at 60 % of capacity, a closed one of answers of very different lengths, and a bursty trace."""
    eagle, pair = "h100-sxm/llama-3.1-8b+eagle3", PAIRS[0]
    given = {"policy": "continuous", "replications": REPLICATIONS}
    drawn = Scenario.of(profile=pair, dataset_name="azure-conv", **given)
    rate, _ = capacity(drawn, "continuous", load_profile(pair))
    yield "open", Scenario.of(profile=pair, dataset_name="azure-conv", request_rate=SHARES[1] * rate, **given)
    yield (
        "closed",
        Scenario.of(profile=eagle, dataset_name="azure-code", request_rate="inf", max_concurrency=32, **given),
    )
    bursty = Scenario.of(
        profile=pair, dataset_name="azure-conv", request_rate=SHARES[0] * rate, burstiness=0.5, **given
    )
    requests = build_requests(bursty.workload.sized(TRACE_PROMPTS), TRUTH_SEED)
    rows = [f"{each.arrival_s},{each.prompt_tokens},{each.output_tokens}" for each in requests]
    path = folder / "trace.csv"
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]))
    yield (
        "trace",
        Scenario.of(
            profile=pair, dataset_name="csv", dataset_path=str(path), **given, **{"workload.trace_arrivals": "recorded"}
        ),
    )


def coverage_of_kinds(groups: int) -> None:
    pooled: dict[str, list[bool]] = {metric: [] for metric in MEANS}
    with TemporaryDirectory() as folder:
        for name, scenario in kinds(Path(folder)):
            profile = load_profile(scenario.profile)
            settled, length = choose_run_length(scenario, profile)
            workload = settled.workload
            long = workload if is_trace(workload) else workload.sized(20_000, 1000, 1000 * (name == "closed"))
            long_seeds = [child_seed(TRUTH_SEED, run) for run in range(LONG_RUNS[name])]
            truths = _runs(msgspec.structs.replace(settled, workload=long), profile, long_seeds, 1)
            started_s = time.process_time()
            runs = _runs(settled, profile, seeds_of(REPLICATIONS * groups), 1)
            run_s = (time.process_time() - started_s) / len(runs)
            parts = []
            for metric in MEANS:
                truth = float(np.mean(values_of(truths, metric)))
                samples = values_of(runs, metric)
                held, half = covered(samples, truth)
                pooled[metric] += [low <= truth <= high for low, high in intervals(samples)]
                off = 100.0 * (float(np.mean(samples)) / truth - 1.0)
                parts.append(f"{metric} {100.0 * held:.1f} % (±{100.0 * half:.1f} %, {off:+.2f} % off)")
            sizes = f"{length.num_prompts} requests, {length.num_warmups} and {length.num_cooldowns} left out"
            print(f"{name}: {sizes}, {run_s:.2f} CPU-s a run: {', '.join(parts)}", flush=True)
    shares = ", ".join(f"{metric} {100.0 * float(np.mean(held)):.1f} %" for metric, held in pooled.items())
    print(f"pooled, {3 * groups} groups as they come: {shares}")


def intervals(samples: Sequence[float]) -> Iterator[tuple[float, float]]:
    """Intervals of the `samples`, REPLICATIONS of them each, as they come."""
    for own in np.array(samples).reshape(-1, REPLICATIONS):
        interval = interval_95(own.tolist())
        assert interval is not None
        yield interval


def values_of(runs: Sequence[Run], metric: str) -> list[float]:
    return [number(run, metric) or 0.0 for run in runs]


def seeds_of(num_runs: int) -> list[int]:
    return [child_seed(1000 + run // REPLICATIONS, run % REPLICATIONS) for run in range(num_runs)]


def covered(samples: Sequence[float], truth: float) -> tuple[float, float]:
    """Share of the intervals of REPLICATIONS of the `samples` that hold the `truth`, and the median half-width over it,
    by SHUFFLES ways of taking them together."""
    values, held, halves = np.array(samples), [], []
    generator = np.random.default_rng(0)
    for _ in range(SHUFFLES):
        for low, high in intervals(generator.permutation(values).tolist()):
            held.append(low <= truth <= high)
            halves.append((high - low) / 2.0 / truth)
    return float(np.mean(held)), float(np.median(halves))


def _runs(scenario: Scenario, profile: Profile, seeds: Sequence[int], workers: int) -> list[Run]:
    points = [Point(scenario=scenario, policy="continuous", seed=seed, profile=profile) for seed in seeds]
    return [outcome.run for outcome in run_points(points, Runner(workers))]


def main(
    what: Literal["load", "coverage", "kinds"], groups: int = 100, workers: int = 2, without_tails: bool = False
) -> None:
    warnings.simplefilter("ignore")
    if what == "load":
        load_verdicts(groups)
    elif what == "kinds":
        coverage_of_kinds(groups)
    else:
        coverage(groups, workers, has_tails=not without_tails)
