"""One sound file of each format that lanesim reads, and the commands that read it."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sim.cli.main import run
from sim.costs.engine_costs import ENGINES
from sim.costs.profile_files import SHIPPED
from tests.attack.mutations import parquet_of
from tests.calibrate.catalogue.test_model_configs import CONFIG as SMALL_CONFIG
from tests.calibrate.served.test_reports import load_line, look, spec_line
from tests.calibrate.support import write_tables

PAIR = "h100-sxm/llama-2-7b+tinyllama-1.1b"
ALONE = "h100-sxm/llama-3.1-8b"
TINY_RUN = ["--policy", "pd", "--num-prompts", "4", "--input-len", "8", "--output-len", "3", "--request-rate", "4"]


@dataclass(frozen=True)
class Sample:
    """A sound file, or a folder of which one file is attacked."""

    name: str
    """Of the file below the folder of this sample."""
    content: bytes
    commands: tuple[tuple[str, ...], ...] = ()
    """What reads it beside `check`; {} stands for the file, {folder} for the folder it is laid in."""
    beside: tuple[tuple[str, bytes], ...] = ()
    """Other files of the folder."""
    is_folder: bool = False
    """Whether `check` is asked about the folder."""
    every: int = 1
    """Commands that draw or fit read every so many of the damaged files only."""
    is_checked: bool = True
    """Whether `check` knows the format."""

    def laid(self, folder: Path, content: bytes) -> Path:
        """The file in `folder` with `content` in place of its own."""
        for name, other in (*self.beside, (self.name, content)):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(other)
        return folder / self.name


SCENARIO = f"""schema: 1
profile: {PAIR}
policy: [pd, pdv]
policy_options: {{workers: 2, poll_s: 0.001}}
workload: {{dataset_name: fixed, num_prompts: 2, request_rate: 4, input_len: 8, output_len: 2}}
speculation: {{num_speculative_tokens: 3, acceptance: "iid:0.7"}}
goodput: {{ttft_ms: 500}}
seed: 3
"""
GRID = f"""scenario:
  profile: {PAIR}
  policy: pd
  workload: {{dataset_name: fixed, num_prompts: 2, input_len: 8, output_len: 2}}
grid:
  workload.request_rate: [1, 2, 4]
  seed: [0, 1]
"""
GRID_OF_LISTS = f"""scenario:
  profile: {PAIR}
  workload: {{dataset_name: fixed, num_prompts: 2, input_len: 8, output_len: 2}}
grid:
  policy: [[pd], [pdv, unified]]
  speculation.num_speculative_tokens: [1, 2]
zip:
  - {{engine.max_num_seqs: [4, 8], policy_options.decode_batch: [2, null]}}
  - {{workload.request_rate: [1, 2], speculation.acceptance: ["iid:0.7", "per-position:.8,.6"]}}
replications: 1
"""
SPECULATIVE_CONFIG = json.dumps(
    {
        "method": "draft_model",
        "model": "some/draft",
        "num_speculative_tokens": 3,
        "parallel_drafting": False,
        "synthetic_acceptance_rates": [0.7, 0.5, 0.3],
        "num_speculative_tokens_per_batch_size": [[1, 4, 3], [5, 64, 1]],
    }
)
"""vLLM's, which stands on the command line."""


def jsonl(rows: Iterable[object]) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def csv(head: str, rows: Iterable[str]) -> str:
    return "\n".join((head, *rows, ""))


def indented(value: object) -> str:
    return json.dumps(value, indent=1)


