"""Works on shares of a device's multiprocessors, as MPS or green contexts cut them (docs/adr/003).

A work alone on a share is slowed by what it needs of the whole device, so no model has separate constants. Its time is
made of compute and of bandwidth, in proportion to the roofs that it reaches:
- Compute slows like 1 / share.
- Bandwidth saturates: some multiprocessors are enough to read as fast as all, and fewer read less in proportion.
Beside others, the compute part of a work is slowed by what others read, through the queue of the L2 cache, and where
all ask for more bandwidth than works side by side come to, each has it in proportion to what it would read. A share
that is idle helps nobody, unless shares hold only while several streams have works.
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
    saturated_at=0.302,
    queue_slowdown=1.56,
    bandwidth_together=0.769,
    source=(
        "fitted on prefill and decode on green contexts of an H100 and an H200, alone and side by side, on step times "
        "of LLaMA 7B by MPS share on an A100 (MuxServe), and on attention on a GH200, alone and beside a reader "
        "(MonoServe): docs/validation/lanes.md"
    ),
    errors_pct={
        "h100 and h200 (fitted)": 9.6,
        "an a100 (fitted)": 5.4,
        "attention on a gh200 (fitted)": 11.6,
    },
)
"""Errors are mean sizes; of each GPU left out of the fit they are 11.0, 11.4, 5.5 and 11.8."""


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
            f"stream {without[0]!r} has no sm_share, and the others leave nothing: {_listed(reserved)}. Give it one"
        )
    portions = {name: Portion(share, True) for name, share in reserved.items()}
    return Partition({**portions, **{name: Portion(left, False) for name in without}}, curve or MEASURED, only_together)


def check_shares(shares: dict[str, float]) -> None:
    """Raise ValueError unless each of `shares`, by name, is above 0, and all of them are at most 1 together."""
    for name, share in shares.items():
        if not 0.0 < share <= 1.0:
            raise ValueError(f"share of {name!r}: {share!r} must be above 0 and at most 1")
    if sum(shares.values()) > 1.0 + ROUNDING:
        raise ValueError(f"shares sum to {sum(shares.values()):g} and must sum to at most 1: {_listed(shares)}")


def _listed(shares: dict[str, float]) -> str:
    return ", ".join(f"{name} {share:g}" for name, share in shares.items())


def rates_on_shares(
    portions: Sequence[Portion], caps: Sequence[float], demands: Sequence[tuple[float, float]], curve: ShareCurve
) -> list[float]:
    """Rates [works] of works side by side, at most `caps`; 1 is a work alone on the whole device. Works on what is not
    reserved divide its time evenly; `demands` are (compute, bandwidth) of each work."""
    alone = [curve.slowdown(*demand, portion.share) for demand, portion in zip(demands, portions, strict=True)]
    busy = [min(1.0, cap * slowdown) for cap, slowdown in zip(caps, alone, strict=True)]
    time = [1.0] * len(portions)
    """Part of the time of its portion that a work may have [works]; one that is still being launched may be busy for
    less."""
    dividing = [i for i, portion in enumerate(portions) if not portion.is_reserved]
    for i, share in zip(dividing, share_time([busy[i] for i in dividing], [1.0] * len(dividing)), strict=True):
        time[i] = busy[i] = share
    rates = []
    for i, portion in enumerate(portions):
        reading = 0.0
        for j, other in enumerate(portions):
            if j != i and (portion.is_reserved or other.is_reserved):
                reading += other.share * busy[j] * demands[j][1]
        slowdown = curve.slowdown(*demands[i], portion.share, reading=reading)
        rates.append(min(caps[i], time[i] / slowdown))
    return _under_roof(rates, [bandwidth for _, bandwidth in demands], curve) if len(rates) > 1 else rates


def _under_roof(rates: Sequence[float], bandwidth: Sequence[float], curve: ShareCurve) -> list[float]:
    """`rates` of which those that read are brought under the roof in proportion: what works come to together, or one
    of them alone."""
    roof = max(curve.bandwidth_together, *bandwidth)
    wanted = sum([rate * demand for rate, demand in zip(rates, bandwidth, strict=True)])
    if wanted <= roof:
        return list(rates)
    return [rate * roof / wanted if demand else rate for rate, demand in zip(rates, bandwidth, strict=True)]
