"""Load of a run: the nominal rate beside the measured saturated throughput.

Trends of latencies cannot tell it: near capacity they grow for hours, and a short run of an overloaded server looks
fine. Not here: making the saturated run (sim.compare.capacity), latencies (sim.metrics.summary).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from enum import StrEnum
from math import hypot, inf, sqrt

import msgspec
import numpy as np

from sim.interface.request import Request
from sim.interface.request_columns import Requests
from sim.metrics.records import RunRecord
from sim.metrics.stats import Floats, t_975

BUSY_SHARE = 0.6
"""Busy share of a device below which, unless the queue grew, no saturated run is needed: stable."""
GROWTH, MIN_GROWTH = 1.5, 5
"""A queue grew if requests in the system at the last arrival exceed those at half time by this factor and number."""
STRETCHES = 10
"""Parts of a saturated run: what each served tells what tokens take."""
SHORT_RUN_ERROR = 0.025
"""A saturated run of six generations serves up to this share more than one of thirty (H100, azure-conv: 2.1 %)."""


class Verdict(StrEnum):
    """A run's load against its capacity. Only stable runs have means that a longer run would repeat."""

    STABLE = "stable"
    OVERLOADED = "overloaded"
    UNDECIDED = "undecided"
    """The rate lies within the interval of the capacity."""
    CLOSED = "closed"
    """A closed loop: requests wait for others to finish, so the rate follows the server."""
    BURST = "burst"
    """All at once, and nobody waits to send."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict and what it rests on; nulls where no saturated run was needed."""

    verdict: Verdict
    rate_per_s: float | None
    """Nominal requests per second, or a trace's number over its span."""
    capacity_per_s: float | None = None
    """Requests per second of the same policy, engine, caps and lengths with a queue that never empties."""
    ci95: tuple[float, float] | None = None
    floor_per_s: float | None = None
    """Requests per second that it surely exceeds, where short closed loops told that the load is stable."""

    @property
    def share(self) -> float:
        """The rate over capacity, or over what that surely exceeds; 0 where neither is known."""
        limit_per_s = self.capacity_per_s or self.floor_per_s
        return (self.rate_per_s or 0.0) / limit_per_s if limit_per_s else 0.0

    @property
    def is_steady(self) -> bool:
        return self.verdict in (Verdict.STABLE, Verdict.CLOSED)


def judge(rate_per_s: float, rate_error_per_s: float, capacity_per_s: float, ci95: tuple[float, float]) -> Load:
    """The verdict of an open loop; `rate_error_per_s` is half of the rate's 95 % interval, 0 where it is given.

    >>> [str(judge(rate, 0.0, 10.0, (9.0, 11.0)).verdict) for rate in (8.9, 9.0, 11.0, 11.1)]
    ['stable', 'undecided', 'undecided', 'overloaded']
    >>> [str(judge(rate, 0.6, 10.0, (9.0, 11.0)).verdict) for rate in (8.3, 8.5, 11.5, 11.7)]
    ['stable', 'undecided', 'undecided', 'overloaded']
    """
    low, high = ci95
    if rate_per_s + rate_error_per_s < low:
        verdict = Verdict.STABLE
    elif rate_per_s - rate_error_per_s > high:
        verdict = Verdict.OVERLOADED
    else:
        verdict = Verdict.UNDECIDED
    return Load(
        verdict=verdict, rate_per_s=rate_per_s, capacity_per_s=capacity_per_s, ci95=None if high == inf else ci95
    )


def trace_rate(arrivals_s: Sequence[float]) -> tuple[float, float]:
    """Requests per second of recorded arrivals, and half of its 95 % interval by the spread of their gaps.

    Gaps of 1 and 3 s vary by half of their mean, so the interval is 1.96 x 0.5 x 0.5 / sqrt(2):

    >>> rate, error = trace_rate([0.0, 1.0, 4.0])
    >>> rate, round(error, 4)
    (0.5, 0.3465)
    >>> trace_rate([0.0, 0.5, 1.0]), trace_rate([3.0, 3.0])
    ((2.0, 0.0), (inf, 0.0))
    """
    gaps = np.diff(np.asarray(arrivals_s))
    if len(gaps) == 0 or gaps.sum() <= 0.0:
        return inf, 0.0
    rate = 1.0 / float(gaps.mean())
    variation = float(gaps.std()) / float(gaps.mean())
    return rate, 1.96 * variation * rate / sqrt(len(gaps))