EVENTS = jsonl(
    (
        *({"id": "x", "choices": [{"index": 0, "text": "a ", "logprobs": None}], "usage": None} for _ in range(3)),
        {"choices": [{"delta": {"role": "assistant", "content": "b"}, "finish_reason": None}], "error": None},
        {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 4, "total_tokens": 8}},
    )
)
"""What a server streams, without the `data: ` before each."""
AZURE_HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens"
AZURE = csv(AZURE_HEAD, (f"2023-11-16 18:17:0{i}.9799600,{100 + i},{10 + i}" for i in range(6)))
AZURE_2024 = csv(AZURE_HEAD, (f"2024-05-10 00:00:0{i}.009930+00:00,{100 + i},{10 + i}" for i in range(6)))
MOONCAKE = jsonl(
    {"timestamp": 100 * i, "input_length": 600 + i, "output_length": 5, "hash_ids": [1, 2 + i]} for i in range(6)
)
BURSTGPT = csv(
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type",
    (f"{5 * i},,3,ChatGPT,{100 + i},{3 * (i % 3)},{100 + i},API log" for i in range(6)),
)
SESSIONS = jsonl(
    {"session_id": f"s{i % 2}", "input_length": 1100 + 600 * i, "output_length": 5, "hash_ids": [1, 2 + i % 2, 9 + i]}
    | ({"timestamp": 100 * i} if i < 2 else {"delay": 500.0})
    for i in range(6)
)
GUIDELLM_MEANS = {
    "prompt_token_count": 20.0,
    "output_token_count": 5.0,
    "time_to_first_token_ms": 20.0,
    "inter_token_latency_ms": 12.0,
    "output_tokens_per_second": 140.0,
    "requests_per_second": 28.0,
    "request_concurrency": 1.904,
}
GUIDELLM_REQUESTS = [
    {"request_id": f"r{i}", "request_start_time": 1.7e9 + 0.5 * (i ^ 1), "prompt_tokens": 10 + i, "output_tokens": 5}
    for i in range(5)
]
GUIDELLM_BENCHMARK = {
    "metrics": {name: {"successful": {"mean": value, "count": 20}} for name, value in GUIDELLM_MEANS.items()},
    "requests": {"successful": GUIDELLM_REQUESTS, "errored": [], "incomplete": [{}]},
}
GUIDELLM = indented({"metadata": {"version": 1}, "benchmarks": [GUIDELLM_BENCHMARK]})
AIPERF = jsonl(
    {
        "metadata": {
            "x_request_id": f"r{i}",
            "request_start_ns": 1759813207532900363 + 10**9 * (i ^ 1),
            "benchmark_phase": "profiling",
            "was_cancelled": i == 4,
        },
        "metrics": {
            "input_sequence_length": {"value": 10 + i, "unit": "tokens"},
            "output_sequence_length": {"value": 5, "unit": "tokens"},
        },
        "error": None,
    }
    for i in range(5)
)
AIPERF_MEANS = indented(
    {
        name: {"unit": unit, "avg": value}
        for name, unit, value in (
            ("request_count", "requests", 20.0),
            ("input_sequence_length", "tokens", 20.0),
            ("output_sequence_length", "tokens", 5.0),
            ("time_to_first_token", "ms", 20.0),
            ("inter_token_latency", "ms", 12.0),
            ("output_token_throughput", "tokens/sec", 140.0),
        )
    }
    | {"input_config": {"loadgen": {"concurrency": 2}}}
)
INFERENCE_PERF = indented(
    [
        {
            "start_time": 1393.2 + (i ^ 1),
            "end_time": 1399.0,
            "info": {"input_tokens": 10 + i, "response_metrics": {"output_tokens": 5}},
            "error": {"error_type": "x"} if i == 4 else None,
        }
        for i in range(5)
    ]
)
INFERENCE_PERF_SUCCESSES = {
    "count": 20,
    "latency": {"request_latency": {"mean": 0.068}, "time_to_first_token": {"mean": 0.02}},
    "throughput": {"output_tokens_per_sec": 140.0},
    "prompt_len": {"mean": 20.0},
    "output_len": {"mean": 5.0},
}
INFERENCE_PERF_MEANS = indented({"load_summary": {"count": 21}, "successes": INFERENCE_PERF_SUCCESSES})
TRACE_CSV = csv("arrival_s,prompt_tokens,output_tokens", (f"{i}.5,{10 + i},{3 + i}" for i in range(6)))
TRACE_JSONL = jsonl({"arrival_time": i * 0.5, "input_len": 10 + i, "output_len": 4} for i in range(6))
SHAREGPT = indented([{"id": str(i), "prompt_tokens": 10 + i, "output_tokens": 4 + i} for i in range(5)])
TAPE = jsonl({"id": i, "yields": [1, 3, 2, 5, 1, 1 + i]} for i in range(4))
VLLM = jsonl(
    {"request_id": f"r{i}", "input_toks": 10 + i, "output_toks": 5, "arrival_time": 1.7e9 + i}
    | {"queued_ts": 100.0 + i, "scheduled_ts": 100.1 + i, "first_token_ts": 100.2 + i, "last_token_ts": 100.4 + i}
    for i in range(5)
)
CELLS = "concurrency,input_len,output_len,num_prompts,tpot_ms,label\n1,16,4,4,12.5,one\n2,16,4,4,13.5,two\n"
CONFIG = indented(SMALL_CONFIG)
POINT = {"kind": "decode", "model": "target", "rows": 1, "tokens": 1, "context_tokens": 16, "launch": "eager"}
POINT_TIMES = {"device_s": 0.001, "host_s": 0.001, "half_width_pct": 1.0, "repetitions": 9}
POINTS = jsonl(
    (
        {"schema": 2, "fingerprint": {"gpu": "x"}, "options": {"rows": 4}},
        {"plan": {"visits": 2, "passes": [[*POINT.values()]]}},
        {"point": POINT | POINT_TIMES | {"is_noisy": False, "is_held_out": False}},
        {"clocks": {"sm_mhz": 1410.0, "power_w": 312.5, "throttled": ["power cap"]}},
        {
            "rates": {
                "corun": [[[*POINT.values()]] * 2, None],
                "sides": [{"alone_s": 0.1, "together_s": 0.2, "rates": [0.5, 0.6]}] * 2,
            }
        },
        {
            "mixed": {"mixed": [[*POINT.values()], 1, 512], "span_s": 0.3, "device_s": 0.2, "host_s": 0.1}
            | {"half_width_pct": 1.0, "repetitions": 7}
        },
    )
)
PROMPTS = jsonl({"prefix_blocks": [], "input_toks": 10 + i} for i in range(5))
LIST = "prompt_tokens,output_tokens\n10,4\n12,3\n"
LISTED_CELLS = "concurrency,tpot_ms\n1,12.5\n2,13.5\n"
TUNED = indented({"table": [[1, 4, 3], [5, 16, 1]], "break_even_concurrency": None})
BENCH_RECORD: dict[str, object] = {
    "completed": 20,
    "total_input_tokens": 400,
    "total_output_tokens": 100,
    "output_throughput": 140.0,
    "mean_ttft_ms": 20.0,
    "mean_tpot_ms": 12.0,
    "max_concurrency": 2,
    "spec_decode_num_drafts": 50,
    "spec_decode_per_position_acceptance_rates": [0.7, 0.4],
}
BENCH = indented(BENCH_RECORD)
BENCH_IN_DETAIL = indented(
    BENCH_RECORD
    | {"completed": 4, "total_input_tokens": 46, "total_output_tokens": 20, "input_lens": [10, 11, 12, 13]}
    | {"output_lens": [5, 5, 5, 5], "start_times": [3.0, 1.0, 2.0, 2.5], "errors": ["", "", "", ""]}
)
BENCH_APPENDED = jsonl((BENCH_RECORD, BENCH_RECORD | {"max_concurrency": 4}))
ANSWERED = {"index": 0, "due_s": 0.0, "sent_s": 0.0, "first_s": 0.05, "last_s": 0.09, "prompt_tokens": 20} | {
    "output_tokens": 5,
    "gaps_s": [0.01] * 4,
}
MEASURED = indented(
    {
        "schema": 2,
        "url": "http://localhost:8000",
        "lone": [ANSWERED | {"prompt_tokens": 10 * number, "first_s": 0.01 * number} for number in range(1, 4)],
        "rounds": [
            {"source": f"{number} at once", "concurrency": number, "input_len": 20.0, "output_len": 5.0}
            | {"measured": {"ttft_ms": 50.0, "tpot_ms": 10.0}, "num_requests": number, "requests": [ANSWERED] * number}
            for number in (1, 2, 4)
        ],
    }
)
SERVED_RUN = indented(
    {
        "scenario": {"profile": PAIR, "policy": "continuous"},
        "seed": 0,
        "profile": {"name": PAIR},
        "frontend_s": 0.0,
        "predicted_at": "2026-11-26T05:41:45+00:00",
        "predicted": {"mean_ttft_ms": 46.1, "p99_itl_ms": None},
        "intervals": {},
        "sent": [{"index": 0, "due_s": 0.0, "sent_s": 0.001, "first_s": 0.1, "last_s": 0.4, "gaps_s": [0.3]}],
    }
)
VLLM_LOG = "".join(f"{load_line(2, 150.5 + i)}\n{spec_line('0.700, 0.300', 200)}\n" for i in range(5))
SGLANG_LOG = "".join(
    f"[2025-07-01 12:00:0{i}] Decode batch. #running-req: 2, #token: 4096, token usage: 0.02, accept len: 2.50, "
    f"cuda graph: True, gen throughput (token/s): {150 + i}.5, #queue-req: 0\n"
    for i in range(5)
)


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@cache
def results(folder: Path, profile: str = PAIR) -> dict[str, bytes]:
    """The files of a small comparison."""
    out = folder / "made"
    with contextlib.redirect_stdout(io.StringIO()):
        assert run(["compare", "--profile", profile, *TINY_RUN, "--plots", "--workers", "1", "--out", str(out)]) == 0
    made = files_in(out)
    shutil.rmtree(out)
    return made


