"""What makes docs/accuracy.md: figures are read, averaged and judged as said; a part that fails is reported."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from calibrate.judge.cell_table import parse_columns, read_cells
from calibrate.judge.cells import simulate_cell
from calibrate.judge.fit_cells import with_constants
from sim.acceptance.forms import parse_quoted
from sim.costs.profile_files import load
from validation.accuracy.acceptance import errors_pct, spec
from validation.accuracy.accuracy_page import CELLS, main
from validation.accuracy.closed_loops import H100, SILICON, run_cells, study_cells
from validation.accuracy.gh200 import MEASURED_COLUMNS, STUDY, gh200_table, setup
from validation.accuracy.matrix import crossing, draw_speedups, matrix_text
from validation.accuracy.sections import Line, Row, Section, section_text, summary_text
from validation.accuracy.timed_runs import peer_figures

pytest.importorskip("scipy")

SUMMARY = """Metric                           vLLM         Sim     Diff%
-----------------------------------------------------------
TTFT Mean                     65456.6     65820.2     +0.6%
TTFT P90                     121121.7    121881.8     +0.6%

Latency P95                      200.0       190.0     -5.0%
"""


def test_the_peers_figures_are_read_from_its_summary() -> None:
    found = peer_figures(SUMMARY)
    assert found["ttft", "mean"] == (65820.2, pytest.approx(0.5555, abs=1e-3))
    assert found["e2el", "p95"] == (190.0, pytest.approx(-5.0))
    assert len(found) == 2


def test_a_summary_without_figures_is_refused() -> None:
    with pytest.raises(ValueError, match="holds no figure"):
        peer_figures("nothing here")


def run_row(**changes: Any) -> dict[str, str]:
    row = {"phase": "phase2_results", "model": "meta-llama/Llama-3.1-8B-Instruct", "w": "fp16", "kv": "fp16",
           "spec": "none", "k": 0, "wl": "gsm8k", "conc": 8, "tau": "", "ttft_mean": 100, "itl_mean": 10, "itl_p50": 9,
           "e2e_mean": 3000, "goodput": 600, "nreq": 160, "tot_out": 40960, "e2e_p50": 3000, "e2e_p95": 3500,
           "wlp": '{"max_new_tokens": 256}'}  # fmt: skip
    return {name: str(value) for name, value in (row | changes).items()}


def test_repeats_of_both_phases_are_averaged_and_other_runs_left_out() -> None:
    speculative = {"spec": "eagle3", "k": 5, "tau": 2.8}
    cells = study_cells(
        [
            run_row(),
            run_row(phase="phase3_results", goodput=630),
            run_row(phase="phase3b_results", goodput=1),
            run_row(w="awq", goodput=1),
            run_row(**speculative),
            run_row(**speculative | {"tau": 3.0}),
        ]
    )
    assert [(cell["arm"], cell["output_throughput"], cell["acceptance_length"]) for cell in cells] == [
        ("none", 615.0, ""),
        ("eagle3", 600.0, pytest.approx(2.9)),
    ]
    assert (cells[0]["input_len"], cells[0]["output_len"], cells[0]["num_prompts"]) == (717, 256, 160)


def test_outputs_that_end_by_themselves_get_the_spread_that_e2el_shows_at_concurrency_one() -> None:
    """500 ms between median and 95th percentile are 50 tokens of 10 ms, 1.645 standard deviations."""
    alone = run_row(wl="humaneval", conc=1, tot_out=20000)
    cells = study_cells([alone, alone | {"conc": "8"}, run_row(conc=1)])
    assert [(cell["label"], cell["concurrency"]) for cell in cells] == [
        ("gsm8k", 1),
        ("humaneval", 1),
        ("humaneval", 8),
    ]
    assert cells[0]["output_len_std"] == ""
    assert [cell["output_len_std"] for cell in cells[1:]] == [pytest.approx(50 / 1.6449, rel=1e-4)] * 2
    assert (cells[1]["output_len"], cells[1]["output_len_max"]) == (125, 256)


def test_repeats_that_served_other_numbers_of_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="differ in nreq"):
        study_cells([run_row(), run_row(nreq=320)])


def test_a_line_is_judged_by_the_size_of_its_error_and_a_fit_by_none() -> None:
    lines = [
        Line(what="TTFT", real=100.0, simulated=98.0, error_pct=-2.0, bar_pct=1.5),
        Line(what="E2EL", real=100.0, simulated=101.0, error_pct=1.0, bar_pct=1.5),
        Line(what="TPOT", real=10.0, simulated=10.0, error_pct=0.0, is_fit=True),
    ]
    section = Section(title="A run", about=["source"], lines=lines)
    assert summary_text([section]).startswith("1 of 2 bars met.")
    text = section_text(section)
    assert "| TTFT | 100.0 | 98.00 | -2.00 % | 1.5 % | **no** |" in text
    assert "| TPOT | 10.00 | 10.00 | +0.00 % | fit |  |" in text


def test_the_error_of_a_model_against_itself_is_zero_at_every_length() -> None:
    model = parse_quoted("beta:13,8").model(4)
    assert errors_pct(model, [model.expected_length(k) for k in range(1, 8)]) == [0.0] * 7
    assert spec(model) == "`beta:13,8`"


def write_silicon(data: Path, gap_s: float) -> Path:
    """A table of four cells as the H100 profile with this gap would have measured them."""
    profile = with_constants(load(H100.profile), {"step_s": 0.0, "gap_s": gap_s})
    path = data / SILICON
    path.parent.mkdir(parents=True)
    header = ["isl", "osl", "batch_size", "silicon_ttft_ms", "silicon_tpot_ms", "id"]
    points = [(isl, 24, float(c)) for c in (8, 16) for isl in (128, 512)]

    def write(rows: list[tuple[float, ...]]) -> None:
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([header, *rows])

    columns = parse_columns("isl=input_len,osl=output_len,batch_size=concurrency,silicon_tpot_ms=tpot_ms")
    write([(*point, 1.0, 1.0, 0) for point in points])
    found = [simulate_cell(cell, profile, H100.setup) for cell in read_cells(path, columns).cells]
    pairs = enumerate(zip(points, found, strict=True))
    write([(*point, 99.0, each["mean_tpot_ms"], index) for index, (point, each) in pairs])
    return path


def write_peer(folder: Path) -> Path:
    """Another predictor that has half of the last cell's TPOT, and no other cell."""
    with (folder / "data" / SILICON).open(newline="") as file:
        last = list(csv.DictReader(file))[-1]
    path = folder / "peer.csv"
    path.write_text(f"id,aic_tpot_ms,aic_ttft_ms\n{last['id']},{0.5 * float(last['silicon_tpot_ms'])},\n")
    return path


