"""KV memory in blocks that are taken as tokens come, given back on preemption, and found again where still intact.

As in vLLM v1: free blocks are used in the order in which they became free, a request gives its last blocks back first,
and a block keeps its content until it is taken. A request that was preempted finds the blocks of its own prefix again;
content is not shared between requests. Not here: who is preempted (sim.policies.continuous).
"""

from __future__ import annotations

from collections import OrderedDict

from sim.engine.kv import KvPool
from sim.seam.request import Request

_KEY_BITS = 32
"""A block's content is keyed by request index and position in its table."""


class PagedPool(KvPool):
    """Blocks with identity. Every block is in one table, or free.

    Lanes, and the lazy account of `continuous`, reserve whole lives instead (KvPool); the two never mix for a request.
    """

    __slots__ = ("_content", "_found_at", "_freed", "_num_used", "_tables", "is_caching")

    def __init__(self, num_blocks: int, block_size: int, draft_slots: int, *, is_caching: bool = True) -> None:
        super().__init__(num_blocks, block_size, draft_slots)
        self.is_caching = is_caching
        self._tables: dict[int, list[int]] = {}
        self._freed: OrderedDict[int, None] = OrderedDict()
        """Free blocks that were used before, longest free first."""
        self._num_used = 0
        """Blocks used at least once: these have the lowest numbers. The others are taken first."""
        self._found_at: dict[int, int] = {}
        """Content -> the block that holds it."""
        self._content: dict[int, int] = {}
        """Block -> its content, where it can be found."""

    @property
    def num_free(self) -> int:
        return self.num_blocks - self._num_used + len(self._freed)

    @property
    def num_held(self) -> int:
        """Blocks in tables."""
        return sum(map(len, self._tables.values()))

    def found(self, request: Request, num_tokens: int) -> list[int]:
        """Blocks that still hold the prefix of `request`: whole ones, and at most `num_tokens` but the last, which is
        computed again for its logits."""
        blocks: list[int] = []
        if self._found_at:
            first = request.index << _KEY_BITS
            for key in range(first, first + (num_tokens - 1) // self.block_size):
                block = self._found_at.get(key)
                if block is None:
                    break
                blocks.append(block)
        return blocks

    def seat(self, request: Request, found: list[int], num_tokens: int, whole_tokens: int) -> bool:
        """Give `request` a table for `num_tokens`, which begins with the `found` blocks. False, and nothing changes,
        unless all `whole_tokens` that it has would fit."""
        most = max(num_tokens, whole_tokens)
        if -(-most // self.block_size) > self.num_free:
            return False
        for block in found:
            del self._freed[block]
        self._tables[request.index] = table = list(found)
        self._extend(table, -(-num_tokens // self.block_size))
        return True

    def grow(self, request: Request, num_tokens: int) -> bool:
        """Extend the table of `request` to hold `num_tokens`. False, and nothing changes, where too few are free."""
        table = self._tables[request.index]
        missing = -(-num_tokens // self.block_size) - len(table)
        if missing > 0:
            if missing > self.num_free:
                return False
            self._extend(table, len(table) + missing)
        return True

    def preempt(self, request: Request, num_tokens: int) -> None:
        """Free the table of `request`; what holds whole blocks of its first `num_tokens` can be found again."""
        table = self._tables.pop(request.index)
        if self.is_caching:
            first = request.index << _KEY_BITS
            for key, block in enumerate(table[: num_tokens // self.block_size], start=first):
                old = self._found_at.get(key)
                if old is not None:
                    del self._content[old]
                self._found_at[key] = block
                self._content[block] = key
        self._free(table)

    def release(self, request: Request) -> None:
        if request.index in self._reserved:
            super().release(request)
        elif request.index in self._tables:
            self._free(self._tables.pop(request.index))

    def unreserve(self, request: Request, num_tokens: int) -> None:
        """From a reservation to a table for `num_tokens`, which is never more."""
        super().release(request)
        table: list[int] = []
        self._tables[request.index] = table
        self._extend(table, -(-num_tokens // self.block_size))

    def _extend(self, table: list[int], length: int) -> None:
        while len(table) < length:
            if self._num_used < self.num_blocks:
                table.append(self._num_used)
                self._num_used += 1
                continue
            block, _ = self._freed.popitem(last=False)
            key = self._content.pop(block, None)
            if key is not None:
                del self._found_at[key]
            table.append(block)

    def _free(self, table: list[int]) -> None:
        for block in reversed(table):
            self._freed[block] = None


class SlottedPool(PagedPool):
    """KV memory by blocks, and by slots: at most `most_requests` at once. A slot holds a whole sequence, so a request
    cannot lose its memory and come back."""

    __slots__ = ("_most_requests",)

    def __init__(self, num_blocks: int, block_size: int, draft_slots: int, most_requests: int) -> None:
        super().__init__(num_blocks, block_size, draft_slots)
        self._most_requests = most_requests

    def reserve(self, request: Request) -> bool:
        return len(self._reserved) < self._most_requests and super().reserve(request)

    def seat(self, request: Request, found: list[int], num_tokens: int, whole_tokens: int) -> bool:
        has_slot = len(self._tables) < self._most_requests
        return has_slot and super().seat(request, found, num_tokens, whole_tokens)

    def preempt(self, request: Request, num_tokens: int) -> None:
        raise ValueError(
            f"KV memory ran out: request {request.id} would be preempted, which a replay cannot do; raise "
            "engine.num_gpu_blocks, or lower --max-concurrency"
        )
