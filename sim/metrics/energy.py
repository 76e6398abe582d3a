"""Power and energy of a run: every GPU lies between idle and its limit, by how much of its roofs the works on it use.

power = idle_w + (limit_w - idle_w) * u ** EXPONENT; u is FLOP/s over the data sheet's and bytes/s over the data sheet's
together, of all works that are on the GPU at that time, 1 at most. The form, with FLOP/s alone, is that of Özcan et al.
2025 (arXiv 2507.11417). How far it is off: docs/validation/kernels.md. Not here: watts of GPUs (sim.costs.datasheets).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sim.costs.cost import CostModel
from sim.costs.datasheets import POWER, Power, gpu_name
from sim.costs.passes import PassUse
from sim.costs.profile import Gpu, Profile
from sim.devices.ticket import SimTicket
from sim.interface.work import Work
from sim.metrics.stats import Floats

EXPONENT = 0.70
"""Fitted on Llama-2-70B on A100s (docs/validation/kernels.md)."""


class UsesRoofs(CostModel, Protocol):
    def use(self, work: Work) -> PassUse: ...


def power_w(power: Power, utilisation: Floats) -> Floats:
    """Watts of a GPU at a `utilisation` of its roofs, of which what exceeds 0..1 does not count."""
    share: Floats = np.clip(utilisation, 0.0, 1.0) ** EXPONENT
    return power.idle_w + (power.limit_w - power.idle_w) * share


def utilisation_of(use: PassUse, time_s: float, gpu: Gpu) -> float:
    """Share of both roofs of `gpu` together that is used in `time_s`."""
    return (use.flops / gpu.peak_flops + use.num_bytes / gpu.bandwidth_bytes_per_s) / time_s


def power_of(profile: Profile) -> Power | None:
    """Power of a profile's GPU; None where that is not known, and for ranks that share experts: how much of these each
    reads is not in `use`."""
    return POWER.get(gpu_name(profile.gpu.name)) if profile.data_parallel == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerTrace:
    """The works of a run on each device, as power sees them."""

    powers: list[Power | None]
    """[devices]"""
    num_gpus: list[int]
    """[devices] GPUs of each: a tensor-parallel group."""
    works: list[array[float]]
    """[devices] start, end (s) and utilisation of one work after the other."""

    def joules(self, start_s: float, end_s: float) -> float | None:
        """Energy of all GPUs in that time, idle ones among them; None where the power of one is not known."""
        total = 0.0
        for power, num_gpus, works in zip(self.powers, self.num_gpus, self.works, strict=True):
            if power is None:
                return None
            starts, ends, used = np.frombuffer(works).reshape(-1, 3).T
            times = np.concatenate(([start_s], starts, ends, [end_s]))
            changes = np.concatenate(([0.0], used, -used, [0.0]))
            order = np.argsort(times, kind="stable")
            lengths = np.diff(np.clip(times[order], start_s, end_s))
            total += num_gpus * float(np.sum(lengths * power_w(power, np.cumsum(changes[order])[:-1])))
        return total


class PowerMeter:
    def __init__(self, costs: Sequence[UsesRoofs], profiles: Sequence[Profile]) -> None:
        self._costs, self._gpus = costs, [profile.gpu for profile in profiles]
        self.trace = PowerTrace(
            powers=[power_of(profile) for profile in profiles],
            num_gpus=[profile.tensor_parallel for profile in profiles],
            works=[array("d") for _ in profiles],
        )

    def hear(self, ticket: SimTicket) -> None:
        """A work that was cut used the roofs as it would have by itself; links between GPUs have no power here."""
        device, work, time_s = ticket.stream.device, ticket.work, ticket.end_s - ticket.start_s
        if isinstance(device, str) or time_s <= 0.0:
            return
        costs = self._costs[device]
        whole_s = max(time_s, costs.cost(work).device_s) if ticket.is_cancelled else time_s
        used = utilisation_of(costs.use(work), whole_s, self._gpus[device])
        self.trace.works[device].extend((ticket.start_s, ticket.end_s, used))
