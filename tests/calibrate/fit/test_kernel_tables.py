"""A GEMM table between its points and beside its holes, by hand; decode points that the L2 cache flatters."""

from __future__ import annotations

import numpy as np

from calibrate.fit.kernel_tables import AttentionTable, GemmTable, outside_l2

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


def test_a_point_that_reads_slower_than_memory_could_is_not_flattered_by_the_cache() -> None:
    """64 MB of KV beside 100 MB of L2 and 8 TB/s, which would take 8 us: 31 us are waiting, 10 us are not."""
    contexts, kv_heads, seconds = (131072.0, 131072.0, 1024.0), (1.0, 1.0, 1.0), (31e-6, 10e-6, 9e-6)
    one, dim = np.ones(3), np.full(3, 128.0)
    points = AttentionTable(one, np.array(contexts), 6.0 * one, np.array(kv_heads), dim, np.array(seconds))
    assert outside_l2(points, 1e8, 8e12).tolist() == [True, False, True]
    assert outside_l2(points, 1e8).tolist() == [False, False, True]