@cache
def replay(folder: Path) -> dict[str, bytes]:
    """The files of a replay, of which a simulation is made to look like one."""
    made = results(folder, "cpu/tiny")
    summary = json.loads(made["summary.json"])
    about = {"plain_wake_s": 1e-5, "polled_wake_s": 1e-5, "probed_s": []}
    runs = [{name: run[name] for name in ("policy", "seed")} | about for run in summary["runs"]]
    more = {"acceptance": "tape", "slots": 4, "partial": False}
    summary["replay"] = more | {"runs": runs}
    works = pq.read_table(io.BytesIO(made["work.parquet"]))
    columns = {name: works[name] for name in works.column_names}
    columns |= {"eligible_s": works["submitted_s"], "reacted_s": works["ready_s"]}
    rows = [[1] * len(requests) for requests in works["requests"].to_pylist()]
    columns |= {"emitted": pa.array(rows), "accepted": pa.array(rows)}
    profile = (SHIPPED / "cpu" / "tiny.json").read_bytes()
    made = {name: content for name, content in made.items() if name != "trace.json"}
    return made | {
        "summary.json": json.dumps(summary, indent=1).encode(),
        "work.parquet": parquet_of(pa.table(columns)),
        "profile.json": profile,
    }


@cache
def store(folder: Path) -> dict[str, bytes]:
    """The files of a small store, its grid among them."""
    out = folder / "store"
    (folder / "grid.yaml").write_text(GRID)
    with contextlib.redirect_stdout(io.StringIO()):
        assert run(["sweep", str(folder / "grid.yaml"), "--out", str(out), "--workers", "1"]) == 0
    made = files_in(out)
    shutil.rmtree(out)
    return made | {"grid.yaml": GRID.encode()}