def test_the_constant_behind_a_made_up_table_is_found_and_the_other_cells_are_right(tmp_path: Path) -> None:
    """The profile's own step time, which the made-up machine does not have, is beneath the planted gap."""
    profile = load(H100.profile)
    gap_s = profile.host.step_s + profile.host.gap_s + 2e-3
    columns = parse_columns("isl=input_len,osl=output_len,batch_size=concurrency,silicon_tpot_ms=tpot_ms")
    outcome = run_cells(H100, read_cells(write_silicon(tmp_path, gap_s), columns))
    assert [each.is_fit for each in outcome.judged] == [True, True, False, False]
    for each in outcome.judged:
        assert each.metrics["tpot_ms"]["error_pct"] == pytest.approx(0.0, abs=2.0)


def test_the_report_is_written_whole_and_says_what_could_not_be_run(tmp_path: Path) -> None:
    write_silicon(tmp_path / "data", 3e-3)
    out = tmp_path / "accuracy.md"
    assert main([str(tmp_path / "data"), "--out", str(out), "--only", "h100"]) == 0
    text, cells = out.read_text(), out.parent / CELLS
    every = cells.read_text()
    section = every[every.index("## H100") : every.index("## Every cell")]
    assert section.count("| judged |") == section.count("| fit |") == 2
    assert every[every.index("## Every cell") :].count("| H100 | trtllm-1.0 | none |") == 4
    assert "| H100 | trtllm-1.0 | llama-3.1-8b | none | 0 | 2 of 4 |" in text
    assert "trtllm-1.0 | none |" not in text
    assert text.index("1 of 1 bars met.") < text.index("## Errors by class") < text.index("## What was fitted")
    assert "step_s = " in text[text.index("## What was fitted") :]
    assert f"]({CELLS})" in text
    assert (
        main(
            [
                str(tmp_path / "data"),
                "--out",
                str(out),
                "--only",
                "h100",
                "--peer",
                str(write_peer(tmp_path)),
                "--overwrite",
            ]
        )
        == 0
    )
    assert "aiconfigurator 0.12: TPOT -50.0" in cells.read_text()
    assert main([str(tmp_path / "data"), "--out", str(out), "--only", "h100", "--only", "a100", "--overwrite"]) == 1
    assert all("a100 could not be run: " in page.read_text() for page in (out, cells))


