"""Max-min fair rates of works that run on one device at the same time (design, section 4).

Not here: the event loop that applies them (`shared`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import msgspec


class Contention(msgspec.Struct, frozen=True, kw_only=True):
    """How works of several streams share a device: roofs as shares of what a lone work achieves, delay per kernel."""

    eta_compute: float = 1.0
    eta_bandwidth: float = 1.0
    tau_s: float = 0.0


def fill_rates(
    caps: Sequence[float],
    compute: Sequence[float],
    bandwidth: Sequence[float],
    priorities: Sequence[int],
    contention: Contention,
) -> list[float]:
    """Rates [works] by progressive filling, works of higher priority first.

    `caps` are the most each work can run at; demands are the shares of both roofs that it uses at rate 1.
    """
    rates = [0.0] * len(caps)
    compute_left = contention.eta_compute
    bandwidth_left = contention.eta_bandwidth
    for priority in sorted(dict.fromkeys(priorities), reverse=True):
        open_works = [i for i, p in enumerate(priorities) if p == priority and caps[i] > 0.0]
        while open_works:
            compute_sum = sum(compute[i] for i in open_works)
            bandwidth_sum = sum(bandwidth[i] for i in open_works)
            by_compute = max(0.0, compute_left) / compute_sum if compute_sum > 0.0 else inf
            by_bandwidth = max(0.0, bandwidth_left) / bandwidth_sum if bandwidth_sum > 0.0 else inf
            by_cap = min(caps[i] - rates[i] for i in open_works)
            raise_by = min(by_compute, by_bandwidth, by_cap)
            for i in open_works:
                rates[i] += raise_by
            compute_left -= raise_by * compute_sum
            bandwidth_left -= raise_by * bandwidth_sum
            if raise_by == by_cap:
                tightest = min(caps[i] - rates[i] for i in open_works)
                open_works = [i for i in open_works if caps[i] - rates[i] > tightest]
            elif raise_by == by_compute:
                open_works = [i for i in open_works if compute[i] == 0.0]
            else:
                open_works = [i for i in open_works if bandwidth[i] == 0.0]
    return rates
