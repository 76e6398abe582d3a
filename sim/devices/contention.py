"""Max-min fair rates of works that run on one device at the same time (design, section 4).

Not here: the event loop that applies them (`shared`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import msgspec

from sim.costs.profile import Overlap


class Contention(msgspec.Struct, frozen=True, kw_only=True):
    """How works of several streams share a device: roofs as shares of what a lone work achieves, delay per kernel."""

    eta_compute: float = 1.0
    eta_bandwidth: float = 1.0
    tau_s: float = 0.0
    takes_turns: bool = False
    """Works take turns, tau per kernel; False: a kernel waits tau once, whatever the others are and how many."""
    has_priorities: bool = True
    """Works of higher priority are served first; False: all alike."""


def contention_of(overlap: Overlap) -> Contention:
    """What a profile says of works that share its device."""
    return Contention(
        eta_compute=overlap.eta_compute,
        eta_bandwidth=overlap.eta_bandwidth,
        tau_s=overlap.tau_s,
        takes_turns=overlap.takes_turns,
        has_priorities=overlap.has_priorities,
    )


def kernel_waits_s(kernels_per_s: Sequence[float], contention: Contention) -> list[float]:
    """Seconds that each kernel of each of several works [works] waits for the others; they launch so many per second
    at rate 1.

    Works that take turns, as threads do at one interpreter, have it for tau per kernel: a kernel waits tau for every
    other work by the share of time that this one has it.
    """
    tau_s = contention.tau_s
    if not contention.takes_turns:
        return [tau_s] * len(kernels_per_s)
    shares = [min(1.0, rate * tau_s) for rate in kernels_per_s]
    total = sum(shares)
    return [tau_s * (total - share) for share in shares]


def fill_rates(
    caps: Sequence[float],
    demands: Sequence[tuple[float, float]],
    priorities: Sequence[int],
    contention: Contention,
) -> list[float]:
    """Rates [works], works of higher priority first, max-min fair among equals.

    `caps` are the most each work can run at; `demands` the shares of both roofs (compute, bandwidth) that it uses at
    rate 1. `priorities` must not increase.
    """
    rates = [0.0] * len(caps)
    compute_left = contention.eta_compute
    bandwidth_left = contention.eta_bandwidth
    start = 0
    while start < len(caps):
        end = start + 1
        while end < len(caps) and priorities[end] == priorities[start]:
            end += 1
        if end == start + 1:
            compute, bandwidth = demands[start]
            rate = caps[start]
            if rate * compute > compute_left:
                rate = compute_left / compute
            if rate * bandwidth > bandwidth_left:
                rate = bandwidth_left / bandwidth
            rates[start] = rate
            compute_left = max(0.0, compute_left - rate * compute)
            bandwidth_left = max(0.0, bandwidth_left - rate * bandwidth)
        else:
            compute_left, bandwidth_left = _fill_equals(
                rates, caps, demands, list(range(start, end)), compute_left, bandwidth_left
            )
        start = end
    return rates


def _fill_equals(
    rates: list[float],
    caps: Sequence[float],
    demands: Sequence[tuple[float, float]],
    open_works: list[int],
    compute_left: float,
    bandwidth_left: float,
) -> tuple[float, float]:
    """Raise `open_works` together until each meets its cap or a full roof; returns what is left of the roofs."""
    while open_works:
        compute_sum = sum(demands[i][0] for i in open_works)
        bandwidth_sum = sum(demands[i][1] for i in open_works)
        by_compute = compute_left / compute_sum if compute_sum > 0.0 else inf
        by_bandwidth = bandwidth_left / bandwidth_sum if bandwidth_sum > 0.0 else inf
        by_cap = min(caps[i] - rates[i] for i in open_works)
        raise_by = min(by_compute, by_bandwidth, by_cap)
        for i in open_works:
            rates[i] += raise_by
        compute_left = max(0.0, compute_left - raise_by * compute_sum)
        bandwidth_left = max(0.0, bandwidth_left - raise_by * bandwidth_sum)
        if raise_by == by_cap:
            tightest = min(caps[i] - rates[i] for i in open_works)
            open_works = [i for i in open_works if caps[i] - rates[i] > tightest]
        elif raise_by == by_compute:
            open_works = [i for i in open_works if demands[i][0] == 0.0]
        else:
            open_works = [i for i in open_works if demands[i][1] == 0.0]
    return compute_left, bandwidth_left
