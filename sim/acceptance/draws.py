"""Acceptance belongs to the request: how many drafted tokens are accepted depends on (seed, arrival index, position)
alone.

Every answer equals a fresh computation from keyed draws; what is kept here only saves time, and is bounded. `rounds`
is quick after `prepare`, `run_length` always. Not here: the models (sim.acceptance.models).
"""

from __future__ import annotations

from collections.abc import Sequence
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
"""`rounds` computes blocks of prepared requests of at most this many and so many positions."""
_MAX_READY = 2 * _BLOCK_REQUESTS
"""Requests whose rounds are kept until they are requested, the oldest leaving first."""
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

    __slots__ = ("_acceptance", "_depth", "_draft_tokens", "_indexes", "_next", "_outputs", "_ready", "_seed", "_tiles")

    def __init__(self, acceptance: Acceptance, seed: int) -> None:
        self._acceptance = acceptance
        self._seed = seed
        self._depth = _MIN_DEPTH
        """Run lengths in tiles are cut here; grows when somebody asks for more."""
        self._tiles: dict[int, bytes] = {}
        self._indexes: Integers = np.zeros(0, dtype=np.int64)
        self._outputs: Integers = self._indexes
        self._draft_tokens = 0
        self._next = 0
        """First prepared request that no block covers yet."""
        self._ready: dict[int, tuple[int, Accepted]] = {}
        """index -> output tokens and rounds of prepared requests that have not been requested."""

    def run_length(self, index: int, position: int, most: int) -> int:
        """Accepted tokens of a draft of `most` for request `index` with `position` >= 1 output tokens out."""
        if most > self._depth:
            self._deepen(most)
        tile = self._tiles.get((index >> _INDEX_BITS) << _KEY_BITS | position >> _POSITION_BITS)
        if tile is None:
            tile = self._compute_tile(index, position)
        length = tile[(index & _LAST_REQUEST) << _POSITION_BITS | position & _LAST_POSITION]
        return length if length < most else most

    def rounds(self, index: int, emitted_tokens: int, output_tokens: int, draft_tokens: int) -> Accepted:
        """[rounds] accepted tokens of the successive rounds from `emitted_tokens` out until `output_tokens` are.

        Every round emits one token more than it accepts; the last draft is not shortened.
        """
        if draft_tokens == 0:
            return np.zeros(max(0, output_tokens - emitted_tokens), dtype=np.int8)
        if emitted_tokens == 1 and draft_tokens == self._draft_tokens:
            ready = self._ready.pop(index, None)
            if ready is None and self._next < len(self._indexes):
                self._compute_up_to(index)
                ready = self._ready.pop(index, None)
            if ready is not None and ready[0] == output_tokens:
                return ready[1]
        run_length = self.run_length
        accepted = bytearray()
        while emitted_tokens < output_tokens:
            num_accepted = run_length(index, emitted_tokens, draft_tokens)
            accepted.append(num_accepted)
            emitted_tokens += num_accepted + 1
        return np.frombuffer(accepted, dtype=np.int8)

    def all_rounds(self, indexes: Integers, output_tokens: Integers, draft_tokens: int) -> AllRounds:
        """`rounds` of all these requests from their first token on. The last ones are kept: a search asks for the
        same at every load."""
        key = self._seed, draft_tokens, indexes.tobytes(), output_tokens.tobytes()
        for kept in _last:
            if kept.acceptance is self._acceptance and kept.key == key:
                return kept
        pairs = zip(indexes.tolist(), output_tokens.tolist(), strict=True)
        rounds = [self.rounds(index, 1, output, draft_tokens) for index, output in pairs]
        _last[:] = [
            AllRounds(self._acceptance, key, np.concatenate(rounds), np.array([len(each) for each in rounds], np.int64))
        ]
        return _last[0]

    def by_position(self, indexes: Integers, outputs: Integers, draft_tokens: int) -> tuple[Accepted, Integers]:
        """`run_length` of all these requests at each position, one request after the other, and where each begins."""
        widths = outputs + draft_tokens + 1
        windows = [
            Positions(self._seed, indexes[at], 0, widths[at] + (widths[at] & 1))
            for at in (slice(at, at + _BLOCK_REQUESTS) for at in range(0, len(indexes), _BLOCK_REQUESTS))
        ]
        lengths = [self._acceptance.run_lengths(each, draft_tokens).view(np.int8) for each in windows]
        ends = np.cumsum(np.concatenate([each.widths for each in windows]))
        return np.concatenate(lengths), ends - widths - (widths & 1)

    def prepare(
        self, indexes: Sequence[int] | Integers, output_tokens: Sequence[int] | Integers, draft_tokens: int
    ) -> None:
        """Announce that `rounds(index, 1, output, draft_tokens)` will be asked once per request, about in this order.

        Costs nothing but 16 bytes per request until then; any other question is answered as well, only more slowly.
        """
        self._indexes = np.asarray(indexes, dtype=np.int64)
        self._outputs = np.asarray(output_tokens, dtype=np.int64)
        if len(self._indexes) != len(self._outputs):
            raise ValueError(f"{len(self._indexes)} indexes and {len(self._outputs)} output lengths: want one each")
        self._draft_tokens = _checked_depth(draft_tokens)
        self._next = 0
        self._ready.clear()

    def release(self, index: int) -> None:
        """Request `index` will not be requested again; optional, since all that is kept is bounded."""
        self._ready.pop(index, None)

    # -- run_length's tiles

    def _deepen(self, most: int) -> None:
        self._depth = max(_checked_depth(most), min(2 * self._depth, MAX_DRAFT_TOKENS))
        self._tiles.clear()

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

    def _compute_up_to(self, index: int) -> None:
        """Compute the next blocks until one holds `index`; none if it is not among the requests still to come."""
        if not (self._indexes[self._next :] == index).any():
            return
        while index not in self._ready:
            begin = self._next
            ends = np.cumsum(self._outputs[begin : begin + _BLOCK_REQUESTS])
            self._next = begin + max(1, int(np.searchsorted(ends, _BLOCK_POSITIONS, side="right")))
            self._compute_block(self._indexes[begin : self._next], self._outputs[begin : self._next])

    def _compute_block(self, indexes: Integers, outputs: Integers) -> None:
        """All requests of a block jump from round to round together, longest first so that the rest can be left out."""
        order = np.argsort(-outputs, kind="stable")
        indexes, outputs = indexes[order], outputs[order]
        depth = self._draft_tokens
        widths = outputs + depth + 1
        window = Positions(self._seed, indexes, 0, widths + (widths & 1))
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
            is_going = np.flatnonzero(positions < ends[: len(positions)])
            positions = positions[: is_going[-1] + 1 if len(is_going) else 0]
        is_start &= steps != 0
        starts = np.flatnonzero(is_start)
        accepted = (steps[starts] - np.uint8(1)).view(np.int8)
        bounds = np.searchsorted(starts, offsets).tolist()
        bounds.append(len(starts))
        ready = self._ready
        for row, (index, output) in enumerate(zip(indexes.tolist(), outputs.tolist(), strict=True)):
            ready[index] = (output, accepted[bounds[row] : bounds[row + 1]])
        while len(ready) > _MAX_READY:
            del ready[next(iter(ready))]


def _checked_depth(draft_tokens: int) -> int:
    if not 0 <= draft_tokens <= MAX_DRAFT_TOKENS:
        raise ValueError(f"a draft of {draft_tokens!r} tokens: must be in 0..{MAX_DRAFT_TOKENS}")
    return draft_tokens
