"""Formulas of claims: Python expressions over their runs, with the functions below and no others.

Not here: runs (validation.claims.runs), claims (validation/claims/claims.yaml).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, pairwise
from math import ceil, floor, prod, sqrt
from operator import attrgetter
from statistics import mean as exact_mean
from statistics import median
from typing import Any

import numpy as np

from sim.acceptance.models import IidAcceptance
from sim.acceptance.quoted import iid_rate_for_length
from sim.costs.engine_costs import engine_of
from sim.costs.forms.build import build_costs
from sim.costs.shapes import kv_bytes_per_token, model
from sim.devices.contention import BRACKET, PhiLevel
from sim.devices.link import link_of
from sim.draws import Floats
from sim.interface.request import Request
from sim.metrics.stats import interval_95
from sim.policies import works
from sim.policies.adaptive import LoadTable
from validation.claims.ledger import Claim, Finding, Interval, section
from validation.claims.runs import (
    DRAFT_COMPUTE_MS,
    DRAFT_EAGER_MS,
    IMPLIED_DRAFT_MS,
    PROFILE,
    RunMetrics,
    profile_of,
    records,
)
from validation.tables import evaluated, off_pct

FORMS: dict[str, Callable[[float], float]] = {
    "ratio": float,
    "more": lambda one: off_pct(one, 1.0),
    "less": lambda one: 100.0 * (1.0 - one),
    "seconds": lambda milliseconds: 0.001 * milliseconds,
}
"""Ways to state the mean of a claim's figures."""


