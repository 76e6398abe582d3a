"""Published traces and results of benchmarks as workloads: samples, damaged ones, and round trips through a sweep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import lanesim
from calibrate.cli.check_files import check_file
from sim.workload.traces import read_trace

AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:01+00:00,2399,6
2024-05-10 00:00:04.009930+00:00,76,15
"""
BURSTGPT = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
5,,12,ChatGPT,472,18,490,API log
7,ab-1,3,GPT-4,300,0,300,Conversation log
45,ab-1,9,GPT-4,1087,230,1317,Conversation log
"""
SESSIONS: list[dict[str, Any]] = [
    {"session_id": "a", "timestamp": 1000, "input_length": 1030, "output_length": 7, "hash_ids": [1, 2, 3]},
    {"session_id": "a", "delay": 5000, "input_length": 1540, "output_length": 9, "hash_ids": [1, 2, 4, 5]},
    {"session_id": "b", "timestamp": 3000, "input_length": 600, "output_length": 3, "hash_ids": [1, 6]},
]
GUIDELLM: dict[str, Any] = {
    "benchmarks": [
        {
            "requests": {
                "successful": [
                    {"request_id": "x", "request_start_time": 1.7e9 + 2, "prompt_tokens": 20, "output_tokens": 4},
                    {"request_id": "y", "request_start_time": 1.7e9, "prompt_tokens": 10, "output_tokens": 5},
                ],
                "errored": [{"request_id": "z"}],
                "incomplete": [],
            }
        }
    ]
}


def aiperf_record(start_ns: int, prompt: int, output: int, **more: Any) -> dict[str, Any]:
    metadata = {"request_start_ns": start_ns, "benchmark_phase": "profiling", "was_cancelled": False}
    lengths = {"input_sequence_length": prompt, "output_sequence_length": output}
    metrics = {name: {"value": tokens, "unit": "tokens"} for name, tokens in lengths.items()}
    return {"metadata": metadata, "metrics": metrics, "error": None} | more


AIPERF = [
    aiperf_record(1_759_813_209_000_000_000, 20, 4),
    aiperf_record(1_759_813_208_000_000_000, 9, 9, error={"code": 500}),
    aiperf_record(1_759_813_207_000_000_000, 10, 5),
]
INFERENCE_PERF: list[dict[str, Any]] = [
    {"start_time": 1395.0, "info": {"input_tokens": 20, "response_metrics": {"output_tokens": 4}}, "error": None},
    {"start_time": 1393.0, "info": {"input_tokens": 10, "output_tokens": 5}, "error": None},
    {"start_time": 1394.0, "info": {"input_tokens": 10}, "error": {"error_type": "x"}},
]
VLLM_BENCH: dict[str, Any] = {
    "completed": 2,
    "mean_ttft_ms": 20.0,
    "mean_tpot_ms": 10.0,
    "total_input_tokens": 30,
    "total_output_tokens": 9,
    "output_throughput": 100.0,
    "input_lens": [20, 10, 7],
    "output_lens": [4, 5, 0],
    "start_times": [12.0, 10.0, 11.0],
    "errors": ["", "", "timeout"],
    "generated_texts": ["\u001b[31m", "b", ""],
}


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


SAMPLES = {
    "trace-azure": ("a.csv", AZURE_2024),
    "burstgpt": ("b.csv", BURSTGPT),
    "mooncake": ("m.jsonl", lines(SESSIONS)),
    "guidellm": ("benchmarks.json", json.dumps(GUIDELLM)),
    "aiperf": ("profile_export.jsonl", lines(AIPERF)),
    "inference-perf": ("per_request.json", json.dumps(INFERENCE_PERF)),
    "vllm-bench": ("result.json", json.dumps(VLLM_BENCH)),
}


def put(tmp_path: Path, name: str, text: str) -> str:
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def test_azure_2024_has_zones_and_may_lack_fractions(tmp_path: Path) -> None:
    trace = read_trace("trace-azure", put(tmp_path, *SAMPLES["trace-azure"]))
    assert trace.arrival_s is not None
    assert trace.arrival_s.tolist() == pytest.approx([0.0, 0.99007, 4.0])
    assert trace.prompt_tokens.tolist() == [2162, 2399, 76]


def test_burstgpt_goes_by_names_of_columns_and_leaves_failures_out(tmp_path: Path) -> None:
    trace = read_trace("burstgpt", put(tmp_path, *SAMPLES["burstgpt"]))
    assert trace.arrival_s is not None
    assert trace.arrival_s.tolist() == [0.0, 40.0]
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([472, 1087], [18, 230])
    assert "2 requests in 40 s" in trace.in_words
    assert trace.in_words.endswith("1 failed and left out")


def test_sessions_of_mooncake_interleave_and_share_by_their_hashes(tmp_path: Path) -> None:
    trace = read_trace("mooncake", put(tmp_path, *SAMPLES["mooncake"]))
    assert trace.arrival_s is not None
    assert trace.arrival_s.tolist() == [0.0, 2.0, 5.0]
    assert trace.prompt_tokens.tolist() == [1030, 600, 1540]
    assert trace.contents == ((0, 1), (0,), (0, 1))
    assert trace.content_tokens == 512


def test_sessions_without_hashes_go_on_from_what_was_said(tmp_path: Path) -> None:
    rows = [{name: value for name, value in row.items() if name != "hash_ids"} for row in SESSIONS]
    path = put(tmp_path, "m.jsonl", lines(rows))
    first, _, third = read_trace("mooncake", path).contents
    assert len(first) == 1037 // 16
    assert third == first
    added = read_trace("mooncake", f"{path}#turns=new")
    assert added.prompt_tokens.tolist() == [1030, 600, 1037 + 1540]
    assert added.contents[0] == added.contents[2][: len(added.contents[0])]
    assert read_trace("mooncake", path, 2).prompt_tokens.tolist() == [1030, 600]


def test_sessions_are_put_in_order_of_arrival_wherever_the_file_has_them(tmp_path: Path) -> None:
    earlier = SESSIONS[2] | {"timestamp": 0}
    trace = read_trace("mooncake", put(tmp_path, "m.jsonl", lines([*SESSIONS[:2], earlier])))
    assert trace.prompt_tokens.tolist() == [600, 1030, 1540]


@pytest.mark.parametrize("name", ["guidellm", "aiperf", "inference-perf", "vllm-bench"])
def test_requests_of_a_benchmark_are_put_in_order_of_arrival_and_failures_counted(tmp_path: Path, name: str) -> None:
    trace = read_trace(name, put(tmp_path, *SAMPLES[name]))
    assert trace.arrival_s is not None
    assert trace.arrival_s.tolist() == [0.0, 2.0]
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([10, 20], [5, 4])
    assert trace.num_failed == 1


def test_a_time_that_one_request_lacks_is_an_error_and_times_that_all_lack_are_none(tmp_path: Path) -> None:
    path = put(tmp_path, "r.json", json.dumps(VLLM_BENCH | {"start_times": [12.0, None, 11.0]}))
    with pytest.raises(ValueError, match="request 1: start_times=None must be a number"):
        read_trace("vllm-bench", path)
    without = {name: value for name, value in VLLM_BENCH.items() if name != "start_times"}
    assert read_trace("vllm-bench", put(tmp_path, "r.json", json.dumps(without))).arrival_s is None


def test_a_request_is_called_as_the_benchmark_calls_it_where_that_is_a_name(tmp_path: Path) -> None:
    """Else by its place among the arrivals: a number, and a text that a terminal would obey, are no names."""

    def ids(*names: Any) -> tuple[str, ...]:
        entries = [
            {"request_id": name, "request_start_time": float(at), "prompt_tokens": 9, "output_tokens": 5}
            for at, name in enumerate(names)
        ]
        text = json.dumps({"benchmarks": [{"requests": {"successful": entries}}]})
        return read_trace("guidellm", put(tmp_path, "b.json", text)).ids

    assert ids("x", "chat-1 é") == ("x", "chat-1 é")
    assert ids("x", 7, None, "\x1b[31m", "y") == ("x", "1", "2", "3", "y")


def test_one_of_several_benchmarks_is_named(tmp_path: Path) -> None:
    path = put(tmp_path, "b.json", json.dumps({"benchmarks": GUIDELLM["benchmarks"] * 2}))
    assert len(read_trace("guidellm", f"{path}#benchmark=1").ids) == 2


DAMAGED = {
    "trace-azure": (
        AZURE_2024 + "2024-05-10 00:00:05+00:00,12,x\n",
        "a.csv' line 5: GeneratedTokens='x' must be a whole number of tokens",
    ),
    "burstgpt": (BURSTGPT + "50,,1,GPT-4,-3,4,1,API log\n", "b.csv' line 5: Request tokens='-3' must be a whole"),
    "mooncake": (
        lines([*SESSIONS, {"session_id": "c", "delay": 3, "input_length": 600, "output_length": 3, "hash_ids": [1]}]),
        "m.jsonl' line 4: no field 'timestamp'",
    ),
    "guidellm": (
        json.dumps(GUIDELLM).replace('"output_tokens": 5', '"output_tokens": null'),
        "benchmarks.json' benchmark 0 request 1: output_tokens=None must be",
    ),
    "aiperf": (
        lines([*AIPERF, aiperf_record(1_759_813_207_000_000_000, 10, 0)]),
        "profile_export.jsonl' line 4: metrics.output_sequence_length.value=0 must be",
    ),
    "inference-perf": (
        json.dumps([*INFERENCE_PERF, {"start_time": "now", "info": {"input_tokens": 1, "output_tokens": 1}}]),
        "per_request.json' request 3: start_time='now' must be a number",
    ),
    "vllm-bench": (
        json.dumps(VLLM_BENCH | {"output_lens": [4, 5]}),
        "result.json': output_lens has 2 entries, and input_lens has 3",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_one_line_with_file_place_and_field(tmp_path: Path, name: str) -> None:
    text, message = DAMAGED[name]
    path = put(tmp_path, SAMPLES[name][0], text)
    with pytest.raises(ValueError, match=r"^trace ") as caught:
        read_trace(name, path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


CHECKED = {
    "trace-azure": ("trace (trace-azure)", "3 requests in 4 s, 0.5/s"),
    "burstgpt": ("trace (burstgpt)", "2 requests in 40 s"),
    "mooncake": ("trace (mooncake)", "3 requests in 5 s, 0.4/s"),
    "guidellm": ("result of guidellm", "2 requests in 2 s, 0.5/s, 15 in, 4 out"),
    "aiperf": ("trace (aiperf)", "2 requests in 2 s, 0.5/s, 15 in, 4 out"),
    "inference-perf": ("trace (inference-perf)", "2 requests in 2 s, 0.5/s, 15 in, 4 out"),
    "vllm-bench": ("result of a benchmark", "2 requests in 2 s, 0.5/s, 15 in, 4 out"),
}


@pytest.mark.parametrize("name", CHECKED)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_check_names_format_span_rate_and_lengths(tmp_path: Path, name: str) -> None:
    kind, content = check_file(Path(put(tmp_path, *SAMPLES[name])))
    assert kind == CHECKED[name][0]
    assert CHECKED[name][1] in content


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.filterwarnings("ignore")
def test_a_sweep_replays_every_request_at_its_recorded_time(tmp_path: Path, name: str) -> None:
    path = put(tmp_path, *SAMPLES[name])
    trace = read_trace(name, path)
    workload = {"dataset_name": name, "dataset_path": path}
    grid = {"scenario": {"profile": "cpu/tiny", "policy": "continuous", "workload": workload}, "grid": {"seed": [0]}}
    frame = lanesim.sweep(grid, out=tmp_path / "store", workers=1)
    assert frame["completed"].tolist() == [len(trace.ids)]
    assert frame["total_input_tokens"].tolist() == [trace.prompt_tokens.sum()]
    assert frame["total_output_tokens"].tolist() == [trace.output_tokens.sum()]
