"""The four ways people quote an acceptance, converted into each other at one draft length; docs/acceptance.md has them.

Accepted / drafted rate, conditional rates by position in the draft, unconditional ones (vLLM's), and acceptance length.
Not here: what becomes of them at another draft length (sim.acceptance.quoted), and text forms (sim.acceptance.forms).
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from math import exp, isfinite
from operator import mul

from sim.acceptance.models import MAX_DRAFT_TOKENS, check_rate

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
    """[num_positions] conditional rates first * exp(drift * j), at most 1: each differs by `drift` from the one
    before."""
    return tuple(min(1.0, first * exp(drift * j)) for j in range(num_positions))


def iid_rate_for_length(acceptance_length: float, num_speculative_tokens: int, drift: float = 0.0) -> float:
    """The rate a with (1 - a^(k+1)) / (1 - a) = acceptance_length (Leviathan et al. 2023, eq. 1), by bisection. With a
    drift: the least `first` of drifting_rates, above 1 where several positions must be certain.

    Raises ValueError outside 1..k+1.
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
