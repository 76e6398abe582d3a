"""Classes of requests: who is served first, and by which bounds each is judged.

A request's class depends on seed and arrival index alone, so every policy and every replica meets the same ones. Not
here: the queue that goes by priority (sim.engine.serving), what becomes of each class (sim.metrics.summary).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated

import msgspec
import numpy as np

from sim.bounds import Bounds, check_bounds
from sim.interface.request import Request

CLASS_KEY = 5
"""Child of the seed that classes are drawn from."""


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """SLOs a request must meet to count as good, in milliseconds (null: no bound)."""

    ttft_ms: Annotated[float | None, Bounds(0, 1e12, is_open=True)] = None
    """Time to the first token."""
    tpot_ms: Annotated[float | None, Bounds(0, 1e12, is_open=True)] = None
    """Time per further token."""
    e2el_ms: Annotated[float | None, Bounds(0, 1e12, is_open=True)] = None
    """Time from arrival to last token."""

    def __post_init__(self) -> None:
        check_bounds("goodput", self)

    @property
    def bounds_ms(self) -> dict[str, float | None]:
        """The bound of each metric, `ttft_ms` and so on."""
        return {name: getattr(self, name) for name in Goodput.__struct_fields__}


class SloClass(Goodput, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Some share of the requests, their priority and their SLOs, milliseconds; null = no bound.

    >>> SloClass(name="chat", share=0.3, priority=1, ttft_ms=500.0).bounds_ms
    {'ttft_ms': 500.0, 'tpot_ms': None, 'e2el_ms': None}
    """

    name: str
    share: Annotated[float, Bounds(0, 1, is_open=True)]
    """Share of the requests; all shares sum to 1."""
    priority: int = 0
    """Higher ones wait ahead of lower ones for admission."""

    def __post_init__(self) -> None:
        check_bounds(f"slo_classes.{self.name}", self)


def check_classes(classes: Sequence[SloClass]) -> None:
    """Raise ValueError for names that stand twice, or shares that are not all."""
    names = [each.name for each in classes]
    if len(set(names)) < len(names):
        raise ValueError(f"slo_classes: {', '.join(names)} names one twice")
    total = sum(each.share for each in classes)
    if classes and abs(total - 1.0) > 1e-6:
        raise ValueError(f"slo_classes: shares sum to {total:g} and must sum to 1")


def assign_classes(requests: Sequence[Request], classes: Sequence[SloClass], seed: int) -> None:
    """Give each request its class and that class's priority."""
    if not classes or not requests:
        return
    edges = list(accumulate(each.share for each in classes))
    draws = np.random.default_rng((seed, CLASS_KEY)).random(max(request.index for request in requests) + 1)
    for request in requests:
        index = min(int(np.searchsorted(edges, draws[request.index], side="right")), len(classes) - 1)
        request.slo_class, request.priority = classes[index].name, classes[index].priority
