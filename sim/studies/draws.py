"""What might as well be true: profiles within their held-out errors, acceptance within its interval.

A draw is a profile and a quote of acceptance that fit what was measured as well as the given ones, and goes through the
simulator like any other; nothing is added to a result afterwards. Which error becomes which factor:
docs/adr/021-draws-and-tuning.md. Not here: the questions asked of draws (tune, verdicts), acceptance's own uncertainty
(sim.acceptance.quoted).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import exp, hypot, log2, pi, sqrt
from typing import NamedTuple

import msgspec
import numpy as np

from sim.acceptance.forms import parse_quoted
from sim.acceptance.models import IidAcceptance, PerPositionAcceptance
from sim.acceptance.quoted import Quoted, QuotedModel
from sim.costs.engine import engine_of, with_engine
from sim.costs.kernels import CompactKernels
from sim.costs.profile import SERVED_KINDS, Profile
from sim.draws import Floats, child_seed
from sim.experiment.scenario import Scenario

DRAW_KEY = 1_000_021
"""Child of the scenario's seed that draws come from: adding or leaving out runs changes none of them."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One world that the evidence allows."""

    seed: int
    """Of its requests and their luck."""
    profile: Profile
    quoted: Quoted | None
    """Acceptance; None where the scenario gives vLLM's own keys, which are exact."""

    def scenario(self, scenario: Scenario) -> Scenario:
        """`scenario` with this acceptance, at its own draft length."""
        speculation = scenario.speculation
        k = speculation.num_speculative_tokens
        if self.quoted is None or k == 0:
            return scenario
        text = _text(self.quoted, k)
        if text is None:
            return scenario
        return msgspec.structs.replace(scenario, speculation=msgspec.structs.replace(speculation, acceptance=text))


def draw_worlds(scenario: Scenario, profile: Profile, count: int) -> list[Draw]:
    """`count` draws, the same for the same scenario whatever is asked of them; one draw begins like a thousand.

    Costs come in pairs, one as much above the profile's as the other is below, so that no choice hangs on which way a
    few draws lean.

    >>> import lanesim
    >>> scenario = lanesim.Scenario.of(profile="h100-sxm/llama-3.1-8b+eagle3", policy="continuous")
    >>> profile = lanesim.load_profile(scenario.profile)
    >>> [world.profile.host.served["decode"] != 1.0 for world in draw_worlds(scenario, profile, 2)]
    [True, True]
    """
    if scenario.speculation.drafts:
        raise ValueError("draws know the errors of one draft model: leave speculation.drafts out, or --draws")
    quoted = _quoted(scenario)
    # The engine's constants become the profile's own, so that they can be drawn as well.
    based = with_engine(profile, engine_of(scenario.engine.name, profile))
    error_pct = engine_of(scenario.engine.name, profile).error_pct
    worlds = []
    for index in range(count):
        rng = np.random.default_rng(child_seed(scenario.seed, DRAW_KEY, index // 2))
        normal = _Normal(rng, 1.0 if index % 2 == 0 else -1.0)
        worlds.append(
            Draw(
                seed=child_seed(scenario.seed, index),
                profile=_drawn_profile(based, error_pct, normal),
                quoted=None if quoted is None else quoted.draw(rng),
            )
        )
    return worlds


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
        f"{acceptance}, and of requests and luck"
    )


class _Normal:
    """Standard normal numbers, all of one sign's way round."""

    def __init__(self, rng: np.random.Generator, sign: float) -> None:
        self._rng, self._sign = rng, sign

    def __call__(self, size: int) -> Floats:
        return self._sign * self._rng.standard_normal(size)


# -- spreads


def body_spread(profile: Profile) -> float:
    """Relative standard deviation of the layers' GEMMs, drawn anew at every octave of token counts."""
    known = [pct for kind in BODY_KINDS if (pct := _mean_pct(profile, kind)) is not None]
    return SD_PER_MEAN_ABS * max(known, default=0.0) / 100.0


class Spread(NamedTuple):
    """Relative standard deviations of a factor on all passes of a kind."""

    own: float
    shared: float
    """With every other kind that was never validated either."""

    @property
    def whole(self) -> float:
        return hypot(self.own, self.shared)


def kind_spreads(profile: Profile) -> dict[str, Spread]:
    """By kind of pass: what the error of whole passes has beyond the layers'. Kinds that were never validated share
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


def _drawn_profile(profile: Profile, engine_error_pct: float | None, normal: Callable[[int], Floats]) -> Profile:
    """Every factor is log-normal with median 1; `normal` gives as many standard normal numbers as it is asked for."""
    host = profile.host
    served = dict(host.served)
    shared = normal(1)[0]
    for kind, spread in kind_spreads(profile).items():
        served[kind] = served.get(kind, 1.0) * exp(spread.own * normal(1)[0] + spread.shared * shared)
    engine_factor = exp((engine_error_pct or 0.0) / 100.0 * normal(1)[0])
    host = msgspec.structs.replace(
        host, served=served, step_s=host.step_s * engine_factor, row_s=host.row_s * engine_factor
    )
    curve = _curve(body_spread(profile), normal)
    kernels = profile.kernels
    if isinstance(kernels, CompactKernels):
        kernels = msgspec.structs.replace(kernels, body_ratios=_times(kernels.body_ratios, curve))
    return msgspec.structs.replace(profile, host=host, kernels=kernels)


def _curve(spread: float, normal: Callable[[int], Floats]) -> dict[int, float]:
    """A smooth random factor by token count."""
    octaves = np.log2(NODES)
    correlation = np.exp(-0.5 * ((octaves[:, None] - octaves[None, :]) / OCTAVES) ** 2)
    root = np.linalg.cholesky(correlation + 1e-9 * np.eye(len(NODES)))
    factors: Floats = np.exp(spread * (root @ normal(len(NODES))))
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
