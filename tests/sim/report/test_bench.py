"""Results of `vllm bench serve` as rows, and lists on flags as a small grid."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lanesim
from sim.cli.main import run

FLAGS = ["compare", "--profile", "cpu/tiny", "--policy", "pd", "--num-prompts", "4", "--output-len", "4"]


def test_a_result_file_is_loaded_as_a_row_with_the_columns_of_a_store(tmp_path: Path) -> None:
    own = lanesim.compare(profile="cpu/tiny", policy="pd", num_prompts=4, output_len=4, request_rate="inf")
    file = tmp_path / "result.json"
    file.write_text(json.dumps(own.runs[0] | {"request_rate": "inf", "ttfts": [0.1] * 4}))
    frame = lanesim.load(file)
    assert frame["request_rate"].tolist() == [float("inf")]
    assert {"mean_ttft_ms", "output_throughput_tokens_per_s", "acceptance_length_tokens"} <= set(frame)
    assert "ttfts" not in frame
    assert frame["mean_e2el_ms"].tolist() == own.frame()["mean_e2el_ms"].tolist()


def test_several_profiles_are_a_grid(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*FLAGS, "--profile", "h100-sxm/llama-2-7b+tinyllama-1.1b", "--json", "-"]) == 0
    (load,) = json.loads(capsys.readouterr().out)["loads"]
    assert [row["policy"] for row in load["comparison"]["policies"]] == [
        "profile=cpu/tiny",
        "profile=h100-sxm/llama-2-7b+tinyllama-1.1b",
    ]
