"""Served cells: what a row's label gets wrong is repaired, what cannot be is counted apart, recipes are a table."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from msgspec import structs

from calibrate.cli.imports import import_command
from calibrate.served.load import ServedLoad
from sim.compare.side_by_side import compare
from sim.costs.memory import kv_capacity_tokens
from sim.costs.profile_files import load
from sim.run.resolve import resolve_all
from sim.run.scenario import parse_scenario
from tests.calibrate.served.test_judge import write_table
from validation.__main__ import main
from validation.judge.labels import (
    contradicted,
    drafting,
    first_runs,
    is_fitted,
    is_outside,
    memory_share,
    roof_share,
)
from validation.judge.served_cells import (
    budget_of,
    cell_of,
    engine_block,
    engine_name,
    predicted,
    profile_of,
    raw_scenario,
    setting,
    target_of,
)
from validation.judge.served_judge import judge, kindest

PROFILE = "h100-sxm/llama-3.1-8b"
ROW = {
    "id": "a", "backend": "vllm", "backend_version": "0.19.0", "model_path": "MiniMaxAI/MiniMax-M2.5",
    "system": "b200_sxm", "mode": "agg", "silicon_data_source": "db-dump", "gemm_quant_mode": "fp8", "isl": "1024",
    "osl": "1024", "batch_size": "64.0", "tp_size": "2.0", "attention_dp_size": "1.0", "moe_tp_size": "2.0",
    "moe_ep_size": "1.0", "silicon_ttft_ms": "100", "silicon_tpot_ms": "10",
}  # fmt: skip
LLAMA = {"model_path": "meta-llama/Llama-3.1-70B"}
R1 = {"model_path": "deepseek-ai/DeepSeek-R1"}
AUTO = {"silicon_data_source": "aic-auto-gap-analysis"}
RANKS = {"attention_dp_size": "2", "moe_tp_size": "1", "moe_ep_size": "4"}


def cell(**changes: str) -> ServedLoad:
    return cell_of({**ROW, **changes})


AUTUMN = {"backend": "trtllm", "backend_version": "", "gemm_quant_mode": "nvfp4", "attention_dp_size": "1"}
MINIMAX = {"model_path": "MiniMaxAI/MiniMax-M2.5", "attention_dp_size": "2", "moe_tp_size": "1", "moe_ep_size": "4"}


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        ({}, (2, None, 1, 64)),
        ({"moe_tp_size": "1", "moe_ep_size": "2"}, (2, 2, 1, 64)),
        ({"tp_size": "64", "moe_tp_size": "8", "moe_ep_size": "8"}, (8, 8, 1, 64)),
        ({**RANKS, "gemm_quant_mode": "nvfp4"}, (1, 2, 2, 64)),
        ({"attention_dp_size": "", "tp_size": "1", "moe_tp_size": "2", "gemm_quant_mode": "nvfp4"}, (1, None, 2, 64)),
        ({**AUTUMN, **R1, "tp_size": "4", "batch_size": "32"}, (4, None, 1, 32)),
        ({**AUTUMN, **R1, "tp_size": "4"}, (4, 4, 1, 64)),
        ({**AUTUMN, **R1, "tp_size": "4", "isl": "8192"}, (1, 4, 4, 16)),
        ({**AUTUMN, **R1, "tp_size": "4", "isl": "8192", "backend_version": "1.1.0rc2.post2"}, (4, None, 1, 64)),
        ({**MINIMAX, "backend_version": "0.18.0", "system": "h100_sxm"}, (2, 2, 1, 128)),
        ({**MINIMAX, "backend_version": "0.18.0", "system": "h200_sxm"}, (1, 2, 2, 64)),
    ],
)
def test_widths_are_taken_apart_or_those_of_the_published_configuration(
    row: dict[str, str], wanted: tuple[object, ...]
) -> None:
    """The configuration's where the label has others: rows of autumn 2025 know no spread of experts, and some commands
    read no ranks."""
    read = cell(**row)
    assert (read.tp, read.ep, read.dp, read.concurrency) == wanted


def test_formats_are_those_that_were_served_whatever_the_label_says() -> None:
    oss = {"model_path": "openai/gpt-oss-120b", "gemm_quant_mode": "nvfp4"}
    block = {"model_path": "Qwen/Qwen3.5-397B-A17B"}
    assert cell(**oss).label == "vllm moe nvfp4"
    assert [each.weights for each in (cell(**oss), cell(**oss, system="h200_sxm"), cell(**block), cell())] == [
        "mxfp4-fp8",
        "mxfp4-marlin",
        "fp8-block",
        "fp8",
    ]
    assert cell(**block, gemm_quant_mode="nvfp4").weights is None
    hopper = {"system": "h200_sxm", "backend": "trtllm"}
    assert [cell(**{**hopper, **each}).kv for each in ({}, R1, {**R1, **AUTO}, LLAMA, {**LLAMA, **AUTO})] == [
        None,
        "fp8",
        None,
        "fp8",
        None,
    ]
    assert cell(**LLAMA, **AUTO, system="h200_sxm").kv == cell().kv == "fp8"


def test_the_first_row_that_matches_counts_and_none_is_an_error() -> None:
    label = {"engine": "sglang", "source": "recipe", "target": "x", "gpu": "b200-sxm", "dp": 1}
    waits = [setting("scheduler_recv_interval", {**label, "concurrency": count}) for count in (15, 16, 999)]
    assert waits == [10, 30, 30]
    with pytest.raises(ValueError, match="no recipe has weights"):
        setting("weights", {"gpu": "b200-sxm", "target": "x", "gemm": "int9"})


@pytest.mark.parametrize(
    ("row", "key", "wanted"),
    [
        ({}, "max_num_batched_tokens", 2048),
        ({"isl": "8192"}, "max_num_batched_tokens", 16384),
        ({"backend_version": "0.17.0"}, "max_num_batched_tokens", None),
        ({"backend": "trtllm", **AUTO}, "max_num_batched_tokens", 1500 + 1024 + 64),
        (AUTO, "max_num_batched_tokens", 2048),
        ({"backend": "sglang"}, "max_num_batched_tokens", 32768),
        ({"backend": "trtllm", **LLAMA}, "max_num_batched_tokens", 16384),
        ({"backend": "trtllm", **R1}, "max_num_batched_tokens", 1152),
        ({"backend": "trtllm", **R1, **RANKS}, "max_num_batched_tokens", 1216),
        ({"backend": "sglang", **R1}, "scheduler_recv_interval", 30),
        ({"backend": "sglang", "model_path": "zhipuai/GLM-5"}, "scheduler_recv_interval", 1),
        ({"backend": "sglang", **R1, **RANKS}, "scheduler_recv_interval", 1),
        ({"backend": "sglang", "backend_version": "0.5.6.post2", **AUTO}, "enable_mixed_chunk", True),
        ({"backend": "trtllm", **LLAMA}, "batch_wait_timeout_iters", 20),
        ({"backend": "trtllm", **LLAMA, "tp_size": "8"}, "batch_wait_timeout_iters", None),
        ({"backend": "trtllm", **R1}, "attention_dp_timeout_iters", None),
        ({"backend": "trtllm", **R1, **RANKS}, "attention_dp_timeout_iters", 60),
        (LLAMA, "cuda_graph", "decode"),
        ({**LLAMA, "system": "h200_sxm"}, "cuda_graph", True),
        ({}, "async_scheduling", True),
        (AUTO, "async_scheduling", None),
        ({"backend_version": ""}, "name", "vllm-0.12"),
    ],
)
def test_a_scenario_has_what_the_recipe_of_the_row_sets(row: dict[str, str], key: str, wanted: object) -> None:
    scenario = parse_scenario(raw_scenario(cell(**row), PROFILE))
    engine = scenario.engine
    assert wanted is None or engine.rules.get(key, getattr(engine, key, None)) == wanted
    assert wanted is not None or key not in {**engine_block(cell(**row)), **engine.rules}
    assert scenario.workload.random_range_ratio == (None if row.get("silicon_data_source") else (0.8, 1.0))


def test_rows_that_constants_were_fitted_on_are_named() -> None:
    marked = {**LLAMA, "system": "h200_sxm"}
    drawn = f"2026_04_06_llama_3_1_70b_b200_sxm_vllm_fp4_agg_1024x1024_c8_tp1_ep1_{260}"
    others = {**LLAMA, "batch_size": "8"}
    qwen = {"model_path": "Qwen/Qwen3-32B", "backend_version": "0.12.0", "gemm_quant_mode": ""}
    ranks = {"backend": "sglang", **R1}
    rows = [marked, {**others, "id": drawn}, {**qwen, "osl": "128"}, ranks]
    assert all(is_fitted(cell(**row)) for row in rows)
    rows = [
        {**marked, "batch_size": "8"}, {**others, "id": drawn + "0"}, {**others, "id": drawn.replace("70b", "8b")},
        {**qwen, "osl": "512"}, {**ranks, **RANKS}, {**ranks, "osl": "128"},
    ]  # fmt: skip
    assert not any(is_fitted(cell(**row)) for row in rows)


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


def test_a_token_takes_no_less_than_the_datasheet_allows() -> None:
    pytest.importorskip("aiconfigurator_core")
    row = {**LLAMA, "system": "h200_sxm", "batch_size": "8", "tp_size": "1"}
    profile, shape = profile_of(cell(**row))
    least = roof_share(cell(**row, silicon_tpot_ms="1"), profile, shape)
    weights_ms = 1e3 * shape.read_bytes(8) / profile.gpu.bandwidth_bytes_per_s / 0.95
    assert weights_ms < least < 1.5 * weights_ms
    assert roof_share(cell(**row, silicon_tpot_ms="2"), profile, shape) == pytest.approx(least / 2)


def test_of_two_rows_with_the_same_labels_the_one_half_as_long_drafts_unmarked() -> None:
    plain = cell(model_path="deepseek-ai/DeepSeek-V3", silicon_tpot_ms="10", backend_version="0.18.0")
    twin = cell(id="twin", **R1, silicon_tpot_ms="6.6")
    other = cell(id="other", **R1, silicon_tpot_ms="5", isl="8192", backend_version="9")
    unlike = cell(id="no-mtp", silicon_tpot_ms="1")
    assert drafting([plain, twin, other, cell(silicon_tpot_ms="99"), unlike]) == {"twin"}


def test_rows_of_one_label_that_contradict_each_other_are_both_in_doubt() -> None:
    kimi = {"model_path": "moonshotai/Kimi-K2.5", "backend_version": "0.16.0"}
    slow, near = cell(id="slow", **kimi, silicon_tpot_ms="16"), cell(id="near", **kimi, silicon_tpot_ms="11")
    quick = cell(id="quick", **kimi, silicon_tpot_ms="10")
    other = cell(id="other", **kimi | {"backend_version": "0.19.0"}, silicon_tpot_ms="1")
    assert contradicted([slow, near, other]) == set()
    assert contradicted([slow, quick, other]) == {"slow", "quick"}
    assert contradicted([cell(id=str(tpot), **R1, silicon_tpot_ms=str(tpot)) for tpot in (10, 20)]) == set()


def test_a_days_runs_draft_or_do_not() -> None:
    """Of three pairs a day's second runs are 1.6, 1.3 and 1.1 times as fast: the third drafts as well, and so do a row
    without a twin and one of the same version on another GPU. Another day's are 1.1 times as fast in all but one, which
    alone is doubted."""

    def rows(day: str, *tpot_ms: str) -> list[ServedLoad]:
        source = {"silicon_data_source": f"source_file=x.csv; measured={day}T22:26:21Z; workflow"}
        lengths = (str(1024 * (i + 1)) for i in range(len(tpot_ms)))
        return [
            cell(id=f"{day} {isl}", isl=isl, silicon_tpot_ms=each, **R1, **source)
            for isl, each in zip(lengths, tpot_ms, strict=True)
        ]

    plain, fast = rows("2025-12-15", "16", "13", "11"), rows("2026-01-14", "10", "10", "10", "10")
    assert plain[0].day == "2025-12-15"
    elsewhere = structs.replace(fast[0], id="elsewhere", gpu="gb200")
    assert drafting([*plain, *fast, elsewhere]) == {*(each.id for each in fast), "elsewhere"}
    newer = rows("2026-01-14", "10", "12", "10")
    assert drafting([*plain, *newer]) == {newer[0].id}


def test_runs_that_cut_experts_draft_beside_those_of_the_day_that_do_not() -> None:
    """Two of three that cut experts are 1.3 times as fast as with whole experts on a device, so all three draft, and so
    does a row that repeats the third; a model without an MTP layer has none that draft."""

    def rows(model: str) -> list[ServedLoad]:
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
    assert first_runs([first, again, other, cell(id="d", isl="2048")]) == {"a": "a", "b": "a", "c": "c", "d": "d"}
    renamed = [cell(**R1), cell(id="b", model_path="deepseek-ai/DeepSeek-V3"), other]
    assert first_runs(renamed) == {"a": "a", "b": "a", "c": "c"}


def test_of_several_readings_the_peer_gets_the_kindest_of_each_group() -> None:
    def row(name: str, tpot_ms: str, system: str = "h200_sxm") -> dict[str, str]:
        return {**ROW, "id": name, "system": system, "aic_tpot_ms": tpot_ms}

    plain = [row("a", "14"), row("b", "9"), row("c", "30", "b200_sxm"), row("d", "")]
    best = [row("a", "11"), row("b", ""), row("c", "50", "b200_sxm"), row("d", "")]
    chosen = kindest([plain, best])
    assert {name: each["aic_tpot_ms"] for name, each in chosen.items()} == {"a": "11", "b": "9", "c": "30"}


def write_rows(folder: Path, *rows: dict[str, str]) -> list[str]:
    """Arguments of the command over these rows, the result beside them."""
    path = folder / "cells.csv"
    return [str(write_table(path, rows)), "--json", str(folder / "out.json")]


def failure_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and the one line; what an earlier run wrote is left alone."""
    out = Path(arguments[2])
    out.write_text("earlier")
    code = main(["silicon", *arguments, "--overwrite"])
    (line,) = capsys.readouterr().err.splitlines()
    assert out.read_text() == "earlier"
    return code, line


