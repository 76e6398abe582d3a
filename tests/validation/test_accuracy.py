"""Runs of others: cells are read from each form of source, judged and fitted as its data says; what fails is said."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from calibrate.fit.constants import with_constants
from calibrate.served.judge import LoadSetup, simulate_load
from calibrate.served.load_table import table_of
from sim.costs.profile_files import load
from tests.calibrate.served.test_judge import write_table
from validation.judge import sources
from validation.judge.judges import JUDGES, peer_figures
from validation.judge.sections import BARS, CELLS, FITS, BarLine, judge_run, section_of, write_tables
from validation.judge.specs import RunSpec, SectionSpec, specs
from validation.tables import csv_rows

PROFILE = "h100-sxm/llama-3.1-8b"
Rows = Sequence[dict[str, Any]]


def write(path: Path, rows: Rows) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_table(path, rows)


def run_of(title: str, **changes: Any) -> RunSpec:
    """The first run of a section."""
    (spec,) = [spec for spec in specs() if spec.title == title]
    return msgspec.structs.replace(spec.runs[0], **changes)


def test_every_section_reads_and_judges_by_a_name_that_there_is() -> None:
    readers = {run.reader for spec in specs() for run in spec.runs}
    assert readers == JUDGES.keys() == sources.ROWS.keys() | sources.CELLS.keys()


def test_the_peers_figures_are_read_from_its_summary() -> None:
    lines = ["Metric  vLLM  Sim  Diff%", "TTFT Mean 65456.6  65820.2  +0.6%", "TTFT P90 1.0 1.0 +0.6%", "",
             "Latency P95 200.0 190.0 -5.0%"]  # fmt: skip
    assert peer_figures("\n".join(lines)) == {"ttft_ms": (65456.6, 65820.2), "e2el_p95_ms": (200.0, 190.0)}
    with pytest.raises(ValueError, match="has no figure"):
        peer_figures("nothing here")


def study_row(**changes: Any) -> dict[str, Any]:
    row = {"phase": "phase2_results", "model": "meta-llama/Llama-3.1-8B-Instruct", "w": "fp16", "kv": "fp16",
           "spec": "none", "k": 0, "wl": "gsm8k", "conc": 8, "tau": "", "ttft_mean": 100, "itl_mean": 10, "itl_p50": 9,
           "e2e_mean": 3000, "goodput": 600, "nreq": 160, "tot_out": 40960, "e2e_p50": 3000, "e2e_p95": 3500,
           "wlp": '{"max_new_tokens": 256}'}  # fmt: skip
    return row | changes


def test_repeats_of_both_phases_are_averaged_and_other_runs_left_out(tmp_path: Path) -> None:
    drafting = {"spec": "eagle3", "k": 5, "tau": 2.8}
    others = [study_row(phase="phase3b_results", goodput=1), study_row(w="awq", goodput=1)]
    rows = [study_row(), study_row(phase="phase3_results", goodput=630), *others]
    rows += [study_row(**drafting), study_row(**drafting | {"tau": 3.0})]
    plain, eagle = sources.study(write(tmp_path / "t.csv", rows), RunSpec())
    assert (plain["arm"], plain["output_throughput"], plain["acceptance_length"]) == ("none", 615.0, "")
    assert (eagle["arm"], eagle["acceptance_length"]) == ("eagle3", pytest.approx(2.9))
    assert (plain["input_len"], plain["output_len"], plain["num_prompts"]) == (717, 256, 160)
    with pytest.raises(ValueError, match="differ in nreq"):
        sources.study(write(tmp_path / "t.csv", [study_row(), study_row(nreq=320)]), RunSpec())


def test_outputs_that_end_by_themselves_get_the_spread_that_e2el_shows_at_concurrency_one(tmp_path: Path) -> None:
    """500 ms between median and 95th percentile are 50 tokens of 10 ms, 1.645 standard deviations."""
    alone = study_row(wl="humaneval", conc=1, tot_out=20000)
    cells = sources.study(write(tmp_path / "t.csv", [alone, alone | {"conc": 8}, study_row(conc=1)]), RunSpec())
    assert [(cell["label"], cell["concurrency"]) for cell in cells] == [
        ("gsm8k", 1), ("humaneval", 1), ("humaneval", 8),
    ]  # fmt: skip
    assert cells[0]["output_len_std"] == ""
    assert [cell["output_len_std"] for cell in cells[1:]] == [pytest.approx(50 / 1.6449, rel=1e-4)] * 2
    assert (cells[1]["output_len"], cells[1]["output_len_max"]) == (125, 256)


def test_a_gh200_cell_brings_its_own_rates_and_blocks(tmp_path: Path) -> None:
    names = ("output_tok_per_s", "ttft_mean_ms", "tpot_mean_ms", "tpot_p95_ms", "itl_chunk_p50_ms")
    keys = {"sweep": "s", "arm": "eagle-k2", "workload": "chat", "concurrency": "4"}
    cell = {**keys, "method": "eagle31", "k": "2", "requests": "6", "kv_pool_tokens": "1600", **dict.fromkeys(names, 1)}
    write(tmp_path / "cells.csv", [cell, cell | {"method": "dspark"}, cell | {"workload": "opb"}])
    rates = [keys | {"position": place, "accept_rate_at_position": rate} for place, rate in ((1, "0.3"), (0, "0.6"))]
    others = [keys | {"concurrency": "8", "position": 0, "accept_rate_at_position": "0.9"}]
    write(tmp_path / "per_position.csv", rates + others)
    run = run_of("GH200, Apertus 8B, vLLM 0.23, EAGLE-3 and DSpark", file="cells.csv")
    (row,) = sources.table(tmp_path / "cells.csv", run)
    assert (row["acceptance"], row["num_gpu_blocks"], row["num_prompts"]) == ("vllm:0.6,0.3", 100, "6")


BLIS = {
    "run": "20260217-1-llama-2-7b-tp1-codegen", "requested_rate": "5.0", "successes": "900", "failures": "100",
    "prompt_len_mean_tokens": "591.6", "output_len_mean_tokens": "101", "max_num_seqs": "128",
    "max_num_batched_tokens": "2048", "request_latency_mean_ms": "1030", "time_to_first_token_mean_ms": "30",
}  # fmt: skip


def test_an_open_loops_prompts_are_in_the_cache_and_overloaded_stages_are_left_out(tmp_path: Path) -> None:
    """592 tokens take 25 ms or more; what is computed anew are 16. Time per token comes from latencies."""
    stages = [BLIS, BLIS | {"requested_rate": ""}, BLIS | {"failures": "9000"}]
    write(tmp_path / "t.csv", stages)
    workload = {"num_prompts": 150, "num_warmups": 110, "burstiness": 1e6}
    run = run_of("H100, Llama-2-7B, vLLM 0.15, open loops", file="t.csv", workload=workload)
    ((judged,), _) = judge_run(run, tmp_path)
    assert judged.cell.measured == {"ttft_ms": 30.0, "tpot_ms": 10.0, "e2el_ms": 1030.0}
    assert (judged.cell.request_rate, judged.cell.input_len, judged.cell.num_prompts) == (5.0, 592, 900)
    assert 5.0 < (judged.metrics["ttft_ms"]["simulated"] or 0.0) < 35.0


def test_a_row_of_specbundle_is_a_pair_and_a_tree_of_drafts_is_refused(tmp_path: Path) -> None:
    row = {"target": "T", "dataset": "gsm8k", "batch_size": "1", "steps": "3", "topk": "1", "draft": "lmsys/head",
           "baseline_output_tok_per_s": "180", "output_tok_per_s": "360", "accept_len_incl_bonus": "2.5"}  # fmt: skip
    run = run_of("H200, EAGLE-3 under SGLang", file="t.csv", rows={})
    write(tmp_path / "t.csv", [row])
    plain, drafting = sources.cells_of_run(run, tmp_path)
    assert (plain.measured["output_throughput"], drafting.measured["output_throughput"]) == (180, 360)
    assert (drafting.num_speculative_tokens, drafting.acceptance, drafting.label) == (3, "length:2.5000", "gsm8k, head")
    write(tmp_path / "t.csv", [row | {"topk": "4"}])
    with pytest.raises(ValueError, match=r"^topk=4: trees of drafts are not simulated"):
        sources.cells_of_run(run, tmp_path)


def test_a_length_quoted_at_seven_is_exact_where_rounds_are_geometric_and_cut_shorter(tmp_path: Path) -> None:
    """Every drafted token is accepted with 1/2: of 128 rounds 64 accept none, 32 one, and so on."""
    counts = [accepted for accepted in range(7) for _ in range(64 >> accepted)] + [7]
    for stage in ("s1", "s1t0"):
        for drafter in ("dflash", "dspark"):
            write(tmp_path / f"tape_{stage}_{drafter}_fresh.csv", [{"accepted_draft": count} for count in counts])
    assert sources.length_at(counts, 7) == pytest.approx(2.0 - 2.0**-7)
    judged, _ = judge_run(RunSpec(reader="rounds"), tmp_path)
    assert len(judged) == 24
    assert max(abs(each.error_pct("acceptance_length") or 0.0) for each in judged) < 0.01


def test_pearls_cells_are_judged_where_their_data_set_did_not_fit(tmp_path: Path) -> None:
    """At batch 1 with 9 of 10 tokens accepted; the speed-ups are those of a window of 8."""
    row = {"gpu": "H200", "draft_model": "a/Small", "target_model": "a/Large", "batch_size": 1, "ar_tok_per_s": 40.0,
           "pearl_tok_per_s": 120.0, "pearl_mean_accepted_tokens_MAT": 9.0}  # fmt: skip
    write(tmp_path / "t.csv", [row | {"dataset": dataset} for dataset in ("AIME", "CNNDM", "GSM8K")])
    ((judged,), _) = judge_run(RunSpec(reader="pearl", file="t.csv", method="pearl"), tmp_path)
    assert (judged.cell.gpu, judged.cell.target, judged.cell.label) == ("H200", "large", "GSM8K, small")
    assert abs(judged.error_pct("speedup") or 99.0) < 5.0


def test_steps_of_another_engines_line_are_judged(tmp_path: Path) -> None:
    target = {"fixed": 5.9e-3, "per_batched_token": 2e-5, "per_kv_token": 4e-8}
    (tmp_path / "l.json").write_text(json.dumps({"target": target, "host_overhead_per_step": 1e-3}))
    run = RunSpec(reader="steps", file="l.json", profile=PROFILE, engine={"name": "vllm-0.9"})
    judged, _ = judge_run(run, tmp_path)
    assert judged[1].metrics["tpot_ms"]["real"] == pytest.approx(5.9 + 0.16 + 8 * 512 * 4e-5 + 1.0)
    assert len(judged) == 10


def test_the_models_of_tapes_are_judged_at_every_length(tmp_path: Path) -> None:
    tape = [1, 3, 2, 1, 1, 4, 3, 2, 1] * 4
    for name in ("gsm8k", "instructcoder", "sharegpt"):
        (tmp_path / f"acc_{name}.jsonl").write_text(json.dumps({"acc_eagle3": tape, "acc_ngram": tape}) + "\n")
    judged, _ = judge_run(RunSpec(reader="tapes"), tmp_path)
    assert {(each.cell.method, each.cell.num_speculative_tokens) for each in judged} == {
        (method, k) for method in ("eagle3", "ngram") for k in range(1, 8)
    }


def test_a_setting_of_power_is_left_out_by_its_neighbours_and_not_by_its_error(tmp_path: Path) -> None:
    powers = [(512, "0.74"), (1024, "0.72"), (2048, "0.35"), (8192, "0.0")]
    fixed = {"model": "llama2-70b", "hardware": "a100-80gb", "tensor_parallel": 8, "batch_size": 1, "token_size": 128}
    times = {"prompt_time": 200, "token_time": 50}
    rows = [{**fixed, **times, "prompt_size": prompt, "average_power": watts} for prompt, watts in powers]
    write(tmp_path / "t.csv", rows)
    run = RunSpec(reader="power", file="t.csv", method="llama2-70b")
    judged, _ = judge_run(run, tmp_path)
    assert [each.cell.input_len for each in judged] == [512, 1024]
    assert all(each.is_fit for each in judged)
    assert judged[0].metrics["power_w"]["real"] == pytest.approx(0.74 * 400.0)
    assert 50.0 < (judged[0].metrics["power_w"]["simulated"] or 0.0) < 400.0


def made_up(data: Path, gap_s: float) -> list[dict[str, Any]]:
    """Sections with a table of four cells, as the H100 profile with this gap would have measured them."""
    profile = with_constants(load(PROFILE), {"step_s": 0.0, "gap_s": gap_s})
    points = [{"isl": isl, "osl": 24, "batch": batch} for batch in (8, 16) for isl in (128, 512)]
    columns = {"isl": "input_len", "osl": "output_len", "batch": "concurrency"}
    bare = [{columns[name]: value for name, value in point.items()} | {"tpot_ms": 1} for point in points]
    engine = {"name": "trtllm-1.0", "max_num_seqs": 512, "max_num_batched_tokens": 8192}
    runs = [simulate_load(cell, profile, LoadSetup(engine=engine)) for cell in table_of("made up", bare).cells]
    kept = [
        {**point, "kind": "ours", "theirs_ms": run["mean_tpot_ms"]} for point, run in zip(points, runs, strict=True)
    ]
    write(data / "t.csv", [*kept, {**kept[0], "kind": "another", "theirs_ms": 1.0}])
    peer = [
        {"input_len": 512, "output_len": 24, "concurrency": 16, "tpot_ms": 0.5 * runs[-1]["mean_tpot_ms"], "ttft_ms": 1}
    ]
    write(data / "peer.csv", peer)
    renamed = {**{ours: name for name, ours in columns.items()}, "tpot_ms": "theirs_ms"}
    run = {
        "file": "t.csv", "columns": renamed, "rows": {"kind": "o*"}, "profile": PROFILE,
        "set": {"gpu": "H100", "engine": "trtllm-1.0", "target": "m", "peer": "other"}, "predicted": "peer.csv",
        "fits": [{"constants": ["step_s"], "metrics": ["tpot_ms"], "where": {"concurrency": 8}}], "engine": engine,
    }  # fmt: skip
    bars = [{"what": "TPOT, {n} cells", "metric": "tpot_ms", "mean": 3}]
    return [{"part": "h100", "title": "T", "source": "s", "fitted": "{fits}", "runs": [run], "bars": bars}]


def test_the_constant_behind_a_made_up_table_is_fitted_and_the_other_cells_are_right(tmp_path: Path) -> None:
    """The profile's own step time, which the made-up machine does not have, is beneath the planted gap."""
    host = load(PROFILE).host
    (spec,) = msgspec.convert(made_up(tmp_path, host.step_s + host.gap_s + 2e-3), list[SectionSpec])
    made = section_of(spec, tmp_path)
    assert [each.is_fit for each in made.judged] == [True, True, False, False]
    assert all(each.error_pct("tpot_ms") == pytest.approx(0.0, abs=2.0) for each in made.judged)
    assert made.bars[0].what == "TPOT, 2 cells: mean size of the error"
    assert made.fitted.startswith("step_s = ")
    assert made.fitted.endswith("on the mean tpot_ms of 2 cells, `concurrency=8`")


