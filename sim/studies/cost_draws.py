"""Draws of costs and acceptance within their measured errors.

A draw is a profile and a quote of acceptance that fit what was measured as well as the given ones. It goes through the
simulator like any other. Which error becomes which factor: docs/adr/021-draws-and-tuning.md.
Not here: questions that are asked in draws (tune, attainment, comparison), uncertainty of acceptance
(sim.acceptance.quoted).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log2, pi, sqrt
from statistics import NormalDist
from typing import Any

import msgspec
import numpy as np

from sim.acceptance.quoted import QuotedModel, Synthetic
from sim.acceptance.spread import AssumedSpread
from sim.compare.side_by_side import cost_source
from sim.costs.compact_kernels import CompactKernels
from sim.costs.engine_costs import with_engine
from sim.costs.profile import SERVED_KINDS, Profile
from sim.draws import Floats, Integers, child_seed
from sim.names import span
from sim.run.resolve import Resolved
from sim.run.scenario import to_plain
from sim.studies.served_errors import ErrorChances, level_errors, speedup_errors

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


def cost_draws(resolved: Resolved, count: int, seed: int) -> list[Resolved]:
    """`count` draws of `resolved`, the same for the same seed whatever is asked of them.

    They are stratified (Latin hypercube; McKay, Beckman, Conover: Technometrics 1979): every factor has one value in
    each of `count` equally likely shares of its distribution, and factors correlate little with each other.
    """
    if resolved.scenario.speculation.drafts:
        raise ValueError("draws know the errors of one draft model: leave speculation.drafts out, or --draws")
    if count > MAX_DRAWS:
        raise ValueError(f"draws={count} must be at most {MAX_DRAWS:,}")
    # The engine's constants become the profile's, so that they can be drawn as well.
    based, quoted = with_engine(resolved.profile, resolved.engine), resolved.quoted
    factors, draws = list[Floats](), []
    for index in range(count):
        chances = _Chances(count, seed, index, factors)
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
    passes = span(f"{100.0 * spread:.1f}" for spread in sorted(kind_spreads(profile).values()))
    body_pct, level = 100.0 * body_spread(profile), _percents(level_errors(resolved, drafts=False))
    rounds = f" Rounds of drafts vary by {_percents(speedup_errors())}." if resolved.policy.is_speculative else ""
    if isinstance(quoted, QuotedModel | Synthetic):
        acceptance = "Acceptance is fixed, because it was given without a range"
    else:
        acceptance = f"Acceptance varies within {resolved.scenario.speculation.acceptance}"
    if isinstance(quoted, AssumedSpread):
        low, high = quoted.spreads
        acceptance += f", and between requests by ~{low:g} to ~{high:g}"
    return (
        f"variations of GPU times, acceptance and requests. All passes vary by {level}, as on 90 % of measured servers."
        f"{rounds} Standard deviations: layers {body_pct:.1f} %, timed passes {passes or 0} %. {acceptance}"
    )


def stated(resolved: Resolved, draws: int) -> dict[str, Any]:
    """Fields of an answer that say what was asked, on which costs, and in which draws."""
    return {
        "scenario": to_plain(resolved.scenario),
        "costs": cost_source(resolved.profile),
        "draws": draws,
        "covers": covers(resolved) if draws else "",
    }


def _percents(errors: ErrorChances) -> str:
    """Such as: -7 to +8 %, of a measured time over the simulated one."""
    low, high = (100.0 * (exp(-errors.at(percent / 100.0)) - 1.0) for percent in (HIGH_PERCENT, LOW_PERCENT))
    return f"{low:+.0f} to {high:+.0f} %"


class _Chances:
    """Uniform numbers of one draw, a factor each; `factors` [factors, draws] are those of all draws."""

    def __init__(self, count: int, seed: int, draw: int, factors: list[Floats]) -> None:
        self._count, self._seed, self._draw, self._factors, self._next = count, seed, draw, factors, 0

    def random(self) -> float:
        if self._next == len(self._factors):
            self._factors.append(self._shuffled())
        self._next += 1
        return min(max(float(self._factors[self._next - 1][self._draw]), MIN_CHANCE), 1.0 - MIN_CHANCE)

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


def _drawn_profile(profile: Profile, engine_error_pct: float | None, rounds: float, chances: _Chances) -> Profile:
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
    kernels, curve = profile.kernels, _curve(body_spread(profile), chances)
    if isinstance(kernels, CompactKernels):
        kernels = msgspec.structs.replace(kernels, body_ratios=_times(kernels.body_ratios, curve))
    return msgspec.structs.replace(profile, host=host, kernels=kernels)


def _curve(spread: float, chances: _Chances) -> Floats:
    """[NODES] a smooth random factor by token count."""
    octaves = np.log2(NODES)
    correlation = np.exp(-0.5 * ((octaves[:, None] - octaves[None, :]) / OCTAVES) ** 2)
    root = np.linalg.cholesky(correlation + 1e-9 * np.eye(len(NODES)))
    factors: Floats = np.exp(spread * (root @ chances.normal(len(NODES))))
    return factors


def _times(ratios: tuple[tuple[int, float], ...], curve: Floats) -> tuple[tuple[int, float], ...]:
    """Ratios by token count times the curve, at the token counts of both, in the logarithm of the tokens."""
    tokens = sorted({*(tokens for tokens, _ in ratios), *NODES})
    logs = [log2(count) for count in tokens]
    given = np.interp(logs, [log2(count) for count, _ in ratios], [r for _, r in ratios]) if ratios else 1.0
    drawn = np.interp(logs, [log2(count) for count in NODES], curve)
    return tuple(zip(tokens, (given * drawn).tolist(), strict=True))


def with_times(profile: Profile, *, engine: float = 1.0, passes: float = 1.0) -> Profile:
    """`profile` with the engine's time per step, and every pass, so many times as long."""
    host = profile.host
    served = {kind: passes * host.served.get(kind, 1.0) for kind in SERVED_KINDS} if passes != 1.0 else host.served
    host = msgspec.structs.replace(host, served=served, step_s=engine * host.step_s, row_s=engine * host.row_s)
    return msgspec.structs.replace(profile, host=host)
