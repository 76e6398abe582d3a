"""Parts of docs/accuracy.md: which cells each takes, which of them judge, and that the constants are the fits' own."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from sim.costs.engine_costs import load_engine, with_engine
from sim.costs.profile_files import load
from validation.accuracy.acceptance import acceptance_section
from validation.accuracy.drafting import length_at, pearl_section, rounds_section
from validation.accuracy.matrix import matrix_text
from validation.accuracy.synchronous import (
    ISSUE_K2_MS,
    ISSUE_PROFILE,
    ISSUE_VANILLA_MS,
    LINE,
    issue_tpot_ms,
    mid_2025_section,
    qwen_cells,
    qwen_section,
)

pytest.importorskip("scipy")

TABLES = Path(__file__).parents[3] / "shared/data/aiconfigurator"
FITTED_ID = "qwen_qwen3_32b_qwen_qwen3_32b_h100_sxm_vllm_agg_1024x128_c8_tp2_epnone_1"


def cell(**changes: Any) -> dict[str, Any]:
    row = {"id": "other", "backend": "vllm", "backend_version": "0.12.0", "model_path": "Qwen/Qwen3-32B",
           "system": "h100_sxm", "precision": "", "gemm_quant_mode": "", "tp_size": 2, "isl": 64, "osl": 9,
           "batch_size": 2, "silicon_ttft_ms": 40.0, "silicon_tpot_ms": 18.0}  # fmt: skip
    return row | changes


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_cells_of_other_engines_formats_and_gpus_are_left_out_and_each_id_counts_once(tmp_path: Path) -> None:
    others = [{"backend": "sglang"}, {"backend_version": "0.14.0"}, {"precision": "fp8"}, {"gemm_quant_mode": "fp8"},
              {"system": "h200_sxm"}, {"model_path": "Qwen/Qwen3-30B-A3B"}]  # fmt: skip
    write(tmp_path / "silicon_a.csv", [cell(), *(cell(id=str(i), **change) for i, change in enumerate(others))])
    write(tmp_path / "silicon_b.csv", [cell(), cell(id="held back", tp_size=8)])
    found = qwen_cells(tmp_path)
    assert {degree: [row["id"] for row in rows] for degree, rows in found.items()} == {2: ["other"], 8: ["held back"]}


def test_the_cells_that_the_profile_names_judge_nothing(tmp_path: Path) -> None:
    write(tmp_path / "aiconfigurator/silicon_visible.csv", [cell(id=FITTED_ID), cell()])
    section = qwen_section(tmp_path)
    assert [(row.model, row.is_fit) for row in section.rows] == [("qwen3-32b-tp2", True), ("qwen3-32b-tp2", False)]
    assert section.lines[0].what == "TPOT on 2 H100s, 1 cells: mean size of the error"
    assert sum("no cells in this folder" in text for text in section.about) == 2


@pytest.mark.slow
@pytest.mark.skipif(not (TABLES / "h100_sxm").is_dir(), reason="no public data here")
def test_cells_on_four_devices_are_judged_where_the_folder_has_them(tmp_path: Path) -> None:
    """A made-up one; kernels come from the tables of the same folder."""
    write(tmp_path / "aiconfigurator/silicon_held_back.csv", [cell(tp_size=4), cell(id="second", tp_size=4)])
    for name in ("h100_sxm", "h100_sxm.yaml"):
        (tmp_path / "aiconfigurator" / name).symlink_to(TABLES / name)
    section = qwen_section(tmp_path)
    assert [(row.model, row.is_fit) for row in section.rows] == [("qwen3-32b-tp4", False)] * 2
    assert all(row.errors_pct["TPOT"] is not None for row in section.rows)


def test_vllm_of_mid_2025_meets_what_it_was_fitted_on() -> None:
    """Within 1 %; the speed-up at k = 2 within the same."""
    profile = load(ISSUE_PROFILE)
    served = with_engine(profile, load_engine("vllm-0.9", "h100-sxm"))
    assert issue_tpot_ms(served, 0) == pytest.approx(ISSUE_VANILLA_MS, rel=0.01)
    assert issue_tpot_ms(served, 2) == pytest.approx(ISSUE_K2_MS, rel=0.01)


def test_the_line_of_another_engine_judges_steps_and_the_issues_cells_are_marked_as_fitted(tmp_path: Path) -> None:
    line = {
        "target": {"fixed": 5.9e-3, "per_batched_token": 2e-5, "per_kv_token": 4e-8},
        "host_overhead_per_step": 1e-3,
    }
    (tmp_path / LINE).parent.mkdir(parents=True)
    (tmp_path / LINE).write_text(json.dumps(line))
    section = mid_2025_section(tmp_path)
    assert [row.is_fit for row in section.rows] == [True, True] + [False] * 10
    assert "| decode | 8 | 7.22 |" in section.tail
    assert all(line.is_fit for line in section.lines[:3])


def test_a_length_quoted_at_seven_is_exact_where_rounds_are_geometric_and_cut_shorter(tmp_path: Path) -> None:
    """Every drafted token is accepted with 1/2: of 128 rounds 64 accept none, 32 one, and so on."""
    counts = [accepted for accepted in range(7) for _ in range(64 >> accepted)] + [7]
    folder = tmp_path / "dflash_tapes"
    for stage in ("s1", "s1t0"):
        for drafter in ("dflash", "dspark"):
            write(folder / f"tape_{stage}_{drafter}_fresh.csv", [{"uid": 0, "accepted_draft": c} for c in counts])
    lengths = {"fresh": 5.0, "self_kv": 3.0}
    keys = [(stage, drafter, name) for stage in ("s1", "s1t0") for drafter in ("dflash", "dspark") for name in lengths]
    write(
        folder / "summary.csv",
        [{"stage": s, "drafter": d, "treatment": t, "tau_incl_bonus": lengths[t]} for s, d, t in keys],
    )
    assert length_at(counts, 7) == pytest.approx(2.0 - 2.0**-7)
    section = rounds_section(tmp_path)
    assert max(abs(row.errors_pct["acceptance length"] or 0.0) for row in section.rows) < 0.01
    assert (len(section.rows), section.lines[-1].error_pct) == (24, pytest.approx(0.0))


def test_pearls_cells_are_judged_where_their_data_set_did_not_fit(tmp_path: Path) -> None:
    """At batch 1 with 9 of 10 tokens accepted; the speed-ups are those of a window of 8."""
    names = {"gpu": "H200", "draft_model": "a/Small", "target_model": "a/Large", "batch_size": 1}
    rows = [
        names
        | {"dataset": dataset, "ar_tok_per_s": 40.0, "pearl_tok_per_s": 120.0, "pearl_mean_accepted_tokens_MAT": 9.0}
        for dataset in ("AIME", "CNNDM", "GSM8K")
    ]
    write(tmp_path / "nano_pearl/bench.csv", rows)
    section = pearl_section(tmp_path)
    (row,) = section.rows
    assert (row.gpu, row.engine, row.method, row.workload) == ("H200", "nano-pearl", "pearl", "GSM8K, small")
    assert abs(row.errors_pct["speed-up"] or 99.0) < 5.0
    assert "| H200 | nano-pearl | large | pearl |" in matrix_text(section.rows, None)


def test_the_better_model_of_every_tape_is_in_the_matrix(tmp_path: Path) -> None:
    folder = tmp_path / "unlicensed_local_only/specdecode_bench"
    folder.mkdir(parents=True)
    tape = [1, 3, 2, 1, 1, 4, 3, 2, 1] * 4
    for name in ("gsm8k", "instructcoder", "sharegpt"):
        (folder / f"acc_{name}.jsonl").write_text(json.dumps({"acc_eagle3": tape, "acc_ngram": tape}) + "\n")
    section = acceptance_section(tmp_path)
    assert {(row.method, row.workload, row.k) for row in section.rows} == {
        (method, name, k)
        for method in ("eagle3", "ngram")
        for name in ("gsm8k", "instructcoder", "sharegpt")
        for k in range(1, 8)
    }
