"""KV memory as SGLang has it: content is found once it is computed, and a draft's slots come back after its verify.

Of a request that is retracted, or has ended, no more can be found than its prefill computed (SGLang 0.5.6,
mem_cache/radix_cache.py: cache_unfinished_req, cache_finished_req). Which free blocks are taken first is PagedPool's
order, longest free first, where SGLang takes leaves of its tree by their last use.
"""

from __future__ import annotations

from typing import Any

from sim.engine.paged import PagedPool, _Table
from sim.interface.request import Request


class RadixPool(PagedPool):
    """Blocks that have keys from the moment at which `computed` says so, not from the plan on."""

    def __init__(self, *given: Any, **rules: Any) -> None:
        super().__init__(*given, **rules)
        self._computed_tokens: dict[int, int] = {}
        """Arrival index -> tokens, of those whose content another request has."""

    def computed(self, request: Request, num_tokens: int) -> None:
        """The first `num_tokens` of `request` are in memory: from now on they are found."""
        if self.is_caching and request.index in self._num_common:
            self._computed_tokens[request.index] = num_tokens
            self._name(request, self._tables[request.index], num_tokens)

    def prefix(self, request: Request) -> tuple[int, int]:
        """Tokens that `seat` would find of what `request` has, and how many of their blocks are free."""
        found = self._found(request, (request.prompt_tokens + request.emitted_tokens - 1) // self.block_size)
        if self.drops_cached_block:
            del found[-1:]
        return len(found) * self.block_size, sum(block not in self._num_users for block in found)

    def missing(self, request: Request, num_tokens: int) -> int:
        """Blocks that the table of `request` lacks for `num_tokens`."""
        return -(-num_tokens // self.block_size) - len(self._tables[request.index])

    def spare_tokens(self, request: Request, num_tokens: int) -> int:
        """Tokens for which the table of `request` has room beyond `num_tokens`."""
        return len(self._tables[request.index]) * self.block_size - num_tokens

    def give_back(self, request: Request, num_tokens: int) -> None:
        """Free what the table of `request` has beyond `num_tokens`, of blocks without a key."""
        table = self._tables[request.index]
        spare = min(len(table) - -(-num_tokens // self.block_size), table.num_counted)
        if spare > 0:
            table.num_counted -= spare
            self.num_free += spare
            self._next_free += spare

    def _name(self, request: Request, table: _Table, num_tokens: int) -> None:
        super()._name(request, table, min(num_tokens, self._computed_tokens.get(request.index, 0)))
