"""Section A: report 002's 33x. Completions, throughput and work of both engines by concurrency, windowed and drained.

Not here: the harness (validation.claims.prototype), the claimed figures (validation/claims/ledger/A.yaml).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import ceil, floor
from statistics import mean, median

import numpy as np

from sim.costs.profile_files import load
from sim.draws import child_seed
from sim.metrics.stats import interval_95
from validation.claims.ledger import Interval, Row, Section
from validation.claims.prototype import LABELS, PROFILE, Harness, Served, arrivals

ENGINES = ("pd", "pdv")
CUT_LABELS = (32, 64, 72, 84, 96, 128)
"""Where the window cuts requests of at least one engine."""
RATIOS = (64, 72, 84)
TPS_LABELS = (1, 8, 16, 32, 64, 128)
LATENCY_LABELS = (32, 64, 96)
HEADLINE = 128
MAX_COUNTED = 3
"""Completions of PD at the headline whose probabilities are printed."""
SEED = 2002
Runs = dict[tuple[str, int], list[Served]]


def judge(section: Section, draws: int) -> list[Row]:
    """Every row of section A from `draws` draws of draws per engine and label (a fifth of that where all drain)."""
    windowed: Runs = {
        (engine, label): _runs(section, engine, label, draws if label in CUT_LABELS else max(2, draws // 4))
        for engine, label in product(ENGINES, LABELS)
    }
    drained: Runs = {
        (engine, label): _runs(section, engine, label, max(2, draws // 10), drains=True)
        for engine, label in product(ENGINES, CUT_LABELS)
    }
    return [
        *_completed(section, windowed),
        *_throughput(section, windowed),
        *_work(section, windowed),
        _headline(section, windowed),
        _drained(section, drained),
        *_ratios(section, windowed),
        _exponential(section, windowed),
        _first_prefill(section, windowed),
        _utilization(section, windowed),
        _memory(section, windowed),
        _acceptance(section, windowed),
        _average(section, windowed),
        _improved(section, windowed, drained),
        _valley(section, windowed),
        *_latency(section, windowed),
        section.untested("A.latency.pd.128"),
    ]


def _runs(section: Section, engine: str, label: int, draws: int, *, drains: bool = False) -> list[Served]:
    harness = replace(_harness(section, engine, label), drains=drains)
    return [harness.run(child_seed(SEED, draw)) for draw in range(draws)]


def _harness(section: Section, engine: str, label: int) -> Harness:
    return Harness(
        engine=engine,
        label=label,
        acceptance=f"length:{section.constant('acceptance_length')}",
        prompt_tokens=int(section.constant("prompt_tokens")),
    )


def of_single_runs(values: Sequence[float]) -> Interval:
    """Bounds between which 95 % of the draws lie."""
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def _completed(section: Section, runs: Runs) -> list[Row]:
    costs = load(PROFILE).linear
    assert costs.draft is not None
    round_ms = 1e3 * (4 * costs.draft.pass_s + 2 * costs.target.pass_s)
    rows = []
    for (engine, label), own in runs.items():
        if label >= 16:
            counts = [float(run.completed) for run in own]
            claim_id = f"A.completed.{engine}.{label}"
            is_cut = engine == "pd" and label >= min(RATIOS)
            low, high = section.claim(claim_id).bounds()
            rows.append(
                section.row(
                    claim_id,
                    mean(counts),
                    of_single_runs(counts),
                    active=mean(run.active_mean for run in own),
                    round_ms=round_ms,
                    needed=20.0 / section.constant("acceptance_length"),
                    beyond=_outside_pct(counts, low, high),
                    elsewhere=_outside_pct(_elsewhere(section, label, len(own)), low, high) if is_cut else 0.0,
                    least=max(0.0, ceil(low)),
                    most=floor(high),
                )
            )
    return rows


def _elsewhere(section: Section, label: int, draws: int) -> list[float]:
    """Completions of PD on arrivals that the harness did not draw, a seed of arrivals and one of draws each."""
    harness = _harness(section, "pd", label)
    seeds = range(max(2, draws // 2))
    return [float(replace(harness, arrival_seed=seed).run(child_seed(SEED, seed)).completed) for seed in seeds]


def _outside_pct(counts: Sequence[float], low: float, high: float) -> float:
    return 100.0 * mean(not low <= count <= high for count in counts)


def _throughput(section: Section, runs: Runs) -> list[Row]:
    rows = []
    for label, engine in product(TPS_LABELS, ENGINES):
        own = runs[engine, label]
        values = [run.tokens_per_s for run in own]
        completed = mean(run.completed for run in own)
        emitted = mean(run.emitted_tokens / run.elapsed_s for run in own)
        claim_id = f"A.tps.{engine}.{label}"
        rows.append(section.row(claim_id, mean(values), of_single_runs(values), completed=completed, emitted=emitted))
    return rows


def _work(section: Section, runs: Runs) -> list[Row]:
    rows = []
    for engine in ENGINES:
        own = runs[engine, HEADLINE]
        rounds = [float(run.rounds) for run in own]
        admitted = mean(run.admitted for run in own)
        claim_id, spread = f"A.rounds.{engine}", of_single_runs(rounds)
        rows.append(section.row(claim_id, mean(rounds), spread, rounds=mean(rounds), admitted=admitted))
    return rows


def _headline(section: Section, runs: Runs) -> Row:
    """PDV's windowed throughput over that of one finished request, which is what PD's is in the CSV; and how probable
    that one is."""
    pd, pdv = runs["pd", HEADLINE], runs["pdv", HEADLINE]
    counts = [run.completed for run in pd]
    shares = {f"p{count}": counts.count(count) / len(counts) for count in range(MAX_COUNTED + 1)}
    one_request = mean(run.completed_tokens / run.completed for run in pdv)
    ratios = [run.completed_tokens / one_request for run in pdv]
    return section.row(
        "A.33x.windowed",
        mean(ratios),
        of_single_runs(ratios),
        is_met=None,
        **shares,
        rounds_pd=mean(run.rounds for run in pd),
        rounds_pdv=mean(run.rounds for run in pdv),
    )


def _drained(section: Section, drained: Runs) -> Row:
    pairs = zip(drained["pdv", HEADLINE], drained["pd", HEADLINE], strict=True)
    ratios = [ours.tokens_per_s / theirs.tokens_per_s for ours, theirs in pairs]
    return section.row("A.33x.drained", mean(ratios), interval_95(ratios), requests=len(arrivals(HEADLINE)))


def _ratios(section: Section, runs: Runs) -> list[Row]:
    """Ratios of completions in the middle draw, and with one completion of PD more or less."""
    rows = []
    for label in RATIOS:
        pd, pdv = (median(run.completed for run in runs[engine, label]) for engine in ENGINES)
        low, high = pdv / (pd + 1), pdv / max(1.0, pd - 1)
        middle, spread = pdv / max(1.0, pd), (low, high)
        rows.append(section.row(f"A.ratio.{label}", middle, spread, pd=pd, pdv=pdv, ratio_low=low, ratio_high=high))
    return rows


def _exponential(section: Section, runs: Runs) -> Row:
    tps = {label: mean(run.tokens_per_s for run in runs["pdv", label]) for label in (64, HEADLINE)}
    cut = {label: mean(run.admitted - run.completed for run in runs["pd", label]) for label in (64, HEADLINE)}
    is_flat = abs(tps[HEADLINE] / tps[64] - 1.0) < 0.1
    return section.row(
        "A.exponential",
        tps[HEADLINE] / tps[64],
        is_met=is_flat,
        pdv_64=tps[64],
        pdv_128=tps[HEADLINE],
        cut_64=cut[64],
        cut_128=cut[HEADLINE],
    )


def _first_prefill(section: Section, runs: Runs) -> Row:
    """C = 1 has one request: what its first prefill takes longer is in the elapsed time of the engine run first."""
    warm_up_s = section.constant("warm_up_s")
    pd, pdv = runs["pd", 1], runs["pdv", 1]
    gains = [
        100.0 * ((theirs.elapsed_s + warm_up_s) / ours.elapsed_s - 1.0) for ours, theirs in zip(pdv, pd, strict=True)
    ]
    without = mean(100.0 * (theirs.elapsed_s / ours.elapsed_s - 1.0) for ours, theirs in zip(pdv, pd, strict=True))
    return section.row("A.c1", mean(gains), of_single_runs(gains), warm_up_ms=1e3 * warm_up_s, without=abs(without))


def _utilization(section: Section, runs: Runs) -> Row:
    by_label = [100.0 * mean(run.utilization for run in runs["pd", label]) for label in LABELS]
    low, high = section.claim("A.util").bounds()
    least, most = min(by_label), max(by_label)
    is_met = low <= least and most <= high
    return section.row("A.util", f"{least:.0f} to {most:.0f} %", is_met=is_met, low=least, high=most)


def _memory(section: Section, runs: Runs) -> Row:
    profile = load(PROFILE)
    assert profile.draft is not None
    shapes = (profile.target, profile.draft)
    weights = sum(shape.weight_bytes for shape in shapes)
    per_token = sum(shape.kv_bytes_per_token for shape in shapes)
    held = {engine: mean(run.kv_tokens_peak for run in runs[engine, HEADLINE]) * per_token for engine in ("pd", "pdv")}
    more = 100.0 * ((weights + held["pdv"]) / (weights + held["pd"]) - 1.0)
    return section.row("A.memory", more, kv_pd_gb=held["pd"] / 1e9, kv_pdv_gb=held["pdv"] / 1e9)


def _acceptance(section: Section, runs: Runs) -> Row:
    whole, cut = (
        [100.0 * run.acceptance for run in runs["pd", label] if run.acceptance is not None] for label in (16, 96)
    )
    return section.row("A.accept", mean(cut), of_single_runs(cut), all=mean(whole))


def _average(section: Section, runs: Runs) -> Row:
    """Gain of the throughput averaged over labels, in the mean and draw by draw."""
    uncut = [label for label in LABELS if label not in CUT_LABELS]
    num_draws = min(len(own) for own in runs.values())
    single = [
        _gain_pct([(runs["pdv", label][draw], runs["pd", label][draw]) for label in LABELS])
        for draw in range(num_draws)
    ]
    averages = {
        engine: mean(mean(run.tokens_per_s for run in runs[engine, label]) for label in LABELS) for engine in ENGINES
    }
    return section.row(
        "A.average",
        mean(single),
        of_single_runs(single),
        pd=averages["pd"],
        pdv=averages["pdv"],
        uncut=_gain_pct([pair for label in uncut for pair in zip(runs["pdv", label], runs["pd", label], strict=True)]),
    )


def _gain_pct(pairs: Sequence[tuple[Served, Served]]) -> float:
    """Gain of the sum of throughputs, ours over theirs."""
    return 100.0 * (sum(ours.tokens_per_s for ours, _ in pairs) / sum(theirs.tokens_per_s for _, theirs in pairs) - 1.0)


def _improved(section: Section, windowed: Runs, drained: Runs) -> Row:
    """Number of labels at which the paired difference of throughputs leaves its interval around nothing."""
    signs = {label: _sign(windowed["pdv", label], windowed["pd", label]) for label in LABELS}
    drained_signs = {label: _sign(drained["pdv", label], drained["pd", label]) for label in CUT_LABELS}
    up = sum(sign > 0 for sign in signs.values())
    return section.row(
        "A.20of32",
        NUM_MODEL_LABELS * up,
        up=up,
        down=sum(sign < 0 for sign in signs.values()),
        drained_up=sum(sign > 0 for sign in (signs | drained_signs).values()),
    )


def _valley(section: Section, runs: Runs) -> Row:
    gains = [
        _gain_pct(list(zip(runs["pdv", label], runs["pd", label], strict=True))) for label in LABELS if 6 <= label <= 16
    ]
    return section.row("A.valley", mean(gains), (min(gains), max(gains)), lowest=min(gains), highest=max(gains))


NUM_MODEL_LABELS = 3
"""Names of models in the benchmark; every one of them runs the same 34B target."""
SMALLEST_GAIN = 0.01
"""Share of throughput: differences below a hundredth are no improvement, however sure they are."""


def _sign(ours: Sequence[Served], theirs: Sequence[Served]) -> int:
    differences = [one.tokens_per_s - other.tokens_per_s for one, other in zip(ours, theirs, strict=True)]
    least = SMALLEST_GAIN * mean(other.tokens_per_s for other in theirs)
    found = interval_95(differences)
    assert found is not None
    return 1 if found[0] > least else -1 if found[1] < -least else 0


def _latency(section: Section, runs: Runs) -> list[Row]:
    rows = []
    for label, engine in product(LATENCY_LABELS, ENGINES):
        own = runs[engine, label]
        latencies = [1e3 * run.latency_s for run in own if run.latency_s is not None]
        rows.append(
            section.row(
                f"A.latency.{engine}.{label}",
                mean(latencies),
                of_single_runs(latencies),
                completed=mean(run.completed for run in own),
                cut=mean(len(arrivals(label)) - run.completed for run in own),
            )
        )
    return rows
