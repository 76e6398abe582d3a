"""Acceptance as people quote it: measured at some draft length, carried to others, and how far it can then be trusted.

What is measured at K is exact at K. At other draft lengths a length or a list of rates says little by itself, so drafts
that were measured at several lengths decide how wide the draws are (docs/adr/021-draws-and-tuning.md).
Not here: the text forms (sim.acceptance.forms), requests that differ (sim.acceptance.spread).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from math import exp, isfinite
from operator import mul
from statistics import NormalDist
from typing import Protocol, Self

import numpy as np

from sim.acceptance.models import (
    MAX_DRAFT_TOKENS,
    Acceptance,
    IidAcceptance,
    PerPositionAcceptance,
    check_rate,
    to_conditional,
)
from sim.acceptance.tape import TapeAcceptance
from sim.draws import Integers

DRIFT_FALLING, DRIFT_RISING = 0.11, 0.03
"""Scales of the drift: change of the conditional rate's logarithm from one position of a draft to the next.

Falling: root mean square of the drifts that fit 19 measured drafts' lengths at k = 1..7 best; all of them fall. Rising
is a choice: it leaves the iid rate within 5 to 95 % of the draws, at 79 %. Sources: docs/adr/021-draws-and-tuning.md.
"""
LIFT_LESS, LIFT_MORE = 0.03, 0.22
"""Scales of the lift: how much more of what drafts of K accept in their first k positions drafts of k accept there, per
share of the accepted tokens that lies beyond k. Measured 0.04 to 0.39, root mean square 0.22, on five recordings of
EAGLE-3 and DSpark drafts (ADR 021); less than none is not seen, and allowed for as the rising drift is.
"""
_MAX_LIFT = 0.99
"""Largest lift: below 1 a longer draft never yields less than a shorter one."""
_NUM_QUANTILES = 40
_BISECTIONS = 200
_MIN_CHANCE = 1e-12


def check_draft(num_speculative_tokens: int) -> None:
    """Raise ValueError unless it is a draft length that can be simulated."""
    if not 1 <= num_speculative_tokens <= MAX_DRAFT_TOKENS or num_speculative_tokens % 1:
        raise ValueError(f"num_speculative_tokens={num_speculative_tokens!r} must be in 1..{MAX_DRAFT_TOKENS}")


def check_length(acceptance_length: float, num_speculative_tokens: int) -> None:
    """Raise ValueError unless drafts of `num_speculative_tokens` can have this acceptance length."""
    check_draft(num_speculative_tokens)
    most = num_speculative_tokens + 1
    if isfinite(acceptance_length) and 1.0 <= acceptance_length <= most:
        return
    message = (
        f"acceptance length {acceptance_length!r} must be from 1 to {most} "
        f"(num_speculative_tokens={num_speculative_tokens}, and the target's own token)"
    )
    if 0.0 < acceptance_length < 1.0:
        meant = 1.0 + acceptance_length * num_speculative_tokens
        message += f". If {acceptance_length:g} is accepted / drafted tokens, that is a length of {meant:g}"
    raise ValueError(message)


def drifting_rates(first: float, drift: float, num_positions: int) -> tuple[float, ...]:
    """[num_positions] conditional rates first * exp(drift * j), at most 1."""
    return tuple(min(1.0, first * exp(drift * j)) for j in range(num_positions))


def iid_rate_for_length(acceptance_length: float, num_speculative_tokens: int, drift: float = 0.0) -> float:
    """The rate a with (1 - a^(k+1)) / (1 - a) = acceptance_length (Leviathan et al. 2023, eq. 1), by bisection. With a
    drift: the least `first` of drifting_rates, above 1 where several positions must be certain. Raises ValueError
    outside 1..k+1."""
    check_length(acceptance_length, num_speculative_tokens)
    low, high = 0.0, max(1.0, exp(-drift * (num_speculative_tokens - 1)))
    if acceptance_length in (1.0, num_speculative_tokens + 1):
        return low if acceptance_length == 1.0 else high
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        if 1.0 + sum(accumulate(drifting_rates(middle, drift, num_speculative_tokens), mul)) < acceptance_length:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


def checked_rates(rates: tuple[float, ...]) -> tuple[float, ...]:
    """[k] shares of rounds that accept at least j + 1 tokens, as vLLM logs them. Raises ValueError for what is no
    share, or above the one before."""
    check_draft(len(rates))
    for position, (before, rate) in enumerate(pairwise((1.0, *rates)), start=1):
        check_rate(f"unconditional rate {position}", rate)
        if rate > before:
            raise ValueError(
                f"acceptance: unconditional rate {position}={rate!r} must not be above the one before, {before!r}"
            )
    return rates


def synthetic_rates(values: tuple[float, ...], num_speculative_tokens: int) -> tuple[float, ...]:
    """[k] unconditional rates of vLLM's synthetic sampler, given an acceptance length, or a rate per drafted token.

    A length is spent on the earliest tokens, which is not the iid acceptance of that length (iid_rate_for_length).

    >>> synthetic_rates((2.5,), 3)
    (1.0, 0.5, 0.0)
    """
    if len(values) == 1:
        check_length(values[0], num_speculative_tokens)
        return tuple(min(1.0, max(0.0, values[0] - 1.0 - j)) for j in range(num_speculative_tokens))
    if len(values) != num_speculative_tokens:
        raise ValueError(
            f"synthetic_acceptance_rates has {len(values)} rates and must have "
            f"num_speculative_tokens={num_speculative_tokens}"
        )
    return checked_rates(values)


class Chances(Protocol):
    """Random numbers that draws are made of: numpy.random.Generator, or those of stratified draws."""

    def random(self) -> float:
        """Uniform in [0, 1)."""

    def integers(self, high: int, /, *, size: int) -> Integers:
        """`size` whole numbers from 0 to `high` - 1."""


class Quoted(Protocol):
    """Acceptance as people quote it.

    >>> import lanesim
    >>> quoted: Quoted = lanesim.parse_quoted("length:2.6@3")
    >>> quoted.measured_k, [round(quoted.model(k).expected_length(k), 2) for k in (1, 3, 7)]
    (3, [1.72, 2.6, 3.29])
    """

    @property
    def measured_k(self) -> int | None:
        """Draft length that it was measured at. None where it is true of all."""

    def model(self, k: int) -> Acceptance:
        """Acceptance of a run with drafts of `k` tokens. Raises ValueError where the quote cannot mean that."""

    def draw(self, rng: Chances) -> Quoted:
        """Another quote that fits what was measured as well. It is the same where nothing is uncertain."""

    def notes(self, ks: Iterable[int]) -> tuple[str, ...]:
        """Remarks, one line each, to be printed once beside results at draft lengths `ks`."""


def split_normal(chance: float, below: float, above: float) -> float:
    """The value that a share `chance` of draws stays below: half-normals of two scales, joined at their mode 0.

    One scale on either side holds 68.27 % of that side. Shares of the sides are as their scales:

    >>> [round(split_normal(chance, 0.3, 0.1), 3) for chance in (0.75 * 0.3173, 0.75, 0.75 + 0.25 * 0.6827)]
    [-0.3, 0.0, 0.1]
    >>> all(abs(split_normal(chance, 0.3, 0.1)) < 9.0 for chance in (0.0, 1.0 - 2.0**-53))
    True
    """
    share = below / (below + above)
    half = 0.5 * chance / share if chance < share else 0.5 + 0.5 * (chance - share) / (1.0 - share)
    scale = below if chance < share else above
    return scale * NormalDist().inv_cdf(min(max(half, _MIN_CHANCE), 1.0 - _MIN_CHANCE))


def drawn_drift(rng: Chances) -> float:
    return split_normal(rng.random(), DRIFT_FALLING, DRIFT_RISING)


class AtEveryLength:
    """Base of a quote that holds at every draft length and leaves nothing open, unless it says otherwise."""

    __slots__ = ()

    @property
    def measured_k(self) -> None:
        return None

    def draw(self, rng: Chances) -> Self:
        return self

    def notes(self, ks: Iterable[int]) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class QuotedModel(AtEveryLength):
    """A model that holds at every draft length: iid, per-position, beta, markov."""

    acceptance: Acceptance
    remarks: tuple[str, ...] = ()

    def model(self, k: int) -> Acceptance:
        check_draft(k)
        return self.acceptance

    def notes(self, ks: Iterable[int]) -> tuple[str, ...]:
        return self.remarks


@dataclass(frozen=True, slots=True)
class Synthetic(AtEveryLength):
    """Acceptance that a server pins: an acceptance length, or an unconditional rate for each drafted token. A round
    accepts one of two neighbouring counts, whatever the request. Shorter drafts (`is_clamped`) are accepted whole."""

    values: tuple[float, ...]
    is_clamped: bool = False

    def model(self, k: int) -> Acceptance:
        values = (min(self.values[0], k + 1.0),) if self.is_clamped else self.values
        return PerPositionAcceptance(to_conditional(synthetic_rates(values, k)))


@dataclass(frozen=True, slots=True)
class QuotedTape(AtEveryLength):
    """Recorded requests; drawn again from themselves (bootstrap), since as many others could have been recorded."""

    tape: TapeAcceptance

    def model(self, k: int) -> Acceptance:
        check_draft(k)
        return self.tape

    def draw(self, rng: Chances) -> QuotedTape:
        tapes = self.tape.tapes
        return QuotedTape(TapeAcceptance(tuple(tapes[i] for i in rng.integers(len(tapes), size=len(tapes)))))


@dataclass(frozen=True, slots=True)
class LengthInUse(AtEveryLength):
    """An acceptance length that names no draft length: it is that of every draft length, each with an iid rate."""

    length: float

    def model(self, k: int) -> Acceptance:
        check_draft(k)
        try:
            return IidAcceptance(iid_rate_for_length(self.length, k))
        except ValueError as error:
            raise ValueError(
                f"{error}. Write length:{self.length:g}@K with the draft length K it was measured at"
            ) from None

    def notes(self, ks: Iterable[int]) -> tuple[str, ...]:
        if len(set(ks)) < 2:
            return ()
        return (
            f"length:{self.length:g} is taken as the acceptance length at every draft length, so the shortest looks "
            f"best. Write length:{self.length:g}@K with the draft length K it was measured at",
        )


@dataclass(frozen=True, slots=True)
class MeasuredLength:
    """An acceptance length measured with drafts of `measured_k` tokens.

    At other draft lengths it is that of the iid rate with this length; draws are conditional rates that drift from
    place to place and have this length, too. Heterogeneous requests, Beta(13, 8), are within 0.8 % of iid from 3 to 7,
    so the drift is what matters. Longer drafts of one draw never yield less.

    A drift changes each conditional rate by the same factor:

    >>> falling = MeasuredLength(2.6, 3, drift=-0.1).model(5).conditional_rates(5)
    >>> [round(after / before, 4) for before, after in zip(falling, falling[1:])]
    [0.9048, 0.9048, 0.9048, 0.9048]
    """

    length: float
    measured_k: int
    drift: float = 0.0
    _model: Acceptance = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        first = iid_rate_for_length(self.length, self.measured_k, self.drift)
        rates = drifting_rates(first, self.drift, MAX_DRAFT_TOKENS) if self.drift else ()
        object.__setattr__(self, "_model", PerPositionAcceptance(rates) if rates else IidAcceptance(first))

    def model(self, k: int) -> Acceptance:
        """The same model at every k."""
        check_draft(k)
        return self._model

    def draw(self, rng: Chances) -> MeasuredLength:
        return replace(self, drift=drawn_drift(rng))

    def notes(self, ks: Iterable[int]) -> tuple[str, ...]:
        errors = [f"{100.0 * carried_error(self, k):.0f} % at k={k}" for k in sorted(set(ks)) if k != self.measured_k]
        if not errors:
            return ()
        return (
            f"length:{self.length:g}@{self.measured_k} is carried to other draft lengths by one rate. "
            f"Standard error of the length: {', '.join(errors)}. Measured drafts yield more at shorter k and less at "
            "longer",
        )


def carried_error(quoted: MeasuredLength | MeasuredRates, k: int) -> float:
    """Standard error of the length at `k`: root mean square of the relative differences with and without the drift that
    draws have. docs/acceptance.md has the table of 2.6 at 3."""
    here = quoted.model(k).expected_length(k)
    chances = (np.arange(_NUM_QUANTILES) + 0.5) / _NUM_QUANTILES
    drawn = [
        replace(quoted, drift=split_normal(chance, DRIFT_FALLING, DRIFT_RISING)).model(k).expected_length(k)
        for chance in chances.tolist()
    ]
    return float(np.mean(np.square(np.array(drawn) / here - 1.0)) ** 0.5)


@dataclass(frozen=True, slots=True)
class MeasuredRates:
    """Unconditional rates by position in the draft, as vLLM logs them, measured with drafts of as many tokens.

    Longer drafts repeat the last conditional rate, and draws let it drift from there. Shorter ones have the first of
    the rates, and draws a little more of them: rounds of shorter drafts start at lucky positions more often.

    >>> logged = MeasuredRates((0.74, 0.49, 0.37))
    >>> [[round(rate, 4) for rate in logged.model(k).unconditional_rates(k)] for k in (1, 2, 3, 5)]
    [[0.74], [0.74, 0.49], [0.74, 0.49, 0.37], [0.74, 0.49, 0.37, 0.2794, 0.211]]

    A drift changes the rates beyond the measured ones. A lift raises shorter drafts by the share that lies beyond them:

    >>> [round(rate, 4) for rate in MeasuredRates((0.5, 0.25), drift=-0.1).model(4).conditional_rates(4)]
    [0.5, 0.5, 0.4524, 0.4094]
    >>> [round(MeasuredRates((0.5, 0.3, 0.2), lift=0.2).model(k).expected_length(k), 4) for k in (1, 2, 3)]
    [1.55, 1.832, 2.0]
    """

    rates: tuple[float, ...]
    drift: float = 0.0
    lift: float = 0.0
    _conditional: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_conditional", to_conditional(checked_rates(self.rates)))

    @property
    def measured_k(self) -> int:
        return len(self.rates)

    def model(self, k: int) -> Acceptance:
        check_draft(k)
        first, *others = self._conditional
        if k < self.measured_k and first:
            share_beyond = 1.0 - sum(self.rates[:k]) / sum(self.rates)
            first = min(1.0, first * (1.0 + self.lift * share_beyond))
        num_beyond = MAX_DRAFT_TOKENS - self.measured_k if self.drift else 0
        beyond = drifting_rates(self._conditional[-1] * exp(self.drift), self.drift, num_beyond)
        return PerPositionAcceptance((first, *others, *beyond))

    def draw(self, rng: Chances) -> MeasuredRates:
        return replace(
            self, drift=drawn_drift(rng), lift=min(_MAX_LIFT, split_normal(rng.random(), LIFT_LESS, LIFT_MORE))
        )

    def notes(self, ks: Iterable[int]) -> tuple[str, ...]:
        measured_k, lines = self.measured_k, []
        if min(ks := sorted(set(ks)), default=measured_k) < measured_k:
            lines.append(
                f"vllm: has {measured_k} rates. Shorter drafts take the first of them, and recordings show "
                "acceptance lengths 1 to 6 % above that"
            )
        if errors := [f"{100.0 * carried_error(self, k):.0f} % at k={k}" for k in ks if k > measured_k]:
            lines.append(
                f"vllm: has {measured_k} rates. Longer drafts repeat the last conditional one. Standard error of the "
                f"length: {', '.join(errors)}"
            )
        return tuple(lines)
