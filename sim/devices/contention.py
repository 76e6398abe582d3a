"""Rates of works that run on one device at the same time (design, section 4).

Plain streams of a profile without an overlap measurement:
- SERIAL: the kernels of all streams are in one FIFO. Works advance kernel by kernel, in proportion to the length of
  their kernels, so long grids (a prefill) starve short ones (a decode).
- LEFTOVER: a work with the share s under SERIAL goes on at rate phi while another's kernels hold the machine:
  r = s + phi (1 - s). Pairs of passes on an H200 and an H100 say phi 0.10; published comparisons of one plain stream
  with two imply 0 to 0.21 (docs/adr/003). A result is shown at both ends of its range, too (Profile.phi).
- PROCESSES: each stream is a process with an interpreter of its own, to which the GPU gives slices of time: all get
  as much, whatever the length of their kernels, and switching costs a part (`SLICED`). Only where a scenario asks.
- ROOFS: max-min filling under the compute and the bandwidth roof, an upper bound, only where a scenario asks for it;
  with turns of tau per kernel it is also the form of a CPU's profile, whose overlap was measured.
A priority, which only streams that ask for one have, cuts the turns of lower ones short (`turns_s`); under ROOFS, and
on shares of the multiprocessors, it means nothing. Preemptive priorities are what two reports write of and no code of
theirs does: the highest takes what it can use, the lower ones the rest. Not here: the event loop that applies rates
(`shared`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from math import inf

import msgspec

from sim.costs.profile import ASSUMED_PHI, Overlap, Phi, ShareCurve

FAVOURED_WAIT_S = 40e-6
"""A kernel of a stream of higher priority waits for so much of another's at most: for the blocks that run, not for
those that are still to come. Fitted to eight co-runs on an H100 (docs/validation/h100-sxm): mean error 6.3 %, as far
as the same without priorities are off (5.8); 16.5 if a priority did nothing."""

SLICED = 0.933
"""Sum of the rates of works of two processes without MPS, in place of 1: 0.933, 0.932, 0.936 in three pairs of passes
on an H100 (docs/validation/h100-sxm). Two streams of one process come to 1 + phi."""


class Regime(StrEnum):
    """Interaction of works of plain streams."""

    SERIAL = "serial"
    LEFTOVER = "leftover"
    PROCESSES = "processes"
    ROOFS = "roofs"


ROOFS = Regime.ROOFS


class PhiLevel(StrEnum):
    """The values of phi that a result is shown at: both ends of its bracket and what lies between."""

    LOW = "phi_low"
    MIDDLE = "phi_middle"
    HIGH = "phi_high"


BRACKET = tuple(PhiLevel)
"""Least overlap first."""


class Contention(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of a device between works of several streams: roofs as shares of a lone work's, delay per kernel."""

    regime: Regime = Regime.ROOFS
    phi: float = 0.0
    """LEFTOVER: the rate at which a work goes on while another's kernels hold the machine."""
    eta_compute: float = 1.0
    eta_bandwidth: float = 1.0
    tau_s: float = 0.0
    takes_turns: bool = False
    """Works take turns, tau per kernel; False: a kernel waits tau once, whatever the others are and how many."""
    has_priorities: bool = True
    """Works of streams with a higher priority wait less; False: all alike, as threads on a CPU are."""
    is_preemptive: bool = False
    """The highest priority takes what it can use and lower ones the rest."""
    curve: ShareCurve | None = None
    """Slowdowns of works on shares of the multiprocessors; None: those of other GPUs (sim.devices.partition)."""


def phi_at(phi: Phi, level: PhiLevel) -> float:
    return {PhiLevel.LOW: phi.low, PhiLevel.MIDDLE: phi.value, PhiLevel.HIGH: phi.high}[level]


def contention_of(
    overlap: Overlap, regime: Regime | None = None, phi: float | None = None, *, is_preemptive: bool = False
) -> Contention:
    """Contention of works that share a profile's device; where it was not measured, what `regime` says, or LEFTOVER,
    at `phi` or the profile's."""
    given = Contention(has_priorities=overlap.has_priorities, is_preemptive=is_preemptive, curve=overlap.partition)
    if overlap.measured:
        measured = ("eta_compute", "eta_bandwidth", "tau_s", "takes_turns")
        return msgspec.structs.replace(given, **{name: getattr(overlap, name) for name in measured})
    regime = regime or Regime.LEFTOVER
    if regime is Regime.PROCESSES and phi is not None:
        # Under MPS the kernels of processes meet as those of streams do.
        regime = Regime.LEFTOVER
    rate = (overlap.phi or ASSUMED_PHI).value if phi is None else phi
    return msgspec.structs.replace(given, regime=regime, phi=rate if regime is Regime.LEFTOVER else 0.0)


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


