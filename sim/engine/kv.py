"""KV memory: blocks reserved at admission, and the tokens really held.

Not here: blocks taken as tokens come, preemption and prefix sharing (sim.engine.paged).
"""

from __future__ import annotations

from sim.engine.time_series import Gauge
from sim.interface.request import Request


class KvPool:
    """Admission by capacity: a request enters when room for all its tokens, and the drafts in flight, is left.

    `held` counts what is in memory at each moment: while a round is in flight draft length + 1 slots per row,
    rolled back to the accepted ones afterwards.
    """

    def __init__(self, num_blocks: int, block_size: int, draft_slots: int, *, kept_blocks: int = 0) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.draft_slots = draft_slots
        self.kept_blocks = kept_blocks
        """Blocks that each request has beside its tokens' (sim.costs.memory)."""
        self.free_blocks = num_blocks
        self.held = Gauge()
        """Tokens in KV; what several requests share counts once."""
        self.num_shared = 0
        """Blocks that requests have in common, each counted once less than there are requests with it."""
        self._reserved: dict[int, int] = {}

    @property
    def max_blocks(self) -> int:
        """Most blocks that one request can have."""
        return self.num_blocks

    def blocks_for(self, request: Request) -> int:
        """Blocks for the whole life of `request`, the last round's drafts included."""
        return self.blocks_of(request.prompt_tokens + request.output_tokens)

    def blocks_of(self, tokens: int) -> int:
        """The same of a request whose prompt and answer are `tokens`."""
        return -(-(tokens + self.draft_slots) // self.block_size) + self.kept_blocks

    def reserve(self, request: Request) -> bool:
        num_blocks = self.blocks_for(request)
        if num_blocks > self.free_blocks:
            return False
        self.free_blocks -= num_blocks
        self._reserved[request.index] = num_blocks
        return True

    def release(self, request: Request) -> None:
        self.free_blocks += self._reserved.pop(request.index)


class SpreadPool(KvPool):
    """The memory of several GPUs; a request lies on one of them, that with the most free blocks when it enters.

    Four blocks of 16 tokens on each of two GPUs, and requests that take three:

    >>> pool = SpreadPool(4, 16, 1, num_gpus=2)
    >>> asked = [Request(i, f"r{i}", 0.0, prompt_tokens=30, output_tokens=2) for i in range(4)]
    >>> [pool.reserve(request) for request in asked[:3]], pool.free_blocks, pool.max_blocks
    ([True, True, False], 2, 4)
    >>> pool.release(asked[0])
    >>> pool.reserve(asked[3]), [pool.gpu_of(request) for request in (asked[1], asked[3])]
    (True, [1, 0])
    """

    def __init__(
        self, num_blocks: int, block_size: int, draft_slots: int, *, num_gpus: int, kept_blocks: int = 0
    ) -> None:
        """`num_blocks` on each of `num_gpus`."""
        super().__init__(num_blocks * num_gpus, block_size, draft_slots, kept_blocks=kept_blocks)
        self._free = [num_blocks] * num_gpus
        self._places: dict[int, int] = {}

    @property
    def max_blocks(self) -> int:
        return self.num_blocks // len(self._free)

    def reserve(self, request: Request) -> bool:
        place = max(range(len(self._free)), key=lambda gpu: (self._free[gpu], -gpu))
        if self.blocks_for(request) > self._free[place] or not super().reserve(request):
            return False
        self._free[place] -= self._reserved[request.index]
        self._places[request.index] = place
        return True

    def release(self, request: Request) -> None:
        self._free[self._places.pop(request.index)] += self._reserved[request.index]
        super().release(request)

    def gpu_of(self, request: Request) -> int:
        """Index among these GPUs of the one that holds `request`."""
        return self._places[request.index]
