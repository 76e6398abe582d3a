"""What might as well be true: profiles within their held-out errors, acceptance within its interval.

A draw is a profile and a quote of acceptance that fit what was measured as well as the given ones, and goes through the
simulator like any other; nothing is added to a result afterwards. Which error becomes which factor:
docs/adr/021-draws-and-tuning.md. Not here: the questions asked of draws (tune, attainment, precision), acceptance's own
uncertainty (sim.acceptance.quoted).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, hypot, log2, pi, sqrt
from statistics import NormalDist
from typing import NamedTuple

import msgspec
import numpy as np

from sim.acceptance.forms import parse_quoted
from sim.acceptance.models import IidAcceptance, PerPositionAcceptance
from sim.acceptance.quoted import Quoted, QuotedModel
from sim.costs.compact_kernels import CompactKernels
from sim.costs.engine_costs import engine_of, with_engine
from sim.costs.profile import SERVED_KINDS, Profile
from sim.draws import Floats, Integers, child_seed
from sim.run.resolve import Resolved, with_keys
from sim.run.scenario import Scenario

DRAW_KEY = 1_000_021
"""Child of the seed that draws come from: adding or leaving out runs changes none of them."""
DEFAULT_DRAWS = 20
MAX_DRAWS = 10_000
LOW_PERCENT, HIGH_PERCENT = 5.0, 95.0
"""Intervals over draws hold 90 % of them."""
SHUFFLES = 200
"""Orders of a factor's shares to choose from."""
SD_PER_MEAN_ABS = sqrt(pi / 2.0)
"""Standard deviation of a normal error over its mean absolute value."""
UNKNOWN_PCT = 10.0
"""Mean absolute error, percent, of a kind of pass that was never validated: the middle of what a peer's cost model has
on its own measured cells, 6.7 to 14 % (aiconfigurator 0.12, dense bf16)."""
BODY_KINDS = ("body", "verify_body")
OCTAVES = 1.0
"""Token counts whose ratio is two to this are correlated by exp(-1/2) in the error of the layers' GEMMs."""
NODES = tuple(2**power for power in range(15))
"""Token counts at which that error is drawn, 1 to 16,384."""
MIN_CHANCE = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """Costs and acceptance that the evidence allows, and requests of their own."""

    seed: int
    """Seed of its requests and what is accepted of their drafts."""
    profile: Profile
    quoted: Quoted | None
    """Acceptance; None where the scenario gives vLLM's own keys, which are exact."""

    def of(self, resolved: Resolved) -> Resolved:
        """`resolved` with these costs and this acceptance."""
        return resolved.drawn(self.profile, self.quoted)

    def scenario(self, scenario: Scenario) -> Scenario:
        """`scenario` with this acceptance, at its own draft length."""
        k = scenario.speculation.num_speculative_tokens
        text = None if self.quoted is None or k == 0 else _text(self.quoted, k)
        if text is None:
            return scenario
        return with_keys(scenario, speculation={"acceptance": text})


def cost_draws(scenario: Scenario, profile: Profile, count: int, seed: int) -> list[Draw]:
    """`count` draws, the same for the same seed whatever is asked of them.

    They are stratified (Latin hypercube; McKay, Beckman, Conover: Technometrics 1979): every factor has one value in
    each of `count` equally likely shares of its distribution, and factors correlate little with each other. So the
    draws spread as their distribution does even where they are few. One draw is a plain random one.

    >>> import lanesim
    >>> scenario = lanesim.Scenario.of(profile="h100-sxm/llama-3.1-8b+eagle3", policy="continuous")
    >>> profile = lanesim.load_profile(scenario.profile)
    >>> sorted(draw.profile.host.served["decode"] > 1.0 for draw in cost_draws(scenario, profile, 2, seed=0))
    [False, True]
    """
    if scenario.speculation.drafts:
        raise ValueError("draws know the errors of one draft model: leave speculation.drafts out, or --draws")
    if count > MAX_DRAWS:
        raise ValueError(f"draws={count} must be at most {MAX_DRAWS:,}")
    quoted = _quoted(scenario)
    # The engine's constants become the profile's own, so that they can be drawn as well.
    based = with_engine(profile, engine_of(scenario.engine.name, profile))
    error_pct = engine_of(scenario.engine.name, profile).error_pct
    strata, draws = _Strata(count, seed), []
    for index in range(count):
        chances = _DrawChances(strata, index)
        # Acceptance is the first factor, so that it draws the same whatever a profile holds.
        own = None if quoted is None else quoted.draw(chances)
        drawn = _drawn_profile(based, error_pct, chances)
        draws.append(Draw(seed=child_seed(seed, index), profile=drawn, quoted=own))
    return draws


def interval_90(values: Sequence[float] | Floats) -> tuple[float, float]:
    """5 and 95 % of `values` [draws] at the ranks (draws + 1) p, which a further draw lies between nine times in ten;
    of fewer than 19 the least and the most.

    >>> interval_90([float(value) for value in range(1, 20)])
    (1.0, 19.0)
    """
    low, high = np.percentile(values, [LOW_PERCENT, HIGH_PERCENT], method="weibull").tolist()
    return low, high


