"""Costs that are constants, for tests whose sums are made by hand."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from sim.costs.cost import Cost, Demands
from sim.interface.work import Kind, Work


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
        prepare_s = max(0.0, self.prepare_s - work.ahead_s)
        return Cost(prepare_s, self.launch_s, self.device_s.get(work.kind, 0.0), self.num_kernels)

    def demands(self, work: Work) -> Demands:
        return self.demand

    def host_inflation(self, num_issuers: int) -> float:
        return 1.0 + self.inflation_per_issuer * (num_issuers - 1)
