"""Served cells as they are read: what a row's label gets wrong is repaired, what cannot be is counted apart."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

from calibrate.cli.imports import aiconfigurator_command
from calibrate.importers.aiconfigurator.deployment import PACKAGE, Deployment
from sim.compare.side_by_side import compare
from sim.costs.engine_costs import load_engine
from sim.costs.memory import kv_capacity_tokens
from sim.costs.profile_files import load
from validation.silicon.judge import (
    LENGTH_RANGE,
    Judged,
    budget_of,
    classes_of,
    engine_name,
    import_words,
    kindest,
    predicted,
    receive_interval,
    scenario_of,
)
from validation.silicon.labels import DRAWN, DRAWN_OF, drafting, is_marked, is_outside, memory_share, repeats
from validation.silicon.served_cells import Cell, cell_of
from validation.silicon.silicon_command import main

PROFILE = "h100-sxm/llama-3.1-8b"
ROW = {
    "id": "a",
    "backend": "vllm",
    "backend_version": "0.19.0",
    "model_path": "MiniMaxAI/MiniMax-M2.5",
    "system": "b200_sxm",
    "mode": "agg",
    "silicon_data_source": "db-dump",
    "gemm_quant_mode": "fp8",
    "isl": "1024",
    "osl": "1024",
    "batch_size": "64.0",
    "tp_size": "2.0",
    "attention_dp_size": "1.0",
    "moe_tp_size": "2.0",
    "moe_ep_size": "1.0",
    "silicon_ttft_ms": "100",
    "silicon_tpot_ms": "10",
}


def cell(**changes: str) -> Cell:
    return cell_of({**ROW, **changes})


@pytest.mark.parametrize(
    ("widths", "deployment", "concurrency"),
    [
        ({}, Deployment(2), 64),
        ({"moe_tp_size": "1", "moe_ep_size": "2"}, Deployment(2, 2), 64),
        ({"tp_size": "64", "moe_tp_size": "8", "moe_ep_size": "8"}, Deployment(8, 8), 64),
        ({"attention_dp_size": "2", "moe_tp_size": "1", "moe_ep_size": "4"}, Deployment(1, 2, 2), 64),
        ({"attention_dp_size": "", "tp_size": "1", "moe_tp_size": "2", "moe_ep_size": "1"}, Deployment(1, None, 2), 64),
    ],
)
def test_widths_that_are_products_are_taken_apart(
    widths: dict[str, str], deployment: Deployment, concurrency: int
) -> None:
    read = cell(**widths)
    assert (read.deployment, read.concurrency) == (deployment, concurrency)


def test_gpt_oss_is_mxfp4_whatever_its_label_says() -> None:
    oss = {"model_path": "openai/gpt-oss-120b", "gemm_quant_mode": "nvfp4"}
    assert (cell(**oss).weights, cell(**oss).family) == ("mxfp4-fp8", "vllm moe nvfp4")
    assert cell(**oss, system="h200_sxm").weights == "mxfp4-marlin"


def test_fp8_of_a_model_published_with_block_scales_is_block_scaled() -> None:
    assert cell(model_path="Qwen/Qwen3.5-397B-A17B").weights == "fp8-block"
    assert cell(model_path="Qwen/Qwen3.5-397B-A17B", gemm_quant_mode="nvfp4").weights == "nvfp4"


def test_a_request_that_waits_longer_than_it_is_served_was_never_in_the_engine() -> None:
    assert is_outside(cell(silicon_ttft_ms="10231"))
    assert not is_outside(cell(silicon_ttft_ms="10229"))


def test_requests_that_the_memory_of_the_label_cannot_hold_were_not_served_as_it_says() -> None:
    """All of an H100 holds the KV of 533,000 tokens beside Llama-3.1-8B, so that of 768 requests of 768 tokens in the
    mean not 732 can have been served at once, but 533 can: those who wait hold nothing."""
    profile = load(PROFILE)
    rows = {"isl": "512", "osl": "512", "batch_size": "768", "silicon_tpot_ms": "40", "silicon_ttft_ms": "1000"}
    served = 768 * 20_440 / 21_440
    assert memory_share(cell(**rows), profile) == pytest.approx(served * 768 / kv_capacity_tokens(profile, 1.0))
    assert memory_share(cell(**rows), profile) > 1.0
    assert memory_share(cell(**{**rows, "silicon_ttft_ms": "9000"}), profile) < 1.0


def test_of_two_rows_with_the_same_labels_the_one_half_as_long_drafts_unmarked() -> None:
    plain = cell(model_path="deepseek-ai/DeepSeek-V3", silicon_tpot_ms="10", backend_version="0.18.0")
    twin = cell(id="twin", model_path="deepseek-ai/DeepSeek-R1", silicon_tpot_ms="6.6")
    other = cell(id="other", model_path="deepseek-ai/DeepSeek-R1", silicon_tpot_ms="5", isl="8192", backend_version="9")
    unlike = cell(id="no-mtp", silicon_tpot_ms="1")
    assert drafting([plain, twin, other, cell(silicon_tpot_ms="99"), unlike]) == {"twin"}


def test_a_days_runs_draft_or_do_not() -> None:
    """Of three pairs a day's second runs are 1.6, 1.3 and 1.1 times as fast: the third drafts as well, and so does a
    row without a twin. Another day's are 1.1 times as fast in all but one, which alone is doubted."""

    def rows(day: str, *tpot_ms: str) -> list[Cell]:
        source = f"source_file=x.csv; measured={day}T22:26:21Z; workflow"
        return [
            cell(
                id=f"{day} {i}",
                model_path="deepseek-ai/DeepSeek-R1",
                isl=str(1024 * (i + 1)),
                silicon_tpot_ms=each,
                silicon_data_source=source,
            )
            for i, each in enumerate(tpot_ms)
        ]

    plain, fast = rows("2025-12-15", "16", "13", "11"), rows("2026-01-14", "10", "10", "10", "10")
    assert plain[0].day == "2025-12-15"
    assert drafting([*plain, *fast]) == {each.id for each in fast}
    newer = rows("2026-01-14", "10", "12", "10")
    assert drafting([*plain, *newer]) == {newer[0].id}


