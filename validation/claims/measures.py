"""Measures that claims name: a figure of runs, with its interval and the details that the claim's sentences hold.

Not here: runs (validation.claims.runs), claimed figures (validation/claims/claims.yaml).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import ceil, floor, prod, sqrt
from operator import attrgetter
from statistics import mean, median

import numpy as np

from sim.acceptance.conversions import iid_rate_for_length
from sim.acceptance.models import IidAcceptance
from sim.costs.cost import Cost
from sim.costs.engine_costs import engine_of
from sim.costs.forms.build import build_costs
from sim.costs.shapes import kv_bytes_per_token, model
from sim.devices.contention import PhiLevel
from sim.devices.link import link_of
from sim.draws import Floats, child_seed
from sim.interface.request import Request
from sim.metrics.stats import interval_95
from sim.policies import works
from sim.policies.choices import LoadTable
from sim.run.resolve import resolve
from sim.run.scenario import Scenario
from sim.run.simulate import simulate
from validation.claims.ledger import Claim, Detail, Finding, Interval, Spec, section
from validation.claims.prototype import CUT_LABELS, LABELS, HarnessRun, arrivals, harness_run
from validation.claims.runs import (
    DRAFT_COMPUTE_MS,
    DRAFT_EAGER_MS,
    IMPLIED_DRAFT_MS,
    SEED,
    Ratio,
    at,
    bracketed,
    mean_of,
    profile_of,
    ratio,
    simulated,
    span,
    values,
)
from validation.tables import off_pct

FORMS: dict[str, Callable[[float], float]] = {
    "ratio": float,
    "more": lambda one: off_pct(one, 1.0),
    "less": lambda one: 100.0 * (1.0 - one),
}
"""Ways to say one run's metric over another's."""


# -- any runs


def mean_metric(claim: Claim, draws: int) -> Finding:
    """Mean of a metric over draws; `spread: runs` = the interval of single runs, `none` = none."""
    scale = claim.args.get("scale", 1.0)
    means = values(claim.runs[0], claim.metric, draws)
    of_means = interval_95(means) or (means[0], means[0])
    low, high = _of_single_runs(means) if claim.args.get("spread") == "runs" else of_means
    interval = None if claim.args.get("spread") == "none" else (scale * low, scale * high)
    return Finding(scale * mean(means), interval, None, _also(claim, draws))


def per_s(claim: Claim, draws: int) -> Finding:
    """Tokens per second of one sequence, by its time per token; of a second run, the ratio of both."""
    rates = [1e3 / mean_of(run, "mean_tpot_ms", draws) for run in claim.runs]
    return Finding(rates[0] / rates[1] if len(rates) > 1 else rates[0], details={"tpot": 1e3 / rates[0]})


def compared(claim: Claim, draws: int) -> Finding:
    """One run's metric over another's, `as` ratio, more or less (percent); at every phi where it says `bracket`.

    `met`: never, or within the bounds at every_phi.
    """
    form = FORMS[claim.args["as"]]
    if not claim.args.get("bracket"):
        speedup = ratio(claim.runs[0], claim.runs[1], claim.metric, draws)
        ends, by_level = (speedup.low, speedup.high), {PhiLevel.MIDDLE: speedup}
    else:
        by_level = bracketed(claim.runs[0], claim.runs[1], claim.metric, draws)
        ends = span(by_level)
    shown = {level.value: form(each.value) for level, each in by_level.items()}
    low, high = sorted(map(form, ends))
    is_met = {"never": False, "every_phi": None, None: None}[claim.args.get("met")]
    if claim.args.get("met") == "every_phi":
        least, most = claim.bounds()
        is_met = all(least <= each <= most for each in shown.values())
    details: dict[str, Detail] = {**shown, "low": low, "high": high, **_also(claim, draws)}
    return Finding(shown[PhiLevel.MIDDLE.value], (low, high), is_met, details)


def ranged(claim: Claim, draws: int) -> Finding:
    """Mean of several runs' means, between the least and the most of them, percent."""
    shares = [100.0 * mean_of(at(run, PhiLevel.MIDDLE), claim.metric, draws) for run in claim.runs]
    low, high = min(shares), max(shares)
    return Finding(sum(shares) / len(shares), (low, high), None, {"low": low, "high": high})


