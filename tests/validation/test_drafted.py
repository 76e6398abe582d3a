"""Served cells that draft unmarked: which plain row each is beside, the recipe's budget, what a length is fitted on."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from calibrate.served.load import ServedLoad
from validation.judge.drafted import DraftedPair, judge, pairs
from validation.judge.served_cells import budget_of

NAMES = count()


def cell(tpot_ms: float, *, day: str = "2026-01-29", **changes: Any) -> ServedLoad:
    fields = {
        "id": f"row {next(NAMES)}", "source": "recipe", "engine": "trtllm", "engine_version": "1.2",
        "target": "deepseek-ai/DeepSeek-R1", "gpu": "b200-sxm", "weights": "fp8", "kv": "fp8", "tp": 8,
        "concurrency": 8, "input_len": 1024, "output_len": 1024, "label": "trtllm moe fp8",
    }  # fmt: skip
    return ServedLoad(**{**fields, **changes, "day": day, "measured": {"ttft_ms": 200.0, "tpot_ms": tpot_ms}})


def test_a_drafting_row_is_beside_the_plain_one_of_its_set_up_that_is_nearest_in_time() -> None:
    near, far = cell(11.0), cell(12.0, day="2025-12-01")
    drafting, other = cell(6.0, day="2026-02-05"), cell(20.0, concurrency=64)
    assert pairs([near, far, other, drafting]) == [DraftedPair(near, drafting)]
    assert DraftedPair(near, drafting).speedup == pytest.approx(11.0 / 6.0)


def test_runs_of_other_months_and_of_data_parallel_attention_are_no_pairs() -> None:
    assert pairs([cell(11.0, day="2025-12-01"), cell(6.0, day="2026-02-05")]) == []
    wide = {"tp": 1, "ep": 8, "dp": 8}
    assert pairs([cell(11.0, **wide), cell(6.0, day="2026-02-05", **wide)]) == []


def test_a_step_of_the_recipe_holds_every_seats_round_and_a_prompt() -> None:
    assert budget_of(cell(6.0, concurrency=64), 3) == 4 * 64 + 1024 + 64
    assert budget_of(cell(6.0, concurrency=4), 3) == 1152
    assert budget_of(cell(6.0, concurrency=4), 0) == 8192


def test_one_acceptance_length_is_fitted_to_all_pairs_of_a_group() -> None:
    """Simulated rounds take a plain step and a half: speed-ups of 1.2 and 1.8 want a length between theirs."""
    group = [DraftedPair(cell(12.0), cell(10.0)), DraftedPair(cell(18.0), cell(10.0))]
    first, last = judge(group, lambda cell, drafts, length: 15.0 / length if drafts else 10.0)
    assert first["acceptance_length"] == pytest.approx(1.5 * (1.2 * 1.8) ** 0.5, abs=0.01)
    assert first["simulated_speedup"] == last["simulated_speedup"]
    assert (first["error_pct"], last["error_pct"]) == pytest.approx((22.5, -18.4), abs=0.1)