MOONCAKE_COUNTS = csv(
    "timestamp_ms,input_length,output_length,n_prefix_blocks_seen_before",
    (f"{100 * i},{600 + i},5,{i % 2}" for i in range(6)),
)
BENCH_LIST = indented([BENCH_RECORD, BENCH_RECORD | {"max_concurrency": 4}])
QUANTISED = indented({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}})
TRACE = ("compare", "--profile", PAIR, "--policy", "pd", "--workers", "1", "--num-prompts", "2")


def of_file(dataset: str, path: str) -> tuple[str, ...]:
    return ("--set", f"workload.dataset_name={dataset}", "--set", f"workload.dataset_path={path}")


def read_by(name: str, content: bytes | str, *command: str, every: int = 1, **beside: bytes | str) -> Sample:
    """`beside` by a file's name with its dot for two underscores."""
    texts = {name: content, **{other.replace("__", "."): text for other, text in beside.items()}}
    data, *others = ((each, text.encode() if isinstance(text, str) else text) for each, text in texts.items())
    return Sample(*data, (command,) if command else (), tuple(others), every=every)


def of_trace(name: str, content: bytes | str, dataset: str, options: str = "", *flags: str) -> Sample:
    return read_by(name, content, *TRACE, *of_file(dataset, f"{{}}{options}"), *flags)