def test_runs_that_cut_experts_draft_beside_those_of_the_day_that_do_not() -> None:
    """Two of three that cut experts are 1.3 times as fast as with whole experts on a device, so all three draft, and so
    does a row that repeats the third; a model without an MTP layer has none that draft."""

    def rows(model: str) -> list[Cell]:
        day = {"model_path": model, "silicon_data_source": "x; measured=2026-04-03", "tp_size": "4"}
        whole = {"moe_tp_size": "1", "moe_ep_size": "4", "silicon_tpot_ms": "13"}
        cut, tpots = {**day, "moe_tp_size": "4"}, ("10", "10", "13")
        return [
            *(cell(**day, **whole, id=f"whole {i}", isl=str(1024 * i)) for i in (1, 2, 3)),
            *(cell(**cut, id=f"cut {i}", isl=str(1024 * i), silicon_tpot_ms=tpots[i - 1]) for i in (1, 2, 3)),
            cell(**{**cut, "silicon_data_source": ""}, id="again", isl="3072", silicon_tpot_ms="13.01"),
        ]

    assert drafting(rows("Qwen/Qwen3.5-397B-A17B")) == {"cut 1", "cut 2", "cut 3", "again"}
    assert drafting(rows("MiniMaxAI/MiniMax-M2.5")) == set()


def test_a_run_that_two_dumps_have_is_one_cell() -> None:
    first, again, other = cell(), cell(id="b", silicon_tpot_ms="10.005"), cell(id="c", silicon_tpot_ms="10.1")
    assert repeats([first, again, other, cell(id="d", isl="2048")]) == {"b"}
    assert repeats([again, first]) == {"a"}


def test_of_several_readings_the_peer_gets_the_kindest_of_each_group() -> None:
    def row(name: str, tpot_ms: str, system: str = "h200_sxm") -> dict[str, str]:
        return {**ROW, "id": name, "system": system, "aic_tpot_ms": tpot_ms}

    plain = [row("a", "14"), row("b", "9"), row("c", "30", "b200_sxm"), row("d", "")]
    best = [row("a", "11"), row("b", ""), row("c", "50", "b200_sxm"), row("d", "")]
    chosen = kindest([plain, best])
    assert {name: each["aic_tpot_ms"] for name, each in chosen.items()} == {"a": "11", "b": "9", "c": "30"}


def test_a_step_holds_what_the_recipe_of_the_row_says() -> None:
    generated = {"silicon_data_source": "aic-auto-gap-analysis", "backend": "trtllm"}
    assert budget_of(cell()) is None
    assert budget_of(cell(**generated)) == 1500 + 1024 + 64
    assert budget_of(cell(**{**generated, "backend": "vllm"})) == 2048
    assert budget_of(cell(backend="sglang")) == 32768
    deepseek = {"backend": "trtllm", "model_path": "deepseek-ai/DeepSeek-R1", "system": "h200_sxm"}
    assert (cell(**deepseek).kv, cell(**{**deepseek, "model_path": "MiniMaxAI/MiniMax-M2.5"}).kv) == ("fp8", None)
    assert budget_of(cell(backend="sglang", gemm_quant_mode="nvfp4")) == 16384


