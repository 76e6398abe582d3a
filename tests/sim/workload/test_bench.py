"""Results of benchmark tools as rows under vLLM's keys, and as levels that constants are fitted on."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import lanesim
from calibrate.cli.check_files import check_file
from calibrate.served.readers import read_bench
from tests.attack.samples import AIPERF_MEANS, BENCH_RECORD, GUIDELLM, INFERENCE_PERF_MEANS

VLLM = {key: value for key, value in BENCH_RECORD.items() if key != "max_concurrency"}
AIPERF: dict[str, Any] = json.loads(AIPERF_MEANS)
RESULTS: dict[str, Any] = {
    "vllm": VLLM,
    "guidellm": json.loads(GUIDELLM),
    "aiperf": {key: value for key, value in AIPERF.items() if key != "input_config"},
    "inference-perf": json.loads(INFERENCE_PERF_MEANS),
}
IN_FLIGHT = 140.0 / 5 * 0.068


def put(tmp_path: Path, text: str, name: str = "r.json") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("tool", RESULTS)
def test_the_same_run_is_the_same_level_whatever_tool_wrote_it(tmp_path: Path, tool: str) -> None:
    """5 tokens at 140/s, 0.068 s each."""
    path = put(tmp_path, json.dumps(RESULTS[tool]))
    (level,) = read_bench(path)
    assert level.concurrency == pytest.approx(IN_FLIGHT)
    assert (level.lengths, level.num_requests) == ((20.0, 5.0), 20)
    assert (level.measured["ttft_ms"], level.measured["tpot_ms"]) == pytest.approx((20.0, 12.0))
    frame = lanesim.load(path)
    assert frame["completed"].tolist() == [20]
    assert frame["mean_tpot_ms"].tolist() == pytest.approx([12.0])


def test_a_closed_loop_of_sglang_has_a_rate_that_is_no_number_of_json(tmp_path: Path) -> None:
    """As Python writes it; an infinity that is a measured value is refused all the same."""
    written = VLLM | {"max_concurrency": 1, "request_rate": math.inf, "generated_texts": ["\x07"]}
    written |= {"median_itl_ms": math.nan, "accept_length": math.nan}
    path = put(tmp_path, json.dumps(written), "r.jsonl")
    assert [level.concurrency for level in read_bench(path)] == [1.0]
    assert lanesim.load(path)["request_rate"].tolist() == [math.inf]
    assert check_file(path)[0] == "result of a benchmark"
    assert check_file(path)[1].startswith("1 requests at once")
    with pytest.raises(ValueError, match="mean_tpot_ms"):
        read_bench(put(tmp_path, json.dumps(VLLM | {"mean_tpot_ms": math.inf})))
    with pytest.raises(ValueError, match="mean_tpot_ms"):
        read_bench(put(tmp_path, json.dumps(VLLM | {"mean_tpot_ms": math.nan})))


def test_a_guidellm_report_without_requests_is_a_benchmark_result(tmp_path: Path) -> None:
    (benchmark,) = RESULTS["guidellm"]["benchmarks"]
    summary = benchmark | {"requests": {"successful": [], "incomplete": [], "errored": []}}
    path = put(tmp_path, json.dumps({"benchmarks": [summary]}))
    assert check_file(path) == ("result of guidellm", "1.9 requests at once, 20 in, 5 out")


BLOCK = """INFO 07-01 12:00:00 something else: 5
============ Serving Benchmark Result ============
Successful requests:                     20
Maximum request concurrency:             1
Total input tokens:                      400
Total generated tokens:                  100
Total generated tokens (retokenized):    1
Output token throughput (tok/s):         140.00
---------------Time to First Token----------------
Mean TTFT (ms):                          20.00
P99 TTFT (ms):                           300.00
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          12.00
==================================================
"""


def test_the_block_that_a_benchmark_prints_is_its_result(tmp_path: Path) -> None:
    plain = {key: value for key, value in VLLM.items() if not key.startswith("spec_decode")}
    (saved,) = read_bench(put(tmp_path, json.dumps(plain | {"max_concurrency": 1})))
    pasted = put(tmp_path, BLOCK * 2, "console.txt")
    assert [structs.replace(level, source="r.json") for level in read_bench(pasted)] == [saved, saved]
    assert check_file(pasted)[0] == "result of a benchmark"
    with pytest.raises(ValueError, match="no number under 'mean_ttft_ms'"):
        read_bench(put(tmp_path, BLOCK.replace("Mean TTFT", "First"), "console.txt"))


def test_a_fixed_concurrency_of_aiperf_is_the_levels(tmp_path: Path) -> None:
    (level,) = read_bench(put(tmp_path, AIPERF_MEANS))
    assert level.concurrency == 2.0


def test_appended_results_and_lists_of_them_are_several_levels(tmp_path: Path) -> None:
    other = VLLM | {"max_concurrency": 2}
    for path in (
        put(tmp_path, json.dumps([VLLM, other])),
        put(tmp_path, f"{json.dumps(VLLM)}\n{json.dumps(other)}\n", "r.jsonl"),
    ):
        assert [level.concurrency for level in read_bench(path)] == pytest.approx([IN_FLIGHT, 2.0])
        assert len(lanesim.load(path)) == 2
