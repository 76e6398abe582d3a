"""Draws of costs and acceptance within their measured errors, and the orders of a comparison that hold in them.

A draw is a profile and a quote of acceptance that fit what was measured as well as the given ones, and goes through the
simulator like any other; nothing is added to a result afterwards. Which error becomes which factor:
docs/adr/021-draws-and-tuning.md.

In a draw every policy of a comparison serves the requests of a replication; the ratio of what it takes to that with
costs as given is a factor on its mean. An order that was stated stays only if nine in ten of the differences that
follow have its sign, with the noise of replications, at every phi. Not here: the other questions asked of draws (tune,
attainment), uncertainty of acceptance (sim.acceptance.quoted).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from math import exp, hypot, log2, pi, sqrt
from statistics import NormalDist
from typing import NamedTuple

import msgspec
import numpy as np

from sim.acceptance.quoted import QuotedModel, Synthetic
from sim.acceptance.spread import AssumedSpread
from sim.compare.point_runs import Point, run_points
from sim.compare.pool import OnDone, Runner
from sim.compare.run_length import settled
from sim.compare.side_by_side import Comparison, Drawn, DrawnLevel, drafting, open_phis
from sim.compare.verdict import (
    METRIC,
    STATED,
    Interval,
    Order,
    Paired,
    PolicySummary,
    hull,
    judged,
    order_of,
    sign_of,
    verdict,
)
from sim.costs.compact_kernels import CompactKernels
from sim.costs.engine_costs import with_engine
from sim.costs.profile import SERVED_KINDS, Profile
from sim.devices.contention import BRACKET
from sim.draws import Floats, Integers, child_seed
from sim.metrics.summary import Run, number
from sim.run.resolve import Resolved
from sim.run.scenario import Scenario
from sim.studies.served_errors import ErrorChances, level_errors, speedup_errors
from sim.workload.generate import num_requests

DRAW_KEY = 1_000_021
"""Child of the seed that draws come from: adding or leaving out runs changes none of them."""
DEFAULT_DRAWS = 20
MAX_DRAWS = 10_000
LOW_PERCENT, HIGH_PERCENT = 5.0, 95.0
"""Intervals over draws hold 90 % of them."""
LEAST = LOW_PERCENT / 100.0
"""Levels are drawn within their 90 %: beyond lie set-ups that are off by half and more, with labels in doubt mostly."""
SHUFFLES = 200
"""Orders of a factor's shares to choose from."""
SD_PER_MEAN_ABS = sqrt(pi / 2.0)
"""Standard deviation of a normal error over its mean absolute value."""
ROUND_KINDS = ("verify", "draft", "draft_prefill")
"""Passes that are there for drafts alone: the error of a speed-up is theirs."""
BODY_KINDS = ("body", "verify_body")
OCTAVES = 1.0
"""Token counts whose ratio is two to this are correlated by exp(-1/2) in the error of the layers' GEMMs."""
NODES = tuple(2**power for power in range(15))
"""Token counts at which that error is drawn, 1 to 16,384."""
MIN_CHANCE = 1e-12
COMPARED_DRAWS = 10
FEWEST_OF_90 = 19
"""Draws from which on their interval is less than their range."""
LEAST_PROMPTS, LEAST_PER_SLOT = 50, 3
"""Requests of a run in a draw: at least, and for each that a closed loop has in flight."""
ONLY_IF = "an order is stated only if it holds in"
"""Beginning of the note on draws, which the sentence sums up."""
ORDERED = (*STATED, Order.OVERLAP)


