"""KV memory in blocks keyed by content, as in vLLM v1: taken as tokens come, shared, found again while intact.

A whole block's key is the chained id of its content (`Request.content`), so that requests which begin alike hold the
same blocks, counted by their users; a last, partial block is nobody else's. A block that nobody uses any longer keeps
its content until it is taken: free blocks are taken in the order in which they became free, and a request gives its
last blocks back first. Blocks have keys from the moment at which their tokens are planned: a request seated in the same
step finds them. What no other request of the run can ask for is counted, not named; when its request is preempted, it
is named for that request alone. Not here: who is preempted (sim.policies.continuous.plan).
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from sim.engine.kv import KvPool
from sim.interface.request import Request
from sim.interface.request_columns import Requests
from sim.interface.work import Chunk

_POSITION_BITS = 32
"""Blocks that only their request can ask for are keyed by its index and their position, below 0; contents by ids from
0."""


class FirstChunk(NamedTuple):
    """Conditions of a step for the first chunk of a request."""

    padded_tokens: int = 0
    """Tokens of one that is a request's last token alone, as of a round, so that the step's rows stay uniform; 0:
    one."""
    beside_rows: bool = False
    """The step has rows; without them one is padded only behind a prefix that was found."""
    last_only: bool = False
    """Prompts wait, but for such a last token."""


ANY_CHUNK = FirstChunk()


class _Table:
    """A request's blocks: `named` ones first, then those that are only counted."""

    def __init__(self, named: list[int]) -> None:
        self.named = named
        self.num_counted = 0
        self.cached_tokens = 0
        """Those whose whole blocks have keys: planned, and known when they were."""

    def __len__(self) -> int:
        return len(self.named) + self.num_counted


