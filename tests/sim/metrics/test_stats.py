"""Percentiles, intervals and the overload test against numpy, tables and constructed cases."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from sim.metrics.stats import effective_count, t_975, weighted_percentiles


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 6)), min_size=1, max_size=20), st.floats(0, 100))
def test_weighted_percentiles_equal_numpys_on_the_repeated_samples(samples: list, percent: float) -> None:
    values = np.array([value for value, _ in samples])
    counts = np.array([float(count) for _, count in samples])
    expected = np.percentile(np.repeat(values, counts.astype(int)), percent)
    assert weighted_percentiles(values, counts, [percent])[0] == pytest.approx(expected, abs=1e-9)


def exact_t(degrees: int) -> float:
    return float(scipy.stats.t.ppf(0.975, degrees))


def test_t_quantiles_up_to_20_degrees_are_a_tables_of_four_decimals() -> None:
    degrees = range(1, 21)
    assert [t_975(each) for each in degrees] == pytest.approx([exact_t(each) for each in degrees], abs=5.1e-5)


def test_t_quantiles_beyond_lack_the_fourth_term_of_their_expansion() -> None:
    """(79 z^9 + 776 z^7 + 1482 z^5 - 1920 z^3 - 945 z) / 92160 = 1.59 for z = 1.96 (A&S 26.7.5)."""
    lacks = [(exact_t(degrees) - t_975(degrees)) * degrees**4 for degrees in (21, 40, 80, 150, 300)]
    assert lacks == pytest.approx([1.59] * 5, rel=0.03)


@pytest.mark.parametrize("likeness", [0.0, 0.5, 0.8])
def test_values_that_resemble_their_neighbours_count_for_less(likeness: float) -> None:
    """An autoregressive series is worth (1 - likeness) / (1 + likeness) of independent values; found within 20 % in the
    mean over 40 series of 10,000."""
    generator = np.random.default_rng(5)
    shares = []
    for _ in range(40):
        noise = generator.normal(size=10_000)
        values = np.empty_like(noise)
        values[0] = noise[0]
        for place in range(1, len(noise)):
            values[place] = likeness * values[place - 1] + noise[place]
        shares.append(effective_count(values) / len(values))
    assert np.mean(shares) == pytest.approx((1.0 - likeness) / (1.0 + likeness), rel=0.2)
