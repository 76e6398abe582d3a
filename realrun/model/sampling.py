"""Which tokens come out: greedy and sampled choice, and acceptance of drafted tokens. Pure functions on tensors.

Randomness arrives as uniforms keyed by (seed, request, position), so a request's tokens do not depend on the batch it
shares, nor on how its prompt was chunked. Not here: logits (realrun.model.decoder) and state
(realrun.kernels.device_slots).

Invariant: speculation does not change the distribution of the output (Leviathan et al. 2023, theorem 3.5).
"""

from __future__ import annotations

from enum import IntEnum

import torch

_ALL_BITS = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
"""This increment and the finaliser below are those of SplitMix64 (Steele, Lea and Flood 2014)."""
_FIRST_FACTOR = 0xBF58476D1CE4E5B9
_SECOND_FACTOR = 0x94D049BB133111EB
_SHIFTS = (30, 27, 31)
_UNIFORM_BITS = 24
"""Bits of a float32 significand: every uniform is exact and below 1 in every dtype used here."""


class Draw(IntEnum):
    """What a uniform is for; the last part of its key."""

    DRAFT = 0
    ACCEPT = 1
    TARGET = 2


_DRAWS_PER_POSITION = 4


def request_key(seed: int, request: int) -> int:
    """Key of one request's uniforms, a signed 64-bit number. `request` is the arrival index."""
    mixed = _mix_integer((_mix_integer(seed & _ALL_BITS) + (request + 1) * _GOLDEN) & _ALL_BITS)
    return _signed(mixed)


def uniforms(keys: torch.Tensor, positions: torch.Tensor, draw: Draw) -> torch.Tensor:
    """Uniforms in [0, 1), float32, shaped like `positions` broadcast with `keys` (both int64).

    Counter-based: a function of (request key, output position, draw) alone, hence the same on every device.
    """
    counter = keys + (positions * _DRAWS_PER_POSITION + int(draw) + 1) * _signed(_GOLDEN)
    for shift, factor in zip(_SHIFTS[:2], (_FIRST_FACTOR, _SECOND_FACTOR), strict=True):
        counter = (counter ^ _shifted(counter, shift)) * _signed(factor)
    counter = counter ^ _shifted(counter, _SHIFTS[2])
    return _shifted(counter, 64 - _UNIFORM_BITS).to(torch.float32) * 2.0**-_UNIFORM_BITS


def probabilities(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Softmax of logits [..., vocab] / temperature, in float32 or better."""
    wide = logits if logits.dtype is torch.float64 else logits.float()
    return torch.softmax(wide / temperature, dim=-1)


def pick(weights: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """Tokens [...] by inverse transform of weights [..., vocab] (need not sum to 1), one uniform each [...].

    A token of weight zero is never picked, as long as some weight is positive.
    """
    cumulative = weights.cumsum(-1)
    thresholds = draws.to(weights.dtype).unsqueeze(-1) * cumulative[..., -1:]
    tokens = torch.searchsorted(cumulative, thresholds, right=True).squeeze(-1)
    return tokens.clamp(max=weights.shape[-1] - 1)


def leading(passed: torch.Tensor, draft_lengths: torch.Tensor) -> torch.Tensor:
    """Length [rows] of the run of passed tests from the first on; passed [rows, drafted], lengths [rows]."""
    in_draft = torch.arange(passed.shape[1], device=passed.device) < draft_lengths.unsqueeze(1)
    return (passed & in_draft).long().cumprod(1).sum(1)


def accept_greedy(choices: torch.Tensor, drafted: torch.Tensor, draft_lengths: torch.Tensor) -> torch.Tensor:
    """Accepted drafted tokens [rows] at temperature 0.

    choices [rows, drafted + 1] are the target's own tokens, drafted [rows, drafted]; the token to emit after the
    accepted ones is choices[row, accepted].
    """
    return leading(choices[:, :-1] == drafted, draft_lengths)


def accept_sampled(
    target: torch.Tensor, draft: torch.Tensor, drafted: torch.Tensor, draft_lengths: torch.Tensor, draws: torch.Tensor
) -> torch.Tensor:
    """Accepted drafted tokens [rows]: token x passes with probability min(1, p(x) / q(x)).

    target p [rows, drafted + 1, vocab], draft q [rows, drafted, vocab], drafted and draws [rows, drafted].
    Source: Leviathan et al. 2023, algorithm 1.
    """
    tokens = drafted.unsqueeze(-1)
    in_target = target[:, :-1].gather(-1, tokens).squeeze(-1)
    in_draft = draft.gather(-1, tokens).squeeze(-1)
    return leading(draws.to(in_draft.dtype) * in_draft < in_target, draft_lengths)


def residual(
    target: torch.Tensor, draft: torch.Tensor, accepted: torch.Tensor, draft_lengths: torch.Tensor
) -> torch.Tensor:
    """Weights [rows, vocab] of the token after the accepted ones: max(0, p - q), or p where all were accepted.

    Shapes as in `accept_sampled`. Where p - q is nowhere positive (p = q but for rounding, or a forced rejection) the
    weights are p. Source: Leviathan et al. 2023, algorithm 1.
    """
    rows = torch.arange(target.shape[0], device=target.device)
    at_stop = target[rows, accepted]
    if draft.shape[1] == 0:
        return at_stop
    rejected = draft[rows, accepted.clamp(max=draft.shape[1] - 1)]
    is_bonus = (accepted >= draft_lengths).unsqueeze(1)
    weights = torch.where(is_bonus, at_stop, (at_stop - rejected).clamp(min=0))
    return torch.where(weights.sum(-1, keepdim=True) > 0, weights, at_stop)


def _mix_integer(value: int) -> int:
    for shift, factor in zip(_SHIFTS[:2], (_FIRST_FACTOR, _SECOND_FACTOR), strict=True):
        value = (value ^ (value >> shift)) * factor & _ALL_BITS
    return value ^ (value >> _SHIFTS[2])


def _shifted(value: torch.Tensor, shift: int) -> torch.Tensor:
    """Logical right shift of int64, which torch shifts arithmetically."""
    return (value >> shift) & ((1 << (64 - shift)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
