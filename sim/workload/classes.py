"""Classes of requests: who is served first, and by which bounds each is judged.

A request's class depends on seed and arrival index alone, so every policy and every replica meets the same ones. Not
here: the queue that goes by priority (sim.engine.serving), what becomes of each class (sim.metrics.summary).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import msgspec
import numpy as np

from sim.interface.request import Request

CLASS_KEY = 5
"""Child of the seed that classes are drawn from."""


class SloClass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Some share of the requests, their priority and their SLOs, milliseconds; null = no bound.

    >>> SloClass(name="chat", share=0.3, priority=1, ttft_ms=500.0).bounds_ms
    {'ttft_ms': 500.0, 'tpot_ms': None, 'e2el_ms': None}
    """

    name: str
    share: float
    """Share of the requests; all shares sum to 1."""
    priority: int = 0
    """Higher ones wait ahead of lower ones for admission."""
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2el_ms: float | None = None

    def __post_init__(self) -> None:
        if not 0.0 < self.share <= 1.0:
            raise ValueError(f"slo_classes: share={self.share!r} of {self.name!r} must be above 0 and at most 1")
        for field, value in self.bounds_ms.items():
            if value is not None and not value > 0.0:
                raise ValueError(f"slo_classes: {field}={value!r} of {self.name!r} must be above 0, or null")

    @property
    def bounds_ms(self) -> dict[str, float | None]:
        """Bounds by metric, `ttft_ms` and so on."""
        return {"ttft_ms": self.ttft_ms, "tpot_ms": self.tpot_ms, "e2el_ms": self.e2el_ms}


def check_classes(classes: Sequence[SloClass]) -> None:
    """Raise ValueError for names that stand twice, or shares that are not all."""
    names = [each.name for each in classes]
    if len(set(names)) < len(names):
        raise ValueError(f"slo_classes: {', '.join(names)} names one twice")
    total = sum(each.share for each in classes)
    if classes and abs(total - 1.0) > 1e-6:
        raise ValueError(f"slo_classes: shares sum to {total:g}, want 1")


def assign_classes(requests: Sequence[Request], classes: Sequence[SloClass], seed: int) -> None:
    """Give each request its class and that class's priority."""
    if not classes or not requests:
        return
    edges = list(accumulate(each.share for each in classes))
    draws = np.random.default_rng((seed, CLASS_KEY)).random(max(request.index for request in requests) + 1)
    for request in requests:
        index = min(int(np.searchsorted(edges, draws[request.index], side="right")), len(classes) - 1)
        request.slo_class, request.priority = classes[index].name, classes[index].priority
