"""Small statistics: weighted percentiles, t-intervals over replications, and the test for an overloaded run.

Not here: which metrics exist (sim.metrics).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import NormalDist
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]

_T_975 = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
)  # fmt: skip
"""0.975 quantiles of Student's t with 1..20 degrees of freedom (any table)."""

TREND_PER_S = 0.1
"""Growth of latency per second of arrivals above which a run counts as overloaded: 10 % too little capacity."""
GROWTH = 2.0
"""And the last quarter of arrivals must wait this many times longer than the second."""
BACKLOG_SHARE = 0.2
"""Or: the requests in the system grow by this share of the second half's arrivals, by half, and drain slowly."""
FEWEST_FOR_TREND = 40


def t_975(degrees: int) -> float:
    """0.975 quantile of Student's t; beyond 20 degrees by its expansion around the normal (A&S 26.7.5)."""
    if degrees <= len(_T_975):
        return _T_975[degrees - 1]
    z = NormalDist().inv_cdf(0.975)
    return (
        z
        + (z**3 + z) / (4 * degrees)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * degrees**3)
    )


def interval_95(samples: Sequence[float]) -> tuple[float, float] | None:
    """95 % t-interval of the mean of independent `samples`; None for fewer than two."""
    count = len(samples)
    if count < 2:
        return None
    mean = sum(samples) / count
    spread = sqrt(sum((sample - mean) ** 2 for sample in samples) / (count - 1))
    half = t_975(count - 1) * spread / sqrt(count)
    return mean - half, mean + half


def weighted_percentiles(values: Floats, counts: Floats, percents: Sequence[float]) -> list[float]:
    """Percentiles of `values` [samples] repeated `counts` [samples] times, linear as in numpy.percentile."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    last_index = np.cumsum(counts[order]) - 1
    total = last_index[-1]
    ranks = np.asarray(percents) / 100.0 * total
    low = np.floor(ranks)
    below = ordered[np.searchsorted(last_index, low)]
    above = ordered[np.searchsorted(last_index, np.minimum(low + 1, total))]
    return [float(value) for value in below + (above - below) * (ranks - low)]


def is_overloaded(arrival_s: Floats, latency_s: Floats, *, is_cut: bool = False) -> bool:
    """Whether latencies [requests, in order of arrival] keep growing while requests arrive.

    With arrivals above capacity latency grows by (arrival rate / capacity - 1) seconds per second. A run is
    overloaded if the least-squares trend over the last three quarters of the arrivals exceeds TREND_PER_S and the
    mean of the last quarter is more than GROWTH times that of the second; or if the backlog grows (`_backlog_grows`),
    which a policy that shares the device among all requests shows instead. Too few requests are never judged.
    With `is_cut` some latencies are those until the end of the run, and how long it takes to drain is not known.
    """
    count = len(arrival_s)
    if count < FEWEST_FOR_TREND:
        return False
    quarter = count // 4
    arrivals = arrival_s[quarter:]
    latencies = latency_s[quarter:]
    centred = arrivals - arrivals.mean()
    variance = float(np.dot(centred, centred))
    if variance == 0.0:
        return False
    trend = float(np.dot(centred, latencies)) / variance
    second = float(latency_s[quarter : 2 * quarter].mean())
    last = float(latency_s[-quarter:].mean())
    return (trend > TREND_PER_S and last > GROWTH * second) or _backlog_grows(arrival_s, latency_s, is_cut)


def _backlog_grows(arrival_s: Floats, latency_s: Floats, is_cut: bool) -> bool:
    """Whether requests in the system at the last arrival exceed those at half time by half and by BACKLOG_SHARE of
    the arrivals since, and need more than half of the arrivals' span to drain."""
    half_s, last_s = arrival_s[len(arrival_s) // 2], arrival_s[-1]
    end_s = arrival_s + latency_s
    backlog = [int(np.sum(arrival_s <= time_s) - np.sum(end_s <= time_s)) for time_s in (half_s, last_s)]
    growth = backlog[1] - backlog[0]
    drain_s = float(end_s.max() - last_s)
    is_slow = is_cut or drain_s > 0.5 * float(last_s - arrival_s[0])
    return is_slow and growth > BACKLOG_SHARE * len(arrival_s) / 2 and backlog[1] > 1.5 * backlog[0]
