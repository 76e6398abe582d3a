"""Works on shares of a device's multiprocessors, as MPS or green contexts cut them (docs/adr/003).

A work alone on a share runs at its solo curve, told by what it asks of the whole device, so no model has constants of
its own:
- compute slows like 1 / share, a little less at small ones, since the fewer multiprocessors compute, the higher the
  clock that the device's power allows;
- bandwidth saturates: most of its time is memory's, whatever the share;
- latency, the part of a small work that is neither, keeps its pace.
Beside others, all compute counts for the clock, the compute part of a work is slowed by what others read, through the
queue of the L2 cache, and bandwidth is shared max-min under the roof. A share that is idle helps nobody, unless shares
hold only while several streams have works.
Not here: streams that share the whole device (contention), the event loop that applies rates (shared).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sim.costs.profile import ShareCurve
from sim.devices.contention import share_time
from sim.interface.host import Stream

ROUNDING = 1e-9
"""Part by which a sum of shares may exceed 1."""


MEASURED = ShareCurve(
    sharpness=2.0,
    latency_demand=0.10,
    boosted=0.86,
    boosted_below=0.64,
    parallel_bandwidth=0.165,
    queue_slowdown=4.15,
    queue_power=1.86,
    source=(
        "fitted on step times of LLaMA 7B by MPS share on an A100 (MuxServe) and on attention by green context on a "
        "GH200, alone and beside a reader (MonoServe): docs/validation/lanes.md"
    ),
    errors_pct={
        "llama-13b": 5.0,
        "llama-30b on two GPUs": 7.2,
        "llama-7b (fitted)": 4.0,
        "attention (fitted)": 4.5,
        "prefill beside a reader (fitted)": 1.0,
    },
)
"""Errors are mean sizes over shares of 0.3 to 0.9, of attention 0.06 to 0.73."""


class Portion(NamedTuple):
    """Device and share on which a stream's works run."""

    share: float
    """Share of the multiprocessors."""
    is_reserved: bool
    """The share is this stream's alone; False: streams without a share divide the time of what the others leave."""


class Partition(NamedTuple):
    """Who runs where on one device."""

    portions: dict[str, Portion]
    """Portion of each stream."""
    curve: ShareCurve
    only_together: bool = False
    """A work that is alone has the whole device; shares hold while works of several streams run."""


def partition_of(
    streams: Sequence[Stream], curve: ShareCurve | None = None, *, only_together: bool = False
) -> Partition | None:
    """The portions of a device's streams; None where none has a share. Raises ValueError for shares that do not fit."""
    reserved = {stream.name: stream.sm_share for stream in streams if stream.sm_share is not None}
    if not reserved:
        return None
    check_shares(reserved)
    left = 1.0 - sum(reserved.values())
    without = [stream.name for stream in streams if stream.sm_share is None]
    if without and left <= ROUNDING:
        raise ValueError(
            f"stream {without[0]!r} has no sm_share, and the others leave nothing: {_listed(reserved)}; give it one"
        )
    portions = {name: Portion(share, True) for name, share in reserved.items()}
    return Partition({**portions, **{name: Portion(left, False) for name in without}}, curve or MEASURED, only_together)


def check_shares(shares: dict[str, float]) -> None:
    """Raise ValueError unless each of `shares`, by name, is above 0, and all of them are at most 1 together."""
    for name, share in shares.items():
        if not 0.0 < share <= 1.0:
            raise ValueError(f"share of {name!r}: {share!r} must be above 0 and at most 1")
    if sum(shares.values()) > 1.0 + ROUNDING:
        raise ValueError(f"shares sum to {sum(shares.values()):g}, want at most 1: {_listed(shares)}")


def _listed(shares: dict[str, float]) -> str:
    return ", ".join(f"{name} {share:g}" for name, share in shares.items())


def rates_on_shares(
    portions: Sequence[Portion],
    caps: Sequence[float],
    demands: Sequence[tuple[float, float]],
    curve: ShareCurve,
    eta_bandwidth: float,
) -> list[float]:
    """Rates [works] of works side by side, at most `caps`; 1 is a work alone on the whole device. Works on what is not
    reserved divide its time evenly; `demands` are (compute, bandwidth) of each work."""
    mixes = [curve.mix(*demand) for demand in demands]
    alone = [curve.slowdown(mix, portion.share) for mix, portion in zip(mixes, portions, strict=True)]
    busy = [min(1.0, cap * slowdown) for cap, slowdown in zip(caps, alone, strict=True)]
    time = [1.0] * len(portions)
    """Part of the time of its portion that a work may have [works]; one that is still being launched may be busy for
    less."""
    dividing = [i for i, portion in enumerate(portions) if not portion.is_reserved]
    for i, share in zip(dividing, share_time([busy[i] for i in dividing], [1.0] * len(dividing)), strict=True):
        time[i] = busy[i] = share
    rates = []
    for i, portion in enumerate(portions):
        computing = reading = 0.0
        for j, other in enumerate(portions):
            if j != i and (portion.is_reserved or other.is_reserved):
                computing += other.share * busy[j] * mixes[j].compute
                reading += other.share * busy[j] * demands[j][1]
        slowdown = curve.slowdown(mixes[i], portion.share, computing=computing, reading=reading)
        rates.append(min(caps[i], time[i] / slowdown))
    return _under_roof(rates, [bandwidth for _, bandwidth in demands], eta_bandwidth) if len(rates) > 1 else rates


def _under_roof(rates: Sequence[float], bandwidth: Sequence[float], eta_bandwidth: float) -> list[float]:
    """`rates` brought under the roof, max-min in what each reads: those that ask for little get it."""
    wanted = [rate * demand / eta_bandwidth for rate, demand in zip(rates, bandwidth, strict=True)]
    if sum(wanted) <= 1.0:
        return list(rates)
    granted = share_time(wanted, [1.0] * len(wanted))
    return [rate * (grant / want) if want else rate for rate, want, grant in zip(rates, wanted, granted, strict=True)]
