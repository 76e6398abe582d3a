"""What a work costs: the protocol that every cost model fulfils.

Not here: any number; those live in profiles (sim.costs.profile) and models of them (compact, table).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from sim.work import Work


class Cost(NamedTuple):
    """Solo cost of one work, seconds."""

    prepare_s: float
    """Host time before the first kernel can be issued (an engine's scheduling and input preparation)."""
    launch_s: float
    """Host time to issue all kernels; the device may already run the first ones."""
    device_s: float
    """Device time with all kernels issued and nothing else running."""
    num_kernels: int


class Demands(NamedTuple):
    """Share of the achieved solo roofs that a work uses while it runs at full rate, each in 0..1."""

    compute: float
    bandwidth: float


class CostModel(Protocol):
    def cost(self, work: Work) -> Cost:
        """Solo cost of `work`. Pure; called once per work, so cheap (a few microseconds)."""
        ...

    def demands(self, work: Work) -> Demands:
        """What `work` asks of the device; called only where works contend."""
        ...

    def host_inflation(self, num_issuers: int) -> float:
        """Slowdown of each issuer when `num_issuers` of one process issue at the same time; 1.0 for one."""
        ...

    @property
    def result_s(self) -> float:
        """Seconds from the end of a work on the device until its result is on the host (copy and wake-up)."""
        ...
