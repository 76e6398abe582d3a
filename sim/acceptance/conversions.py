"""The four ways people quote an acceptance, converted into each other at one draft length; docs/acceptance.md has them.

Accepted / drafted rate, conditional rates by position in the draft, unconditional ones (vLLM's), and acceptance length.
Not here: what becomes of them at another draft length (sim.acceptance.quoted), and text forms (sim.acceptance.forms).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import exp, isfinite
from operator import mul

from sim.acceptance.models import MAX_DRAFT_TOKENS, PerPositionAcceptance, check_rate, to_conditional

_BISECTIONS = 200


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
        message += f"; if {acceptance_length:g} is accepted / drafted tokens, that is a length of {meant:g}"
    raise ValueError(message)


def drifting_rates(first: float, drift: float, num_positions: int) -> tuple[float, ...]:
    """[num_positions] conditional rates first * exp(drift * j), at most 1: each is lower by `drift` than the one
    before, or higher."""
    return tuple(min(1.0, first * exp(drift * j)) for j in range(num_positions))


def iid_rate_for_length(acceptance_length: float, num_speculative_tokens: int) -> float:
    """The rate a with (1 - a^(k+1)) / (1 - a) = acceptance_length (Leviathan et al. 2023, eq. 1), by bisection.

    Raises ValueError outside 1..k+1.
    """
    return first_rate_for_length(acceptance_length, num_speculative_tokens, 0.0)


def first_rate_for_length(acceptance_length: float, num_speculative_tokens: int, drift: float) -> float:
    """The least `first` of drifting_rates with this acceptance length, by bisection; above 1 where several positions
    must be certain. Raises ValueError outside 1..k+1.
    """
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceSummary:
    """One acceptance at one draft length, in every form it is quoted in. Stored as vLLM's unconditional rates."""

    unconditional_rates: tuple[float, ...]
    """[k] share of rounds that accept at least j + 1 tokens; never rising."""

    def __post_init__(self) -> None:
        check_draft(len(self.unconditional_rates))
        before = 1.0
        for position, rate in enumerate(self.unconditional_rates, start=1):
            check_rate(f"unconditional rate {position}", rate)
            if rate > before:
                raise ValueError(
                    f"acceptance: unconditional rate {position}={rate!r} must not be above the one before, {before!r}"
                )
            before = rate

    @property
    def acceptance_length(self) -> float:
        """Tokens per verify round, bonus included."""
        return 1.0 + sum(self.unconditional_rates)

    @property
    def conditional_rates(self) -> tuple[float, ...]:
        """[k] chance of token j given that all before it were accepted; 0 where that never happens."""
        return to_conditional(self.unconditional_rates)

    @property
    def model(self) -> PerPositionAcceptance:
        """The per-position model with these rates."""
        return PerPositionAcceptance(self.conditional_rates)

    @classmethod
    def from_vllm(
        cls,
        num_speculative_tokens: int,
        synthetic_acceptance_length: float | None = None,
        synthetic_acceptance_rates: Sequence[float] | None = None,
    ) -> AcceptanceSummary:
        """vLLM's speculative config read: one of the two, the rates being unconditional, one per drafted token.

        Like vLLM's synthetic sampler a length is spent on the earliest tokens (2.6 is rates 1, 0.6, 0), which is not
        the iid acceptance of that length: for that, `iid_rate_for_length`.

        >>> summary = AcceptanceSummary.from_vllm(3, synthetic_acceptance_length=2.5)
        >>> summary.unconditional_rates, summary.acceptance_length
        ((1.0, 0.5, 0.0), 2.5)
        """
        if (synthetic_acceptance_length is None) == (synthetic_acceptance_rates is None):
            raise ValueError("give one of synthetic_acceptance_length and synthetic_acceptance_rates")
        if synthetic_acceptance_length is not None:
            check_length(synthetic_acceptance_length, num_speculative_tokens)
            left = synthetic_acceptance_length - 1.0
            return cls(unconditional_rates=tuple(min(1.0, max(0.0, left - j)) for j in range(num_speculative_tokens)))
        rates = tuple(synthetic_acceptance_rates or ())
        if len(rates) != num_speculative_tokens:
            raise ValueError(
                f"synthetic_acceptance_rates has {len(rates)} rates and must have "
                f"num_speculative_tokens={num_speculative_tokens}"
            )
        return cls(unconditional_rates=rates)
