"""Published traces and results of benchmarks as workloads: samples, damaged ones, and round trips through a sweep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import lanesim
from calibrate.cli.check_files import check_file
from sim.workload.traces import read_trace
from tests.attack import samples

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


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


SAMPLES = {
    "trace-azure": ("a.csv", AZURE_2024),
    "burstgpt": ("b.csv", BURSTGPT),
    "mooncake": ("m.jsonl", lines(SESSIONS)),
    "guidellm": ("benchmarks.json", samples.GUIDELLM),
    "aiperf": ("profile_export.jsonl", samples.AIPERF),
    "inference-perf": ("per_request.json", samples.INFERENCE_PERF),
    "vllm-bench": ("result.json", samples.BENCH_IN_DETAIL),
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


SERVED: dict[str, tuple[list[float], list[int], int]] = {
    "guidellm": ([0.0, 0.5, 1.0, 1.5, 2.5], [11, 10, 13, 12, 14], 1),
    "aiperf": ([0.0, 1.0, 2.0, 3.0], [11, 10, 13, 12], 1),
    "inference-perf": ([0.0, 1.0, 2.0, 3.0], [11, 10, 13, 12], 1),
    "vllm-bench": ([0.0, 1.0, 1.5, 2.0], [11, 12, 13, 10], 0),
}
"""Arrivals, prompts, and how many failed."""


@pytest.mark.parametrize("name", SERVED)
def test_requests_of_a_benchmark_are_put_in_order_of_arrival_and_failures_counted(tmp_path: Path, name: str) -> None:
    trace = read_trace(name, put(tmp_path, *SAMPLES[name]))
    assert trace.arrival_s is not None
    assert (trace.arrival_s.tolist(), trace.prompt_tokens.tolist(), trace.num_failed) == SERVED[name]
    assert set(trace.output_tokens.tolist()) == {5}


def test_times_that_all_requests_lack_are_none_and_a_failed_one_is_counted(tmp_path: Path) -> None:
    result = json.loads(samples.BENCH_IN_DETAIL)
    result["errors"][3] = "timeout"
    assert read_trace("vllm-bench", put(tmp_path, "r.json", json.dumps(result))).num_failed == 1
    del result["start_times"]
    assert read_trace("vllm-bench", put(tmp_path, "r.json", json.dumps(result))).arrival_s is None


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
    path = put(tmp_path, "b.json", json.dumps({"benchmarks": json.loads(samples.GUIDELLM)["benchmarks"] * 2}))
    assert len(read_trace("guidellm", f"{path}#benchmark=1").ids) == 5


DELAYED = {"session_id": "c", "delay": 3, "input_length": 600, "output_length": 3, "hash_ids": [1]}
DAMAGED = [
    ("trace-azure", AZURE_2024 + "2024-05-10 00:00:05+00:00,12,x\n",
     "a.csv' line 5: GeneratedTokens='x' must be a whole number of tokens"),
    ("burstgpt", BURSTGPT + "50,,1,GPT-4,-3,4,1,API log\n", "b.csv' line 5: Request tokens='-3' must be a whole"),
    ("mooncake", lines([*SESSIONS, DELAYED]), "m.jsonl' line 4: no field 'timestamp'"),
    ("guidellm", samples.GUIDELLM.replace('"output_tokens": 5', '"output_tokens": null', 1),
     "benchmarks.json' benchmark 0 request 0: output_tokens=None must be"),
    ("aiperf", samples.AIPERF.replace('"value": 5', '"value": 0', 1),
     "profile_export.jsonl' line 1: metrics.output_sequence_length.value=0 must be"),
    ("inference-perf", samples.INFERENCE_PERF.replace('1394.2', '"now"'),
     "per_request.json' request 0: start_time='now' must be a number"),
    ("vllm-bench", samples.BENCH_IN_DETAIL.replace(' 1.0,', ' null,'),
     "request 1: start_times=None must be a number"),
    ("vllm-bench", json.dumps(json.loads(samples.BENCH_IN_DETAIL) | {"output_lens": [5, 5]}),
     "result.json': output_lens has 2 entries, and input_lens has 4"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "message"), DAMAGED)
def test_a_damaged_file_is_one_line_with_file_place_and_field(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    path = put(tmp_path, SAMPLES[name][0], text)
    with pytest.raises(ValueError, match=r"^trace ") as caught:
        read_trace(name, path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


CHECKED = {
    "trace-azure": ("trace (trace-azure)", "3 requests in 4 s, 0.5/s"),
    "burstgpt": ("trace (burstgpt)", "2 requests in 40 s"),
    "mooncake": ("trace (mooncake)", "3 requests in 5 s, 0.4/s"),
    "guidellm": ("result of guidellm", "5 requests in 2.5 s, 1.6/s, 12 in, 5 out"),
    "aiperf": ("trace (aiperf)", "4 requests in 3 s, 1/s, 12 in, 5 out"),
    "inference-perf": ("trace (inference-perf)", "4 requests in 3 s, 1/s, 12 in, 5 out"),
    "vllm-bench": ("result of a benchmark", "4 requests in 2 s, 1.5/s, 12 in, 5 out"),
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
    scenario: dict[str, Any] = {"profile": "cpu/tiny", "policy": "continuous", "workload": workload}
    scenario["engine"] = {"max_model_len": 100_000}
    grid = {"scenario": scenario, "grid": {"seed": [0]}}
    frame = lanesim.sweep(grid, out=tmp_path / "store", workers=1)
    assert frame["completed"].tolist() == [len(trace.ids)]
    assert frame["total_input_tokens"].tolist() == [trace.prompt_tokens.sum()]
    assert frame["total_output_tokens"].tolist() == [trace.output_tokens.sum()]
