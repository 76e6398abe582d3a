"""Requests that differ in draws beside given rates by position: the rates stay what they are in the mean, tails widen.

Every request shifts all its acceptance chances by the same amount on the logit scale, normally distributed. Measured
rates are means over such requests, so the chances of the middle request are solved for.
Not here: how it is written (sim.acceptance.forms).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import isfinite, log
from statistics import NormalDist

import numpy as np

from sim.acceptance.models import Acceptance, RunLengths, run_lengths
from sim.acceptance.quoted import Chances, Quoted
from sim.draws import Floats, Integers, Positions, thresholds

MAX_SPREAD = 10.0
"""Largest spread: beyond it requests accept everything or nothing."""
NUM_NODES = 400
"""Requests of equal chance that stand for all of them where means are solved for."""
GOLDEN = 0.6180339887498949
"""Successive multiples, modulo 1, are spread as evenly as can be (Weyl 1916)."""
_ACCEPT, _REQUEST_SHIFT = 0, 4
"""Purposes of the keyed draws: the former that of all models, the latter of this one alone."""
_FARTHEST = 60.0
"""Logit beyond which a chance is 0 or 1 in double precision."""
_MAX_STEPS, _MAX_ROUNDS = 60, 60
_TOLERANCE = 1e-10
SPREADS = {"natural": (0.1, 0.5), "random": (0.7, 1.0)}
"""Least and largest spread by kind of prompts, all between them as likely. Natural: fitted to the requests of
SpecDecode-Bench's tapes (EAGLE-3, K = 3) on GSM8K 0.15, code 0.38 and ShareGPT 0.49, of vLLM#41035 about 0.5. Random
tokens: gpt-oss-120b with EAGLE-3 at K = 3, 0.8 to 1.0. Wider where kinds of prompts are mixed (Apertus 8B's chat: 1.1
to 1.3), and where n-grams draft (0.3 to 0.8): a server's records of its requests tell it
(calibrate.served.request_counts)."""
NATURAL = SPREADS["natural"]


@dataclass(frozen=True, slots=True)
class SpreadAcceptance(Acceptance):
    """`rates` are unconditional ones over all rounds of drafts of as many tokens, requests of equal output weighing by
    their rounds; beyond them the last chance repeats."""

    rates: tuple[float, ...]
    spread: float
    """Standard deviation of the requests' shifts, logit."""

    def __post_init__(self) -> None:
        check_spread(self.spread)
        falling = zip((1.0, *self.rates), self.rates, strict=False)
        if not self.rates or any(not 0.0 <= later <= earlier for earlier, later in falling):
            raise ValueError(f"acceptance: unconditional rates {self.rates} must be in 0..1 and never rise")

    def unconditional_rates(self, num_speculative_tokens: int) -> tuple[float, ...]:
        reached = np.cumprod(self._chances(_nodes(), num_speculative_tokens), axis=1)
        rounds = 1.0 / (1.0 + reached.sum(axis=1))
        return tuple((rounds @ reached / rounds.sum()).tolist())

    def round_tokens(self, num_speculative_tokens: int) -> tuple[Floats, Floats, Floats]:
        """[NUM_NODES] shifts of requests of equal chance, in standard deviations; mean and variance of a round's
        tokens."""
        reached = np.cumprod(self._chances(_nodes(), num_speculative_tokens), axis=1)
        accepted = reached.sum(axis=1)
        return _nodes(), 1.0 + accepted, reached @ (2.0 * np.arange(num_speculative_tokens) + 1.0) - accepted**2

    def run_lengths(self, window: Positions, depth: int) -> RunLengths:
        draws = window.draws(_ACCEPT)
        chances = self._chances(_shifts(window), depth)
        limits = (np.repeat(thresholds(chances[:, position]), window.widths) for position in range(depth))
        return run_lengths([draws < limit for limit in limits], depth)

    def _chances(self, shifts: Floats, depth: int) -> Floats:
        """[requests, depth] conditional chances of requests with `shifts`, in standard deviations."""
        middle = _middle_logits(self.rates, self.spread)
        logits = np.array([middle[min(position, len(middle) - 1)] for position in range(depth)])
        return _chance(logits[None, :] + self.spread * shifts[:, None])


@dataclass(frozen=True, slots=True)
class _AroundAQuote:
    """Base of a quote whose requests differ."""

    inner: Quoted

    @property
    def measured_k(self) -> int | None:
        return self.inner.measured_k

    def notes(self, ks: Iterable[int]) -> tuple[str, ...]:
        return self.inner.notes(ks)


@dataclass(frozen=True, slots=True)
class QuotedSpread(_AroundAQuote):
    """A quote whose requests differ by `spread`: exact at the draft length of its measurement, or at every one. At
    others, lucky requests take fewer rounds, the more so the longer the drafts, so rounds of shorter drafts start with
    better chances (docs/adr/018)."""

    spread: float

    def __post_init__(self) -> None:
        check_spread(self.spread)

    def model(self, k: int) -> Acceptance:
        measured = self.measured_k or k
        return SpreadAcceptance(self.inner.model(measured).unconditional_rates(measured), self.spread)

    def draw(self, rng: Chances) -> QuotedSpread:
        """Itself: how rates carry with a spread was measured on one draft only."""
        return self


