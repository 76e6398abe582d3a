"""Small statistics: weighted percentiles, t-intervals over replications.

Not here: which metrics exist (sim.metrics.summary).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isqrt, sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[Any]
PART, BINS = 1 << 17, 1 << 12
"""Samples that are looked at together, and bins that tell where a percentile is."""

_T_975 = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
)  # fmt: skip
"""0.975 quantiles of Student's t with 1..20 degrees of freedom (any table)."""


def t_975(degrees: int) -> float:
    """0.975 quantile of Student's t; beyond 20 degrees by its expansion around the normal (A&S 26.7.5)."""
    if degrees <= len(_T_975):
        return _T_975[degrees - 1]
    z = NormalDist().inv_cdf(0.975)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * degrees**3)
    return z + (z**3 + z) / (4 * degrees) + second + third


def interval_95(samples: Sequence[float]) -> tuple[float, float] | None:
    """95 % t-interval of the mean of independent `samples`; None for fewer than two.

    >>> half = 4.3027 * (7.0 / 3.0) ** 0.5  # Mean 3, variance (4 + 1 + 9) / 2.
    >>> [round(end, 9) for end in interval_95([1.0, 2.0, 6.0])] == [round(3.0 - half, 9), round(3.0 + half, 9)]
    True
    >>> interval_95([3.0]) is None
    True
    """
    count = len(samples)
    if count < 2:
        return None
    mean = sum(samples) / count
    spread = sqrt(sum((sample - mean) ** 2 for sample in samples) / (count - 1))
    half = t_975(count - 1) * spread / sqrt(count)
    return mean - half, mean + half


def mean_and_variance(values: Floats, counts: Counts) -> tuple[float, float]:
    """Mean and variance of `values` [samples] repeated `counts` [samples] times."""
    num = float(counts.sum())
    mean = sum(float((part * of).sum()) for part, of in _parts(values, counts)) / num
    return mean, sum(float(((part - mean) ** 2 * of).sum()) for part, of in _parts(values, counts)) / num


def weighted_percentiles(values: Floats, counts: Counts, percents: Sequence[float]) -> list[float]:
    """Percentiles of `values` [samples] repeated `counts` [samples] times, linear as in numpy.percentile."""
    last = int(counts.sum()) - 1
    ranks = np.asarray(percents) / 100.0 * last
    low = np.floor(ranks).astype(np.int64)
    below, above = np.split(_at_places(values, counts, np.concatenate((low, np.minimum(low + 1, last)))), 2)
    return [float(value) for value in below + (above - below) * (ranks - low)]


def _parts(values: Floats, counts: Counts) -> Iterator[tuple[Floats, Counts]]:
    """Both in parts: what is computed of all samples at once would be larger than they are."""
    return ((values[at : at + PART], counts[at : at + PART]) for at in range(0, len(values), PART))


def _at_places(values: Floats, counts: Counts, places: NDArray[np.int64]) -> Floats:
    """[places] of all repeated values in order: only those of the bins in which they are get sorted."""
    low, width = values.min(), max(float(np.ptp(values)), 1e-300) / (BINS - 1)
    totals = np.zeros(BINS)
    for part, of in _parts(values, counts):
        totals += np.bincount(((part - low) / width).astype(np.intp), of, BINS)
    bins = np.searchsorted(np.cumsum(totals), places, side="right")
    is_in = np.zeros(BINS, dtype=np.bool_)
    is_in[bins] = True
    is_sorted = np.concatenate([is_in[((part - low) / width).astype(np.intp)] for part, _ in _parts(values, counts)])
    values, counts = values[is_sorted], counts[is_sorted]
    order = np.argsort(values, kind="stable")
    # What is left out lies before the bins of these places.
    places = places - np.cumsum(np.where(is_in, 0.0, totals))[bins]
    at: Floats = values[order][np.searchsorted(np.cumsum(counts[order]), places, side="right")]
    return at


def effective_count(values: Floats) -> float:
    """Number of independent values that would tell as much as `values` [samples, in order], which resemble their
    neighbours: their number over the inflation of the variance of means of about sqrt(samples) successive ones, at
    least 1. Values without spread count each.

    >>> effective_count(np.full(7, 3.0)), effective_count(np.array([])), effective_count(np.array([1.0]))
    (7.0, 0.0, 1.0)
    """
    size = isqrt(len(values))
    spread = float(values.var()) if size > 1 else 0.0
    if spread == 0.0:
        return float(len(values))
    means = values[: len(values) // size * size].reshape(-1, size).mean(axis=1)
    return len(values) / max(1.0, size * float(means.var(ddof=1)) / spread)


def mser_5(values: Floats) -> int:
    """Number of the first `values` [samples, in order] to leave out: the truncation of batches of 5 that makes the
    marginal standard error of the rest smallest, at most half of them.

    Source: White 1997 (Simulation 69), White, Cobb and Spratt 2000: MSER-5.

    >>> steady, begun = 1.0 + 0.1 * (np.arange(500) // 5 % 2), np.arange(500) < 52
    >>> mser_5(np.where(begun, 9.0, steady)), mser_5(steady), mser_5(np.arange(19.0))
    (55, 0, 0)
    >>> mser_5(np.where(np.arange(200) < 150, 9.0, 1.0) + np.arange(200) % 2) <= 100
    True
    """
    size = 5
    count = len(values) // size
    if count < 4:
        return 0
    batches = values[: count * size].reshape(count, size).mean(axis=1)
    rest = np.arange(count, 0, -1)
    sums = np.cumsum(batches[::-1])[::-1]
    squares = np.cumsum(batches[::-1] ** 2)[::-1]
    error = (squares - sums**2 / rest) / rest**2
    return size * int(np.argmin(error[: count // 2 + 1]))