def stated(claim: Claim, draws: int) -> Finding:
    """The source's other figures, which say something else."""
    return Finding(claim.args["text"], is_met=False)


def _also(claim: Claim, draws: int) -> dict[str, Detail]:
    details: dict[str, Detail] = {}
    for name, of in claim.also.items():
        for form, (*indices, metric) in of.items():
            runs = [claim.runs[int(index)] for index in indices]
            first, *rest = (at(run, PhiLevel.MIDDLE) if "policy" in run else run for run in runs)
            if form == "mean":
                details[name] = mean_of(first, str(metric), draws)
            else:
                details[name] = FORMS[form](ratio(first, rest[0], str(metric), draws).value)
    return details


def _of_single_runs(figures: Sequence[float]) -> Interval:
    """Bounds between which 95 % of the draws lie."""
    low, high = np.quantile(figures, [0.025, 0.975])
    return float(low), float(high)


# -- report 002's harness (section A)

ENGINES = ("pd", "pdv")
HEADLINE = 128
NUM_MODEL_LABELS = 3
"""Names of models in the benchmark; every one of them runs the same 34B target."""
SMALLEST_GAIN = 0.01
"""Share of throughput: differences below a hundredth are no improvement, however sure they are."""
WARM_UP_S = 0.328
"""The first prefill of a process, 376 ms at C = 1 against 48 ms at C = 2 (detailed CSV)."""