def finding(claim: Claim, draws: int) -> Finding | None:
    """The claim's simulated figure; None where its conditions are missing."""
    if not claim.of and not claim.figure:
        return None
    names = names_of(claim, PhiLevel.MIDDLE if claim.bracket else None, draws)
    simulated: float | None = None
    interval: Interval | None = None
    if claim.of:
        levels = BRACKET if claim.bracket else (None,)
        by_level = [list(map(float, evaluated(claim.of, names_of(claim, level, draws)))) for level in levels]
        form, ends = FORMS[claim.form], list(map(single_runs if claim.interval == "runs" else mean_ends, by_level))
        phis, (lows, highs) = [form(mean(of)) for of in by_level], zip(*ends, strict=True)
        low, high = sorted(map(form, (min(lows), max(highs))))
        simulated, interval = phis[len(phis) // 2], (low, high)
        if claim.bracket:
            names |= dict(zip((*map(str, BRACKET), "low", "high"), (*phis, low, high), strict=True))
            names |= {"lows": lows, "highs": highs, "phis": phis}
    for name, formula in claim.let.items():
        names[name] = evaluated(formula, names)
    details = {name: names[name] for name in (*map(str, BRACKET), "low", "high", *claim.let) if name in names}
    if claim.interval == "none":
        interval = None
    elif claim.interval not in ("mean", "runs"):
        low, high = map(float, evaluated(claim.interval, names))
        interval = low, high
    return Finding(
        _plain(evaluated(claim.figure, names)) if claim.figure else simulated,
        interval,
        bool(evaluated(claim.met, names)) if claim.met else None,
        {name: _plain(each) for name, each in details.items() if isinstance(each, int | float | str)},
    )


def _plain(figure: Any) -> Any:
    return float(figure) if isinstance(figure, float) else figure


def names_of(claim: Claim, level: PhiLevel | None, draws: int) -> dict[str, Any]:
    """The words of the claim's formulas, its runs at an assumed overlap."""
    runs = [RunMetrics(spec, level, draws) for spec in claim.runs]
    names = {**FUNCTIONS, **dict(zip("abcdef", runs, strict=False)), "runs": runs, "claimed": claim.claimed}
    if claim.low is not None or not isinstance(claim.claimed, str):
        lowest, highest = claim.bounds()
        names |= {"lowest": lowest, "highest": highest}
        names["inside"] = lambda values: all(lowest <= each <= highest for each in values)
    return names | {"table_of": lambda begin: spoken(begin, draws), "draws": draws}


# -- functions of formulas


def mean(figures: Iterable[float]) -> float:
    return exact_mean(map(float, figures))


def mean_ends(figures: Sequence[float]) -> Interval:
    return interval_95(figures) or (figures[0], figures[0])


def single_runs(figures: Sequence[float]) -> Interval:
    """Bounds between which 95 % of the draws lie."""
    low, high = np.quantile(figures, [0.025, 0.975])
    return float(low), float(high)


def gain_pct(ours: Iterable[Floats], theirs: Iterable[Floats]) -> float:
    """Percent by which the sum of ours exceeds that of theirs."""
    return 100.0 * (float(sum(chain(*ours))) / float(sum(chain(*theirs))) - 1.0)


def sign(ours: Floats, theirs: Floats) -> int:
    """1 or -1 where the paired difference leaves its interval around nothing and is more than a hundredth."""
    least = 0.01 * mean(theirs)
    low, high = mean_ends(list(map(float, ours - theirs)))
    return 1 if low > least else -1 if high < -least else 0


def round_ms() -> float:
    """Four draft and two target calls of report 002's harness."""
    costs = profile_of(PROFILE).linear
    assert costs.draft is not None
    return 1e3 * (4 * costs.draft.pass_s + 2 * costs.target.pass_s)


def memory_bytes(kv_tokens: float) -> tuple[float, float]:
    """Weights of the harness's two models, and their KV of so many tokens."""
    profile = profile_of(PROFILE)
    assert profile.draft is not None
    shapes = (profile.target, profile.draft)
    return sum(each.weight_bytes for each in shapes), kv_tokens * sum(each.kv_bytes_per_token for each in shapes)


PAIR_SPREAD = 0.047
"""Root mean square of eight differences between two runs of the same request by engines that do the same calls
(pdverify): 1,377/1,450, 1,774/1,810, 1,362/1,237 ms at C = 2; 1,364/1,450, 1,837/1,797, 1,231/1,239 ms of decoding at
C = 1; 6,695/6,423, 6,423/6,341 ms in three_way."""


def noise_pct(num_requests: int, studies: int, spread: float = PAIR_SPREAD) -> Floats:
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
        times = np.exp(shared + random.normal(0.0, request, (studies, num_requests)))
        slow: Floats = np.percentile(times, 95.0, axis=1)
        return slow

    baseline, ours = p95(), p95()
    gains: Floats = 100.0 * (1.0 - ours / baseline)
    return gains


def shows(gains: Floats, claimed: float) -> float:
    """Share of the studies that show as much as claimed, in its direction."""
    return float(np.mean(gains >= claimed if claimed > 0 else gains <= claimed))


def transferred(tokens: int) -> tuple[float, float]:
    """Bytes of KV of the 7B's geometry, and the seconds that they take over the TCP link."""
    link, num_bytes = link_of("tcp"), tokens * kv_bytes_per_token(model("qwen2.5-7b"), 1)
    return num_bytes, link.latency_s + num_bytes / link.bytes_per_s


def alike(*runs: RunMetrics) -> tuple[int, int]:
    """Requests that emit the same tokens in the same rounds in both runs under one tape, and all of them."""
    fields = attrgetter("id", "emitted_tokens", "num_rounds", "accepted_tokens")
    served = [list(map(fields, records(profile_of(run.spec["profile"]), 1, run.spec)[0].requests)) for run in runs]
    return sum(one == other for one, other in zip(*served, strict=True)), len(served[0])


WORTHWHILE = 0.02
"""Share of throughput. A smaller gain decides nothing, and the simpler scheduler is taken (PD), as reported."""


def choice(lows: Sequence[float]) -> str:
    """PDV where it beats PD by more than WORTHWHILE, beyond its interval, at every phi. PD where it does at none."""
    better = [low > 1.0 + WORTHWHILE for low in lows]
    return "PDV" if all(better) else "depends on overlap" if any(better) else "PD"


def fastest(runs: Sequence[RunMetrics]) -> str:
    """The scheduler of most tokens per second, as the report calls it."""
    best: str = max(runs, key=lambda run: mean(run.output_throughput)).spec["policy"]
    return {"unified": "PDV", "pd": "PD"}.get(best, best)


def spoken(begin: str, draws: int) -> str:
    """The table of schedulers by load that the claims of section G give whose ids begin so: 'PD, PDV from 23'."""
    rows = [each for each in section("G").claims if each.id.startswith(begin)]
    chosen = ["unified" if (finding(each, draws) or Finding(None)).simulated == "PDV" else "pd" for each in rows]
    table = _table_of([each.runs[0]["max_concurrency"] for each in rows], chosen)
    names = {"pd": "PD", "unified": "PDV"}
    return ", ".join(names[policy] + (f" from {start}" if start > 1 else "") for start, policy in table)


DRAFTED, COST_CONTEXT_TOKENS = 4, 512


def pass_s(profile_name: str, kind: str, num_rows: int) -> float:
    """A pass over rows amid their answers: `target`, `verify` of DRAFTED tokens, `draft`, or `undrafted` before it."""
    profile = profile_of(profile_name)
    costs = build_costs(profile, engine_of("ideal", profile))
    requests = [Request(index, str(index), 0.0, COST_CONTEXT_TOKENS, 100) for index in range(num_rows)]
    for request in requests:
        request.prefilled_tokens, request.emitted_tokens = COST_CONTEXT_TOKENS, 1
        request.drafted = DRAFTED if kind in ("verify", "draft") else request.drafted
    work = works.verify(requests) if kind in ("target", "verify") else works.draft(requests, DRAFTED)
    return costs.cost(work).device_s


FUNCTIONS: dict[str, Any] = {
    **{each.__name__: each for each in (
        abs, all, ceil, floor, int, len, max, min, prod, range, sum, zip, median, mean, gain_pct, sign, round_ms,
        memory_bytes, noise_pct, shows, transferred, alike, choice, fastest, pass_s, iid_rate_for_length, single_runs,
    )},
    "average": lambda figures: float(np.mean(figures)),
    "listed": lambda figures, digits: ", ".join(f"{figure:.{digits}f}" for figure in figures),
    "expected_length": lambda rate, k: IidAcceptance(rate).expected_length(k),
    "DRAFT_COMPUTE_MS": DRAFT_COMPUTE_MS, "DRAFT_EAGER_MS": DRAFT_EAGER_MS, "IMPLIED_DRAFT_MS": IMPLIED_DRAFT_MS,
    "WORTHWHILE": WORTHWHILE,
}  # fmt: skip
"""Words of formulas beside the names of the claim's runs and of its other formulas."""


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