def needs_capacity(record: RunRecord) -> bool:
    """True where the busiest device was busy enough, or the queue grew enough, that only a saturated run tells the
    load."""
    requests = record.requests
    if not requests or record.end_s <= 0.0:
        return False
    by_device = defaultdict[str, float](float)
    for usage in record.usage:
        by_device[usage.device] += usage.device_s
    busiest_s = max(by_device.values()) if len(by_device) > 1 else record.device_busy_s
    if busiest_s > BUSY_SHARE * record.end_s:
        return True
    arrivals_s = requests.column("arrival_s")
    half, last = _in_system(record, arrivals_s[len(requests) // 2]), _in_system(record, arrivals_s[-1])
    return last > GROWTH * half + MIN_GROWTH


def _in_system(record: RunRecord, time_s: float) -> int:
    column = record.requests.column
    is_out = (column("emitted_tokens") >= column("output_tokens")) & (column("last_token_s") <= time_s)
    return int(np.count_nonzero((column("arrival_s") <= time_s) & ~is_out))


def saturated_throughput(
    requests: Sequence[Request], in_flight: int, mean_tokens: tuple[float, float]
) -> tuple[float, tuple[float, float]]:
    """Requests per second while the queue never empties, with its 95 % interval.

    `requests` all arrived at once and are finished. Left out are the first `in_flight` completions (a third of all at
    most), while the batch fills, and what comes after the last one was let in, while it drains. In each of STRETCHES of
    equal length so many prompt tokens were read and so many output tokens written. Least squares tell what each of them
    takes, and so how long a request of `mean_tokens` (prompt, output) does. The interval is the jackknife's over the
    stretches, and SHORT_RUN_ERROR besides.
    """
    served = Requests.of(requests)
    begins, firsts, ends = (served.column(name) for name in ("scheduled_s", "first_token_s", "last_token_s"))
    first = np.sort(ends)[max(1, min(in_flight, len(ends) // 3)) - 1]
    last = float(begins.max())
    if last <= first:
        return len(ends) / float(ends.max()), (0.0, inf)
    cuts = np.linspace(first, last, STRETCHES + 1)
    tokens = np.column_stack(
        [
            _served(cuts, begins, firsts, served.column("prompt_tokens")),
            _served(cuts, firsts, ends, served.column("output_tokens") - 1),
        ]
    )
    per_request = np.array([mean_tokens[0], mean_tokens[1] - 1.0])
    lengths_s = np.diff(cuts)
    rate = _rate(tokens, lengths_s, per_request)
    others = [_rate(np.delete(tokens, i, 0), np.delete(lengths_s, i), per_request) for i in range(STRETCHES)]
    variance = (STRETCHES - 1) / STRETCHES * float(np.square(np.array(others) - np.mean(others)).sum())
    half = hypot(t_975(STRETCHES - 2) * sqrt(variance), SHORT_RUN_ERROR * rate)
    return rate, (max(0.0, rate - half), rate + half)


def _served(cuts: Floats, begins: Floats, ends: Floats, tokens: Floats) -> Floats:
    """[stretches]: tokens between cuts, each request's spread evenly from `begins` to `ends`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(ends > begins, (cuts[:, None] - begins) / (ends - begins), cuts[:, None] >= begins)
    served: Floats = np.diff((np.clip(shares, 0.0, 1.0) * tokens).sum(axis=1))
    return served


def _rate(tokens: Floats, lengths_s: Floats, per_request: Floats) -> float:
    """Requests of `per_request` (prompt, output) tokens per second; no token takes less than no time."""
    per_token_s = np.linalg.lstsq(tokens, lengths_s, rcond=1e-6)[0]
    if per_token_s.min() < 0.0:
        kept = int(per_token_s.argmax())
        per_token_s = np.zeros(2)
        per_token_s[kept] = lengths_s.sum() / tokens[:, kept].sum()
    return 1.0 / float(per_token_s @ per_request)
