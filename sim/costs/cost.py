"""Cost of a work: the protocol of every cost model, and the one that needs no profile, a link between devices.

Not here: numbers of a GPU (sim.costs.profile) and models of them (sim.costs.forms).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import msgspec

from sim.interface.work import Kind, Work


class Cost(NamedTuple):
    """Solo cost of one work, seconds."""

    prepare_s: float
    """Host time before the first kernel can be issued (an engine's scheduling and input preparation)."""
    launch_s: float
    """Host time to issue all kernels; the device may already run the first ones."""
    device_s: float
    """Device time with all kernels issued and nothing else running."""
    num_kernels: float
    """Beside another stream's work each has a turn of equal length."""
    tail_s: float = 0.0
    """Part of `device_s` that runs when all is launched and no sooner: captured passes behind one that is not."""


class Demands(NamedTuple):
    """Share of the achieved solo roofs that a work uses while it runs at full rate, each in 0..1."""

    compute: float
    bandwidth: float


class CostModel(Protocol):
    def cost(self, work: Work) -> Cost:
        """Solo cost of `work`. Pure; called once per work, so cheap (a few microseconds)."""
        ...

    def demands(self, work: Work) -> Demands:
        """Demands of `work` on the device; called only where works contend."""
        ...

    def host_inflation(self, num_issuers: int) -> float:
        """Slowdown of each issuer when `num_issuers` of one process issue at the same time; 1.0 for one."""
        ...

    @property
    def result_s(self) -> float:
        """Seconds from the end of a work on the device until its result is on the host (copy and wake-up)."""
        ...


def prompt_result_s(costs: CostModel) -> float:
    """`result_s` of works with prompt chunks, which a profile may tell from the others'."""
    host = getattr(costs, "host", None)
    own_s: float | None = getattr(host, "eager_result_s", None)
    return costs.result_s if own_s is None else own_s


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """A connection between devices: `latency_s` per transfer plus bytes / `bytes_per_s`. A cost model in itself."""

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
