"""Cost of a pass in service, by the works beside it: caches that other passes have used (`served`), and workers that
poll and so take the interpreter from whoever issues a pass (look_s). What was not measured costs nothing.

Source: docs/adr/007.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sim.costs.cost import Cost, CostModel, Demands
from sim.costs.profile import HostCosts
from sim.interface.work import Kind, Model, Work

MAX_LOOKS = 1.0
"""Seconds of looking per second of issuing, at most: the interpreter goes by turns."""


class Now(Protocol):
    """State of the host that submits a work."""

    @property
    def looks_per_s(self) -> float: ...


def in_service(costs: CostModel, now: Now) -> CostModel:
    """`costs` for one host, with what their profile says of service, if anything."""
    host: HostCosts | None = getattr(costs, "host", None)
    return costs if host is None or not is_slowed(host) else ServiceCosts(costs, host, now)


def is_slowed(host: HostCosts) -> bool:
    """What a work takes depends on polling, or on its being in service."""
    return bool(host.served or host.look_s)


class ServiceCosts:
    """A cost model in service."""

    def __init__(self, costs: CostModel, host: HostCosts, now: Now) -> None:
        self._costs, self._now = costs, now
        self._served, self._look_s = host.served, host.look_s
        self._is_synchronous = host.is_synchronous
        self.demands: Callable[[Work], Demands] = costs.demands
        self.host_inflation: Callable[[int], float] = costs.host_inflation
        self.result_s, self.host = costs.result_s, host

    def cost(self, work: Work) -> Cost:
        cost = self._costs.cost(work)
        if work.kind in (Kind.HOST, Kind.COPY):
            return cost
        launch_s, device_s = cost.launch_s, cost.device_s
        more_s = device_s * (self._served.get(kind_in_service(work), 1.0) - 1.0)
        looked = min(MAX_LOOKS, self._look_s * self._now.looks_per_s)
        if self._is_synchronous:
            # Whatever takes longer holds the issuer as well.
            more_s += looked * (device_s + more_s)
            launch_s += more_s
        else:
            launch_s *= 1.0 + looked
        return cost._replace(launch_s=launch_s, device_s=device_s + more_s)


def kind_in_service(work: Work) -> str:
    """One of SERVED_KINDS; rows beside chunks of prompts count as what the rows are."""
    if work.model is Model.DRAFT:
        return "draft" if work.rows else "draft_prefill"
    if not work.rows:
        return "prefill"
    return "verify" if work.row_tokens > work.rows else "decode"
