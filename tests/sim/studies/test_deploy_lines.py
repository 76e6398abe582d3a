"""The command lines that would check a scenario on the GPU: what they ask for is what was simulated."""

from __future__ import annotations

import json
import shlex
from itertools import pairwise

import pytest

from sim.cli.main import run

FLAGS = [
    "compare", "--emit-vllm", "--policy", "continuous", "--profile", "h100-sxm/llama-3.1-8b+llama-3.2-1b",
    "--input-len", "300", "--output-len", "50", "--request-rate", "4", "--num-prompts", "200",
    "--max-num-seqs", "64", "--max-num-batched-tokens", "4096", "--num-speculative-tokens", "3",
]  # fmt: skip


def lines(capsys: pytest.CaptureFixture[str], *more: str) -> list[str]:
    assert run([*FLAGS, *more]) == 0
    return capsys.readouterr().out.splitlines()


def flags_of(line: str) -> dict[str, str]:
    return {flag: value for flag, value in pairwise(shlex.split(line)) if flag.startswith("--")}


def test_the_server_has_the_caps_and_drafts_that_were_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    serve, *_ = lines(capsys)
    assert serve.startswith("vllm serve llama-3.1-8b ")
    asked = flags_of(serve)
    assert (asked["--max-num-seqs"], asked["--max-num-batched-tokens"]) == ("64", "4096")
    assert json.loads(asked["--speculative-config"]) == {
        "method": "draft_model",
        "model": "llama-3.2-1b",
        "num_speculative_tokens": 3,
    }


def test_the_benchmark_sends_what_was_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    _, bench, note = lines(capsys, "--max-concurrency", "32", "--goodput", "ttft:200", "tpot:50")
    asked = flags_of(bench)
    wanted = {
        "--random-input-len": "300",
        "--random-output-len": "50",
        "--num-prompts": "200",
        "--request-rate": "4",
        "--max-concurrency": "32",
    }
    assert {name: asked[name] for name in wanted} == wanted
    assert bench.endswith("--goodput ttft:200 tpot:50")
    assert note.startswith("# iid:")


def test_lengths_that_vary_are_said_to_be_means(capsys: pytest.CaptureFixture[str]) -> None:
    varied = [flag for flag in FLAGS if flag not in ("--input-len", "300", "--output-len", "50")]
    assert run([*varied, "--dataset-name", "azure-conv"]) == 0
    _, bench, note, _ = capsys.readouterr().out.splitlines()
    lengths = flags_of(bench)
    assert f"{lengths['--random-input-len']} and {lengths['--random-output-len']} tokens" in note