def test_sglang_looks_for_arrivals_as_seldom_as_the_recipe_of_the_row_says() -> None:
    sglang = {"backend": "sglang", "model_path": "deepseek-ai/DeepSeek-R1"}
    assert receive_interval(cell(**sglang)) == 30
    assert receive_interval(cell(**sglang, batch_size="15")) == 10
    assert receive_interval(cell(**sglang, system="b300_sxm")) == 10
    data_parallel = {"attention_dp_size": "2", "moe_tp_size": "1", "moe_ep_size": "4"}
    others = ({"system": "h200_sxm"}, {"model_path": "zhipuai/GLM-5"}, data_parallel)
    assert [receive_interval(cell(**{**sglang, **other})) for other in others] == [1, 1, 1]
    assert receive_interval(cell()) == 1
    scenario = scenario_of(cell(**sglang), PROFILE)
    assert scenario.engine.scheduler_recv_interval == 30


def test_prompts_share_steps_with_rows_in_generated_deployments_of_sglang() -> None:
    generated = {"backend": "sglang", "backend_version": "0.5.6.post2", "silicon_data_source": "aic-auto-gap-analysis"}
    mixes = [scenario_of(cell(**row), PROFILE).engine.enable_mixed_chunk for row in (generated, {})]
    assert mixes == [True, None]


def test_rows_that_constants_were_fitted_on_judge_nothing_and_are_counted() -> None:
    marked = {"model_path": "meta-llama/Llama-3.1-70B", "system": "h200_sxm"}
    assert is_marked(cell(**marked))
    assert not is_marked(cell(**marked, batch_size="8"))
    judged = [
        Judged(cell(), 11.0, 150.0, is_marked=False, is_doubtful=False, is_starved=False),
        Judged(cell(id="b"), 9.0, 100.0, is_marked=False, is_doubtful=False, is_starved=True),
        Judged(cell(id="c"), 90.0, 100.0, is_marked=True, is_doubtful=False, is_starved=False),
        Judged(cell(id="d"), 90.0, 100.0, is_marked=True, is_doubtful=True, is_starved=False),
    ]
    refused = (cell(id="e"), "no table")
    rows = {row["class"]: row for row in classes_of([*judged, refused], {"a": {"aic_tpot_ms": "12"}})}
    plain = rows["vllm moe fp8"]
    assert (plain["cells"], plain["refused"], plain["tpot_mean_abs_pct"], plain["ttft_mean_abs_pct"]) == (2, 1, 10, 50)
    assert (plain["tpot_mean_pct"], plain["peer_tpot_mean_abs_pct"], plain["peer_cells"]) == (0, 20, 1)
    assert rows["vllm moe fp8 (fitted on)"]["cells"] == rows["vllm moe fp8 (labels in doubt)"]["cells"] == 1


def write_rows(folder: Path, *rows: dict[str, str]) -> list[str]:
    """Arguments of the command over these rows, the result beside them."""
    path = folder / "cells.csv"
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, [*rows[0]])
        table.writeheader()
        table.writerows(rows)
    return [str(path), "--json", str(folder / "out.json")]