def completed(claim: Claim, draws: int) -> Finding:
    """Requests that finish in the window; in `else`, on arrivals that the harness did not draw."""
    run = claim.runs[0]
    costs = profile_of(HARNESS_PROFILE).linear
    assert costs.draft is not None
    counts = values(run, "completed", draws)
    low, high = claim.bounds()

    def outside_pct(counts: Sequence[float]) -> float:
        return 100.0 * mean(not low <= count <= high for count in counts)

    others = range(max(2, draws // 2)) if claim.args.get("elsewhere") else ()
    elsewhere = [float(harness_run(**run, draw=seed, arrival_seed=seed).completed) for seed in others]
    details = {
        "active": mean_of(run, "active_mean", draws),
        "round_ms": 1e3 * (4 * costs.draft.pass_s + 2 * costs.target.pass_s),
        "needed": 20.0 / float(run["acceptance"].partition(":")[2].partition("~")[0]),
        "beyond": outside_pct(counts),
        "elsewhere": outside_pct(elsewhere) if elsewhere else 0.0,
        "least": max(0.0, ceil(low)),
        "most": floor(high),
    }
    return Finding(mean(counts), _of_single_runs(counts), None, details)


HARNESS_PROFILE = "a100-pdverify/codellama-34b+tinyllama-1.1b"


def _at(claim: Claim, engine: str, label: int, draws: int, *, drains: bool = False) -> tuple[HarnessRun, ...]:
    return simulated({**claim.runs[0], "engine": engine, "label": label, **({"drains": True} if drains else {})}, draws)


def _both(claim: Claim, label: int, draws: int, *, drains: bool = False) -> list[tuple[HarnessRun, HarnessRun]]:
    """Runs of PDV and PD on the same draws."""
    ours, theirs = (_at(claim, engine, label, draws, drains=drains) for engine in ("pdv", "pd"))
    return list(zip(ours, theirs, strict=True))


def windowed(claim: Claim, draws: int) -> Finding:
    """PDV's windowed throughput over that of one finished request, which is what PD's is in the CSV; and how probable
    that one is."""
    pairs = _both(claim, HEADLINE, draws)
    counts = [pd.completed for _, pd in pairs]
    one_request = mean(pdv.completed_tokens / pdv.completed for pdv, _ in pairs)
    ratios = [pdv.completed_tokens / one_request for pdv, _ in pairs]
    details = {f"p{count}": counts.count(count) / len(counts) for count in range(4)}
    details |= {"rounds_pd": mean(pd.rounds for _, pd in pairs), "rounds_pdv": mean(pdv.rounds for pdv, _ in pairs)}
    return Finding(mean(ratios), _of_single_runs(ratios), None, details)


def drained(claim: Claim, draws: int) -> Finding:
    pairs = _both(claim, HEADLINE, draws, drains=True)
    ratios = [pdv.tokens_per_s / pd.tokens_per_s for pdv, pd in pairs]
    return Finding(mean(ratios), interval_95(ratios), None, {"requests": len(arrivals(HEADLINE))})


def completions(claim: Claim, draws: int) -> Finding:
    """Ratio of completions in the middle draw, and with one completion of PD more or less."""
    pairs = _both(claim, claim.args["label"], draws)
    pdv, pd = (median(run.completed for run in runs) for runs in zip(*pairs, strict=True))
    low, high = pdv / (pd + 1), pdv / max(1.0, pd - 1)
    details = {"pd": pd, "pdv": pdv, "ratio_low": low, "ratio_high": high}
    return Finding(pdv / max(1.0, pd), (low, high), None, details)


def growth(claim: Claim, draws: int) -> Finding:
    """PDV's throughput at C = 128 over that at 64, and the requests that PD's window cuts."""
    details = {}
    for label in (64, HEADLINE):
        pairs = _both(claim, label, draws)
        details[f"pdv_{label}"] = mean(pdv.tokens_per_s for pdv, _ in pairs)
        details[f"cut_{label}"] = mean(pd.admitted - pd.completed for _, pd in pairs)
    grown = details["pdv_128"] / details["pdv_64"]
    return Finding(grown, None, abs(grown - 1.0) < 0.1, details)


def first_prefill(claim: Claim, draws: int) -> Finding:
    """C = 1 has one request: what its first prefill takes longer is in the elapsed time of the engine run first."""
    pairs = _both(claim, 1, draws)
    gains = [100.0 * ((pd.elapsed_s + WARM_UP_S) / pdv.elapsed_s - 1.0) for pdv, pd in pairs]
    without = mean(100.0 * (pd.elapsed_s / pdv.elapsed_s - 1.0) for pdv, pd in pairs)
    return Finding(mean(gains), _of_single_runs(gains), None, {"warm_up_ms": 1e3 * WARM_UP_S, "without": abs(without)})


def utilization(claim: Claim, draws: int) -> Finding:
    by_label = [100.0 * mean(run.utilization for run in _at(claim, "pd", label, draws)) for label in LABELS]
    least, most = min(by_label), max(by_label)
    low, high = claim.bounds()
    return Finding(f"{least:.0f} to {most:.0f} %", None, low <= least and most <= high, {"low": least, "high": most})


def memory(claim: Claim, draws: int) -> Finding:
    """Weights and KV of PDV over PD's, percent more."""
    profile = profile_of(HARNESS_PROFILE)
    assert profile.draft is not None
    shapes = (profile.target, profile.draft)
    weights = sum(shape.weight_bytes for shape in shapes)
    per_token = sum(shape.kv_bytes_per_token for shape in shapes)
    pdv, pd = (
        mean(run.kv_tokens_peak for run in _at(claim, each, HEADLINE, draws)) * per_token for each in ("pdv", "pd")
    )
    more = 100.0 * ((weights + pdv) / (weights + pd) - 1.0)
    return Finding(more, details={"kv_pd_gb": pd / 1e9, "kv_pdv_gb": pdv / 1e9})


def counted_acceptance(claim: Claim, draws: int) -> Finding:
    """Acceptance of finished requests with the correction counted: cut at C = 96, and whole at 16."""
    whole, cut = (
        [100.0 * run.acceptance for run in _at(claim, "pd", label, draws) if run.acceptance is not None]
        for label in (16, 96)
    )
    return Finding(mean(cut), _of_single_runs(cut), None, {"all": mean(whole)})


def average(claim: Claim, draws: int) -> Finding:
    """Gain of the throughput averaged over labels, in the mean and draw by draw."""
    by_label = {label: _both(claim, label, draws) for label in LABELS}
    num_draws = min(map(len, by_label.values()))
    single = [_gain_pct([by_label[label][draw] for label in LABELS]) for draw in range(num_draws)]
    pdv, pd = (mean(mean(pair[side].tokens_per_s for pair in by_label[label]) for label in LABELS) for side in (0, 1))
    uncut = _gain_pct([pair for label in LABELS if label not in CUT_LABELS for pair in by_label[label]])
    return Finding(mean(single), _of_single_runs(single), None, {"pd": pd, "pdv": pdv, "uncut": uncut})


def _gain_pct(pairs: Sequence[tuple[HarnessRun, HarnessRun]]) -> float:
    """Gain of the sum of throughputs, ours over theirs."""
    return 100.0 * (sum(ours.tokens_per_s for ours, _ in pairs) / sum(theirs.tokens_per_s for _, theirs in pairs) - 1.0)


def improved(claim: Claim, draws: int) -> Finding:
    """Number of labels at which the paired difference of throughputs leaves its interval around nothing."""
    signs = {label: _sign(_both(claim, label, draws)) for label in LABELS}
    drained_signs = {label: _sign(_both(claim, label, draws, drains=True)) for label in CUT_LABELS}
    up = sum(sign > 0 for sign in signs.values())
    down = sum(sign < 0 for sign in signs.values())
    drained_up = sum(sign > 0 for sign in (signs | drained_signs).values())
    return Finding(NUM_MODEL_LABELS * up, details={"up": up, "down": down, "drained_up": drained_up})


def _sign(pairs: Sequence[tuple[HarnessRun, HarnessRun]]) -> int:
    least = SMALLEST_GAIN * mean(other.tokens_per_s for _, other in pairs)
    interval = interval_95([one.tokens_per_s - other.tokens_per_s for one, other in pairs])
    assert interval is not None
    return 1 if interval[0] > least else -1 if interval[1] < -least else 0


def valley(claim: Claim, draws: int) -> Finding:
    gains = [_gain_pct(_both(claim, label, draws)) for label in LABELS if 6 <= label <= 16]
    low, high = min(gains), max(gains)
    return Finding(mean(gains), (low, high), None, {"lowest": low, "highest": high})


def latency(claim: Claim, draws: int) -> Finding:
    """Mean latency of finished requests, and how many are left out."""
    measured = mean_metric(claim, draws)
    finished = mean_of(claim.runs[0], "completed", draws)
    cut = mean(len(arrivals(claim.runs[0]["label"])) - run.completed for run in simulated(claim.runs[0], draws))
    return measured._replace(details={"completed": finished, "cut": cut})


# -- noise between two runs (section D)

PAIR_SPREAD = 0.047
"""Root mean square of eight differences between two runs of the same request by engines that do the same calls
(pdverify): 1,377/1,450, 1,774/1,810, 1,362/1,237 ms at C = 2; 1,364/1,450, 1,837/1,797, 1,231/1,239 ms of decoding at
C = 1; 6,695/6,423, 6,423/6,341 ms in three_way."""
STUDIES_PER_DRAW = 400
"""Pairs of runs behind one of `draws`: they cost nothing."""
RARE = 0.05
"""Noise alone is no explanation of what it shows less often than this."""


def gains_pct(spread: float, num_requests: int, studies: int) -> Floats:
    """[studies] percent by which the p95 of one run of `num_requests` is shorter than another's of the same work.

    `spread` is the standard deviation of the logarithm of the ratio of two single requests. A run has a speed of its
    own that all its requests share (clocks, caches, other tenants): half of the variance is taken as the run's, half as
    the request's. The percentile is numpy's, as the harness takes it.
    """
    random = np.random.default_rng(2000 + num_requests)
    each = spread / sqrt(2.0)
    run, request = each / sqrt(2.0), each / sqrt(2.0)

    def p95() -> Floats:
        shared = random.normal(0.0, run, (studies, 1))
        times: Floats = np.percentile(
            np.exp(shared + random.normal(0.0, request, (studies, num_requests))), 95.0, axis=1
        )
        return times

    baseline, ours = p95(), p95()
    gains: Floats = 100.0 * (1.0 - ours / baseline)
    return gains


def share(gains: Floats, claimed: float) -> float:
    """Share of the studies that show as much as claimed, in its direction."""
    return float(np.mean(gains >= claimed if claimed > 0 else gains <= claimed))


def noise(claim: Claim, draws: int) -> Finding:
    """Gain that noise shows in one pair of runs of `requests`; of several such studies, how often it shows all."""
    studies = [gains_pct(PAIR_SPREAD, requests, draws * STUDIES_PER_DRAW) for requests in claim.args["requests"]]
    probability = prod(share(gains, gain) for gains, gain in zip(studies, claim.args["gains"], strict=True))
    if len(studies) > 1:
        return Finding(probability, None, False, {"percent": 100.0 * probability})
    low, high = _of_single_runs(studies[0])  # type: ignore[arg-type]
    details = {"percent": 100.0 * probability, "low": low, "high": high}
    return Finding(float(np.mean(studies[0])), (low, high), probability >= RARE, details)


# -- tails (section E)


def tails(claim: Claim, draws: int) -> Finding:
    """P99 of ITL over P50, with verify and without."""
    ours, theirs = (mean_of(run, "p99_itl_ms", draws) / mean_of(run, "p50_itl_ms", draws) for run in claim.runs)
    text = f"P99/P50 {ours:.2f} with, {theirs:.2f} without speculation"
    return Finding(text, None, ours > 1.5 * theirs, {"speculative": ours, "plain": theirs})


# -- a laptop's speculation, links (section F)

DRAFTED = 4
ACCEPTED, TOKENS_PER_STEP = 0.5, 3.6
"""Stated: about 50 % of drafted tokens, about 3.6 tokens per target step."""


def readings() -> dict[str, float]:
    """Tokens per target step, the target's included, by what `about 50 % accepted, about 3.6 tokens per step` can
    mean: 50 % of each next token, 50 % of all drafted ones, or 3.6 tokens."""
    return {
        "conditional": IidAcceptance(ACCEPTED).expected_length(DRAFTED),
        "share": 1.0 + ACCEPTED * DRAFTED,
        "length": TOKENS_PER_STEP,
    }


def small_graph(claim: Claim, draws: int) -> Finding:
    """The 0.5B's pass under graphs, by the report's two figures of it."""
    details = {"compute": DRAFT_COMPUTE_MS, "implied": IMPLIED_DRAFT_MS}
    return Finding(DRAFT_EAGER_MS / DRAFT_COMPUTE_MS, details=details)


def tokens_per_step(claim: Claim, draws: int) -> Finding:
    """Tokens per target step by either reading of 50 %."""
    by_reading = readings()
    conditional, shared = by_reading["conditional"], by_reading["share"]
    needed = 100.0 * iid_rate_for_length(by_reading["length"], DRAFTED)
    return Finding(shared, (conditional, shared), None, {"needed": needed, "conditional": conditional})


def speculation(claim: Claim, draws: int) -> Finding:
    """Speed-up over plain decoding (the first run) by reading: of the second run, else of the second and third, whose
    draft is slower, and of the fourth, which launches verify while the draft still runs."""
    plain, *drafted = claim.runs

    def speed_up(spec: Spec, length: float) -> float:
        one = {**spec, "acceptance": f"length:{length}~0"}
        return mean_of(plain, "mean_tpot_ms", draws) / mean_of(one, "mean_tpot_ms", draws)

    by_run = [{name: speed_up(run, length) for name, length in readings().items()} for run in drafted[:2]]
    every = [each for by_reading in by_run for each in by_reading.values()]
    details: dict[str, Detail] = dict(by_run[0])
    is_met = by_run[0]["conditional"] < 1.0 and by_run[0]["share"] < 1.0
    if len(drafted) > 1:
        is_met = min(every) > 1.0
        details |= {f"slower_{name}": each for name, each in by_run[1].items()}
        details |= {"slower_ms": IMPLIED_DRAFT_MS, "compute_ms": DRAFT_COMPUTE_MS}
        details["ahead"] = speed_up(drafted[2], readings()["share"])
    return Finding(by_run[0]["share"], (min(every), max(every)), is_met, details)


def transfer(claim: Claim, draws: int) -> Finding:
    """Milliseconds of KV of the 7B's geometry over the TCP link."""
    link, tokens = link_of("tcp"), claim.args["tokens"]
    num_bytes = tokens * kv_bytes_per_token(model("qwen2.5-7b"), 1)
    seconds = link.latency_s + num_bytes / link.bytes_per_s
    return Finding(1e3 * seconds, details={"megabytes": num_bytes / 1e6, "gb_per_s": num_bytes / seconds / 1e9})


def identical(claim: Claim, draws: int) -> Finding:
    """The same tape served colocated and disaggregated: tokens and rounds of every request."""
    served = []
    for spec in claim.runs:
        profile = profile_of(spec["profile"])
        scenario = Scenario.of(**{key: value for key, value in spec.items() if key != "draws"}, seed=SEED)
        resolved = resolve(scenario, profile, spec["policy"])
        requests = simulate(resolved, child_seed(SEED, 0)).requests
        served.append(list(map(attrgetter("id", "emitted_tokens", "num_rounds", "accepted_tokens"), requests)))
    same, total = sum(one == other for one, other in zip(*served, strict=True)), len(served[0])
    return Finding(f"{same} of {total} requests alike", None, same == total, {"same": same, "total": total})


# -- report 002's deployment table (section G)

PD, PDV, EITHER = "PD", "PDV", "depends on overlap"
THROUGHPUT = "output_throughput"
WORTHWHILE = 0.02
"""Share of throughput: a smaller difference decides nothing; then the simpler scheduler (PD) is taken, as reported."""


def choice(by_level: dict[PhiLevel, Ratio]) -> str:
    """PDV where it is better by more than WORTHWHILE, beyond its interval, at every phi; PD where it is so under
    none; else what overlap is decides."""
    better = [each.low > 1.0 + WORTHWHILE for each in by_level.values()]
    if all(better):
        return PDV
    return EITHER if any(better) else PD


def scheduler(claim: Claim, draws: int) -> Finding:
    """Recommendation by PDV's throughput over PD's (the first two runs), and the best of all runs."""
    by_level = bracketed(claim.runs[0], claim.runs[1], THROUGHPUT, draws)
    recommended, ends = choice(by_level), span(by_level)
    names = (PDV, PD, *(run["policy"] for run in claim.runs[2:]))
    throughputs = {
        name: mean_of(at(run, PhiLevel.MIDDLE), THROUGHPUT, draws) for name, run in zip(names, claim.runs, strict=True)
    }
    best = max(throughputs, key=lambda name: throughputs[name])
    details: dict[str, Detail] = {level.value: each.value for level, each in by_level.items()}
    details |= {"low": ends[0], "high": ends[1], "pd": throughputs[PD], "pdv": throughputs[PDV]}
    details |= {"best": best, "best_tokens_per_s": throughputs[best]}
    return Finding(recommended, ends, recommended == claim.claimed, details)


def switching(claim: Claim, draws: int) -> Finding:
    """`adaptive` by the report's table against PD alone, on a load that swings across its edge; and the table that the
    claims whose ids begin with `rows` give."""
    rows = [each for each in section("G").claims if each.id.startswith(claim.args["rows"])]
    chosen = ["unified" if scheduler(each, draws).simulated == PDV else "pd" for each in rows]
    table = _table_of([each.runs[0]["max_concurrency"] for each in rows], chosen)
    by_level = bracketed(claim.runs[0], claim.runs[1], claim.metric, draws)
    low, high = span(by_level)
    details: dict[str, Detail] = {level.value: each.value for level, each in by_level.items()}
    details |= {"low": low, "high": high, "table": _spoken(table)}
    is_met = all(each.high < 1.0 - WORTHWHILE for each in by_level.values())
    return Finding(by_level[PhiLevel.MIDDLE].value, (low, high), is_met, details)


def _table_of(concurrencies: Sequence[int], chosen: Sequence[str]) -> LoadTable:
    """A row for each change of policy, half-way (in ratio) between the concurrencies on both sides of it.

    >>> _table_of((1, 8, 16, 20, 64), ("pd", "pd", "pd", "unified", "unified"))
    ((1, 'pd'), (18, 'unified'))
    """
    changes = zip(pairwise(concurrencies), pairwise(chosen), strict=True)
    edges = [
        (max(low + 1, round(sqrt(low * high))), after) for (low, high), (before, after) in changes if before != after
    ]
    return (1, chosen[0]), *edges


def _spoken(table: LoadTable) -> str:
    """
    >>> _spoken(((1, "pd"), (23, "unified")))
    'PD, PDV from 23'
    """
    names = {"pd": PD, "unified": PDV}
    return ", ".join(names[policy] + (f" from {start}" if start > 1 else "") for start, policy in table)


# -- passes, acceptance, the bound on overlap (section H)

COST_CONTEXT_TOKENS = 512


def _passes(profile_name: str, num_rows: int) -> dict[str, Cost]:
    """Costs of rows in the middle of their answers: a pass of the target, a verify of DRAFTED tokens, their draft."""
    profile = profile_of(profile_name)
    costs = build_costs(profile, engine_of("ideal", profile))
    requests = [Request(index, str(index), 0.0, COST_CONTEXT_TOKENS, 100) for index in range(num_rows)]
    for request in requests:
        request.prefilled_tokens, request.emitted_tokens = COST_CONTEXT_TOKENS, 1
    seconds = {"target": costs.cost(works.verify(requests)), "undrafted": costs.cost(works.draft(requests, DRAFTED))}
    for request in requests:
        request.drafted = DRAFTED
    return seconds | {
        "verify": costs.cost(works.verify(requests)),
        "draft": costs.cost(works.draft(requests, DRAFTED)),
    }


def cost_line(claim: Claim, draws: int) -> Finding:
    """Milliseconds of a pass of the target, a verify or one drafted token, beside a line fitted in an engine."""
    kind, num_rows = claim.args["kind"], claim.args["rows"]
    seconds = _passes(claim.args["profile"], num_rows)[kind].device_s / (DRAFTED if kind == "draft" else 1)
    tokens = num_rows * (DRAFTED + 1) if kind == "verify" else num_rows
    kv_tokens = num_rows * COST_CONTEXT_TOKENS
    return Finding(1e3 * seconds, details={"tokens": tokens, "kv_tokens": kv_tokens})


def chained(claim: Claim, draws: int) -> Finding:
    """Acceptance length from conditional rates per position."""
    rates = claim.args["rates"]
    return Finding(1.0 + sum(prod(rates[:position]) for position in range(1, len(rates) + 1)))


def overlap_bound(claim: Claim, draws: int) -> Finding:
    """Gain of three lanes that overlap freely on atomic rounds that cannot, beside (Td + Tv) / max(Td, Tv)."""
    gains, bounds = [], []
    for lanes, atomic in zip(claim.runs[::2], claim.runs[1::2], strict=True):
        costs = _passes(lanes["profile"], lanes["max_concurrency"])
        draft_s, verify_s = costs["undrafted"].device_s, costs["verify"].device_s
        gains.append(ratio(lanes, atomic, THROUGHPUT, draws).value)
        bounds.append((draft_s + verify_s) / max(draft_s, verify_s))
    is_met = all(gain <= bound for gain, bound in zip(gains, bounds, strict=True))
    details = {
        "gains": ", ".join(f"{gain:.2f}" for gain in gains),
        "bounds": ", ".join(f"{bound:.2f}" for bound in bounds),
        "rows": ", ".join(str(run["max_concurrency"]) for run in claim.runs[::2]),
    }
    return Finding(max(gains), (min(gains), max(gains)), is_met, details)


MEASURES: dict[str, Callable[[Claim, int], Finding]] = {
    measure.__name__: measure
    for measure in (
        mean_metric, per_s, compared, ranged, stated, completed, windowed, drained, completions, growth, first_prefill,
        utilization, memory, counted_acceptance, average, improved, valley, latency, noise, tails, small_graph,
        tokens_per_step, speculation, transfer, identical, scheduler, switching, cost_line, chained, overlap_bound,
    )
}  # fmt: skip
"""Measures by the name that a claim has for them."""