@dataclass(frozen=True, slots=True)
class AssumedSpread(_AroundAQuote):
    """A quote whose requests differ by something in `spreads`: by their middle, in a draw by any of them. Rates at
    every draft length are the quote's.

    >>> from sim.acceptance.quoted import MeasuredLength
    >>> round(AssumedSpread(MeasuredLength(2.6, 3)).model(5).expected_length(5), 4)
    3.054
    """

    spreads: tuple[float, float] = NATURAL
    """Least and largest; all between them are as likely."""
    share: float = 0.5
    """Share of the spreads that are smaller."""

    def __post_init__(self) -> None:
        for spread in self.spreads:
            check_spread(spread)
        if self.spreads[0] > self.spreads[1]:
            raise ValueError(
                "acceptance: spread of requests from {:g} to {:g}. Write the smaller one first".format(*self.spreads)
            )

    def model(self, k: int) -> Acceptance:
        low, high = self.spreads
        return SpreadAcceptance(self.inner.model(k).unconditional_rates(k), low + self.share * (high - low))

    def draw(self, rng: Chances) -> AssumedSpread:
        return replace(self, inner=self.inner.draw(rng), share=rng.random())


def check_spread(spread: float) -> None:
    """Raise ValueError for what is no standard deviation, or one beyond MAX_SPREAD."""
    if not (isfinite(spread) and 0.0 <= spread <= MAX_SPREAD):
        raise ValueError(f"acceptance: spread of requests {spread!r} must be from 0 to {MAX_SPREAD:g}")


def _chance(logits: Floats) -> Floats:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(logits, -_FARTHEST, _FARTHEST))))


@lru_cache(maxsize=1)
def _nodes() -> Floats:
    """[NUM_NODES] shifts of requests of equal chance, in standard deviations."""
    return _normal((np.arange(NUM_NODES) + 0.5) / NUM_NODES)


def _normal(shares: Floats) -> Floats:
    inverse = NormalDist().inv_cdf
    return np.array([inverse(share) for share in shares.tolist()])


def _shifts(window: Positions) -> Floats:
    """[requests] quantiles spread evenly from a drawn start, so that a few hundred have the mean of all."""
    first: Integers = np.zeros(1, dtype=np.int64)
    (start,) = window._replace(indexes=first).per_request(_REQUEST_SHIFT)
    shares = (float(start) + GOLDEN * window.indexes) % 1.0
    return _normal(np.clip(shares, 1e-9, 1.0 - 1e-9))


@lru_cache(maxsize=1024)
def _middle_logits(rates: tuple[float, ...], spread: float) -> tuple[float, ...]:
    """Logits with which all requests together have `rates`: position by position, until the requests' shares of the
    rounds, which depend on all positions, stay what they are."""
    shifts = spread * _nodes()
    rounds = np.full(NUM_NODES, 1.0 / NUM_NODES)
    logits: tuple[float, ...] = ()
    for _ in range(_MAX_ROUNDS):
        reached, solved, total = np.ones(NUM_NODES), [], np.zeros(NUM_NODES)
        for position, rate in enumerate(rates):
            weights = rounds * reached
            near = logits[position] if logits else 0.0
            solved.append(_logit_of(rate, weights, shifts, near))
            reached = reached * _chance(solved[-1] + shifts)
            total += reached
        is_settled = bool(logits) and max(abs(a - b) for a, b in zip(logits, solved, strict=True)) < _TOLERANCE
        logits = tuple(solved)
        if is_settled:
            break
        rounds = 1.0 / (1.0 + total)
        rounds /= rounds.sum()
    return logits


def _logit_of(rate: float, weights: Floats, shifts: Floats, logit: float) -> float:
    """The logit where the weighted chance is `rate`: Newton's steps in the log-odds, which are nearly straight in the
    logit, and halves of the range where a step leaves it."""
    whole = float(weights.sum())
    if not 0.0 < rate < whole:
        return -_FARTHEST if rate <= 0.0 else _FARTHEST
    wanted, low, high = log(rate / (whole - rate)), -_FARTHEST, _FARTHEST
    for _ in range(_MAX_STEPS):
        chances = _chance(logit + shifts)
        some, slope = float(weights @ chances), float(weights @ (chances * (1.0 - chances)))
        low, high = (logit, high) if some < rate else (low, logit)
        odds, before = some * (whole - some), logit
        if odds > 0.0 and slope > 0.0:
            logit += (wanted - log(some / (whole - some))) * odds / (slope * whole)
        if not low < logit < high:
            logit = 0.5 * (low + high)
        if abs(logit - before) < 0.01 * _TOLERANCE:
            break
    return logit