def cost_draws(resolved: Resolved, count: int, seed: int) -> list[Resolved]:
    """`count` draws of `resolved`, the same for the same seed whatever is asked of them.

    They are stratified (Latin hypercube; McKay, Beckman, Conover: Technometrics 1979): every factor has one value in
    each of `count` equally likely shares of its distribution, and factors correlate little with each other. So the
    draws spread as their distribution does even where they are few. One draw is a plain random one.

    >>> import lanesim
    >>> from sim.run.resolve import resolve
    >>> scenario = lanesim.Scenario.of(profile="h100-sxm/llama-3.1-8b+eagle3", policy="continuous")
    >>> resolved = resolve(scenario, lanesim.load_profile(scenario.profile), "continuous")
    >>> sorted(draw.profile.host.served["decode"] > 1.0 for draw in cost_draws(resolved, 2, seed=0))
    [False, True]
    """
    if resolved.scenario.speculation.drafts:
        raise ValueError("draws know the errors of one draft model: leave speculation.drafts out, or --draws")
    if count > MAX_DRAWS:
        raise ValueError(f"draws={count} must be at most {MAX_DRAWS:,}")
    # The engine's constants become the profile's, so that they can be drawn as well.
    based, quoted = with_engine(resolved.profile, resolved.engine), resolved.quoted
    strata, draws = _Strata(count, seed), []
    for index in range(count):
        chances = _DrawChances(strata, index)
        # Acceptance is the first factor, so that it draws the same whatever a profile holds.
        accepted = quoted.draw(chances)
        level = exp(-level_errors(resolved, drafts=False).at(min(max(chances.random(), LEAST), 1.0 - LEAST)))
        rounds = exp(-speedup_errors().at(chances.random())) if resolved.policy.is_speculative else 1.0
        drawn = _drawn_profile(based, resolved.engine.error_pct, rounds, chances)
        draws.append(resolved.drawn(with_times(drawn, engine=level, passes=level), accepted))
    return draws


def seeds_of(draws: Sequence[Resolved]) -> list[int]:
    """[draws] seeds of requests that each draw has for itself."""
    return [child_seed(draw.scenario.seed, index) for index, draw in enumerate(draws)]


def interval_90(values: Sequence[float] | Floats) -> tuple[float, float]:
    """5 and 95 % of `values` [draws] at the ranks (draws + 1) p, which a further draw lies between nine times in ten;
    of fewer than 19 the least and the most.

    >>> interval_90([3.0, 1.0, 2.0]), *(interval_90([float(n) for n in range(1, most)]) for most in (20, 40))
    ((1.0, 3.0), (1.0, 19.0), (2.0, 38.0))
    """
    low, high = np.percentile(values, [LOW_PERCENT, HIGH_PERCENT], method="weibull").tolist()
    return low, high


def covers(resolved: Resolved) -> str:
    """Errors that an interval over draws covers, in a line."""
    profile, quoted = resolved.profile, resolved.quoted
    shown = ", ".join(f"{kind} {100.0 * spread:.1f} %" for kind, spread in kind_spreads(profile).items())
    body_pct, level = 100.0 * body_spread(profile), _percents(level_errors(resolved, drafts=False))
    rounds = f", rounds of drafts {_percents(speedup_errors())}" if resolved.policy.is_speculative else ""
    if isinstance(quoted, QuotedModel | Synthetic):
        acceptance = "acceptance as given, which names no uncertainty"
    else:
        acceptance = f"acceptance within what its quote leaves open ({resolved.scenario.speculation.acceptance})"
    if isinstance(quoted, AssumedSpread):
        low, high = quoted.spreads
        acceptance += f", by which requests differ (~{low:g} to ~{high:g})"
    return (
        f"draws of costs (all passes {level}{rounds}, 5 to 95 % of served cells; standard deviations: layers by token "
        f"count {body_pct:.1f} %, passes that were timed {shown or 'none'}), of {acceptance}, and of requests"
    )


def _percents(errors: ErrorChances) -> str:
    """Such as: -7 to +8 %, of a measured time over the simulated one."""
    low, high = (100.0 * (exp(-errors.at(percent / 100.0)) - 1.0) for percent in (HIGH_PERCENT, LOW_PERCENT))
    return f"{low:+.0f} to {high:+.0f} %"


class _Strata:
    """Uniform numbers by factor and draw."""

    def __init__(self, count: int, seed: int) -> None:
        self._count, self._seed = count, seed
        self._factors: list[Floats] = []

    def __call__(self, factor: int, draw: int) -> float:
        while len(self._factors) <= factor:
            self._factors.append(self._shuffled())
        return float(self._factors[factor][draw])

    def _shuffled(self) -> Floats:
        """One number in each share [draws], in that one of a few random orders that resembles the factors before it
        least."""
        rng = np.random.default_rng(child_seed(self._seed, DRAW_KEY, len(self._factors)))
        shares = (np.arange(self._count) + rng.random(self._count)) / self._count
        if not self._factors or self._count == 1:
            return rng.permutation(shares)
        orders = rng.permuted(np.tile(shares, (SHUFFLES, 1)), axis=1)
        resemblance = np.square((orders - shares.mean()) @ (np.stack(self._factors).T - 0.5)).sum(axis=1)
        least: Floats = orders[np.argmin(resemblance)]
        return least


