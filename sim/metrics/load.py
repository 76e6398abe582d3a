"""Whether requests arrive faster than they are served: the test for an overloaded run, from its latencies.

Not here: latencies themselves (sim.metrics.summary).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sim.metrics.records import RunRecord
from sim.metrics.stats import Floats
from sim.seam.request import Request

TREND_PER_S = 0.1
"""Growth of latency per second of arrivals above which a run counts as overloaded: 10 % too little capacity."""
GROWTH = 2.0
"""And the last quarter of arrivals must wait this many times longer than the second."""
BACKLOG_SHARE = 0.2
"""Or: the requests in the system grow by this share of the second half's arrivals, by half, and drain slowly."""
FEWEST_FOR_TREND = 40


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


def is_unstable(record: RunRecord, measured: Sequence[Request]) -> bool:
    """Arrivals above capacity; a request that the end cut has waited at least until then."""
    if not record.is_open_loop or not measured:
        return False
    arrivals = np.array([request.arrival_s for request in measured])
    ends = np.array([request.last_token_s if request.is_finished else record.end_s for request in measured])
    return is_overloaded(arrivals, ends - arrivals, is_cut=not all(request.is_finished for request in measured))
