"""The page of two processes on one GPU: ratios to one process, on figures made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from validation.pages.split_lanes import MODEL, ONE, TABLE, judged

ROWS = f"""model,gpu,arm,prompt,concurrency,req_s,ttft_p50_s,tpot_s
{MODEL},1xH200,{ONE},256,8,8,0.5,0.010
{MODEL},1xH200,split,256,8,4,0.1,0.020
{MODEL},2xH200,1P1D,256,8,9,0.1,0.010
other,1xH200,split,256,8,9,0.1,0.010
"""


def test_rates_and_first_tokens_are_judged_relative_to_one_process_and_tpot_by_itself(tmp_path: Path) -> None:
    file = tmp_path / TABLE
    file.parent.mkdir()
    file.write_text(ROWS)
    one = {"request_throughput": 10.0, "median_ttft_ms": 200.0, "median_tpot_ms": 5.0}
    split = {"request_throughput": 10.0, "median_ttft_ms": 20.0, "median_tpot_ms": 18.0}
    load = {"prompt": 256.0}
    cells = [
        {**load, "gpu": "1xH200", "arm": ONE, "runs": {ONE: one}},
        {**load, "gpu": "1xH200", "arm": "split", "runs": {"slices": split}},
        {**load, "gpu": "2xH200", "arm": "1P1D", "runs": {}},
    ]
    (row,) = judged(tmp_path, {"cells": cells}).to_dict("records")
    assert (row["TPOT"], row["requests/s ratio"], row["TTFT ratio"]) == pytest.approx((-10.0, 100.0, -50.0))