class _DrawChances:
    """Numbers of one draw, a factor each."""

    def __init__(self, strata: _Strata, draw: int) -> None:
        self._strata, self._draw, self._factor = strata, draw, 0

    def random(self) -> float:
        self._factor += 1
        return min(max(self._strata(self._factor - 1, self._draw), MIN_CHANCE), 1.0 - MIN_CHANCE)

    def integers(self, high: int, /, *, size: int) -> Integers:
        """Resamples of a sample, which have no shares."""
        return np.random.default_rng(int(self.random() * 2**53)).integers(high, size=size)

    def normal(self, size: int) -> Floats:
        return np.array([NormalDist().inv_cdf(self.random()) for _ in range(size)])


# -- spreads


def body_spread(profile: Profile) -> float:
    """Relative standard deviation of the layers' GEMMs, drawn anew at every octave of token counts; 0 of tables of
    points, which have no layers: there whole passes have the whole error."""
    if not isinstance(profile.kernels, CompactKernels):
        return 0.0
    known = [pct for kind in BODY_KINDS if (pct := profile.mean_errors_pct.get(kind)) is not None]
    return SD_PER_MEAN_ABS * max(known, default=0.0) / 100.0


def kind_spreads(profile: Profile) -> dict[str, float]:
    """Relative standard deviation of whole passes beyond the layers', by kind of pass that was timed by itself."""
    body = body_spread(profile)
    return {
        kind: sqrt(max(0.0, (SD_PER_MEAN_ABS * pct / 100.0) ** 2 - body**2))
        for kind in SERVED_KINDS
        if (pct := profile.mean_errors_pct.get(kind)) is not None
    }


def _drawn_profile(profile: Profile, engine_error_pct: float | None, rounds: float, chances: _DrawChances) -> Profile:
    """Every factor is log-normal with median 1; passes of rounds take `rounds` times as long besides."""
    host = profile.host
    served = dict(host.served)
    for kind, spread in kind_spreads(profile).items():
        served[kind] = served.get(kind, 1.0) * exp(spread * chances.normal(1)[0])
    for kind in ROUND_KINDS:
        served[kind] = served.get(kind, 1.0) * rounds
    engine_factor = exp((engine_error_pct or 0.0) / 100.0 * chances.normal(1)[0])
    host = msgspec.structs.replace(
        host, served=served, step_s=host.step_s * engine_factor, row_s=host.row_s * engine_factor
    )
    curve = _curve(body_spread(profile), chances)
    kernels = profile.kernels
    if isinstance(kernels, CompactKernels):
        kernels = msgspec.structs.replace(kernels, body_ratios=_times(kernels.body_ratios, curve))
    return msgspec.structs.replace(profile, host=host, kernels=kernels)


def _curve(spread: float, chances: _DrawChances) -> dict[int, float]:
    """A smooth random factor by token count."""
    octaves = np.log2(NODES)
    correlation = np.exp(-0.5 * ((octaves[:, None] - octaves[None, :]) / OCTAVES) ** 2)
    root = np.linalg.cholesky(correlation + 1e-9 * np.eye(len(NODES)))
    factors: Floats = np.exp(spread * (root @ chances.normal(len(NODES))))
    return dict(zip(NODES, factors.tolist(), strict=True))


def _times(ratios: tuple[tuple[int, float], ...], curve: Mapping[int, float]) -> tuple[tuple[int, float], ...]:
    """Ratios by token count times the curve, at the token counts of both, in the logarithm of the tokens."""
    tokens = sorted({*(tokens for tokens, _ in ratios), *curve})
    logs = [log2(count) for count in tokens]
    given = np.interp(logs, [log2(count) for count, _ in ratios], [r for _, r in ratios]) if ratios else 1.0
    drawn = np.interp(logs, [log2(count) for count in curve], list(curve.values()))
    return tuple(zip(tokens, (given * drawn).tolist(), strict=True))


def with_times(profile: Profile, *, engine: float = 1.0, passes: float = 1.0) -> Profile:
    """`profile` with the engine's time per step, and every pass, so many times as long."""
    host = profile.host
    served = {kind: passes * host.served.get(kind, 1.0) for kind in SERVED_KINDS} if passes != 1.0 else host.served
    host = msgspec.structs.replace(host, served=served, step_s=engine * host.step_s, row_s=engine * host.row_s)
    return msgspec.structs.replace(profile, host=host)


