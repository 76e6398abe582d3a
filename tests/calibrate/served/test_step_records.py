"""A server's records per step: what is read of each engine's, and the cost model that is fitted to them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from calibrate.cli.fit import source_command
from calibrate.fit.constants import with_constants
from calibrate.served.step_records import (
    CORRECTION,
    LINE,
    StepRecord,
    error_pct,
    fit_steps_of,
    predicted_s,
    read_steps,
)
from sim.costs.profile_files import load

SHIPPED = "h100-sxm/llama-3.1-8b"
LAW = {"pass_s": 4e-3, "token_s": 2e-5, "row_s": 1e-4, "kv_s": 3e-7}


def drawn(count: int, seed: int = 0) -> list[StepRecord]:
    """Steps of a prompt's chunk, of rows, or of both, all of one second."""
    draw = random.Random(seed)
    records = []
    for _ in range(count):
        prompts, rows = draw.choice(((0, 1), (0, 8), (0, 30), (1, 0), (1, 12)))
        history = draw.choice((0, 512)) * prompts
        kv_tokens = sum(draw.randrange(50, 900) for _ in range(rows))
        records.append(StepRecord(1.0, prompts, prompts * draw.randrange(1, 512), history, rows, kv_tokens))
    return records


def as_law(records: list[StepRecord]) -> list[StepRecord]:
    draw = random.Random(1)
    return [
        each._replace(
            seconds=draw.lognormvariate(0.0, 0.05) * sum(a * b for a, b in zip(LAW.values(), each.terms, strict=True))
        )
        for each in records
    ]


def line_of(record: StepRecord) -> dict[str, Any]:
    """The record as vLLM's forward-pass metrics have it."""
    prompts = ("num_prefill_requests", "sum_prefill_tokens", "sum_prefill_kv_tokens")
    names = (*prompts, "num_decode_requests", "sum_decode_kv_tokens")
    return {"wall_time": record.seconds, "scheduled_requests": dict(zip(names, record[1:6], strict=True))}


@pytest.mark.parametrize("factor", [1e3, 1e-3])
def test_step_times_of_other_units_are_refused(factor: float) -> None:
    records = [each._replace(seconds=factor * each.seconds) for each in as_law(drawn(200))]
    with pytest.raises(ValueError, match=r"^steps\.jsonl: .*Give wall_time in seconds"):
        fit_steps_of(load(SHIPPED), records, "steps.jsonl")


def test_a_step_is_the_same_whoever_wrote_it_and_a_beat_without_work_or_time_is_none(tmp_path: Path) -> None:
    record = StepRecord(0.012, 2, 300, 64, 5, 2000, 1)
    names = ("numContextRequests", "numCtxTokens", "numCtxKvTokens", "numGenRequests", "numGenKvTokens")
    lines = [
        line_of(record) | {"dp_rank": 1},
        line_of(StepRecord(0.0, 0, 0, 0, 0, 0)),
        line_of(StepRecord(0.0, 0, 0, 0, 1, 9)),
        line_of(StepRecord(0.5, 0, 0, 0, 0, 0)),
        {
            "iterLatencyMS": 12.0,
            "attentionDpRank": 1,
            "inflightBatchingStats": dict(zip(names, record[1:6], strict=True)),
        },
    ]
    path = tmp_path / "steps.jsonl"
    path.write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    assert read_steps(path) == [record, record]
    work = record.work
    assert (work.rows, work.row_tokens, work.context_tokens, work.head_rows) == (5, 5, 1995, 7)
    assert [tuple(chunk) for chunk in work.chunks] == [(150, 32), (150, 32)]


def test_a_step_of_more_prompts_than_a_server_holds_is_refused(tmp_path: Path) -> None:
    """Each prompt is a chunk: a billion of them would fill the memory."""
    path = tmp_path / "steps.jsonl"
    path.write_text(json.dumps(line_of(StepRecord(0.012, 10**9, 10**9, 0, 0, 0))))
    with pytest.raises(ValueError, match=r"line 1: .*num_prefill_requests"):
        read_steps(path)


def test_a_law_that_no_profile_has_is_a_line_and_predicts_what_comes_after() -> None:
    """Noise of 5 % a step leaves a twentieth of that in the mean of 500."""
    steps = as_law(drawn(1000))
    fit = fit_steps_of(load(SHIPPED), steps[:500], "steps")
    assert fit.form == LINE
    assert abs(error_pct(predicted_s(fit.profile, steps[500:]), steps[500:])) < 1.0
    line = fit.profile.linear.target
    assert [line.pass_s, line.token_s, line.row_s, line.kv_token_s] == pytest.approx(list(LAW.values()), rel=0.1)
    assert fit.shipped_pct < -20.0
    assert fit.step_pct == pytest.approx(4.0, abs=0.6)


def test_a_profile_whose_layers_are_slower_is_corrected_and_told_how_far_it_was_off() -> None:
    shipped = load(SHIPPED)
    steps = drawn(200)
    truth = predicted_s(with_constants(shipped, {"gap_s": 1e-3, "ratio@16": 1.5}), steps)
    steps = [each._replace(seconds=seconds) for each, seconds in zip(steps, truth.tolist(), strict=True)]
    fit = fit_steps_of(shipped, steps, "steps")
    assert fit.form == CORRECTION
    assert fit.profile.host.gap_s == pytest.approx(1e-3, rel=1e-3)
    assert fit.shipped_pct == pytest.approx(error_pct(predicted_s(shipped, steps), steps))
    assert all(abs(each) < 0.1 for each in fit.blocks_pct[CORRECTION])
    assert fit.profile.errors["body"].points == 5


def test_steps_that_are_few_or_of_several_ranks_are_refused() -> None:
    for steps, said in (
        (drawn(99), "99 steps are too few"),
        ([*drawn(99), StepRecord(1.0, 0, 0, 0, 1, 9, 3)], r"ranks \[0, 3\]"),
    ):
        with pytest.raises(ValueError, match=said):
            fit_steps_of(load(SHIPPED), steps, "steps")


def test_the_command_answers_first_and_writes_the_profile(tmp_path: Path) -> None:
    path, out = tmp_path / "steps.jsonl", tmp_path / "mine.json"
    path.write_text("".join(f"{json.dumps(line_of(each))}\n" for each in as_law(drawn(150))))
    flags = ["steps", str(path), "--profile", SHIPPED, "--out", str(out)]
    told = CliRunner().invoke(source_command, flags, catch_exceptions=False).stdout
    assert "predicts this server's time per token within " in told.splitlines()[0]
    assert load(out).linear.target.pass_s == pytest.approx(4e-3, rel=0.1)
