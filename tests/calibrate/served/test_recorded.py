"""`validate vllm`: a run that the simulator wrote itself comes back without error, and every defect is one line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from calibrate.cli.validate_file import file_command
from calibrate.served.as_sent import as_requests, fresh, latencies_from_queue_s, output_throughput
from calibrate.served.stamped_requests import read_requests
from sim.interface.request import Request
from tests.realrun.recorded_runs import (
    EPOCH_S,
    MONOTONIC_S,
    PROFILE,
    invoke,
    refusal,
    result_of,
    served,
    stamps,
    write_lines,
)

LIMITS = ["--profile", PROFILE, "--set", "engine.max_num_seqs=256", "--set", "engine.max_num_batched_tokens=2048"]
LIMITS += ["--set", "engine.async_scheduling=false"]
Row = dict[str, Any]


def flags(path: Path, *more: str) -> list[str]:
    return [str(path), *LIMITS, *more]


def row(number: int, **changes: Any) -> Row:
    """A request that arrives every second, is queued 10 ms later, and emits 11 tokens 20 ms apart from 60 ms on."""
    start_s = MONOTONIC_S + number
    return {
        "request_id": f"r{number}",
        "input_toks": 100,
        "output_toks": 11,
        "arrival_time": EPOCH_S + number,
        "queued_ts": start_s + 0.010,
        "scheduled_ts": start_s + 0.020,
        "first_token_ts": start_s + 0.060,
        "last_token_ts": start_s + 0.260,
    } | changes


def rows(*changed: Row) -> list[Row]:
    return [*changed, *(row(number) for number in range(len(changed), 4))]


def test_a_simulated_run_written_as_vllm_would_is_validated_without_error(tmp_path: Path) -> None:
    """Within 0.01 %: reading the epoch costs a tenth of a microsecond."""
    path = write_lines(tmp_path / "requests.jsonl", stamps(served(num_prompts=60, request_rate=8)))
    result = result_of(file_command, *flags(path))
    for name in ("ttft", "tpot", "e2el", "ttft_arrival"):
        for statistic in ("mean", "p50", "p95", "p99"):
            values = result["metrics"][name][statistic]
            assert values["real"] > 0.0
            assert values["error_pct"] == pytest.approx(0.0, abs=0.01), (name, statistic)
    assert result["metrics"]["output_throughput"]["error_pct"] == pytest.approx(0.0, abs=0.01)


def test_data_parallel_ranks_have_seats_of_their_own(tmp_path: Path) -> None:
    """Two requests at once and one seat: on one rank the second waits for the first's last token."""
    path = write_lines(tmp_path / "requests.jsonl", [row(0), row(0, request_id="r1")])
    results = [
        result_of(file_command, *flags(path, "--set", "engine.max_num_seqs=1", "--set", f"devices.count={n}"))
        for n in "12"
    ]
    one, two = (result["metrics"]["e2el"]["p99"]["simulated"] for result in results)
    assert two == pytest.approx(results[0]["metrics"]["e2el"]["p50"]["simulated"] / 1.5, rel=0.05)
    assert two < 0.6 * one


def test_metrics_count_from_the_queue_and_beside_it_from_arrival(tmp_path: Path) -> None:
    """The first request is queued at once, which sets the clocks; the second 30 ms after it arrived."""
    late = row(1, queued_ts=MONOTONIC_S + 1.040, scheduled_ts=MONOTONIC_S + 1.040)
    real = read_requests(write_lines(tmp_path / "r.jsonl", [row(0), late]))
    found = latencies_from_queue_s(as_requests(real.requests))
    assert real.clock_offset_s == pytest.approx(MONOTONIC_S + 0.010 - EPOCH_S)
    assert found["ttft"] == pytest.approx([0.050, 0.020])
    assert found["e2el"] == pytest.approx([0.250, 0.220])
    assert found["tpot"] == pytest.approx([0.020, 0.020])
    assert found["ttft_arrival"] == pytest.approx([0.050, 0.050], abs=1e-6)
    assert output_throughput(as_requests(real.requests)) == pytest.approx(22 / 1.250)


def test_tpot_leaves_out_single_tokens_and_says_so(tmp_path: Path) -> None:
    single = row(0, output_toks=1, last_token_ts=MONOTONIC_S + 0.060)
    path = write_lines(tmp_path / "r.jsonl", [single, row(1)])
    assert latencies_from_queue_s(as_requests(read_requests(path).requests))["tpot"] == pytest.approx([0.020])
    assert "TPOT leaves out 1 requests of one output token" in result_of(file_command, *flags(path))["notes"]


def test_the_real_itl_is_null_and_the_simulated_one_is_not(tmp_path: Path) -> None:
    values = result_of(file_command, *flags(write_lines(tmp_path / "r.jsonl", rows())))["metrics"]["itl"]["p95"]
    assert values["real"] is values["error_pct"] is None
    assert values["simulated"] > 0.0


def test_one_block_of_num_gpu_blocks_is_never_used(tmp_path: Path) -> None:
    """111 tokens need 7 blocks of 16: 8 with the null block are enough, 7 are not."""
    engine = ("--set", "engine.name=vllm-0.24")
    path = write_lines(tmp_path / "r.jsonl", rows())
    result = result_of(file_command, *flags(path, "--set", "engine.num_gpu_blocks=8", *engine))
    assert result["scenario"]["engine"]["num_gpu_blocks"] == 8
    assert "KV blocks" in refusal(file_command, *flags(path, "--set", "engine.num_gpu_blocks=7", *engine))


