"""Host constants of a measured profile from what was measured. Imports no torch.

Not here: measuring them (host_times).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from sim.costs.passes import HEAD_KERNELS
from sim.costs.profile import HostCosts, MeasuredPoint
from sim.costs.profile_files import round_constant


def host_costs(points: Sequence[MeasuredPoint], measured: dict[str, Any], layers: Mapping[str, int]) -> HostCosts:
    """Host constants from the points' host times and what `measured` holds; `layers` of "target" and "draft".

    On a CPU issuing a pass is executing it, so launching is free beside it.
    """
    eager = [point for point in points if point.launch == "eager"]
    graphed = [point for point in points if point.launch == "graphed"]
    kernels_per_layer = int(measured["kernels_per_layer"])
    is_cpu = bool(measured["is_cpu"])
    per_kernel = [
        point.host_s
        / ((point.tokens if point.kind == "draft" else 1) * (layers[point.model] * kernels_per_layer + HEAD_KERNELS))
        for point in eager
    ]
    largest = max((p.rows * (1 if p.kind == "draft" else p.tokens) for p in graphed), default=0)
    single = [point.host_s / (point.tokens if point.kind == "draft" else 1) for point in graphed]
    eager_factors = tuple(measured["inflation_eager"])
    return HostCosts(
        eager_kernel_s=0.0 if is_cpu or not per_kernel else round_constant(median(per_kernel)),
        graph_launch_s=round_constant(median(single)) if single else 0.0,
        kernels_per_layer=max(1, kernels_per_layer),
        max_graph_tokens=largest,
        graph_small_sizes=(1,),
        graph_size_step=1,
        result_s=0.0 if is_cpu else round_constant(measured["result_s"]),
        step_s=round_constant(measured["step_s"]),
        row_s=round_constant(measured["row_s"]),
        inflation_eager=eager_factors,
        inflation_graphed=tuple(measured.get("inflation_graphed", eager_factors)),
        source="measured here: step_s and row_s are the real passes' own bookkeeping, without any engine; "
        + (
            "on a CPU a pass runs while it is issued, so launching costs nothing beside it and the slowdown of several "
            "issuing threads contains their contention for cores"
            if is_cpu
            else "launch times while the device was held by a delay kernel"
        ),
    )
