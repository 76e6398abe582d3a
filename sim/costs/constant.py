"""Constant costs: every kind of work takes a fixed device time. For tests whose sums are made by hand.

Not here: anything about a real device.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from sim.costs.cost import Cost, Demands
from sim.work import Kind, Work


class ConstantCosts(msgspec.Struct, frozen=True, kw_only=True):
    """A cost model: `device_s` per kind (0 where absent), and the same host times for every work."""

    device_s: Mapping[Kind, float]
    prepare_s: float = 0.0
    launch_s: float = 0.0
    result_s: float = 0.0
    num_kernels: int = 1
    demand: Demands = Demands(1.0, 1.0)
    inflation_per_issuer: float = 0.0
    """Each further issuer slows all of them by this much."""

    def cost(self, work: Work) -> Cost:
        if work.kind is Kind.HOST:
            return Cost(work.host_s, 0.0, 0.0, 0)
        return Cost(self.prepare_s, self.launch_s, self.device_s.get(work.kind, 0.0), self.num_kernels)

    def demands(self, work: Work) -> Demands:
        return self.demand

    def host_inflation(self, num_issuers: int) -> float:
        return 1.0 + self.inflation_per_issuer * (num_issuers - 1)
