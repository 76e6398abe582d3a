"""Percentiles, intervals and the overload test against numpy, tables and constructed cases."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.metrics.stats import interval_95, t_975, weighted_percentiles


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 6)), min_size=1, max_size=20), st.floats(0, 100))
def test_weighted_percentiles_equal_numpys_on_the_repeated_samples(samples: list, percent: float) -> None:
    values = np.array([value for value, _ in samples])
    counts = np.array([float(count) for _, count in samples])
    expected = np.percentile(np.repeat(values, counts.astype(int)), percent)
    assert weighted_percentiles(values, counts, [percent])[0] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("degrees", "expected"), [(1, 12.7062), (4, 2.7764), (20, 2.0860), (21, 2.0796), (30, 2.0423), (120, 1.9799)]
)
def test_t_quantiles_equal_the_table(degrees: int, expected: float) -> None:
    assert t_975(degrees) == pytest.approx(expected, abs=2e-4)


def test_an_interval_needs_two_samples_and_covers_the_mean() -> None:
    assert interval_95([3.0]) is None
    low, high = interval_95([1.0, 2.0, 3.0]) or (0.0, 0.0)
    assert (low + high) / 2 == pytest.approx(2.0)
    assert high - low == pytest.approx(2 * 4.3027 / 3**0.5)


def test_intervals_cover_the_true_mean_at_their_rate() -> None:
    """2,000 intervals of 5 normal samples: 95 % of them cover, within 1.5 points (3 sigma)."""
    generator = np.random.default_rng(1)
    hits = 0
    for _ in range(2000):
        low, high = interval_95(list(generator.normal(10.0, 2.0, 5))) or (0.0, 0.0)
        hits += low <= 10.0 <= high
    assert hits / 2000 == pytest.approx(0.95, abs=0.015)