class PagedPool(KvPool):
    """Blocks with identity. Every block is in a table, or in several, or free. Lanes reserve whole lives instead
    (KvPool)."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        draft_slots: int,
        *,
        kept_blocks: int = 0,
        is_caching: bool = True,
        drops_cached_block: bool = False,
        hashes_next_token: bool = False,
        ends_differ: bool = False,
        seats_first_chunk: bool = False,
        caches_results: bool = True,
        reuses_blank_first: bool = False,
        max_tokens: int | None = None,
    ) -> None:
        super().__init__(num_blocks, block_size, draft_slots, kept_blocks=kept_blocks)
        self.seats_first_chunk = seats_first_chunk
        """A request is seated where its first chunk fits, and not only where all that it has would."""
        self.caches_results = caches_results
        """Blocks that the end of a step fills have keys then; False: with the plan of the next step, if there is
        one."""
        self.reuses_blank_first = reuses_blank_first
        """Blocks that never had a key are taken before all others."""
        self.max_tokens = sys.maxsize if max_tokens is None else max_tokens
        """Slots of one request at most, look-ahead included; no draft reaches beyond."""
        self.is_caching = is_caching
        self.drops_cached_block = drops_cached_block
        """The last block found of a prefix is computed again: a drafter wants its features."""
        self.hashed_ahead = int(hashes_next_token)
        """Tokens behind a block that must be there, and the same, where it is found."""
        self.skipped_ids = int(hashes_next_token and ends_differ)
        """A block goes by the id of so many blocks after it. With `ends_differ` contents part at the end of a block,
        so that the last one in common is not found; else they are taken to part within the next one."""
        self.num_free = num_blocks
        self._num_common: dict[int, int] = {}
        """Request index -> leading blocks of its content that another request has as well."""
        self._tables: dict[int, _Table] = {}
        self._next_free = num_blocks
        """Free blocks without a name that are taken before all others."""
        self._freed: OrderedDict[int, int] = OrderedDict()
        """Then these, longest free first: a named block, or how many without a name."""
        self._newest = 0
        """Names of blocks, and of what is in `_freed`, count up from here."""
        self._num_users: Counter[int] = Counter()
        """Named block -> tables that it is in; none where it is free."""
        self._block_of: dict[int, int] = {}
        """Key -> the named block that is found by it."""
        self._key_of: dict[int, int] = {}
        self._copies: dict[int, list[int]] = {}
        """Key -> further blocks of that content, found when those before them are gone."""

    @property
    def num_held(self) -> int:
        """Blocks in tables."""
        return self.num_blocks - self.num_free

    @property
    def is_sharing(self) -> bool:
        """Some request may find what another one computed."""
        return bool(self._num_common)

    def expect(self, requests: Sequence[Request]) -> None:
        """`requests` are all that will come: content that only one of them has need not be named, and whoever is longer
        than the context is served all the same."""
        asked = Requests.of(requests)
        longest = (asked.column("prompt_tokens") + asked.column("output_tokens")).max(initial=0)
        self.max_tokens = max(self.max_tokens, int(longest))
        contents = [each for each in asked.contents if each]
        if not self.is_caching or not contents:
            return
        uses = Counter(chain.from_iterable(contents))
        for request in requests:
            low, high = 0, len(request.content)
            while low < high:
                middle = (low + high) // 2
                if uses[request.content[middle]] > 1:
                    low = middle + 1
                else:
                    high = middle
            if low > self.skipped_ids:
                self._num_common[request.index] = low - self.skipped_ids

    def seat(self, request: Request, tokens: int, lookahead: int = 0, first: FirstChunk = ANY_CHUNK) -> Chunk | None:
        """Give `request` a table for what is found of its prefix and for `tokens` at most after that, and `lookahead`
        more; returns the chunk after what was found. None, and nothing changes, unless all that it has would fit, and
        this.

        Found are whole blocks, and never the last token, which is computed again for its logits.
        """
        goal = request.prompt_tokens + request.emitted_tokens
        found = self._found(request, (goal - 1) // self.block_size)
        if self.drops_cached_block:
            del found[-1:]
        num_users = self._num_users
        free = [block for block in found if block not in num_users]
        num_in_use = len(found) - len(free)
        history_tokens = len(found) * self.block_size
        end = min(goal, history_tokens + tokens)
        if goal - history_tokens > 1:
            if first.last_only:
                return None
        elif (first.beside_rows or history_tokens) and history_tokens + first.padded_tokens < self.max_tokens:
            if first.padded_tokens > tokens:
                return None
            end = max(end, history_tokens + first.padded_tokens)
        needed = min(end + lookahead, self.max_tokens)
        if not self.seats_first_chunk and needed < goal:
            needed = goal
        if -(-needed // self.block_size) + self.kept_blocks - num_in_use > self.num_free:
            return None
        num_users.update(found)
        for block in free:
            del self._freed[block]
        self.num_shared += num_in_use
        self.num_free -= len(free)
        self._open(request, found)
        self.grow(request, end, lookahead)
        return Chunk(end - history_tokens, history_tokens)

    def _open(self, request: Request, found: list[int]) -> None:
        """A table of blocks with names, and those that are kept beside it."""
        self._tables[request.index] = _Table(found)
        self.take(self.kept_blocks)

    def grow(self, request: Request, num_tokens: int, lookahead: int = 0) -> bool:
        """Extend the table of `request` to hold the `num_tokens` that it has by the end of a step and `lookahead` more.
        False, and nothing changes, where too few blocks are free."""
        table = self._tables[request.index]
        slots = num_tokens + lookahead
        if slots > self.max_tokens:
            slots = self.max_tokens
        missing = -(-slots // self.block_size) - len(table.named) - table.num_counted
        if missing > 0:
            if missing > self.num_free:
                return False
            self.take(missing)
            table.num_counted += missing
        known_tokens = request.prompt_tokens + request.emitted_tokens - self.hashed_ahead
        table.cached_tokens = num_tokens if num_tokens < known_tokens else known_tokens
        if self._num_common and len(table.named) < self._num_common.get(request.index, 0):
            self._name(request, table, min(table.cached_tokens, request.prompt_tokens))
        return True

    def preempt(self, request: Request, num_tokens: int | None = None) -> None:
        """Free the table of `request`, where it has one here; whole blocks of its first `num_tokens`, or of what was
        cached, can be found again."""
        table = self._tables.pop(request.index, None)
        if table is None:
            return
        if self.is_caching:
            num_tokens = self._cached(request, table) if num_tokens is None else num_tokens
            self._name(request, table, num_tokens)
            for position in range(len(table.named), num_tokens // self.block_size):
                self._append(table, self._own_key(request, position))
        self._free(table)

    def release(self, request: Request) -> None:
        """All that `request` holds is free; where its answer is known by content, another one can find it."""
        table = self._tables.pop(request.index, None)
        if table is not None:
            table.cached_tokens = self._cached(request, table)
            if len(table.named) < self._num_common.get(request.index, 0):
                self._name(request, table, table.cached_tokens)
            self._free(table)

    def _cached(self, request: Request, table: _Table) -> int:
        """Tokens of `request` whose whole blocks have keys when it gives them back."""
        if not self.caches_results:
            return table.cached_tokens
        return max(table.cached_tokens, request.context_tokens)

    def take(self, num_blocks: int) -> None:
        """Use `num_blocks` free ones, longest free first; what they held is lost."""
        self.num_free -= num_blocks
        missing = num_blocks - self._next_free
        while missing > 0:
            block, count = self._freed.popitem(last=False)
            if block in self._key_of:
                self._forget(block)
            missing -= count
        self._next_free = -missing

    def fits_beside(self, running: Sequence[Request], request: Request) -> bool:
        """True where `running` and `request` fit until they end, blocks that they may share counted for each."""
        return sum(map(self.blocks_for, running)) + self.blocks_for(request) <= self.num_blocks

    # -- names

    def _own_key(self, request: Request, position: int) -> int:
        return -(request.index << _POSITION_BITS | position) - 1

    def _found(self, request: Request, most: int) -> list[int]:
        """The blocks, `most` at most, that hold the prefix of `request`."""
        found: list[int] = []
        block_of = self._block_of
        num_common = min(most, self._num_common.get(request.index, 0))
        if num_common:
            for block in map(block_of.get, request.content[self.skipped_ids : self.skipped_ids + num_common]):
                if block is None:
                    return found
                found.append(block)
        if request.num_preemptions:
            for position in range(num_common, most):
                block = block_of.get(self._own_key(request, position))
                if block is None:
                    break
                found.append(block)
        return found

    def _name(self, request: Request, table: _Table, num_tokens: int) -> None:
        """Name what holds whole blocks of the first `num_tokens`, as far as another request has them."""
        most = min(self._num_common.get(request.index, 0), num_tokens // self.block_size)
        for key in request.content[self.skipped_ids + len(table.named) : self.skipped_ids + most]:
            self._append(table, key)

    def _append(self, table: _Table, key: int) -> None:
        """The first block of `table` that is only counted gets a name."""
        self._newest = block = self._newest + 1
        self._num_users[block] = 1
        self._key_of[block] = key
        if self._block_of.setdefault(key, block) != block:
            self._copies.setdefault(key, []).append(block)
        table.named.append(block)
        table.num_counted -= 1

    def _forget(self, block: int) -> None:
        """`block` is taken: it is found no longer."""
        key = self._key_of.pop(block)
        copies = self._copies.get(key)
        if copies is None:
            del self._block_of[key]
            return
        if self._block_of[key] == block:
            self._block_of[key] = copies.pop(0)
        else:
            copies.remove(block)
        if not copies:
            del self._copies[key]

    def _free(self, table: _Table) -> None:
        freed, num_users = self._freed, self._num_users
        num_counted = table.num_counted
        self._next_free += self.kept_blocks
        self.num_free += self.kept_blocks
        if self.reuses_blank_first:
            num_blank = num_counted
            if self.is_caching:
                num_blank = min(num_counted, len(table) - table.cached_tokens // self.block_size)
            self._next_free += num_blank
            num_counted -= num_blank
        if num_counted:
            self._newest += 1
            freed[self._newest] = num_counted
        num_in_use = 0
        for block in reversed(table.named):
            others = num_users[block] - 1
            if others:
                num_users[block] = others
                num_in_use += 1
            else:
                del num_users[block]
                freed[block] = 1
        self.num_shared -= num_in_use
        self.num_free += len(table) - num_in_use


class SlottedPool(PagedPool):
    """KV memory by blocks, and by slots: at most `max_requests` at once. A slot holds a whole sequence, so a request
    cannot lose its memory and come back, nor share it."""

    def __init__(self, num_blocks: int, block_size: int, draft_slots: int, max_requests: int) -> None:
        super().__init__(num_blocks, block_size, draft_slots, is_caching=False)
        self._max_requests = max_requests

    def reserve(self, request: Request) -> bool:
        """Of lanes, which have no tables."""
        return len(self._reserved) < self._max_requests and super().reserve(request)

    def release(self, request: Request) -> None:
        KvPool.release(self, request) if request.index in self._reserved else super().release(request)

    def seat(self, request: Request, tokens: int, lookahead: int = 0, first: FirstChunk = ANY_CHUNK) -> Chunk | None:
        return super().seat(request, tokens, lookahead, first) if len(self._tables) < self._max_requests else None

    def preempt(self, request: Request, num_tokens: int | None = None) -> None:
        raise ValueError(
            f"KV memory ran out: request {request.id} would be preempted, which a replay cannot do. Raise "
            "engine.num_gpu_blocks, or lower --max-concurrency"
        )
