"""Acceptance belongs to the request: accepted tokens depend on (seed, arrival index, position) alone.

Every answer equals a fresh computation from keyed draws; what is kept here only saves time, and is bounded.
Not here: the models (sim.acceptance.models).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.acceptance.models import MAX_DRAFT_TOKENS, Acceptance
from sim.draws import Integers, Positions

Accepted = NDArray[np.int8]
"""[rounds] accepted drafted tokens."""

_INDEX_BITS, _POSITION_BITS = 6, 8
_TILE_REQUESTS, _TILE_POSITIONS = 1 << _INDEX_BITS, 1 << _POSITION_BITS
_LAST_REQUEST, _LAST_POSITION = _TILE_REQUESTS - 1, _TILE_POSITIONS - 1
"""`run_length` computes tiles of 64 neighbouring requests x 256 positions, one byte each."""
_MAX_TILES = 384
"""Tiles kept, the oldest leaving first: 6 MB."""
_KEY_BITS = 40
"""Low bits of a tile's key hold which positions, the rest which requests."""
_MIN_DEPTH = 8
_BLOCK_REQUESTS = 2048
_BLOCK_POSITIONS = 1 << 19
"""`all_rounds` computes blocks of at most so many requests and positions."""
_ROUNDS_PER_CHECK = 8


class AllRounds(NamedTuple):
    """Rounds of many requests."""

    acceptance: Acceptance
    key: tuple[int, int, bytes, bytes]
    accepted: Accepted
    """[rounds of all requests], one request after the other."""
    counts: Integers
    """[requests] rounds."""


_last: list[AllRounds] = []
"""The newest `all_rounds` of this process."""


class AcceptanceDraws:
    """The draws of every request under one acceptance and one seed."""

    __slots__ = ("_acceptance", "_depth", "_seed", "_tiles")

    def __init__(self, acceptance: Acceptance, seed: int) -> None:
        self._acceptance = acceptance
        self._seed = seed
        self._depth = _MIN_DEPTH
        """Run lengths in tiles are cut here; grows when somebody asks for more."""
        self._tiles: dict[int, bytes] = {}

    def run_length(self, index: int, position: int, most: int) -> int:
        """Accepted tokens of a draft of `most` for request `index` with `position` >= 1 output tokens out."""
        if most > self._depth:
            self._depth = max(_checked_depth(most), min(2 * self._depth, MAX_DRAFT_TOKENS))
            self._tiles.clear()
        tile = self._tiles.get((index >> _INDEX_BITS) << _KEY_BITS | position >> _POSITION_BITS)
        if tile is None:
            tile = self._compute_tile(index, position)
        length = tile[(index & _LAST_REQUEST) << _POSITION_BITS | position & _LAST_POSITION]
        return length if length < most else most

    def rounds(self, index: int, emitted_tokens: int, output_tokens: int, draft_tokens: int) -> Accepted:
        """[rounds] accepted tokens of the successive rounds from `emitted_tokens` out until `output_tokens` are. Each
        emits one token more than it accepts; the last draft is not shortened."""
        run_length = self.run_length
        accepted = bytearray()
        while emitted_tokens < output_tokens:
            num_accepted = run_length(index, emitted_tokens, draft_tokens)
            accepted.append(num_accepted)
            emitted_tokens += num_accepted + 1
        return np.frombuffer(accepted, dtype=np.int8)

    def all_rounds(self, indexes: Integers, output_tokens: Integers, draft_tokens: int) -> AllRounds:
        """`rounds` of all these requests from their first token on; the last are kept, for a search's next load."""
        key = self._seed, draft_tokens, indexes.tobytes(), output_tokens.tobytes()
        for kept in _last:
            if kept.acceptance is self._acceptance and kept.key == key:
                return kept
        blocks, begin = [(np.zeros(0, np.int8), np.zeros(0, np.int64))], 0
        while begin < len(indexes):
            ends = np.cumsum(output_tokens[begin : begin + _BLOCK_REQUESTS])
            end = begin + max(1, int(np.searchsorted(ends, _BLOCK_POSITIONS, side="right")))
            blocks.append(self._rounds_of(indexes[begin:end], output_tokens[begin:end], draft_tokens))
            begin = end
        accepted, counts = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
        _last[:] = [AllRounds(self._acceptance, key, accepted, counts)]
        return _last[0]

    def by_position(self, indexes: Integers, outputs: Integers, draft_tokens: int) -> tuple[Accepted, Integers]:
        """`run_length` of all these requests at each position, one request after the other, and where each begins."""
        parts = [slice(at, at + _BLOCK_REQUESTS) for at in range(0, len(indexes), _BLOCK_REQUESTS)]
        windows = [self._window(indexes[part], outputs[part], draft_tokens) for part in parts]
        lengths = [self._acceptance.run_lengths(each, draft_tokens).view(np.int8) for each in windows]
        widths = np.concatenate([each.widths for each in windows])
        return np.concatenate(lengths), np.cumsum(widths) - widths

    def _window(self, indexes: Integers, outputs: Integers, draft_tokens: int) -> Positions:
        """All positions from which these requests draft."""
        widths = outputs + _checked_depth(draft_tokens) + 1
        return Positions(self._seed, indexes, 0, widths + (widths & 1))

    # -- run_length's tiles

    def _compute_tile(self, index: int, position: int) -> bytes:
        if index < 0 or position < 1:
            raise ValueError(f"index={index!r} must be at least 0, and position={position!r} at least 1")
        first_index = index & ~_LAST_REQUEST
        width = _TILE_POSITIONS + self._depth + (self._depth & 1)
        window = Positions(
            self._seed,
            np.arange(first_index, first_index + _TILE_REQUESTS),
            position & ~_LAST_POSITION,
            np.full(_TILE_REQUESTS, width),
        )
        lengths = self._acceptance.run_lengths(window, self._depth).reshape(_TILE_REQUESTS, width)
        tile = lengths[:, :_TILE_POSITIONS].tobytes()
        if len(self._tiles) >= _MAX_TILES:
            del self._tiles[next(iter(self._tiles))]
        self._tiles[(index >> _INDEX_BITS) << _KEY_BITS | position >> _POSITION_BITS] = tile
        return tile

    # -- blocks of rounds

    def _rounds_of(self, indexes: Integers, outputs: Integers, depth: int) -> tuple[Accepted, Integers]:
        """Rounds of a block's requests, one request after the other, and [requests] how many."""
        window = self._window(indexes, outputs, depth)
        offsets = window.offsets()
        steps = self._acceptance.run_lengths(window, depth)
        steps += np.uint8(1)
        ends = offsets + outputs
        steps[ends[:, None] + np.arange(depth + 1)] = 0
        is_start = np.zeros(len(steps), dtype=np.bool_)
        positions = offsets + 1
        while len(positions):
            for _ in range(_ROUNDS_PER_CHECK):
                is_start[positions] = True
                positions += steps.take(positions)
            is_going = positions < ends
            positions, ends = positions[is_going], ends[is_going]
        is_start &= steps != 0
        starts = np.flatnonzero(is_start)
        accepted = (steps[starts] - np.uint8(1)).view(np.int8)
        return accepted, np.diff(np.searchsorted(starts, offsets), append=len(starts))


def _checked_depth(draft_tokens: int) -> int:
    if not 0 <= draft_tokens <= MAX_DRAFT_TOKENS:
        raise ValueError(f"a draft of {draft_tokens!r} tokens: must be in 0..{MAX_DRAFT_TOKENS}")
    return draft_tokens
