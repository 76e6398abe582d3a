"""How often intervals hold the truth, of samples whose truth is known."""

from __future__ import annotations

import numpy as np

from validation.coverage import coverage, covered


def test_coverage_counts_truths_within_their_intervals_ends_included() -> None:
    assert coverage([[0.0, 1.0], [2.0, 3.0]], 1.0) == 0.5
    assert coverage([[[0.0, 1.0]], [[2.0, 3.0]]], [[0.5, 1.5], [2.0, 3.5]]) == 0.5


def test_intervals_of_normal_samples_hold_their_mean_in_95_of_100_cases_and_no_other_value() -> None:
    samples = np.random.default_rng(1).normal(100.0, 2.0, 800).tolist()
    held, half = covered(samples, 100.0)
    assert 0.93 < held < 0.97
    assert 0.02 < half < 0.04
    assert covered(samples, 120.0)[0] < 0.02