# -- a comparison in draws


def over_draws(
    result: Comparison,
    policies: Sequence[Resolved],
    draws: int | None = None,
    *,
    workers: int | None = None,
    on_done: OnDone = lambda stage, done, total: None,
) -> Comparison:
    """`result` of `policies` with levels and differences in `draws` draws, and without the orders that do not hold
    there.

    Left open, there are COMPARED_DRAWS of the policies with steady means, if `result` orders any of them, in runs so
    short that all of them serve no more requests than those of `result` did.
    """
    policies = [settled(one, result.length) for one in policies]
    scenario, profile = policies[0].scenario, policies[0].profile
    drawn, shown = scenario, result.policies
    if draws is None:
        shown = [row for row in result.policies if row.load.is_steady]
        is_ordered = any(row.order in ORDERED and row.metric == METRIC for row in result.paired)
        if not is_ordered or scenario.speculation.drafts:
            return result
        drawn = _shortened(scenario, result, len(shown))
    elif draws < 2:
        raise ValueError(f"draws={draws!r} must be at least 2, or 0 for none: one draw says nothing of others")
    count = draws or COMPARED_DRAWS
    named = {one.label: one for one in policies}
    ran = [named[row.policy] for row in shown]
    worlds = _worlds(result, ran, drawn, count, Runner(workers, on_done))
    levels = [level for row in shown if (level := worlds.level(row)) is not None]
    differences, paired = [], []
    phi = profile.phi
    for row in result.paired:
        difference = worlds.difference(row)
        if difference is None:
            paired.append(row)
            continue
        mean, intervals, alone = difference
        orders = [sign_of(interval) or Order.DRAWS for interval in intervals]
        middle = len(intervals) // 2
        differences.append(
            Drawn(a=row.a, b=row.b, metric=row.metric, mean=mean, interval=intervals[middle], order=orders[middle])
        )
        if row.order in STATED:
            order, interval = row.order, hull(intervals)
            if set(orders) != {order}:
                is_theirs = any(sign_of(each) is not order for each in alone)
                order = Order.DRAWS if is_theirs else order_of(interval, worlds.lower_mean(row))
            row = msgspec.structs.replace(row, order=order, interval=interval)
        elif row.break_even_phi is not None:
            open_at = open_phis((phi.low, phi.value, phi.high), intervals)
            row = msgspec.structs.replace(row, break_even_ci95=open_at or row.break_even_ci95)
        paired.append(row)
    which = f"{'all' if count < FEWEST_OF_90 else '90 %'} of {count}"
    length = "" if drawn is scenario else f", in runs of {num_requests(drawn.workload)} requests each"
    note = f"{ONLY_IF} {which} {covers(policies[0])}{length}"
    summaries = judged(result.policies, paired)
    return msgspec.structs.replace(
        result,
        policies=summaries,
        paired=paired,
        verdict=verdict(summaries, paired, drafting(policies)),
        drawn=differences,
        drawn_levels=levels,
        notes=[*result.notes, note],
    )


