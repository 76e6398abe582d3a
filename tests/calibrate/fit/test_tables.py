"""A GEMM table between its points and beside its holes, by hand."""

from __future__ import annotations

import numpy as np

from calibrate.fit.tables import GemmTable

NAN = float("nan")


def table(*seconds: list[list[float]]) -> GemmTable:
    """Of 10 and 30 columns, depth 100 and 300, one grid per token count."""
    return GemmTable(np.arange(1, len(seconds) + 1), np.array([10, 30]), np.array([100, 300]), np.array(seconds))


def test_columns_and_depth_are_interpolated_linearly_and_columns_beyond_in_proportion() -> None:
    times = table([[1.0, 2.0], [3.0, 6.0]])
    assert times.at(20, 200).tolist() == [3.0]
    assert times.at(30, 150).tolist() == [3.75]
    assert times.at(60, 150).tolist() == [7.5]


def test_a_hole_counts_only_where_it_weighs() -> None:
    times = table([[1.0, NAN], [3.0, 6.0]], [[1.0, 2.0], [3.0, 6.0]])
    assert times.at(20, 100).tolist() == [2.0, 2.0]
    assert times.at(30, 200).tolist() == [4.5, 4.5]
    np.testing.assert_array_equal(times.at(20, 200), [NAN, 3.0])
