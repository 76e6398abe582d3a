"""Costs that depend on what the device did before: pauses, and passes of the other model. Not measured means none.

Clocks and caches of a machine fall back while nothing runs and take some milliseconds of work to come up again. After
a pause of g seconds the works that follow lose lost_s (1 - exp(-g / pause_s)) seconds in all, each of them its part of
what is still to be lost: 1 - exp(-own seconds / work_s). And a pass of the other model than the one before finds its
weights out of the caches, which costs switch_s. Source: docs/adr/007.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp

from sim.costs.cost import Cost, CostModel, Demands
from sim.costs.profile import HostCosts, IdleRamp
from sim.work import Kind, Model, Work


def with_history(costs: CostModel, now_s: Callable[[], float]) -> CostModel:
    """`costs` for one device, with what their profile says of the past, if anything. `now_s` is the clock."""
    host: HostCosts | None = getattr(costs, "host", None)
    if host is None or (host.idle_ramp is None and host.switch_s == 0.0):
        return costs
    return HistoryCosts(costs, host.idle_ramp, host.switch_s, now_s)


class HistoryCosts:
    """A cost model with a memory: works are priced in the order of submission, and a pause is one between them."""

    def __init__(
        self, costs: CostModel, idle_ramp: IdleRamp | None, switch_s: float, now_s: Callable[[], float]
    ) -> None:
        self._costs, self._ramp, self._switch_s, self._now_s = costs, idle_ramp, switch_s, now_s
        self.demands: Callable[[Work], Demands] = costs.demands
        self.host_inflation: Callable[[int], float] = costs.host_inflation
        self.result_s = costs.result_s
        self._model: Model | None = None
        """Of the newest pass."""
        self._busy_until_s = 0.0
        self._left_s = 0.0
        """What later works will lose of past pauses."""

    def cost(self, work: Work) -> Cost:
        prepare_s, launch_s, device_s, num_kernels = self._costs.cost(work)
        if work.kind is Kind.HOST or work.kind is Kind.COPY:
            return Cost(prepare_s, launch_s, device_s, num_kernels)
        more_s = self._switch_s if self._model not in (None, work.model) else 0.0
        self._model = work.model
        now_s = self._now_s()
        if self._ramp is not None:
            more_s += self._lost_s(self._ramp, now_s - self._busy_until_s, device_s)
        if launch_s >= device_s:
            # Issuing is executing: whatever takes longer holds the issuer as well.
            launch_s += more_s
        self._busy_until_s = max(self._busy_until_s, now_s) + prepare_s + device_s + more_s
        return Cost(prepare_s, launch_s, device_s + more_s, num_kernels)

    def _lost_s(self, ramp: IdleRamp, pause_s: float, device_s: float) -> float:
        if pause_s > 0.0:
            self._left_s = ramp.lost_s - (ramp.lost_s - self._left_s) * exp(-pause_s / ramp.pause_s)
        lost_s = self._left_s * (1.0 - exp(-device_s / ramp.work_s))
        self._left_s -= lost_s
        return lost_s
