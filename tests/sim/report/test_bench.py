"""Results of `vllm bench serve`: what is written is read again, and has its keys."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lanesim
from sim.cli.main import run

FLAGS = ["compare", "--profile", "cpu/tiny", "--policy", "pd", "--num-prompts", "4", "--output-len", "4"]
KEYS = {
    "backend", "label", "model_id", "num_prompts", "request_rate", "burstiness", "max_concurrency", "duration",
    "completed", "failed", "total_input_tokens", "total_output_tokens", "request_throughput", "output_throughput",
    "total_token_throughput", "mean_ttft_ms", "median_ttft_ms", "std_ttft_ms", "p99_ttft_ms", "mean_tpot_ms",
    "mean_itl_ms", "mean_e2el_ms", "spec_decode_acceptance_length",
}  # fmt: skip


def test_every_run_is_a_result_file_with_vllms_keys_and_lists_where_asked(tmp_path: Path) -> None:
    flags = [*FLAGS, "--request-rate", "4", "--replications", "2", "--result-dir", str(tmp_path)]
    assert run(flags) == 0
    files = sorted(tmp_path.glob("pd-4.0qps-*.json"))
    assert len(files) == 2
    result = json.loads(files[0].read_text())
    assert set(result) >= KEYS
    assert "ttfts" not in result
    assert run([*flags, "--save-detailed", "--overwrite"]) == 0
    assert len(json.loads(files[0].read_text())["ttfts"]) == 4


def test_lists_on_flags_are_a_small_grid(capsys: pytest.CaptureFixture[str]) -> None:
    flags = [*FLAGS, "--num-speculative-tokens", "0,2", "--request-rate", "4,inf"]
    assert run([*flags, "--json", "-"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["grid"] == {"workload.request_rate": [4.0, "inf"], "speculation.num_speculative_tokens": [0, 2]}
    loads = result["loads"]
    assert [each["keys"] for each in loads] == [{"workload.request_rate": 4.0}, {"workload.request_rate": "inf"}]
    settings = ["num_speculative_tokens=0", "num_speculative_tokens=2"]
    assert [row["policy"] for row in loads[0]["comparison"]["policies"]] == settings
    alone = lanesim.compare(
        profile="cpu/tiny", policy="pd", num_prompts=4, output_len=4, request_rate=4, num_speculative_tokens=2
    )
    drafting = next(run for run in loads[0]["comparison"]["runs"] if run["policy"] == settings[1])
    assert drafting["mean_e2el_ms"] == alone.runs[0]["mean_e2el_ms"]


def test_several_profiles_are_a_grid_and_a_command_for_one_refuses_lists(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*FLAGS, "--profile", "h100-sxm/llama-2-7b+tinyllama-1.1b", "--json", "-"]) == 0
    (load,) = json.loads(capsys.readouterr().out)["loads"]
    assert [row["policy"] for row in load["comparison"]["policies"]] == [
        "profile=cpu/tiny",
        "profile=h100-sxm/llama-2-7b+tinyllama-1.1b",
    ]
    assert run(["capacity", "--profile", "cpu/tiny", "--num-speculative-tokens", "0,2"]) == 2
    assert "'0,2' is not a valid integer" in capsys.readouterr().err
    assert run([*FLAGS, "--num-speculative-tokens", "2,2"]) == 2
    assert "a value stands twice" in capsys.readouterr().err
    assert run([*FLAGS, "--num-speculative-tokens", "0,2", "--out", "somewhere"]) == 2
    assert "lanesim sweep" in capsys.readouterr().err