def failure_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and the one line; what an earlier run wrote is left alone."""
    out = Path(arguments[2])
    out.write_text("earlier")
    code = main([*arguments, "--overwrite"])
    (line,) = capsys.readouterr().err.splitlines()
    assert out.read_text() == "earlier"
    return code, line


def test_without_the_kernel_tables_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    code, line = failure_of(write_rows(tmp_path, ROW), capsys)
    assert (code, "pip install 'lanesim[tables]'" in line) == (2, True)


def test_a_table_that_is_not_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip(PACKAGE)
    arguments = [str(tmp_path / "none.csv"), "--json", str(tmp_path / "out.json")]
    code, line = failure_of(arguments, capsys)
    assert (code, "none.csv: No such file" in line) == (2, True)


DISAGG = {
    **ROW,
    "mode": "disagg",
    **{f"{pool}_{key}": "" for pool in ("prefill", "decode") for key in ("batch_size", "num_workers")},
}


@pytest.mark.parametrize(
    ("row", "flags", "message"),
    [
        ({**ROW, "system": "nowhere"}, [], "all 2 rows refused, 2 of them so: "),
        (ROW, ["--only", "nothing"], "no row with --mode agg --only 'nothing'"),
        (ROW, ["--mode", "disagg"], "no row with --mode disagg"),
        (DISAGG, ["--mode", "disagg"], "all 2 rows refused, 2 of them so: the row has no batch sizes and workers"),
    ],
)
def test_a_run_that_judges_no_row_fails(
    row: dict[str, str], flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(PACKAGE)
    code, line = failure_of([*write_rows(tmp_path, row, {**row, "id": "b", "isl": "2048"}), *flags], capsys)
    assert (code, message in line) == (1, True), line


def test_a_users_two_commands_get_what_a_row_is_judged_by(tmp_path: Path) -> None:
    """Nothing between kernel tables, the engine's file and the page: no constant of a campaign, no load but the
    label's."""
    pytest.importorskip(PACKAGE)
    generated = {"silicon_data_source": "aic-auto-gap-analysis", "isl": "512", "osl": "16", "batch_size": "2"}
    nccl = {"backend": "trtllm", "backend_version": "1.0.0rc3", "model_path": "meta-llama/Llama-3.1-8B-Instruct"}
    eager = {"backend_version": "0.12.0", "model_path": "Qwen/Qwen3-235B-A22B-FP8", "system": "h200_sxm"}
    for row in (nccl | {"system": "h100_sxm", "gemm_quant_mode": ""}, eager):
        read = cell(**row, **generated)
        out = tmp_path / "profile.json"
        aiconfigurator_command([*import_words(read), "--out", str(out)], standalone_mode=False)
        scenario = scenario_of(read, str(out))
        assert (scenario.engine.max_num_seqs, scenario.workload.max_concurrency) == (None, 2)
        (served,) = compare(scenario, load(str(out))).policies
        assert predicted(read) == (served.mean["mean_tpot_ms"], served.mean["mean_ttft_ms"])


def test_a_scenario_names_the_engine_of_the_rows_version() -> None:
    llama = {"model_path": "meta-llama/Llama-3.1-70B", "backend_version": ""}
    assert [engine_name(cell(**row)) for row in (llama, {}, {"backend": "trtllm"}, {"backend": "sglang"})] == [
        "vllm-0.12",
        "vllm-0.19",
        "trtllm-1.1",
        "sglang-0.5",
    ]
    scenario = scenario_of(cell(**llama), PROFILE)
    assert (scenario.engine.name, scenario.engine.async_scheduling) == ("vllm-0.12", True)
    assert scenario.workload.length_range == LENGTH_RANGE
    assert load_engine("vllm-0.12", "b200-sxm", 4).prompt_launch_s > 0.0


def test_cells_drawn_for_a_fit_are_those_of_their_campaign() -> None:
    drawn = f"{DRAWN_OF}_b200_sxm_vllm_fp4_agg_1024x1024_c8_tp1_ep1_{min(DRAWN)}"
    plain = {"model_path": "meta-llama/Llama-3.1-70B", "batch_size": "8"}
    assert is_marked(cell(**plain, id=drawn))
    assert not is_marked(cell(**plain, id=drawn + "0"))
    assert not is_marked(cell(**plain, id=drawn.replace("70b", "8b")))


def test_prompts_wait_for_others_where_the_recipe_says_so() -> None:
    llama = {"backend": "trtllm", "model_path": "meta-llama/Llama-3.1-70B"}
    wait = scenario_of(cell(**llama), PROFILE).engine
    assert (wait.batch_wait_timeout_iters, wait.batch_wait_max_tokens_ratio, wait.max_num_batched_tokens) == (
        20,
        0.9,
        16384,
    )
    for other in ({"osl": "8192"}, {"tp_size": "8", "moe_tp_size": "8"}, {"model_path": "deepseek-ai/DeepSeek-R1"}):
        assert scenario_of(cell(**{**llama, **other}), PROFILE).engine.batch_wait_timeout_iters == 0
    assert budget_of(cell(**{**llama, "model_path": "deepseek-ai/DeepSeek-R1"})) == 1152


def test_decoding_alone_is_captured_in_vllms_recipe_of_llama_on_blackwell() -> None:
    llama = {"model_path": "meta-llama/Llama-3.1-70B"}
    graphs = [
        scenario_of(cell(**row), PROFILE).engine.cuda_graph for row in (llama, {}, {**llama, "system": "h200_sxm"})
    ]
    assert graphs == ["decode", True, True]
