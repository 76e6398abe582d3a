"""Links: what moving KV between devices costs. A link is a device with one FIFO for all its streams.

Not here: the FIFO itself (`shared`).
"""

from __future__ import annotations

import msgspec

from sim.costs.cost import Cost, Demands
from sim.work import Kind, Work


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """A connection between devices: `latency_s` per transfer plus bytes / `bytes_per_s`. Its own cost model."""

    latency_s: float
    bytes_per_s: float
    result_s: float = 0.0

    def cost(self, work: Work) -> Cost:
        if work.kind is not Kind.COPY:
            raise ValueError(f"a link runs COPY works only, got {work.kind}")
        return Cost(0.0, 0.0, self.latency_s + work.num_bytes / self.bytes_per_s, 1)

    def demands(self, work: Work) -> Demands:
        return Demands(0.0, 1.0)

    def host_inflation(self, num_issuers: int) -> float:
        return 1.0
