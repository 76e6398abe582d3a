"""Evidence of served cells: which are in a mean, and that the file is that of the committed tables."""

from __future__ import annotations

from collections.abc import Mapping
from math import log

import msgspec
import numpy as np
import pytest

from sim.studies.evidence import CELLS, Evidence, EvidenceCell, measured
from sim.studies.served_errors import ERRORS, GRID, ErrorChances, ErrorPart, ServedErrors, served_errors
from validation.judge.evidence import (
    ACCURACY,
    OVER_LENGTHS,
    REPLAYS,
    MeasuredSetUp,
    coverage_rows,
    fit,
    judged_cells,
    log_time,
    open_loops,
    served,
    set_ups,
    text_of,
    text_of_errors,
    without_model,
    without_set_up,
)
from validation.judge.served_judge import SERVED
from validation.tables import csv_rows

ROW = {
    "mode": "agg", "backend": "trtllm", "backend_version": "1.1.0", "model_path": "nvidia/Qwen3-32B-NVFP4",
    "system": "b200_sxm", "gemm_quant_mode": "nvfp4", "tp_size": "8", "attention_dp_size": "1", "moe_tp_size": "1",
    "moe_ep_size": "1", "batch_size": "16", "isl": "1024", "osl": "1024", "silicon_ttft_ms": "100",
    "silicon_tpot_ms": "10", "silicon_data_source": "",
}  # fmt: skip

FITTED: Mapping[str, Mapping[str, object]] = {
    "ratio by tokens and frontend_s of vllm-0.24": {
        "gpu": "a100-sxm", "engine": "vllm-0.24", "method": "none", "workload": "gsm8k",
    },
    "draft_pass_s of vllm-0.24": {
        "gpu": "a100-sxm", "engine": "vllm-0.24", "method": "eagle3", "workload": "gsm8k", "in_flight": 1,
    },
    "gap_s of vllm-0.19": {"gpu": "rtx-pro-6000-server", "engine": "vllm-0.19", "model": "llama-3.1-8b"},
    "step_s of trtllm-1.0": {"gpu": "h100-sxm", "engine": "trtllm-1.0", "model": "llama-3.1-8b", "in_flight": 8},
    "step_s, draft_pass_s and gap_s of sglang-0.5": {
        "gpu": "h200-sxm", "engine": "sglang-0.5", "model": "llama-3.1-8b", "method": "eagle3",
    },
    "Experts.unrelated, chosen after they had been seen": {
        "gpu": "h200-sxm", "model": "gpt-oss-120b", "method": "eagle3", "k": 3,
    },
    "acceptance length of each group of pairs": {"engine": "trtllm-1.1", "method": "mtp"},
}  # fmt: skip
"""Constants fitted on cells or chosen by them (docs/accuracy.md) -> their fields."""


def lines(*errors: tuple[str, str, str]) -> list[dict[str, str]]:
    return [{"id": name, "role": role, "tpot_error_pct": error} for name, role, error in errors]


def test_a_mean_is_over_judged_cells_of_a_gpu_engine_model_and_load() -> None:
    rows = [
        ROW | {"id": name, "batch_size": batch} for name, batch in (("a", "14"), ("b", "16"), ("c", "16"), ("d", "64"))
    ]
    judged = lines(("a", "judged", "-4.0"), ("b", "judged", "2.0"), ("c", "fitted", "9.0"), ("d", "judged", "1.0"))
    few, many = served(judged_cells(rows, judged))
    assert (few.gpu, few.engine, few.model, few.in_flight) == ("b200-sxm", "trtllm-1.1", "qwen3-32b", 16)
    assert (few.error_pct, few.runs) == (3.0, 2)
    assert (many.in_flight, many.error_pct, many.runs) == (64, 1.0, 1)


def test_the_file_is_that_of_the_committed_tables() -> None:
    """The rows themselves are no part of the repository; names of classes begin with the engine's."""
    plain = [cell for cell in measured().cells if cell.source == OVER_LENGTHS]
    judged = [line for line in csv_rows(SERVED) if line["role"] == "judged"]
    assert sum(cell.runs for cell in plain) == len(judged)
    served_set_ups = [each for each in served_errors().set_ups if each.engine != REPLAYS]
    loops = [each for of in open_loops(csv_rows(ACCURACY)) for each in of.errors]
    others = [cell for cell in measured().cells if cell.is_level and cell.method == "none" and cell not in plain]
    others = [cell for cell in others if not cell.policy]
    assert sum(each.cells for each in served_set_ups) == len(judged) + len(others) + len(loops)


def test_set_ups_are_told_apart_by_degree_and_judged_cells_alone_count() -> None:
    rows = [
        ROW | {"id": name, "batch_size": batch, "tp_size": tp}
        for name, batch, tp in (("a", "16", "8"), ("b", "64", "8"), ("c", "16", "4"), ("d", "64", "4"))
    ]
    judged = lines(("a", "judged", "-4.0"), ("b", "judged", "2.0"), ("c", "fitted", "9.0"), ("d", "judged", "1.0"))
    named = [each for each in set_ups(judged_cells(rows, judged)) if each.group == ("trtllm", "b200-sxm", "qwen3-32b")]
    assert [(each.tensor_parallel, each.kind, each.loads) for each in named] == [
        (4, "dense nvfp4", [64.0]), (8, "dense nvfp4", [16.0, 64.0]),
    ]  # fmt: skip
    assert named[1].mean == pytest.approx((log(0.96) + log(1.02)) / 2.0)


