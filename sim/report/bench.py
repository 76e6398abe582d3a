"""Result files of `vllm bench serve --save-result`: runs written as such, and such files read as rows of a frame.

So that what is simulated and what was measured go through the same scripts. Not here: what the metrics mean
(sim.metrics.summary), results of other tools (sim.workload.bench), engine constants from such a file (`lanesim
calibrate production`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sim.compare.side_by_side import Comparison
from sim.files.json_values import Json
from sim.files.write import write_text
from sim.metrics.summary import Run, number
from sim.workload.bench import bench_rows

DETAILS = ("input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors", "start_times", "tpots", "e2els")
BACKEND = "lanesim"


def bench_result(comparison: Comparison, run: Run) -> dict[str, Json]:
    """One run under the keys of a result file; `date` is not among them, since a simulation has none.

    Per-request lists where the run has them. `failed` counts requests that the window cut, and rejected ones.
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
        "failed": (number(run, "censored") or 0) + (number(run, "rejected_requests") or 0),
    } | flat


def bench_path(folder: Path, policy: Json, request_rate: Json, seed: Json) -> Path:
    """The file of one run."""
    return folder / f"{policy}-{request_rate}qps-{seed}.json"


def write_bench_results(folder: Path, comparison: Comparison) -> list[Path]:
    """A file per policy and replication, named `POLICY-RATEqps-SEED.json`; their paths."""
    paths = []
    for run in comparison.runs:
        result = bench_result(comparison, run)
        path = bench_path(folder, run["policy"], result["request_rate"], run["seed"])
        write_text(path, json.dumps(result, allow_nan=False) + "\n")
        paths.append(path)
    return paths


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
