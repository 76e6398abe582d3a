"""Open loops of BLIS's authors: what is read of a stage, which are left out, and what the simulator makes of one."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from validation.accuracy import open_loops
from validation.accuracy.open_loops import TABLE, judge, open_loops_section, read, stage_of

ROW = {
    "run": "20260217-1-llama-2-7b-tp1-codegen",
    "requested_rate": "5.0",
    "successes": "900",
    "failures": "100",
    "prompt_len_mean_tokens": "591.6",
    "output_len_mean_tokens": "101",
    "max_num_seqs": "128",
    "max_num_batched_tokens": "2048",
    "request_latency_mean_ms": "1030",
    "time_to_first_token_mean_ms": "30",
}


@pytest.fixture(autouse=True)
def _few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_loops, "NUM_PROMPTS", 150)
    monkeypatch.setattr(open_loops, "NUM_WARMUPS", 110)


def write(data: Path, *rows: dict[str, str]) -> Path:
    path = data / TABLE
    path.parent.mkdir(parents=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(ROW))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_time_per_token_is_taken_from_latencies() -> None:
    stage = stage_of(ROW)
    assert (stage.run, stage.input_len, stage.failed_share, stage.tpot_ms) == ("codegen", 592, 0.1, 10.0)


def test_a_runs_summary_is_no_stage(tmp_path: Path) -> None:
    assert len(read(write(tmp_path, ROW, ROW | {"requested_rate": ""}))) == 1


def test_prompts_after_the_first_round_are_found_in_the_cache() -> None:
    """592 tokens take 25 ms or more; what is computed anew are 16."""
    judged = judge(stage_of(ROW))
    assert judged.ttft_ms < 35.0
    assert judged.error_pct("e2el_ms") == pytest.approx(100.0 * (judged.e2el_ms / 1030.0 - 1.0))


def test_an_overloaded_stage_is_named_and_left_out(tmp_path: Path) -> None:
    lost = ROW | {"run": "x-reasoning", "failures": "9000", "requested_rate": "4"}
    write(tmp_path, ROW, ROW | {"requested_rate": "10", "successes": "1800"}, lost)
    section = open_loops_section(tmp_path)
    assert [row.workload for row in section.rows] == ["codegen, open loop"] * 2
    assert any("left out: reasoning at 4/s" in bullet for bullet in section.about)
    assert [line.what for line in section.lines] == [
        "E2EL mean (ms), codegen, 2,700 requests",
        "TTFT mean (ms), codegen, 2,700 requests",
    ]