def _shortened(scenario: Scenario, result: Comparison, num_policies: int) -> Scenario:
    """`scenario` with so many requests that COMPARED_DRAWS of it, and as many runs with costs as given as there are
    replications, take what `result` took; itself if it has no more."""
    count, workload, replications = num_requests(scenario.workload), scenario.workload, scenario.replications
    num_runs = replications * sum(len(row.by_overlap) or 1 for row in result.policies) / num_policies
    if num_runs >= COMPARED_DRAWS:
        return scenario
    least = max(LEAST_PROMPTS, LEAST_PER_SLOT * (workload.max_concurrency or 0))
    shorter = max(least, int(count * num_runs / (COMPARED_DRAWS + replications)))
    if shorter >= count:
        return scenario
    warmups, cooldowns = (shorter * left_out // count for left_out in (workload.num_warmups, workload.num_cooldowns))
    return msgspec.structs.replace(scenario, workload=workload.sized(shorter, warmups, cooldowns))


def _worlds(result: Comparison, policies: Sequence[Resolved], drawn: Scenario, count: int, runner: Runner) -> _Worlds:
    """Runs of `policies` at the length of `drawn` in `count` draws, the requests those of the replications in turn; and
    with costs as given where that is not the length of `result`."""
    scenario = policies[0].scenario
    seeds = [child_seed(scenario.seed, replication) for replication in range(min(count, scenario.replications))]
    shorter = [one if drawn is scenario else one.changed(workload=drawn.workload) for one in policies]
    points = [
        Point(resolved=draw, seed=seeds[index % len(seeds)])
        for one in shorter
        for index, draw in enumerate(cost_draws(one, count, scenario.seed))
    ]
    given = [Point(resolved=one, seed=seed) for one in shorter for seed in seeds if drawn is not scenario]
    outcomes = (outcome.run for outcome in run_points([*points, *given], runner, "draws"))
    worlds = {one.label: list(islice(outcomes, count)) for one in policies}
    as_given = {one.label: [run for run in result.runs if run["policy"] == one.label] for one in policies}
    if given:
        as_given = {one.label: list(islice(outcomes, len(seeds))) for one in policies}
    runs = {
        policy: [(world, as_given[policy][index % len(seeds)]) for index, world in enumerate(of_policy)]
        for policy, of_policy in worlds.items()
    }
    return _Worlds({row.policy: row for row in result.policies}, runs)


class _Worlds(NamedTuple):
    """Means of a comparison in draws of costs and acceptance: a factor each, from two runs of the same
    requests. So the noise of requests, which replications tell, is not in it twice."""

    policies: Mapping[str, PolicySummary]
    runs: Mapping[str, Sequence[tuple[Run, Run]]]
    """[draws] a run with costs as drawn and as given, by policy."""

    def level(self, row: PolicySummary) -> DrawnLevel | None:
        """The policy's mean E2EL; None where some run has none."""
        mean, factors = row.mean[METRIC], self._factors(row.policy, METRIC)
        if mean is None or factors is None:
            return None
        interval = _around(mean, (mean * factors).tolist(), row.ci95[METRIC])
        return DrawnLevel(policy=row.policy, mean_e2el_ms=mean, interval=interval)

    def lower_mean(self, row: Paired) -> float:
        return min((self.policies[name].mean[row.metric] or 0.0 for name in (row.a, row.b)), key=abs)

    def difference(self, row: Paired) -> tuple[float, list[Interval], list[Interval]] | None:
        """Mean over the draws, and the interval at each phi of the bracket with what the replications leave open and
        without, of `a` - `b`; None where some run has no value, or was not made."""
        sides = [(self._means(policy, row), self._factors(policy, row.metric)) for policy in (row.a, row.b)]
        (ours, our_factors), (theirs, their_factors) = sides
        if not ours or not theirs or our_factors is None or their_factors is None:
            return None
        by_phi = [mine * our_factors - other * their_factors for mine, other in zip(ours, theirs, strict=True)]
        intervals, alone = (
            [
                _around(mine - other, differences.tolist(), ci95)
                for mine, other, differences in zip(ours, theirs, by_phi, strict=True)
            ]
            for ci95 in (row.ci95, None)
        )
        return float(by_phi[len(by_phi) // 2].mean()), intervals, alone

    def _means(self, policy: str, row: Paired) -> list[float]:
        """[phi, or one] means of the replications; none where some run has no value."""
        summary = self.policies[policy]
        by_phi = [means[row.metric] for means in summary.by_overlap.values()] or [summary.mean[row.metric]] * len(
            BRACKET
        )
        means = [mean for mean in by_phi if mean is not None]
        if len(means) < len(BRACKET):
            return []
        return means if row.by_overlap else [means[len(BRACKET) // 2]]

    def _factors(self, policy: str, metric: str) -> Floats | None:
        pairs = [(number(drawn, metric), number(given, metric)) for drawn, given in self.runs.get(policy, ())]
        factors = [drawn / given for drawn, given in pairs if drawn is not None and given]
        return np.array(factors) if factors and len(factors) == len(pairs) else None


def _around(mean: float, drawn: Sequence[float], ci95: Interval | None) -> Interval:
    """Interval of nine draws in ten, with what the replications leave open of the mean."""
    low, high = interval_90(drawn)
    half = 0.0 if ci95 is None else (ci95[1] - ci95[0]) / 2.0
    return mean - hypot(max(0.0, mean - low), half), mean + hypot(max(0.0, high - mean), half)
