"""One sound file of each format that lanesim reads, and the commands that read it."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sim.cli.main import run
from sim.costs.engine import ENGINES
from sim.costs.profile_files import SHIPPED

PAIR = "h100-sxm/llama-2-7b+tinyllama-1.1b"
TINY_RUN = ["--policy", "pd", "--num-prompts", "4", "--input-len", "8", "--output-len", "3", "--request-rate", "4"]


@dataclass(frozen=True)
class Sample:
    """A sound file, or a folder of which one file is attacked."""

    name: str
    """Of the file below the folder of this sample."""
    content: bytes
    commands: tuple[tuple[str, ...], ...] = ()
    """What reads it beside `check`; {} stands for the file, {folder} for its folder."""
    beside: tuple[tuple[str, bytes], ...] = ()
    """Other files of the folder."""
    is_folder: bool = False
    """Whether `check` is asked about the folder."""

    def laid(self, folder: Path, content: bytes) -> Path:
        """The file in `folder` with `content` in place of its own."""
        for name, other in self.beside:
            (folder / name).write_bytes(other)
        path = folder / self.name
        path.write_bytes(content)
        return path


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
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:17:0{i}.9799600,{100 + i},{10 + i}\n" for i in range(6)
)
MOONCAKE = "".join(
    json.dumps({"timestamp": 100 * i, "input_length": 600 + i, "output_length": 5, "hash_ids": [1, 2 + i]}) + "\n"
    for i in range(6)
)
TRACE_CSV = "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{i}.5,{10 + i},{3 + i}\n" for i in range(6))
TRACE_JSONL = "".join(
    json.dumps({"arrival_time": i * 0.5, "input_len": 10 + i, "output_len": 4}) + "\n" for i in range(6)
)
SHAREGPT = json.dumps([{"id": str(i), "prompt_tokens": 10 + i, "output_tokens": 4 + i} for i in range(5)], indent=1)
TAPE = "".join(json.dumps({"id": i, "yields": [1, 3, 2, 5, 1, 1 + i]}) + "\n" for i in range(4))
VLLM = "".join(
    json.dumps(
        {
            "request_id": f"r{i}",
            "input_toks": 10 + i,
            "output_toks": 5,
            "arrival_time": 1.7e9 + i,
            "queued_ts": 100.0 + i,
            "scheduled_ts": 100.1 + i,
            "first_token_ts": 100.2 + i,
            "last_token_ts": 100.4 + i,
        }
    )
    + "\n"
    for i in range(5)
)
CELLS = "concurrency,input_len,output_len,num_prompts,tpot_ms,label\n1,16,4,4,12.5,one\n2,16,4,4,13.5,two\n"
CURVE = "batch_tokens,step_ms\n" + "".join(f"{n},{5 + n / 100}\n" for n in (1, 8, 16, 64, 128, 256, 512, 1024))
CONFIG = json.dumps(
    {
        "model_type": "llama",
        "num_hidden_layers": 4,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 1000,
        "max_position_embeddings": 2048,
        "torch_dtype": "bfloat16",
    },
    indent=1,
)
POINTS = "".join(
    json.dumps(line) + "\n"
    for line in (
        {
            "schema": 1,
            "fingerprint": {"gpu": "x"},
            "options": {"rows": 4},
            "visits": 2,
            "places": [["decode", "target", 1, 1, 16, "eager"]],
        },
        {
            "point": {
                "kind": "decode",
                "model": "target",
                "rows": 1,
                "tokens": 1,
                "context_tokens": 16,
                "launch": "eager",
                "device_s": 0.001,
                "host_s": 0.001,
                "half_width_pct": 1.0,
                "repetitions": 9,
                "is_noisy": False,
                "is_held_out": False,
            }
        },
        {"clocks": {"sm_mhz": 1410.0, "power_w": 312.5, "throttled": ["power cap"]}},
        {"overlap": {"solo_s": [0.1, 0.2], "together_s": [0.2, 0.3]}},
    )
)


@cache
def results(folder: Path) -> dict[str, bytes]:
    """The files of a small comparison."""
    out = folder / "made"
    if not out.exists():
        with contextlib.redirect_stdout(io.StringIO()):
            assert run(["compare", "--profile", PAIR, *TINY_RUN, "--works", "--workers", "1", "--out", str(out)]) == 0
    return {path.name: path.read_bytes() for path in out.iterdir()}


def samples(folder: Path) -> dict[str, Sample]:
    """By format."""
    made = results(folder)
    shutil.rmtree(folder / "made", ignore_errors=True)
    profile = (SHIPPED / "h100-sxm" / "llama-2-7b.json").read_bytes()
    engine = (ENGINES / "vllm-0.24.json").read_bytes()

    def result(name: str, *commands: tuple[str, ...]) -> Sample:
        beside = tuple((other, content) for other, content in made.items() if other != name)
        return Sample(name, made[name], commands, beside, is_folder=True)

    trace = ("compare", "--profile", PAIR, "--policy", "pd", "--workers", "1", "--num-prompts", "2", "--dataset-name")
    return {
        "scenario": Sample(
            "s.yaml", SCENARIO.encode(), (("compare", "{}", *TINY_RUN, "--replications", "1", "--workers", "1"),)
        ),
        "grid": Sample("g.yaml", GRID.encode()),
        "profile": Sample("p.json", profile, (("profiles", "show", "{}"),)),
        "engine": Sample(
            "e.json", engine, (("compare", "--profile", PAIR, *TINY_RUN, "--engine", "{}", "--workers", "1"),)
        ),
        "config": Sample("c.json", CONFIG.encode()),
        "points": Sample("p.points.jsonl", POINTS.encode()),
        "trace azure": Sample("a.csv", AZURE.encode(), ((*trace, "trace-azure", "--dataset-path", "{}"),)),
        "trace mooncake": Sample("m.jsonl", MOONCAKE.encode(), ((*trace, "mooncake", "--dataset-path", "{}"),)),
        "trace csv": Sample("t.csv", TRACE_CSV.encode(), ((*trace, "csv", "--dataset-path", "{}"),)),
        "trace jsonl": Sample("t.jsonl", TRACE_JSONL.encode(), ((*trace, "jsonl", "--dataset-path", "{}"),)),
        "sharegpt": Sample("g.json", SHAREGPT.encode(), ((*trace, "sharegpt", "--dataset-path", "{}"),)),
        "tape": Sample(
            "t.jsonl",
            TAPE.encode(),
            (("compare", "--profile", PAIR, *TINY_RUN, "--acceptance", "tape:{}", "--workers", "1"),),
        ),
        "requests": Sample("v.jsonl", VLLM.encode()),
        "cells": Sample("cells.csv", CELLS.encode()),
        "curve": Sample("curve.csv", CURVE.encode()),
        "summary": result("summary.json", ("plot", "{folder}", "--out", "{folder}/x.png")),
        "requests.parquet": result("requests.parquet", ("trace", "{folder}")),
        "work.parquet": result("work.parquet", ("trace", "{folder}")),
    }


def filled(command: Sequence[str], path: Path) -> list[str]:
    return [part.replace("{folder}", str(path.parent)).replace("{}", str(path)) for part in command]
