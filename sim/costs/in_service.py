"""Cost of a pass in service, by the works beside it and before it. Effects that were not measured cost nothing.

- A pass that is repeated in a loop finds its data in the caches; in service other passes have been there (`served`).
- Clocks and caches of a core fall back while its stream does nothing, and take some milliseconds of work to come up
  again. A pause of g seconds beyond SHORT_PAUSE_S costs the stream's next works lost_s (1 - exp(-g / pause_s)) seconds
  in all, each of them its part of what is still to be lost: 1 - exp(-own seconds / work_s).
- Workers that poll take the interpreter from whoever issues a pass: look_s each time.

Source: docs/adr/007.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp
from typing import Protocol

from sim.costs.cost import Cost, CostModel, Demands
from sim.costs.profile import HostCosts, IdleRamp
from sim.interface.work import Kind, Model, Work

SHORT_PAUSE_S = 1e-3
"""Pauses up to this lie between any two works: what they cost is in the other constants."""
UNPRICED = (Kind.HOST, Kind.COPY)
"""Kinds to which nothing is added."""
MAX_LOOKS = 1.0
"""Seconds of looking per second of issuing, at most: the interpreter goes by turns."""


class Now(Protocol):
    """State of the host that submits a work."""

    @property
    def now_s(self) -> float: ...

    @property
    def looks_per_s(self) -> float: ...

    @property
    def submitting(self) -> str:
        """Name of the stream that the work is for."""
        ...


def with_history(costs: CostModel, now: Now) -> CostModel:
    """`costs` for one host, with what their profile says of the past and of polling, if anything."""
    host: HostCosts | None = getattr(costs, "host", None)
    return costs if host is None or not has_history(host) else HistoryCosts(costs, host, now)


def has_history(host: HostCosts) -> bool:
    """What a work takes depends on pauses before it, on polling, or on its being in service."""
    return bool(host.idle_ramp or host.served or host.look_s)


class HistoryCosts:
    """A cost model with a memory: works are priced in the order of submission, a pause is one of their stream."""

    def __init__(self, costs: CostModel, host: HostCosts, now: Now) -> None:
        self._costs, self._now = costs, now
        self._ramp, self._served, self._look_s = host.idle_ramp, host.served, host.look_s
        self._is_synchronous = host.is_synchronous
        self.demands: Callable[[Work], Demands] = costs.demands
        self.host_inflation: Callable[[int], float] = costs.host_inflation
        self.result_s, self.host = costs.result_s, host
        self.knows_ends = False
        """`ended` is called when a work ends: beside others it takes longer than its cost says."""
        self._busy_until_s: dict[str, float] = {}
        """When each stream's last work is over, as far as is known."""
        self._num_in_flight: dict[str, int] = {}
        """Works under way on each stream, where ends are known."""
        self._left_s: dict[str, float] = {}
        """Seconds that each stream's later works will lose of past pauses."""

    def cost(self, work: Work) -> Cost:
        cost = self._costs.cost(work)
        prepare_s, launch_s, device_s, _, _ = cost
        if work.kind in UNPRICED:
            return cost
        more_s = device_s * (self._served.get(kind_in_service(work), 1.0) - 1.0)
        now_s, stream = self._now.now_s, self._now.submitting
        busy_until_s = self._busy_until_s.get(stream, 0.0)
        num_in_flight = self._num_in_flight.get(stream, 0)
        if self._ramp is not None:
            pause_s = 0.0 if num_in_flight else now_s - busy_until_s
            more_s += self._lost_s(self._ramp, stream, pause_s, device_s)
        looked = min(MAX_LOOKS, self._look_s * self._now.looks_per_s)
        if self._is_synchronous:
            # Whatever takes longer holds the issuer as well.
            more_s += looked * (device_s + more_s)
            launch_s += more_s
        else:
            launch_s *= 1.0 + looked
        if self.knows_ends:
            self._num_in_flight[stream] = num_in_flight + 1
        else:
            self._busy_until_s[stream] = max(busy_until_s, now_s) + prepare_s + device_s + more_s
        return cost._replace(launch_s=launch_s, device_s=device_s + more_s)

    def ended(self, stream: str, end_s: float) -> None:
        """A work of `stream` that was priced here is over."""
        self._num_in_flight[stream] -= 1
        self._busy_until_s[stream] = end_s

    def _lost_s(self, ramp: IdleRamp, stream: str, pause_s: float, device_s: float) -> float:
        left_s = self._left_s.get(stream, 0.0)
        if pause_s > SHORT_PAUSE_S:
            left_s = ramp.lost_s - (ramp.lost_s - left_s) * exp(-(pause_s - SHORT_PAUSE_S) / ramp.pause_s)
        lost_s = left_s * (1.0 - exp(-device_s / ramp.work_s))
        self._left_s[stream] = left_s - lost_s
        return lost_s


def kind_in_service(work: Work) -> str:
    """One of SERVED_KINDS; rows beside chunks of prompts count as what the rows are."""
    if work.model is Model.DRAFT:
        return "draft" if work.rows else "draft_prefill"
    if not work.rows:
        return "prefill"
    return "verify" if work.row_tokens > work.rows else "decode"