def drafting_row(concurrency: int, real: float, simulated: float, k: int = 3, **changes: Any) -> Row:
    """A cell whose plain partner has 100 tokens per second on both sides."""
    fields: dict[str, Any] = {
        "gpu": "G", "engine": "e", "model": "m", "method": "eagle3", "workload": "chat", "is_fit": False, "k": k,
        "concurrency": str(concurrency), "speedup": (real, simulated), "throughput": (100 * real, 100 * simulated),
        "errors_pct": {"tok/s": 100.0 * (simulated / real - 1.0)},
    }  # fmt: skip
    return Row(**fields | changes)


def plain_row(concurrency: int) -> Row:
    return drafting_row(concurrency, 1.0, 1.0, k=0, method="none", speedup=None)


def test_a_crossing_lies_between_two_cells_on_their_logs() -> None:
    assert crossing([(32, 0.8), (1, 1.5), (8, 1.2)]) == pytest.approx(16.0)
    assert crossing([(1, 1.5), (8, 1.2)]) is None
    assert crossing([(1, 0.9), (8, 0.8)]) is None


def test_the_matrix_counts_signs_crossings_and_the_regret_of_the_best_draft_length() -> None:
    """At 8 lanesim would deploy k=3, which loses 10 % of the best, k=5; at 32 both deploy none. A measured speed-up
    within 5 % of 1 has no sign."""
    rows = [
        plain_row(8), drafting_row(8, 1.8, 1.9), drafting_row(8, 2.0, 1.7, k=5),
        plain_row(32), drafting_row(32, 0.9, 0.8), drafting_row(32, 0.97, 1.2, k=5, is_fit=True),
    ]  # fmt: skip
    text = matrix_text([*rows[:5], replace(rows[5], throughput=(97.0, 97.0))], None)
    decided = [line for line in text.splitlines() if line.startswith("| G | m | chat")]
    assert decided[0].startswith("| G | m | chat | eagle3 | 3 | 2 of 2 | 27 | 25 | -9.34 % |")
    assert decided[0].endswith("| 5.00 (10.00) |")
    assert decided[1] == "| G | m | chat | eagle3 | 5 | 1 of 1 | 31 | none |  |  |"
    assert len(decided) == 2
    assert "| G | e | m | eagle3 | 3 | 2 of 2 | 8.3 (11.1) |" in text
    assert "| G | e | m | eagle3 | 5 | 1 of 2 | 15.0 (15.0) |" in text


def test_the_figure_of_speedups_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("seaborn")
    draw_speedups([drafting_row(8, 1.8, 1.9), drafting_row(32, 0.9, 0.8, is_fit=True)], tmp_path / "f.png")
    assert (tmp_path / "f.png").stat().st_size > 10_000


def test_a_gh200_cell_brings_its_own_rates_blocks_and_requests(tmp_path: Path) -> None:
    folder = tmp_path / STUDY
    folder.mkdir(parents=True)
    cell = {"sweep": "s", "arm": "eagle-k2", "method": "eagle31", "k": "2", "workload": "chat", "concurrency": "4",
            "requests": "6", "output_tok_per_s": "100", "kv_pool_tokens": "1600"}  # fmt: skip
    cells = [cell, cell | {"method": "dspark"}, cell | {"workload": "opb"}]
    cells = [dict.fromkeys(MEASURED_COLUMNS.values(), "") | each for each in cells]
    write_rows(folder / "cells.csv", cells)
    rate = {name: cell[name] for name in ("sweep", "arm", "workload", "concurrency")}
    places = ((1, "0.3"), (0, "0.6"))
    write_rows(
        folder / "per_position.csv",
        [rate | {"position": place, "accept_rate_at_position": value} for place, value in places]
        + [rate | {"concurrency": "8", "position": 0, "accept_rate_at_position": "0.9"}],
    )
    (folder / "lengths_chat.csv").write_text("prompt_tokens,output_tokens\n50,9\n70,5\n")
    (found,) = gh200_table(folder, "chat").cells
    assert (found.acceptance, found.num_gpu_blocks, found.num_prompts) == ("vllm:0.6,0.3", 100, 6)
    assert setup(tmp_path, "chat").requests == [(50, 9), (70, 5)]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def test_another_method_is_decided_on_beside_the_same_plain_cells() -> None:
    """Each method's regret is over its own draft lengths: deploying none at 8 loses half of what DSpark gives."""
    rows = [plain_row(8), drafting_row(8, 1.8, 1.9), drafting_row(8, 2.0, 0.9, method="dspark")]
    decided = [line for line in matrix_text(rows, None).splitlines() if line.startswith("| G | m | chat")]
    assert decided == [
        "| G | m | chat | eagle3 | 3 | 1 of 1 | none | none |  | 0.00 (0.00) |",
        "| G | m | chat | dspark | 3 | 0 of 1 | none | none |  | 50.00 (50.00) |",
    ]
