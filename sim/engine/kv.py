"""KV memory: blocks reserved at admission, and the tokens really held.

Not here: blocks taken as tokens come, preemption and prefix sharing (sim.engine.paged).
"""

from __future__ import annotations

from sim.engine.gauge import Gauge
from sim.seam.request import Request


class KvPool:
    """Admission by capacity: a request enters when room for all its tokens, and the drafts in flight, is left.

    `held` counts what is in memory at each moment: while a round is in flight draft length + 1 slots per row,
    rolled back to the accepted ones afterwards.
    """

    __slots__ = ("_reserved", "block_size", "draft_slots", "free_blocks", "held", "num_blocks", "num_shared")

    def __init__(self, num_blocks: int, block_size: int, draft_slots: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.draft_slots = draft_slots
        self.free_blocks = num_blocks
        self.held = Gauge()
        """Tokens in KV; what several requests share counts once."""
        self.num_shared = 0
        """Blocks that requests have in common, each counted once less than there are requests with it."""
        self._reserved: dict[int, int] = {}

    def blocks_for(self, request: Request) -> int:
        """Blocks for the whole life of `request`, the last round's drafts included."""
        return -(-(request.prompt_tokens + request.output_tokens + self.draft_slots) // self.block_size)

    def reserve(self, request: Request) -> bool:
        num_blocks = self.blocks_for(request)
        if num_blocks > self.free_blocks:
            return False
        self.free_blocks -= num_blocks
        self._reserved[request.index] = num_blocks
        return True

    def release(self, request: Request) -> None:
        self.free_blocks += self._reserved.pop(request.index)
