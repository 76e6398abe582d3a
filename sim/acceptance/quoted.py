"""Acceptance as people quote it: measured at some draft length, carried to others, and how far it can then be trusted.

A quoted thing gives its model at any draft length k, and draws other ones that the quote allows just as well. What is
measured at K is exact at K; beyond that a length or a list of rates says little by itself, so drafts that were measured
at several k decide how wide the draws are (docs/adr/021-draws-and-tuning.md).
Not here: the text forms (sim.acceptance.forms), conversions at one draft length (sim.acceptance.conversions).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import exp
from statistics import NormalDist
from typing import Protocol, Self

import numpy as np

from sim.acceptance.checked import built_model
from sim.acceptance.conversions import (
    AcceptanceSummary,
    check_draft,
    drifting_rates,
    first_rate_for_length,
    iid_rate_for_length,
)
from sim.acceptance.models import MAX_DRAFT_TOKENS, Acceptance, IidAcceptance, PerPositionAcceptance
from sim.acceptance.tape import TapeAcceptance
from sim.draws import Integers
from sim.plugins import checked_count, shown

DRIFT_FALLING, DRIFT_RISING = 0.11, 0.03
"""Scales of the drift: how much the logarithm of the conditional rate changes from one position of a draft to the next.

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
_MIN_CHANCE = 1e-12
_LOWEST_PERCENT, _HIGHEST_PERCENT = 5.0, 95.0


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
        if len(self.values) == 1:
            length = min(self.values[0], k + 1.0) if self.is_clamped else self.values[0]
            return AcceptanceSummary.from_vllm(k, synthetic_acceptance_length=length).model
        return AcceptanceSummary.from_vllm(k, synthetic_acceptance_rates=self.values).model


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
class QuotedForm(AtEveryLength):
    """A form that somebody registered: its function makes the model of each draft length."""

    name: str
    build: Callable[[Sequence[float], int], Acceptance]
    values: tuple[float, ...]

    def model(self, k: int) -> Acceptance:
        check_draft(k)
        return built_model(self.name, self.build, self.values, k)


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
                f"{error}; write length:{self.length:g}@K with the draft length K it was measured at"
            ) from None

    def notes(self, ks: Iterable[int]) -> tuple[str, ...]:
        if len(set(ks)) < 2:
            return ()
        return (
            f"length:{self.length:g} is taken as the acceptance length at every draft length, so the shortest looks "
            f"best; write length:{self.length:g}@K with the draft length K it was measured at",
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
        first = first_rate_for_length(self.length, self.measured_k, self.drift)
        rates = drifting_rates(first, self.drift, MAX_DRAFT_TOKENS) if self.drift else ()
        object.__setattr__(self, "_model", PerPositionAcceptance(rates) if rates else IidAcceptance(first))

    def model(self, k: int) -> Acceptance:
        """The same model at every k."""
        check_draft(k)
        return self._model

    def draw(self, rng: Chances) -> MeasuredLength:
        return replace(self, drift=drawn_drift(rng))

    def standard_error(self, k: int) -> float:
        """Root mean square of the relative differences of the draws' length at `k` from this one's.

        0 at k = measured_k; 2.6 at 3 has 0.023 at k/K = 1/3, 0.020 at 2/3, 0.051 at 5/3 and 0.092 at 7/3. The spread
        is that of measured drafts (DRIFT_FALLING); docs/acceptance.md has the table.
        """
        return _drift_error(self, k)

    def notes(self, ks: Iterable[int]) -> tuple[str, ...]:
        errors = [f"{100.0 * self.standard_error(k):.0f} % at k={k}" for k in sorted(set(ks)) if k != self.measured_k]
        if not errors:
            return ()
        return (
            f"length:{self.length:g}@{self.measured_k} is carried to other draft lengths by its iid rate; "
            f"standard error of the length: {', '.join(errors)}. Measured drafts yield more than that at shorter k "
            "and less at longer",
        )


def _drift_error(quoted: MeasuredLength | MeasuredRates, k: int) -> float:
    """Root mean square of the relative differences of the length at `k` with and without the drift that draws have."""
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
        object.__setattr__(self, "_conditional", AcceptanceSummary(unconditional_rates=self.rates).conditional_rates)

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
                f"vllm: has {measured_k} rates; shorter drafts take the first of them, and recordings show "
                "acceptance lengths 1 to 6 % above that"
            )
        if errors := [f"{100.0 * _drift_error(self, k):.0f} % at k={k}" for k in ks if k > measured_k]:
            lines.append(
                f"vllm: has {measured_k} rates; longer drafts repeat the last conditional one; standard error of the "
                f"length: {', '.join(errors)}"
            )
        return tuple(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedLength:
    """The acceptance length of a quote at one draft length.

    >>> import numpy as np
    >>> import lanesim
    >>> lanesim.lengths_by_k(lanesim.parse_quoted("iid:0.5"), [2], 10, np.random.default_rng(0))
    [CarriedLength(k=2, model=1.75, mean=1.75, low=1.75, high=1.75)]
    """

    k: int
    model: float
    """Length by the quote's model, as in a run without draws."""
    mean: float
    """Mean over the draws."""
    low: float
    high: float
    """5 and 95 % of the draws."""


def lengths_by_k(quoted: Quoted, ks: Iterable[int], draws: int, rng: np.random.Generator) -> list[CarriedLength]:
    """The acceptance length at each of `ks`, with the range of `draws` variations, the same ones at every k.

    Raises ValueError without a variation, and where the quote cannot mean one of `ks`.

    >>> import numpy as np
    >>> import lanesim
    >>> for at in lanesim.lengths_by_k(lanesim.parse_quoted("length:2.6@3"), (1, 3, 5), 1000, np.random.default_rng(0)):
    ...     print(f"k={at.k}: {at.model:.2f}; draws {at.mean:.2f}, from {at.low:.2f} to {at.high:.2f}")
    k=1: 1.72; draws 1.74, from 1.70 to 1.80
    k=3: 2.60; draws 2.60, from 2.60 to 2.60
    k=5: 3.05; draws 2.95, from 2.76 to 3.15
    """
    checked_count("draws", draws, 1)
    if not hasattr(quoted, "draw"):
        raise ValueError(f"lengths_by_k: {shown(quoted)} is nothing quoted; want what parse_quoted gives")
    drawn = [quoted.draw(rng) for _ in range(draws)]
    carried = []
    for k in ks:
        lengths = [one.model(k).expected_length(k) for one in drawn]
        low, high = np.percentile(lengths, [_LOWEST_PERCENT, _HIGHEST_PERCENT]).tolist()
        mean = float(np.mean(lengths))
        carried.append(CarriedLength(k=k, model=quoted.model(k).expected_length(k), mean=mean, low=low, high=high))
    return carried
