"""Results of benchmark tools as rows under vLLM's keys, and as levels that constants are fitted on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import lanesim
from calibrate.production.level_files import read_bench

VLLM: dict[str, Any] = {
    "completed": 50,
    "total_input_tokens": 5000,
    "total_output_tokens": 2050,
    "output_throughput": 800.0,
    "mean_ttft_ms": 50.0,
    "mean_tpot_ms": 10.0,
}


def means(value: float) -> dict[str, Any]:
    return {"successful": {"mean": value, "count": 50}}


GUIDELLM = {
    "benchmarks": [
        {
            "metrics": {
                "request_totals": {"successful": 50, "errored": 1, "incomplete": 0, "total": 51},
                "requests_per_second": means(800 / 41),
                "request_concurrency": means(8.8),
                "prompt_token_count": means(100.0),
                "output_token_count": means(41.0),
                "time_to_first_token_ms": means(50.0),
                "inter_token_latency_ms": means(10.0),
                "time_per_output_token_ms": means(11.0),
                "output_tokens_per_second": means(800.0),
            }
        }
    ]
}
AIPERF = {
    "request_count": {"unit": "requests", "avg": 50.0},
    "input_sequence_length": {"unit": "tokens", "avg": 100.0},
    "output_sequence_length": {"unit": "tokens", "avg": 41.0},
    "time_to_first_token": {"unit": "ms", "avg": 50.0, "p99": 80.0},
    "inter_token_latency": {"unit": "ms", "avg": 10.0},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 800.0},
}
INFERENCE_PERF = {
    "load_summary": {"count": 51},
    "successes": {
        "count": 50,
        "latency": {"request_latency": {"mean": 0.45}, "time_to_first_token": {"mean": 0.05}},
        "throughput": {"output_tokens_per_sec": 800.0},
        "prompt_len": {"mean": 100.0},
        "output_len": {"mean": 41.0},
    },
    "failures": {"count": 1},
}
RESULTS = {"vllm": VLLM, "guidellm": GUIDELLM, "aiperf": AIPERF, "inference-perf": INFERENCE_PERF}


def put(tmp_path: Path, text: str, name: str = "r.json") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("tool", RESULTS)
def test_the_same_run_is_the_same_level_whatever_tool_wrote_it(tmp_path: Path, tool: str) -> None:
    """41 tokens at 800/s, 0.45 s each: 8.78 in flight."""
    path = put(tmp_path, json.dumps(RESULTS[tool]))
    (level,) = read_bench(path)
    assert level.concurrency == pytest.approx(800.0 / 41 * 0.45)
    assert (level.prompt_tokens, level.output_tokens, level.num_requests) == (100.0, 41.0, 50)
    assert (level.ttft_s, level.tpot_s) == pytest.approx((0.05, 0.01))
    frame = lanesim.load(path)
    assert frame["completed"].tolist() == [50]
    assert frame["mean_tpot_ms"].tolist() == pytest.approx([10.0])


def test_a_fixed_concurrency_of_aiperf_is_the_levels(tmp_path: Path) -> None:
    result = AIPERF | {"input_config": {"loadgen": {"concurrency": 9}}}
    (level,) = read_bench(put(tmp_path, json.dumps(result)))
    assert level.concurrency == 9.0


def test_appended_results_and_lists_of_them_are_several_levels(tmp_path: Path) -> None:
    other = VLLM | {"max_concurrency": 8}
    for path in (
        put(tmp_path, json.dumps([VLLM, other])),
        put(tmp_path, f"{json.dumps(VLLM)}\n{json.dumps(other)}\n", "r.jsonl"),
    ):
        assert [level.concurrency for level in read_bench(path)] == pytest.approx([800.0 / 41 * 0.45, 8.0])
        assert len(lanesim.load(path)) == 2


def test_a_cell_of_inferencex_is_a_level_of_its_clients(tmp_path: Path) -> None:
    cell = {"hw": "h200", "conc": 4, "tp": 8, "isl": 1024, "osl": 512, "tput_per_gpu": 30.0}
    cell |= {"output_tput_per_gpu": 10.0, "mean_ttft": 0.2, "mean_tpot": 0.05}
    (level,) = read_bench(put(tmp_path, json.dumps([cell])))
    assert (level.concurrency, level.prompt_tokens, level.output_tokens_per_s) == (4.0, 1024.0, 80.0)
