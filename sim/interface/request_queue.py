"""A lane: a FIFO of requests between two workers.

Not here: which lane goes first or how many are taken (sim.policies.rounds).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from sim.interface.host import Host
from sim.interface.request import Request
from sim.interface.wait import Signal


class RequestQueue:
    """Requests in order of arrival. `take` waits while it is empty.

    One coroutine admits, another one serves (output of one token, so that prefill is all):

    >>> import lanesim
    >>> async def admits(serving, lane):
    ...     while True:
    ...         await lane.put(serving.host, await serving.admit())
    >>> async def serves(serving, lane, stream):
    ...     while True:
    ...         for request in await lane.take(serving.host, at_most=4):
    ...             await lanesim.rounds.submit_prefill(serving, request, stream)
    ...             serving.commit_prefill(request)
    >>> def build(serving, options, limits):
    ...     lane, stream = lanesim.RequestQueue("prefill"), serving.host.stream("gpu")
    ...     return [admits(serving, lane), serves(serving, lane, stream)]
    >>> mine = lanesim.register(lanesim.Policy(name="one-lane", summary="a lane", source="example", build=build))
    >>> one = lanesim.simulate(profile="cpu/tiny", policy="one-lane", num_prompts=9, request_rate=10, output_len=1)
    >>> one.metrics["completed"]
    9
    """

    __slots__ = ("changed", "items", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.items: deque[Request] = deque()
        self.changed = Signal()
        """Notified after every put and take."""

    def __len__(self) -> int:
        return len(self.items)

    async def put(self, host: Host, request: Request) -> None:
        self.items.append(request)
        host.notify(self.changed)

    async def put_all(self, host: Host, requests: Iterable[Request]) -> None:
        for request in requests:
            await self.put(host, request)

    def put_back(self, host: Host, requests: Sequence[Request]) -> None:
        """`requests`, which were taken, are the oldest again, in their order."""
        self.items.extendleft(reversed(requests))
        host.notify(self.changed)

    async def take(self, host: Host, *, at_most: int, poll_s: float | None = None) -> list[Request]:
        """Oldest requests, 1 to `at_most`. With `poll_s` an idle worker checks only that often."""
        await self.filled(host, poll_s=poll_s)
        return self.take_now(host, at_most=at_most)

    async def filled(self, host: Host, *, poll_s: float | None = None) -> None:
        """Wait until a request is in it."""
        while not self.items:
            await host.wait(self.changed, poll_s=poll_s)

    def take_now(self, host: Host, *, at_most: int) -> list[Request]:
        """Oldest requests, 0 to `at_most`, without waiting."""
        items = self.items
        taken = [items.popleft() for _ in range(min(at_most, len(items)))]
        if taken:
            host.notify(self.changed)
        return taken