def test_without_the_kernel_tables_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "aiconfigurator_core", None)
    code, line = failure_of(write_rows(tmp_path, ROW), capsys)
    assert (code, "[tables]'" in line) == (2, True)


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
        (DISAGG, ["--mode", "disagg"], "all 2 rows refused, 2 of them so: the row has no batch sizes and workers"),
    ],
)
def test_a_run_that_judges_no_row_fails(
    row: dict[str, str], flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("aiconfigurator_core")
    code, line = failure_of([*write_rows(tmp_path, row, {**row, "id": "b", "isl": "2048"}), *flags], capsys)
    assert (code, message in line) == (1, True), line


def test_a_users_two_commands_get_what_a_row_is_judged_by(tmp_path: Path) -> None:
    """Nothing between kernel tables, the engine's file and the page: no constant of a campaign, no load but the
    label's. Of two runs of one loop one waits for admission; the peer's error stands beside."""
    pytest.importorskip("aiconfigurator_core")
    generated = {**AUTO, "isl": "512", "osl": "16", "batch_size": "2"}
    tuned = {"backend": "trtllm", "backend_version": "1.1.0", "model_path": "meta-llama/Llama-3.1-8B-Instruct"}
    read = cell(**tuned, **generated, system="h100_sxm", gemm_quant_mode="")
    out = tmp_path / "profile.json"
    words = f"aiconfigurator --gpu h100-sxm --target {target_of(read)[0]}-tp2 --engine trtllm-1.1 --out {out}"
    import_command(words.split(), standalone_mode=False)
    scenario = parse_scenario(raw_scenario(read, str(out)))
    assert (scenario.engine.max_num_seqs, scenario.workload.max_concurrency) == (None, 2)
    (served,) = compare(resolve_all(scenario, load(str(out)))).policies
    simulated = predicted(read)
    assert simulated == {name: served.mean[f"mean_{name}"] for name in ("tpot_ms", "ttft_ms")}
    late = cell(**tuned, **{**generated, "batch_size": "4"}, system="h100_sxm", gemm_quant_mode="", id="late",
                silicon_ttft_ms="501", silicon_tpot_ms="50")  # fmt: skip
    peer = {"a": {"aic_tpot_ms": "11", "aic_ttft_ms": "80"}}
    first, second = judge([read, late], peer)
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    assert first["tpot_error_pct"] == pytest.approx(10.0 * simulated["tpot_ms"] - 100.0)
    assert (first["peer_tpot_error_pct"], first["peer_ttft_error_pct"]) == pytest.approx((10.0, -20.0))
    assert (first["is_starved"], second["is_starved"], first["role"]) == (False, True, "judged")
    assert (engine_name(read), budget_of(read)) == (first["engine"]["name"], first["engine"]["max_num_batched_tokens"])