def test_a_throughput_that_is_too_high_is_a_time_that_is_too_short() -> None:
    cell = next(cell for cell in measured().cells if cell.metric == "output throughput")
    assert log_time(cell) == pytest.approx(-log(1.0 + cell.error_pct / 100.0))
    of_time: EvidenceCell = msgspec.structs.replace(cell, metric="TPOT")
    assert log_time(of_time) == -log_time(cell)


def drawn(seed: int, groups: int = 60, each: int = 3) -> list[MeasuredSetUp]:
    """Set-ups of known parts: 10, 5 and 3 %, nearly normal."""
    rng = np.random.default_rng(seed)
    made = []
    for group in range(groups):
        common = rng.normal(0.0, 0.10)
        for degree in range(each):
            level = common + rng.normal(0.0, 0.05)
            errors = (level + rng.normal(0.0, 0.03, 8)).tolist()
            made.append(MeasuredSetUp((f"e{group % 3}", "g", f"m{group}"), 2**degree, "dense", errors, [4.0] * 8))
    return made


@pytest.fixture(scope="module")
def fitted() -> tuple[list[MeasuredSetUp], ServedErrors]:
    of = drawn(0)
    return of, fit(of, ErrorPart(0.04, 4.0))


def test_the_fit_finds_the_parts_that_errors_were_drawn_from(fitted: tuple[list[MeasuredSetUp], ServedErrors]) -> None:
    _, errors = fitted
    assert errors.group.scale == pytest.approx(0.10, rel=0.25)
    assert errors.set_up.scale == pytest.approx(0.05, rel=0.25)
    assert errors.cell.scale == pytest.approx(0.03, rel=0.2)
    assert errors.bias == pytest.approx(0.0, abs=0.04)


def test_intervals_hold_95_in_100_of_what_was_left_out(fitted: tuple[list[MeasuredSetUp], ServedErrors]) -> None:
    of, errors = fitted
    whole, *others = coverage_rows(of, without_set_up(of, errors))
    assert whole["set-ups"] == 180
    assert [sum(row["cells"] for row in others if row["of"].startswith(name)) for name in ("e", "TP", "1 to")] == [
        1440
    ] * 3
    assert 90.0 <= float(whole["hold"].removesuffix(" %")) <= 100.0


def test_a_score_is_the_width_and_forty_times_the_miss() -> None:
    """An interval that is a point: a cell at 0.1 misses a point at 0 by 0.1."""
    shares = np.zeros(len(GRID))
    shares[400] = 1.0
    (whole, *_) = coverage_rows([MeasuredSetUp(("e", "g", "m"), 1, "dense", [0.1], [1.0])], [ErrorChances(shares)])
    assert float(whole["score"]) == pytest.approx(4.0, abs=0.25)
    assert whole["hold"] == "0.0 %"


def far(*degrees: int) -> list[MeasuredSetUp]:
    """Set-ups of one model whose server takes 2.2 times as long as simulated."""
    return [MeasuredSetUp(("e0", "g", "far"), degree, "dense", [-0.8, -0.8], [4.0, 4.0]) for degree in degrees]


def test_what_is_left_out_has_no_part_in_its_chances() -> None:
    """A lone set-up of its group is as unknown; two far ones put each other where they are, and no model of theirs."""
    others = drawn(1, groups=8)
    of = [*others, *far(1, 2)]
    errors = fit(of, ErrorPart(0.04, 4.0))
    alone = without_set_up([*others, *far(1)], errors)[-1]
    assert alone.at(0.5) == errors.level([]).at(0.5)
    assert without_set_up(of, errors)[-1].at(0.5) == errors.level([-0.8]).at(0.5) < -0.5
    assert without_model(of, errors)[-1].at(0.5) == fit(others, errors.speedup).level([]).at(0.5)


def test_open_loops_are_set_ups_of_their_own() -> None:
    (loops,) = open_loops(csv_rows(ACCURACY))
    assert (loops.group, loops.kind, len(loops.errors)) == (("vllm", "h100-sxm", "llama-2-7b"), "open loop", 5)
    assert loops.loads[0] == pytest.approx(5.0 * 1.81032)


def test_no_cell_that_a_constant_was_fitted_on_is_in_the_file() -> None:
    others = [cell for cell in measured().cells if cell.source != OVER_LENGTHS]
    for fields in FITTED.values():
        assert not [cell for cell in others if all(getattr(cell, name) == value for name, value in fields.items())]


def test_the_file_is_as_it_is_written() -> None:
    assert text_of(msgspec.json.decode(CELLS.read_bytes(), type=Evidence)) == CELLS.read_text()
    assert text_of_errors(msgspec.json.decode(ERRORS.read_bytes(), type=ServedErrors)) == ERRORS.read_text()
