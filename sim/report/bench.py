"""Result files of `vllm bench serve --save-result`, read as rows of a frame.

So that what is simulated and what was measured go through the same scripts. Not here: what the metrics mean
(sim.metrics.summary), results of other tools (sim.workload.bench), engine constants from such a file (`lanesim
calibrate production`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sim.workload.bench import bench_rows

DETAILS = ("input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors", "start_times", "tpots", "e2els")


def read_bench_rows(path: Path) -> list[dict[str, Any]]:
    """The metrics of each result in a file of vLLM or another tool (sim.workload.bench), per-request lists left
    out. Raises ValueError naming the file and what it lacks."""
    rows = [
        {key: value for key, value in result.items() if key not in DETAILS and not isinstance(value, list | dict)}
        for result in bench_rows(path)
    ]
    for row in rows:
        if row.get("request_rate") == "inf":
            row["request_rate"] = float("inf")
    return rows
