"""Keyed uniform draws: a number for every (seed, purpose, request, position), in any order, for many at once.

The hash is SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014): word n of a
key is mix(key + (n + 1) * GAMMA). One word gives the draws of two neighbouring positions. Not here: what the draws
decide (sim.acceptance.models).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
Draws = NDArray[np.uint32]
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

DRAW_RANGE = 1 << 31
"""Draws are integers in [0, DRAW_RANGE): a chance p is hit where draw < round(p * DRAW_RANGE), exact at 0 and 1."""
_WORD_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_GAMMA_WORD = np.uint64(_GAMMA)
_SHIFT_30, _SHIFT_27, _SHIFT_31 = (np.uint64(shift) for shift in (30, 27, 31))


def _mix(words: Words) -> Words:
    """SplitMix64's finaliser, in place; returns `words`."""
    scratch = np.right_shift(words, _SHIFT_30)
    words ^= scratch
    words *= _MIX_1
    np.right_shift(words, _SHIFT_27, out=scratch)
    words ^= scratch
    words *= _MIX_2
    np.right_shift(words, _SHIFT_31, out=scratch)
    words ^= scratch
    return words


def thresholds(chances: Floats | float) -> Draws:
    """Chances in [0, 1] as numbers to compare with. The shape is kept.

    >>> import lanesim
    >>> lanesim.thresholds(0.5) == DRAW_RANGE // 2, (lanesim.thresholds([0.0, 1.0]) == [0, DRAW_RANGE]).all()
    (np.True_, np.True_)
    """
    given = np.asarray(chances)
    if not ((given >= 0.0) & (given <= 1.0)).all():
        raise ValueError(f"chances from {given.min()!r} to {given.max()!r} must be numbers from 0 to 1")
    return np.asarray(np.rint(given * DRAW_RANGE), dtype=np.uint32)


def child_seed(seed: int, *key: int) -> int:
    """A seed for one replication or purpose: children of different seeds or keys share nothing."""
    if seed < 0:
        raise ValueError(f"seed={seed!r} must be at least 0")
    return int(np.random.SeedSequence(seed, spawn_key=key).generate_state(1)[0])


class Positions(NamedTuple):
    """Positions `first`, `first` + 1, ... of each of `indexes`; arrays over it are flat, request after request."""

    seed: int
    indexes: Integers
    """[requests] arrival indexes."""
    first: int
    """First position of every request; even."""
    widths: Integers
    """[requests] number of positions; even."""

    def keys(self, purpose: int) -> Words:
        """[requests] one random word per request; different purposes share nothing."""
        root = (self.seed * _GAMMA + purpose * int(_MIX_2)) & _WORD_MASK
        base = _mix(np.full(1, root, dtype=np.uint64))
        return _mix(base + (self.indexes.astype(np.uint64) + np.uint64(1)) * _GAMMA_WORD)

    def per_request(self, purpose: int) -> Floats:
        """[requests] uniforms strictly inside (0, 1)."""
        return ((self.keys(purpose) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53

    def draws(self, purpose: int) -> Draws:
        """[positions] draws in [0, DRAW_RANGE)."""
        keys = self.keys(purpose)
        num_words = self.widths >> 1
        ends = np.cumsum(num_words)
        starts = (ends - num_words).astype(np.uint64)
        total = int(ends[-1])
        bases = keys + (np.uint64(self.first // 2 + 1) - starts) * _GAMMA_WORD
        words = np.arange(total, dtype=np.uint64)
        words *= _GAMMA_WORD
        words += np.repeat(bases, num_words)
        _mix(words)
        halves: Draws = words.view(np.uint32)
        halves >>= np.uint32(1)
        return halves

    def offsets(self) -> Integers:
        """[requests] where each request's positions start in a flat array."""
        return np.cumsum(self.widths) - self.widths
