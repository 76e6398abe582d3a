"""Data-parallel ranks that share their experts: every step begins and ends for all of them together.

As in vLLM with `--data-parallel-size`: in each layer all ranks' tokens go to the experts and back, so that no rank is
ahead of another; one without requests takes part with a dummy batch, which takes no time of the others. A request that
comes to it meanwhile waits for the step under way. Not here: which rank a request goes to (sim.engine.fleet), what a
step costs (sim.costs).
"""

from __future__ import annotations

from sim.interface.host import Host
from sim.interface.wait import Signal


class Lockstep:
    """The step that the ranks are in."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._tokens: list[int] = []
        """Tokens of the ranks that have begun or are about to."""
        self._num_begun = self._num_ended = 0
        self._over = Signal()

    async def between(self) -> None:
        """Wait until no rank's step is under way."""
        while self._num_begun:
            await self._host.wait(self._over)

    async def begin(self, tokens: int) -> int:
        """Wait until this rank's step of `tokens` tokens can begin; returns the tokens of all ranks in it."""
        await self.between()
        self._tokens.append(tokens)
        await self._host.sleep(0.0)  # for the others that are free at this instant
        self._num_begun += 1
        return sum(self._tokens)

    async def end(self) -> None:
        """Wait until the step is over for all ranks in it."""
        self._num_ended += 1
        if self._num_ended < self._num_begun:
            await self._host.wait(self._over)
            return
        self._tokens = []
        self._num_begun = self._num_ended = 0
        self._host.notify(self._over)