def test_the_result_holds_the_resolved_scenario_and_no_path(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "r.jsonl", rows())
    result = result_of(file_command, *flags(path, "--set", "seed=5"))
    assert (result["scenario"]["seed"], result["profile"]["name"], result["num_requests"]) == (5, PROFILE, 4)
    assert result["scenario"]["engine"]["max_num_seqs"] == 256
    assert str(tmp_path) not in json.dumps(result)


def test_prompts_join_the_requests_row_by_row_whatever_their_arrival(tmp_path: Path) -> None:
    """The last line arrives first: 96 of its 100 tokens are six blocks, four of which the others have as well."""
    path = write_lines(tmp_path / "requests.jsonl", [row(3), row(2), row(1), row(0)])
    blocks = [[1, 2, 3, 4, 50 + place, 60 + place] for place in range(4)]
    prompts = write_lines(tmp_path / "prompts.jsonl", [{"input_toks": 100, "prefix_blocks": ids} for ids in blocks])
    run = read_requests(path, prompts)
    assert [request.content for request in as_requests(run.requests)] == [(0, 1, 2, 3)] * 4
    result = result_of(file_command, *flags(path, str(prompts)))
    assert result["prefix_cache_hit_tokens"] == 3 * 64
    assert result["prefix_cache_hit_rate"] == 3 * 64 / 400
    assert result_of(file_command, *flags(path))["prefix_cache_hit_rate"] == 0.0
    halves = result_of(file_command, *flags(path, str(prompts), "--set", "engine.block_size=32"))
    assert halves["prefix_cache_hit_tokens"] == 3 * 64


def test_speculation_is_simulated_with_the_acceptance_given(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "r.jsonl", rows())
    pair = [flag if flag != PROFILE else "h100-sxm/llama-3.1-8b+eagle3" for flag in flags(path)]
    draft = ["--set", "num_speculative_tokens=3"]
    always, never = (
        result_of(file_command, *pair, *draft, "--set", f"speculation.acceptance=iid:{rate}")["metrics"]["tpot"]["mean"]
        for rate in (1, 0)
    )
    assert always["simulated"] < 0.5 * never["simulated"]
    assert "needs an acceptance" in refusal(file_command, *pair, *draft)


def test_the_table_and_the_result_are_written(tmp_path: Path) -> None:
    path, out = write_lines(tmp_path / "r.jsonl", rows()), tmp_path / "run.json"
    done = invoke(file_command, *flags(path, "--json", str(out)))
    assert done.exit_code == 0, done.exception
    assert "TTFT from arrival (ms)" in done.stdout
    assert "metrics" in json.loads(out.read_text())


def without(name: str) -> Row:
    return {key: value for key, value in row(1).items() if key != name}


LATE = {"arrival_time": EPOCH_S + 1000.0}
DEFECTS: list[tuple[Sequence[Row] | str, list[Row], str]] = [
    ([row(0), row(1, scheduled_ts=MONOTONIC_S)], [], "line 2: timestamps out of order: scheduled_ts"),
    ([row(0, arrival_time=EPOCH_S + 2.5)], [], "arrival_time after queued_ts"),
    ([row(0), row(1), row(2), row(3, **LATE)], [], "line 4: timestamps out of order: arrival_time is 997.000 s after"),
    ([row(0), without("queued_ts")], [], "line 2: object missing required field `queued_ts`"),
    ([row(0, output_toks=-3)], [], "line 1: output_toks: expected `int` >= 1"),
    ([row(0, queued_ts=float("nan"))], [], "line 1: 'queued_ts' NaN is no number"),
    ([row(0), row(1, request_id="r0")], [], "line 2: request_id 'r0' again"),
    ("{oops\n", [], "line 1: not valid JSON"),
    ("", [], "is empty"),
    ([], [{"prefix_blocks": []}] * 3, "has 3, and requests"),
    ([], [{"input_toks": 99, "prefix_blocks": []}] * 4, "prompt 1 has 99 tokens, request r0 on line 1 of"),
    ([], [{"hash": []}] * 4, "line 1: no prefix_blocks, hash_ids"),
]
"""Rows that are changed or the text of the file, prompts, and what the line names."""


@pytest.mark.parametrize(("changed", "prompts", "named"), DEFECTS)
def test_a_defect_of_a_file_is_one_line_that_names_its_place(
    changed: Sequence[Row] | str, prompts: list[Row], named: str, tmp_path: Path
) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text(changed) if isinstance(changed, str) else write_lines(path, rows(*changed))
    more = [str(write_lines(tmp_path / "p.jsonl", prompts))] if prompts else []
    message = refusal(file_command, *flags(path, *more))
    assert "\n" not in message
    assert named in message


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--set", "num_speculative_tokens=2", "--set", "policy=autoregressive"], "drafts nothing"),
        (["--profile", "rtx-pro-6000-server/qwen3-30b-a3b", "--set", "devices.count=2"], "is of 1"),
    ],
)
def test_flags_that_cannot_be_are_one_line(more: list[str], says: str, tmp_path: Path) -> None:
    assert says in refusal(file_command, *flags(write_lines(tmp_path / "r.jsonl", rows()), *more))


def test_the_requests_simulated_are_fresh_and_in_order_of_arrival(tmp_path: Path) -> None:
    unserved = fresh(as_requests(read_requests(write_lines(tmp_path / "r.jsonl", rows()[::-1])).requests))
    assert [(each.id, each.index) for each in unserved] == [(f"r{number}", number) for number in range(4)]
    assert [each.arrival_s for each in unserved] == pytest.approx([0.0, 1.0, 2.0, 3.0])
    assert all(isinstance(each, Request) and each.emitted_tokens == 0 for each in unserved)
