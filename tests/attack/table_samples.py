"""One sound file more of each format: tables of kernel times that are imported, and further kinds of what samples.py
has (a trace in a .gz, counts of Mooncake, means of benchmarks, a quantiser's record)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from tests.attack.samples import (
    AZURE,
    BENCH,
    CONFIG,
    GUIDELLM,
    PAIR,
    SESSIONS,
    TRACE_CSV,
    TRACE_JSONL,
    Sample,
    files_in,
)
from tests.calibrate.support import write_tables

TRACE = ("compare", "--profile", PAIR, "--policy", "pd", "--workers", "1", "--num-prompts", "2", "--dataset-name")
MOONCAKE_COUNTS = "timestamp_ms,input_length,output_length,n_prefix_blocks_seen_before\n" + "".join(
    f"{100 * i},{600 + i},5,{i % 2}\n" for i in range(6)
)
INFERENCEX = json.dumps(
    [
        {"hw": "h100", "conc": 2 * i, "tp": 1, "isl": 20, "osl": 5, "tput_per_gpu": 30.0}
        | {"output_tput_per_gpu": 10.0, "mean_ttft": 0.02, "mean_tpot": 0.012}
        for i in (1, 2)
    ],
    indent=1,
)
BENCH_LIST = json.dumps([json.loads(BENCH), json.loads(BENCH) | {"max_concurrency": 4}], indent=1)
QUANTISED = json.dumps({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}, indent=1)


def of_means(name: str, content: str) -> Sample:
    flags = ("--bench-json", "{}", "--profile", PAIR, "--json", "{folder}/j.json")
    return Sample(name, content.encode(), (("calibrate", "production", *flags),), every=4)


def of_trace(name: str, content: bytes, dataset: str, options: str = "", *flags: str) -> Sample:
    return Sample(name, content, ((*TRACE, dataset, "--dataset-path", f"{{}}{options}", *flags),))


def of_tables(files: dict[str, bytes], name: str, *command: str, is_folder: bool = False) -> Sample:
    beside = tuple((other, content) for other, content in files.items() if other != name)
    commands = (("calibrate", "import", *command),)
    return Sample(name, files[name], commands, beside, is_folder=is_folder, every=4, is_checked=False)


def table_samples(folder: Path) -> dict[str, Sample]:
    """By format."""
    kernels = folder / "kernels"
    kernels.mkdir()
    kernel_files = files_in(write_tables(kernels))
    a100: Any = ("aiconfigurator", "{folder}", "--gpu", "a100-sxm", "--target", "llama-3.1-8b", "--tp", "2")
    out = ("--out", "{folder}/../made.json")
    return {
        "trace gz": of_trace("a.csv.gz", gzip.compress(AZURE.encode(), mtime=0), "trace-azure"),
        "trace counts": of_trace("mc.csv", MOONCAKE_COUNTS.encode(), "mooncake"),
        "trace turns": of_trace("mt.jsonl", SESSIONS.encode(), "mooncake", "#turns=new"),
        "trace columns": of_trace(
            "tc.csv", TRACE_CSV.encode(), "csv", "#arrival=arrival_s,prompt=prompt_tokens,output=output_tokens,unit=ms"
        ),
        "trace without times": of_trace(
            *("tw.jsonl", TRACE_JSONL.encode(), "jsonl", "#arrival="),
            *("--request-rate", "4", "--set", "workload.trace_arrivals=poisson"),
        ),
        "guidellm means": of_means("gm.json", GUIDELLM),
        "inferencex": of_means("ix.json", INFERENCEX),
        "bench list": of_means("bl.json", BENCH_LIST),
        "quantisation": Sample(
            "m_hf_quant_config.json",
            QUANTISED.encode(),
            (("check", "{folder}/m_config.json"),),
            (("m_config.json", CONFIG.encode()),),
            is_checked=False,
        ),
        **{
            f"kernels {name.rpartition('__')[2]}": of_tables(kernel_files, name, *a100, *out, is_folder=True)
            for name in kernel_files
        },
    }
