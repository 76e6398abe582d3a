"""Measured values beside simulated ones: one value, a run's latencies, and errors over many.

Not here: where either side comes from (realrun.validate, calibrate.served).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from sim.metrics.summary import LATENCIES as LATENCIES
from sim.metrics.summary import Value, number

STATISTICS = {"mean": "mean_{}_ms", "p50": "p50_{}_ms", "p95": "p95_{}_ms", "p99": "p99_{}_ms"}
"""Keys by their names in a verdict, those of a run's metrics (sim.metrics.summary)."""
THROUGHPUT = "output_throughput"
EQUAL_PCT = 3.0
"""Percent by which equal replays differ (docs/validation/h200-sxm): a smaller difference of single runs is none."""
Compared = dict[str, float | None]
"""`real`, `simulated` and `error_pct`, the error in percent of the real value; null where one side is not known."""


def compared(real: float | None, simulated: float | None) -> Compared:
    """Both values beside each other.

    >>> compared(80.0, 82.0)
    {'real': 80.0, 'simulated': 82.0, 'error_pct': 2.5}
    """
    error_pct = 100.0 * (simulated - real) / real if real and simulated is not None else None
    return {"real": real, "simulated": simulated, "error_pct": error_pct}


def errors(
    real: Mapping[str, Value], simulated: Mapping[str, Value], latencies: Sequence[str] = LATENCIES
) -> dict[str, Any]:
    """Errors between two runs' metrics: each of `latencies` by statistic, and the output throughput."""
    by_name: dict[str, Any] = {
        name: {
            statistic: compared(number(real, key.format(name)), number(simulated, key.format(name)))
            for statistic, key in STATISTICS.items()
        }
        for name in latencies
    }
    by_name[THROUGHPUT] = compared(number(real, THROUGHPUT), number(simulated, THROUGHPUT))
    return by_name


def spread(errors_pct: Sequence[float]) -> dict[str, float | int | None]:
    """Number of errors, their mean size, mean and largest size, percent."""
    sizes = [abs(error) for error in errors_pct]
    return {
        "cells": len(sizes),
        "mean_absolute_error_pct": fmean(sizes) if sizes else None,
        "mean_error_pct": fmean(errors_pct) if sizes else None,
        "max_absolute_error_pct": max(sizes, default=None),
    }