def of_production(name: str, content: bytes | str, *flags: str, **beside: bytes | str) -> Sample:
    """What a server wrote of itself; its results where no flags are given."""
    flags = (*(flags or ("{}",)), "--profile", PAIR, "--json", "{folder}/j.json")
    return read_by(name, content, "calibrate", "fit", *flags, every=4, **beside)


PROFILE = (SHIPPED / "h100-sxm" / "llama-2-7b.json").read_bytes()
ENGINE = (ENGINES / "vllm-0.24.json").read_bytes()
QUANTISED_MODEL = read_by("m_hf_quant_config.json", QUANTISED, "check", "{folder}/m_config.json", m_config__json=CONFIG)
LENGTHS = ("--set", "workload.input_len=20", "--set", "workload.output_len=5")
TINY = ("compare", "--profile", PAIR, *TINY_RUN)
RECORDED = ("validate", "vllm", "--profile", ALONE, "--set", "engine.max_num_seqs=8")
RECORDED += ("--set", "engine.max_num_batched_tokens=512")
LOADS = ("validate", "cells", "--profile", ALONE)
DERIVED = ("calibrate", "derive", "--from", ALONE, "--target", "{}", "--out", "{folder}/d.json")
LEVELS = ("calibrate", "fit", "--profile", PAIR, "--json", "{folder}/j.json", "{}")
SWEEP = ("sweep", "{}", "--out", "{folder}/store", "--workers", "1")
FILES = {
    "scenario": read_by("s.yaml", SCENARIO, "compare", "{}", *TINY_RUN, "--replications", "1", "--workers", "1"),
    "grid": read_by("g.yaml", GRID, *SWEEP, every=4),
    "grid of lists": read_by("gl.yaml", GRID_OF_LISTS, *SWEEP, every=10),
    "profile": read_by("p.json", PROFILE, "profiles", "show", "{}"),
    "engine": read_by("e.json", ENGINE, *TINY, "--engine", "{}", "--workers", "1"),
    "config": read_by("c.json", CONFIG, *DERIVED),
    "points": read_by("p.points.jsonl", POINTS),
    "trace azure": of_trace("a.csv", AZURE, "trace-azure"),
    "trace mooncake": of_trace("m.jsonl", MOONCAKE, "mooncake"),
    "trace azure 2024": of_trace("b.csv", AZURE_2024, "trace-azure"),
    "trace burstgpt": of_trace("bg.csv", BURSTGPT, "burstgpt"),
    "trace sessions": of_trace("ms.jsonl", SESSIONS, "mooncake"),
    "guidellm": of_trace("gl.json", GUIDELLM, "guidellm"),
    "aiperf": of_trace("ai.jsonl", AIPERF, "aiperf"),
    "aiperf means": of_production("am.json", AIPERF_MEANS),
    "inference-perf": of_trace("ip.json", INFERENCE_PERF, "inference-perf"),
    "inference-perf means": of_production("im.json", INFERENCE_PERF_MEANS),
    "bench in detail": of_trace("bd.json", BENCH_IN_DETAIL, "vllm-bench"),
    "bench appended": of_production("ba.jsonl", BENCH_APPENDED),
    "trace csv": of_trace("t.csv", TRACE_CSV, "csv"),
    "trace jsonl": of_trace("t.jsonl", TRACE_JSONL, "jsonl"),
    "sharegpt": of_trace("g.json", SHAREGPT, "sharegpt"),
    "tape": read_by("t.jsonl", TAPE, *TINY, "--acceptance", "tape:{}", "--workers", "1"),
    "requests": read_by("v.jsonl", VLLM, *RECORDED, "{}"),
    "prompts": read_by("w.jsonl", PROMPTS, *RECORDED, "{folder}/v.jsonl", "{}", v__jsonl=VLLM),
    "cells": read_by("cells.csv", CELLS, *LOADS, "{}"),
    "request list": read_by("list.csv", LIST, *LOADS, "{folder}/cells.csv", "{}", cells__csv=LISTED_CELLS),
    "tuned table": read_by("tuned.json", TUNED),
    "bench": of_production("bench.json", BENCH),
    "log vllm": of_production("vllm.log", VLLM_LOG, "{}", *LENGTHS),
    "log sglang": of_production("sg.log", SGLANG_LOG, "{}", "--set", "num_speculative_tokens=3", *LENGTHS),
    "metrics": of_production(
        "after.txt",
        look(30, 120, drafts=120, accepted=(90, 60)),
        *("metrics", "{folder}/before.txt", "{}"),
        before__txt=look(10, 40, drafts=40, accepted=(30, 20)),
    ),
    "measured levels": read_by("m.json", MEASURED, *LEVELS, every=4),
    "served run": read_by("run.json", SERVED_RUN),
    "trace gz": of_trace("a.csv.gz", gzip.compress(AZURE.encode(), mtime=0), "trace-azure"),
    "trace counts": of_trace("mc.csv", MOONCAKE_COUNTS, "mooncake"),
    "trace turns": of_trace("mt.jsonl", SESSIONS, "mooncake", "#turns=new"),
    "trace columns": of_trace(
        "tc.csv", TRACE_CSV, "csv", "#arrival=arrival_s,prompt=prompt_tokens,output=output_tokens,unit=ms"
    ),
    "trace without times": of_trace(
        *("tw.jsonl", TRACE_JSONL, "jsonl", "#arrival="),
        *("--request-rate", "4", "--set", "workload.trace_arrivals=poisson"),
    ),
    "guidellm means": of_production("gm.json", GUIDELLM),
    "bench list": of_production("bl.json", BENCH_LIST),
    "quantisation": replace(QUANTISED_MODEL, is_checked=False),
}
"""By format, of those that no command has to write first."""