def test_the_tables_are_written_whole_and_the_command_says_what_could_not_be_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = tmp_path / "data", tmp_path / "tables"
    sections = made_up(data, 3e-3)
    sections.append({**sections[0], "part": "lost", "runs": [{"file": "none.csv"}]})
    first, lost = msgspec.convert(sections, list[SectionSpec])
    assert write_tables([first], data, out) == 0
    rows = csv_rows(out / CELLS)
    assert [row["role"] for row in rows] == ["fitted"] * 2 + ["judged"] * 2
    assert (rows[3]["run"], rows[3]["load"], rows[3]["workload"], rows[3]["decides"]) == ("T", "16", "512->24", "0")
    assert float(rows[3]["peer_tpot_ms"]) == pytest.approx(0.5 * float(rows[3]["tpot_ms"]), rel=1e-4)
    assert [row["metric"] for row in csv_rows(out / BARS)] == ["TPOT, 2 cells: mean size of the error"]
    assert csv_rows(out / FITS)[0]["what was fitted"].startswith("step_s = ")
    assert write_tables([first, lost], data, None) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith("T | TPOT, 2 cells: mean size of the error | ")
    assert "lost could not be run: none.csv: No such file or directory" in printed.err


def test_a_bar_is_met_by_the_size_of_its_error() -> None:
    assert BarLine("TTFT", -2.0, 1.5, is_size=False).texts() == ("TTFT", "-2.00 %", "1.5 %", "no")
    assert BarLine("E2EL", 1.0, 1.5, is_size=True).texts() == ("E2EL", "1.00 %", "1.5 %", "yes")