def covers(scenario: Scenario, profile: Profile) -> str:
    """What an interval over draws covers, in a line."""
    spreads = kind_spreads(profile)
    shown = ", ".join(f"{kind} {100.0 * spread.whole:.1f} %" for kind, spread in spreads.items())
    body_pct = 100.0 * body_spread(profile)
    quoted = _quoted(scenario)
    if quoted is None or isinstance(quoted, QuotedModel):
        acceptance = "acceptance as given, which names no uncertainty"
    else:
        acceptance = f"acceptance within what its quote leaves open ({scenario.speculation.acceptance})"
    unknown = [kind for kind in spreads if _mean_pct(profile, kind) is None]
    guessed = f"; {', '.join(unknown)} never validated: {UNKNOWN_PCT:g} % assumed" if unknown else ""
    return (
        f"draws of costs (standard deviations: layers by token count {body_pct:.1f} %, passes {shown}{guessed}), of "
        f"{acceptance}, and of requests"
    )


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
        found: Floats = orders[np.argmin(resemblance)]
        return found


class _DrawChances:
    """Numbers of one draw, a factor each."""

    def __init__(self, strata: _Strata, draw: int) -> None:
        self._strata, self._draw, self._factor = strata, draw, 0

    def random(self) -> float:
        self._factor += 1
        return min(max(self._strata(self._factor - 1, self._draw), MIN_CHANCE), 1.0 - MIN_CHANCE)

    def integers(self, high: int, /, *, size: int) -> Integers:
        """What is drawn again from itself has no shares."""
        return np.random.default_rng(int(self.random() * 2**53)).integers(high, size=size)

    def normal(self, size: int) -> Floats:
        return np.array([NormalDist().inv_cdf(self.random()) for _ in range(size)])


# -- spreads


def body_spread(profile: Profile) -> float:
    """Relative standard deviation of the layers' GEMMs, drawn anew at every octave of token counts; 0 of tables of
    points, which have no layers of their own: there whole passes have the whole error."""
    if not isinstance(profile.kernels, CompactKernels):
        return 0.0
    known = [pct for kind in BODY_KINDS if (pct := _mean_pct(profile, kind)) is not None]
    return SD_PER_MEAN_ABS * max(known, default=0.0) / 100.0


class Spread(NamedTuple):
    """Relative standard deviations of a factor on all passes of a kind."""

    own: float
    shared: float
    """Deviation of the factor that every other kind which was never validated has as well."""

    @property
    def whole(self) -> float:
        return hypot(self.own, self.shared)


def kind_spreads(profile: Profile) -> dict[str, Spread]:
    """What the error of whole passes has beyond the layers', by kind of pass. Kinds that were never validated share
    half of the variance that is assumed of them: they rest on the same constants."""
    body, spreads = body_spread(profile), {}
    for kind in SERVED_KINDS:
        if kind.startswith("draft") and profile.draft is None:
            continue
        pct = _mean_pct(profile, kind)
        beyond = sqrt(max(0.0, (SD_PER_MEAN_ABS * (UNKNOWN_PCT if pct is None else pct) / 100.0) ** 2 - body**2))
        spreads[kind] = Spread(beyond, 0.0) if pct is not None else Spread(beyond / sqrt(2.0), beyond / sqrt(2.0))
    return spreads


def _mean_pct(profile: Profile, kind: str) -> float | None:
    error = profile.errors.get(kind)
    return None if error is None else error.mean_error_pct


def _drawn_profile(profile: Profile, engine_error_pct: float | None, chances: _DrawChances) -> Profile:
    """Every factor is log-normal with median 1."""
    host = profile.host
    served = dict(host.served)
    shared = chances.normal(1)[0]
    for kind, spread in kind_spreads(profile).items():
        served[kind] = served.get(kind, 1.0) * exp(spread.own * chances.normal(1)[0] + spread.shared * shared)
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
    """Ratios by token count times the curve, at the places of both, in the logarithm of the tokens."""
    tokens = sorted({*(tokens for tokens, _ in ratios), *curve})
    places = [log2(count) for count in tokens]
    given = np.interp(places, [log2(count) for count, _ in ratios], [r for _, r in ratios]) if ratios else 1.0
    drawn = np.interp(places, [log2(count) for count in curve], list(curve.values()))
    return tuple(zip(tokens, (given * drawn).tolist(), strict=True))


# -- acceptance


def _quoted(scenario: Scenario) -> Quoted | None:
    speculation = scenario.speculation
    has_keys = speculation.synthetic_acceptance_length or speculation.synthetic_acceptance_rates
    return None if has_keys else parse_quoted(speculation.acceptance)


def _text(quoted: Quoted, k: int) -> str | None:
    """The model of `quoted` at `k` as a scenario writes it; None where it has no form of its own."""
    model = quoted.model(k)
    if isinstance(model, IidAcceptance):
        return f"iid:{model.alpha!r}"
    if isinstance(model, PerPositionAcceptance):
        return "per-position:" + ",".join(repr(rate) for rate in model.rates)
    return None
