"""How often intervals hold the truth: of samples whose truth is known; fleets of truths that are alike."""

from __future__ import annotations

import numpy as np

from sim.costs.profile_files import load
from validation.coverage import CAPACITY, coverage, covered, replicas_that_hold, truths_of


def test_coverage_counts_truths_within_their_intervals_ends_included() -> None:
    assert coverage([[0.0, 1.0], [2.0, 3.0]], 1.0) == 0.5
    assert coverage([[[0.0, 1.0]], [[2.0, 3.0]]], [[0.5, 1.5], [2.0, 3.5]]) == 0.5


def test_intervals_of_normal_samples_hold_their_mean_in_95_of_100_cases_and_no_other_value() -> None:
    samples = np.random.default_rng(1).normal(100.0, 2.0, 800).tolist()
    held, half = covered(samples, 100.0)
    assert 0.93 < held < 0.97
    assert 0.02 < half < 0.04
    assert covered(samples, 120.0)[0] < 0.02


def test_a_fleet_above_the_smallest_that_holds_in_half_of_the_truths_is_counted_down() -> None:
    scenario = CAPACITY["H100, llama-3.1-8b"]
    profile = load(scenario.profile)
    first, second = truths_of(scenario, profile, 2)
    assert first.scenario.seed != second.scenario.seed
    assert (
        replicas_that_hold(scenario, profile, "round-robin", 2, 2.0, 2)
        == "2 in 2 of 2, 1 in 2 of 2; 1 above the median"
    )