def turns_s(kernels_per_s: Sequence[float], priorities: Sequence[int]) -> list[float]:
    """Seconds [works] that a kernel of each holds the device before one of another stream may begin: all of it, or
    FAVOURED_WAIT_S where a stream of higher priority waits.

    >>> turns_s([10_000.0, 50_000.0], [0, 1])
    [4e-05, 2e-05]
    >>> turns_s([10_000.0, 50_000.0, 20_000.0, 0.0], [0, 0, 2, 1])
    [4e-05, 2e-05, 5e-05, 0.0]
    >>> turns_s([10_000.0, 50_000.0, 20_000.0, 0.0], [0, 0, 0, 0])
    [0.0001, 2e-05, 5e-05, 0.0]
    """
    top = max(priorities, default=0)
    whole_s = [1.0 / rate if rate else 0.0 for rate in kernels_per_s]
    return [
        turn_s if priority == top else min(turn_s, FAVOURED_WAIT_S)
        for turn_s, priority in zip(whole_s, priorities, strict=True)
    ]


def share_time(caps: Sequence[float], weights: Sequence[float], left: float = 1.0) -> list[float]:
    """Rates [works] that sum to `left` at most, in proportion to `weights`; what a work cannot use, by its cap, goes to
    the others.
    """
    rates = [0.0] * len(caps)
    open_works = list(range(len(caps)))
    while open_works:
        total = sum([weights[i] for i in open_works])
        capped = [i for i in open_works if weights[i] * left >= caps[i] * total]
        if not capped:
            for i in open_works:
                rates[i] = left * weights[i] / total
            break
        for i in capped:
            rates[i] = caps[i]
            left -= caps[i]
        left = max(0.0, left)
        open_works = [i for i in open_works if i not in capped]
    return rates


def plain_rates(
    caps: Sequence[float],
    priorities: Sequence[int],
    kernels_per_s: Sequence[float],
    demands: Sequence[tuple[float, float]],
    contention: Contention,
) -> list[float]:
    """Rates [works] of plain streams' works side by side, at most `caps`, as the regime has it; `demands` are read
    under ROOFS alone, priorities under SERIAL and LEFTOVER.

    Two processes have as much time each, whatever their kernels are like:

    >>> slices = Contention(regime=Regime.PROCESSES)
    >>> plain_rates([1.0, 1.0], [0, 1], [1e3, 1e5], [], slices), plain_rates([1.0], [0], [1e3], [], slices)
    ([0.4665, 0.4665], [1.0])
    >>> plain_rates([0.25, 1.0], [0, 0], [1e3, 1e5], [], slices)
    [0.25, 0.683]
    """
    if contention.regime is Regime.PROCESSES:
        return share_time(caps, [1.0] * len(caps), SLICED if len(caps) > 1 else 1.0)
    if contention.regime is not ROOFS:
        return add_leftover(share_time(caps, turns_s(kernels_per_s, priorities)), caps, contention.phi)
    waits_s = kernel_waits_s(kernels_per_s, contention)
    kernel_caps = [1.0 / (1.0 + rate * wait_s) for rate, wait_s in zip(kernels_per_s, waits_s, strict=True)]
    return fill_rates([*map(min, caps, kernel_caps)], demands, contention)


def add_leftover(shares: Sequence[float], caps: Sequence[float], phi: float) -> list[float]:
    """Rates [works] from shares of the device's time: each goes on at `phi` in the time of the others, up to its cap.

    At phi = 0 the shares, bit for bit.

    >>> add_leftover([0.75, 0.25], [1.0, 1.0], 0.5), add_leftover([0.75, 0.25], [0.8, 0.3], 0.5)
    ([0.875, 0.625], [0.8, 0.3])
    """
    return (
        [min(cap, share + phi * (1.0 - share)) for share, cap in zip(shares, caps, strict=True)] if phi else [*shares]
    )


def fill_rates(caps: Sequence[float], demands: Sequence[tuple[float, float]], contention: Contention) -> list[float]:
    """Rates [works], max-min fair: all rise together until each meets its cap or a full roof.

    `caps` are the most each work can run at; `demands` the shares of both roofs (compute, bandwidth) that it uses at
    rate 1.

    Two share the roof that both need most, and one of them may be at its cap:

    >>> whole = Contention()
    >>> fill_rates([1.0] * 2, [(0.6, 0.0), (1.0, 0.0)], whole), fill_rates([1.0] * 2, [(0.2, 0.6), (0.3, 1.0)], whole)
    ([0.625, 0.625], [0.625, 0.625])
    >>> fill_rates([0.25, 1.0], [(1.0, 0.0)] * 2, whole), fill_rates([0.25, 1.0], [(0.0, 1.0)] * 2, whole)
    ([0.25, 0.75], [0.25, 0.75])
    >>> fill_rates([0.25, 0.75, 1.0], [(0.5, 0.0), (0.5, 0.0), (1.5, 0.0)], whole)
    [0.25, 0.4375, 0.4375]

    Where one roof is full, a work that needs the other alone goes on:

    >>> fill_rates([1.0] * 3, [(1.0, 0.25), (1.0, 0.25), (0.0, 1.0)], whole)
    [0.5, 0.5, 0.75]
    >>> fill_rates([1.0] * 3, [(0.25, 1.0), (0.25, 1.0), (1.0, 0.0)], whole)
    [0.5, 0.5, 0.75]
    """
    rates = [0.0] * len(caps)
    compute_left = contention.eta_compute
    bandwidth_left = contention.eta_bandwidth
    open_works = list(range(len(caps)))
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
    return rates
