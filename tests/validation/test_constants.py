"""Constants on models that had no part in them: what is judged, and that none stands in the product unjudged."""

from __future__ import annotations

import json
from math import isclose

import pytest

import validation.constants as program
from calibrate.served.load import ServedLoad
from sim.costs.engine_costs import ENGINES
from validation.constants import FITTED, TABLE, JudgedConstant, lines_of
from validation.tables import csv_rows

WAITS = ("gap_s", "frontend_s", "prompt_kernel_s")
"""Constants of engines that marked cells gave."""
ONE_MODEL_ALONE = {("prompt_kernel_s", "vllm-0.12"), ("frontend_s", "vllm-0.24"), ("frontend_s", "vllm-0.32")}
"""No other model's cells have the setting (docs/leaderboard.md says so)."""
OF_SEVERAL = {("gap_s", "vllm-0.19")}
"""Judged without each source (left-out.csv)."""


def test_every_wait_that_an_engine_adds_is_judged_where_it_was_not_fitted() -> None:
    judged = {(name, line["engine"]) for line in csv_rows(TABLE) for name in line["constant"].split(" and ")}
    left_out = {line["constant"] for line in csv_rows(TABLE.with_name("left-out.csv"))}
    for path in sorted(ENGINES.glob("*.json")):
        for constants in json.loads(path.read_text())["constants"]:
            for name in WAITS:
                if constants.get(name) and (name, path.stem) not in ONE_MODEL_ALONE:
                    is_of_several = (name, path.stem) in OF_SEVERAL and name in left_out
                    assert is_of_several or (name, path.stem.partition("-")[0]) in judged, (name, path.stem)


def test_every_constant_helps_over_the_models_that_had_no_part_in_it() -> None:
    lines = csv_rows(TABLE)
    assert {line["constant"] for line in lines} == {fitted.name for fitted in FITTED}
    for fitted in FITTED:
        of = [line for line in lines if line["constant"] == fitted.name]
        with_it, without = (
            sum(int(line["cells"]) * float(line[name]) for line in of) for name in ("with it", "without it")
        )
        assert with_it < without, fitted.name


def cell(name: str, target: str, ttft_ms: float = 100.0) -> ServedLoad:
    return ServedLoad(
        id=name, source="", engine="vllm", engine_version="0.15", target=target, gpu="h200-sxm", label="vllm dense fp8",
        measured={"ttft_ms": ttft_ms, "tpot_ms": 10.0},
    )  # fmt: skip


def test_cells_of_the_models_that_gave_it_and_those_that_wait_for_admission_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(program, "model_of", lambda target: (target, False))
    monkeypatch.setattr(program, "error_without", lambda cell, fitted: 20.0)
    fitted = JudgedConstant("frontend_s", ("a",), "ttft", {"frontend_s": 0.0}, engines=("vllm",))
    judged = [
        (cell("1", "a"), {"ttft_error_pct": "1.0", "is_starved": "0"}),
        (cell("2", "b"), {"ttft_error_pct": "-4.0", "is_starved": "0"}),
        (cell("3", "c"), {"ttft_error_pct": "6.0", "is_starved": "0"}),
        (cell("4", "c"), {"ttft_error_pct": "90.0", "is_starved": "1"}),
    ]
    (line,) = lines_of(fitted, judged)
    assert line[:-2] == ("frontend_s", "a", "vllm", "ttft", "b c", 2)
    assert isclose(line[-2], 5.0)
    assert isclose(line[-1], 20.0)
