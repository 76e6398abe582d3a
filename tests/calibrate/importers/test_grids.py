"""Points as a profile's table stores them: noise smoothed, what rises left alone."""

from __future__ import annotations

import numpy as np

from calibrate.importers.aiconfigurator.grids import smooth


def test_smoothing_leaves_what_rises_and_meets_falls_halfway() -> None:
    assert smooth(np.array([1.0, 2.0, 4.0])).tolist() == [1.0, 2.0, 4.0]
    assert smooth(np.array([1.0, 4.0, 2.0, 5.0])).tolist() == [1.0, 3.0, 3.0, 5.0]
    smoothed = smooth(np.array([[1.0, np.nan, 6.0], [2.0, 3.0, 4.0]]))
    assert np.isnan(smoothed[0, 1])
    assert smoothed[:, 2].tolist() == [5.0, 5.0]