KERNELS = (
    *("a100_sxm.yaml", "gemm_perf.parquet", "context_attention_perf.parquet"),
    *("generation_attention_perf.parquet", "custom_allreduce_perf.parquet"),
)
REPLAYED = ("summary.json", "scenario.yaml", "requests.parquet", "work.parquet", "profile.json")
FORMATS = (*FILES, "summary", "store", *REPLAYED, *KERNELS)


def samples(folder: Path) -> dict[str, Sample]:
    """By format."""

    def part(of: dict[str, bytes], name: str, *commands: tuple[str, ...], every: int = 1) -> Sample:
        """The file of this name, or whose name ends so, beside all others."""
        whole = next(each for each in of if each.endswith(name))
        beside = tuple((other, content) for other, content in of.items() if other != whole)
        return Sample(whole, of[whole], commands, beside, is_folder=True, every=every)

    (folder / "kernels").mkdir()
    kernels = files_in(write_tables(folder / "kernels"))
    imported = ("aiconfigurator", "{folder}", "--gpu", "a100-sxm", "--target", "llama-3.1-8b-tp2")
    derived = ("calibrate", "import", *imported, "--out", "{folder}/../made.json")
    validated = ("validate", "{folder}", "--json", "{folder}/v.json")
    swept = ("sweep", "{folder}/grid.yaml", "--out", "{folder}", "--workers", "1")
    return {
        **FILES,
        "summary": part(results(folder), "summary.json", ("check", "{}")),
        "store": part(
            store(folder), "store.sqlite", swept, ("report", "{folder}", "--out", "{folder}/r.html"), every=10
        ),
        **{name: part(replay(folder), name, validated) for name in REPLAYED},
        **{name: replace(part(kernels, name, derived, every=4), is_checked=False) for name in KERNELS},
    }


def filled(command: Sequence[str], path: Path, folder: Path) -> list[str]:
    return [part.replace("{folder}", str(folder)).replace("{}", str(path)) for part in command]
