"""Result files of `vllm bench serve --save-result`: runs written as such, and such files read as rows of a frame.

So that what is simulated and what was measured go through the same scripts. Not here: what the metrics mean
(sim.metrics.summary), engine constants from such a file (`lanesim calibrate production`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sim.compare.side_by_side import Comparison
from sim.files.json_values import read_json
from sim.files.write import write_text
from sim.metrics.summary import Run

SIGNS = ("completed", "mean_ttft_ms")
"""Keys by which a result is known."""
DETAILS = ("input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors", "start_times", "tpots", "e2els")
BACKEND = "lanesim"


def bench_result(comparison: Comparison, run: Run) -> dict[str, Any]:
    """One run under the keys of a result file; `date` is not among them, since a simulation has none.

    Per-request lists where the run has them. `failed` counts requests that the window cut.
    """
    scenario = comparison.scenario
    workload = scenario["workload"]
    flat = {
        key: value
        for key, value in run.items()
        if not isinstance(value, dict) and key not in ("policy", "engine", "tpots", "e2els", "caps")
    }
    return {
        "backend": BACKEND,
        "endpoint_type": BACKEND,
        "label": run["policy"],
        "model_id": comparison.profile.name.partition("/")[2],
        "tokenizer_id": comparison.profile.name.partition("/")[2],
        "request_rate": workload["request_rate"],
        "burstiness": workload["burstiness"],
        "max_concurrency": workload["max_concurrency"],
        "failed": run["censored"],
    } | flat


def write_bench_results(folder: Path, comparison: Comparison) -> list[Path]:
    """A file per policy and replication, named `POLICY-RATEqps-SEED.json`; their paths."""
    paths = []
    for run in comparison.runs:
        result = bench_result(comparison, run)
        path = folder / f"{run['policy']}-{result['request_rate']}qps-{run['seed']}.json"
        write_text(path, json.dumps(result, allow_nan=False) + "\n")
        paths.append(path)
    return paths


def read_bench_row(path: Path) -> dict[str, Any]:
    """The metrics of a result file, per-request lists left out. Raises ValueError naming the file and what it lacks."""
    result = read_json(path, "bench result")
    for key in SIGNS:
        if not isinstance(result, dict) or not isinstance(result.get(key), int | float):
            raise ValueError(
                f"{str(path)!r}: no number under {key!r}; want what `vllm bench serve --save-result` wrote"
            )
    row = {key: value for key, value in result.items() if key not in DETAILS and not isinstance(value, list | dict)}
    if row.get("request_rate") == "inf":
        row["request_rate"] = float("inf")
    return row
