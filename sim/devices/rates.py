"""Rates of the works that run on one device: on shares of it, by priority, or as the regime of plain streams has it.

Not here: these rules by themselves (contention, partition), when a rate changes (shared).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sim.costs.cost import CostModel
from sim.devices.contention import Contention, Regime, add_leftover, fill_rates, plain_rates, share_time
from sim.devices.partition import Partition, rates_on_shares
from sim.devices.ticket import SimTicket


def rates_together(
    running: Sequence[SimTicket],
    launch_caps: Sequence[float],
    costs: CostModel,
    contention: Contention,
    partition: Partition | None = None,
) -> list[float]:
    """Rates [running] of works side by side: each on its share of the device where there is a partition, else their
    kernels wait, and all share the device as the regime has it."""
    priorities = [ticket.priority for ticket in running]
    if contention.is_preemptive and partition is None and len(set(priorities)) > 1:
        return _preemptive_rates(running, launch_caps, costs, contention)
    if partition is not None:
        portions = [partition.portions[ticket.stream.name] for ticket in running]
        demands = [ticket.demands_of(costs) for ticket in running]
        return rates_on_shares(portions, launch_caps, demands, partition.curve)
    kernels_per_s = [ticket.kernels_per_s for ticket in running]
    demands = [ticket.demands_of(costs) for ticket in running] if contention.regime is Regime.ROOFS else []
    return plain_rates(launch_caps, priorities, kernels_per_s, demands, contention)


def _preemptive_rates(
    running: Sequence[SimTicket], launch_caps: Sequence[float], costs: CostModel, contention: Contention
) -> list[float]:
    """Rates [running] where each priority has what the higher ones leave: of the device's time, or under both roofs."""
    rates = [0.0] * len(running)
    left, compute_left, bandwidth_left = 1.0, contention.eta_compute, contention.eta_bandwidth
    for priority in sorted({ticket.priority for ticket in running}, reverse=True):
        indices = [i for i, ticket in enumerate(running) if ticket.priority == priority]
        caps = [launch_caps[i] for i in indices]
        if contention.regime is Regime.ROOFS:
            roofs = msgspec.structs.replace(contention, eta_compute=compute_left, eta_bandwidth=bandwidth_left)
            demands = [running[i].demands_of(costs) for i in indices]
            shared = fill_rates(caps, demands, roofs)
            compute_left = max(0.0, compute_left - sum(r * d[0] for r, d in zip(shared, demands, strict=True)))
            bandwidth_left = max(0.0, bandwidth_left - sum(r * d[1] for r, d in zip(shared, demands, strict=True)))
        else:
            shared = share_time(caps, [1.0] * len(indices), left)
            left = max(0.0, left - sum(shared))
        for i, rate in zip(indices, shared, strict=True):
            rates[i] = rate
    return rates if contention.regime is Regime.ROOFS else add_leftover(rates, launch_caps, contention.phi)
