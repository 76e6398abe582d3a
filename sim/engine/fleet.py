"""Replicas behind one router: arrivals go to one of several servings, and their accounts are added up.

Not here: what a replica does with its requests (sim.policies), its view of the GPUs (sim.hosts.view).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from itertools import takewhile
from typing import NamedTuple

from sim.engine.kv import KvPool
from sim.engine.serving import Serving, bring_in
from sim.engine.time_series import GapSamples, Gauge
from sim.interface.host import Host
from sim.interface.request import Request
from sim.interface.wait import Signal

MAX_AHEAD = 8
"""Requests by which a replica that knows a prefix may be ahead of the least busy one and still be chosen for it."""


class Routing(StrEnum):
    """Rule for the replica of the next request: each in turn; the one with the fewest unfinished; the one that saw the
    longest beginning of its prompt, unless that one is too far ahead of the least busy."""

    ROUND_ROBIN = "round-robin"
    LEAST_OUTSTANDING = "least-outstanding"
    PREFIX_AFFINITY = "prefix-affinity"


def least_busy(outstanding: Sequence[int]) -> int:
    """Index of the replica with the fewest unfinished requests, the first of equals.

    >>> least_busy([3, 1, 1])
    1
    """
    return min(range(len(outstanding)), key=lambda index: (outstanding[index], index))


def where_prefix_is(known_blocks: Sequence[int], outstanding: Sequence[int]) -> int:
    """The replica with the longest known beginning, of several the least busy; the least busy one where none knows any,
    or where it is more than MAX_AHEAD requests ahead of that.

    >>> where_prefix_is([0, 2, 5], [0, 0, 8]), where_prefix_is([0, 2, 5], [0, 0, 9])
    (2, 0)
    >>> where_prefix_is([0, 0, 0], [2, 1, 3]), where_prefix_is([4, 4, 0], [2, 1, 0])
    (1, 1)
    """
    idle = least_busy(outstanding)
    best = min(range(len(outstanding)), key=lambda index: (-known_blocks[index], outstanding[index], index))
    if known_blocks[best] == 0 or outstanding[best] - outstanding[idle] > MAX_AHEAD:
        return idle
    return best


class Account(NamedTuple):
    """Totals that all replicas add to."""

    queue: Gauge
    """Total of requests waiting for admission: each replica's gauge is a part of it."""
    held: Gauge
    """Total of tokens in KV, likewise."""
    on_finished: Callable[[], None]
    """Called when a request of any replica has its last token."""


class Fleet:
    """Several servings of one stream of requests; looks like one to whoever reads its account.

    Two replicas of `pd`, requests in turn:

    >>> import lanesim
    >>> two = lanesim.simulate(profile="cpu/tiny", policy="pd", num_prompts=6, **{"devices.count": 2})
    >>> [usage.num_works for usage in two.record.usage if usage.stream.startswith("prefill")]
    [6, 6]
    """

    def __init__(
        self,
        host: Host,
        requests: Sequence[Request],
        build: Callable[[int, Account], Serving],
        *,
        count: int,
        routing: Routing,
        max_concurrency: int | None,
    ) -> None:
        """`build` makes the serving of a replica that adds to the account."""
        self.host = host
        self.requests = requests
        self.max_concurrency = max_concurrency
        self.routing = routing
        self.queue, self._held = Gauge(), Gauge()
        self.finished = Signal()
        account = Account(self.queue, self._held, lambda: host.notify(self.finished))
        self.servings = [build(index, account) for index in range(count)]
        self.num_arrived = 0
        self._known: list[set[int]] = [set() for _ in self.servings]
        """Blocks of prompts that each replica has been sent."""

    @property
    def kv(self) -> KvPool:
        """All replicas' memory as one, for accounts."""
        first = self.servings[0].kv
        whole = KvPool(
            sum(each.kv.num_blocks for each in self.servings),
            first.block_size,
            first.draft_slots,
            kept_blocks=first.kept_blocks,
        )
        whole.held = self._held
        return whole

    @property
    def gaps(self) -> GapSamples:
        """Those of each replica after those of the one before."""
        whole = GapSamples()
        for serving in self.servings:
            whole.gaps_s += serving.gaps.gaps_s
            whole.counts += serving.gaps.counts
        return whole

    @property
    def num_finished(self) -> int:
        return sum(serving.num_finished for serving in self.servings)

    @property
    def is_all_finished(self) -> bool:
        return self.num_finished == len(self.requests)

    async def arrivals(self) -> None:
        """Bring requests in as Serving.arrivals does, each request to the replica that the routing chooses."""
        await bring_in(self, self._route)

    def _route(self, request: Request) -> None:
        self.num_arrived += 1
        self.servings[self._choose(request)].intake.arrive(request)

    def _choose(self, request: Request) -> int:
        outstanding = [serving.num_arrived - serving.num_finished for serving in self.servings]
        if self.routing is Routing.ROUND_ROBIN:
            return (self.num_arrived - 1) % len(outstanding)
        if self.routing is Routing.LEAST_OUTSTANDING:
            return least_busy(outstanding)
        # Ids of blocks are chained, so a later one implies the earlier.
        num_known = [sum(1 for _ in takewhile(known.__contains__, request.content)) for known in self._known]
        chosen = where_prefix_is(num_known, outstanding)
        self._known[chosen].update(request.content)
        return chosen
