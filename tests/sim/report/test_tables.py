"""What the tables of a comparison show where a metric is undefined."""

from __future__ import annotations

import lanesim


def test_output_of_a_burst_is_that_of_the_whole_run_in_both_tables() -> None:
    result = lanesim.compare(
        profile="cpu/tiny", policy=["pd", "baseline"], num_prompts=8, output_len=8, request_rate="inf"
    )
    pd, baseline = (run["output_throughput"] for run in result.runs)
    rows = [line.split() for line in str(result).splitlines()]
    assert [row[-2] for row in rows if row[:1] == ["pd"] and row[1] != "and"] == [f"{pd:.0f}"]
    assert [row[-1] for row in rows if row[:1] == ["baseline"] and "+" in row[1]] == [f"{baseline - pd:.0f}"]
