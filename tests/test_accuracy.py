"""What makes docs/accuracy.md: figures are read, averaged and judged as said; a part that fails is reported."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from benchmarks.accuracy import main
from benchmarks.accuracy_acceptance import errors_pct, spec
from benchmarks.accuracy_cells import H100, SILICON, run_cells, study_cells
from benchmarks.accuracy_report import Line, Section, section_text, summary_text
from benchmarks.accuracy_runs import peer_figures
from realrun.validate.cells.compare import simulate_cell
from realrun.validate.cells.fit import with_constant
from realrun.validate.cells.table import parse_columns, read_cells
from sim.acceptance.forms import parse_acceptance
from sim.costs.profile_files import load

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
           "spec": "none", "k": 0, "wl": "gsm8k", "conc": 8, "tau": "", "ttft_mean": 100, "itl_mean": 10,
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
    assert (cells[0]["input_len"], cells[0]["output_len"], cells[0]["num_prompts"]) == (850, 256, 160)


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
    model = parse_acceptance("beta:13,8", 4)
    assert errors_pct(model, [model.expected_length(k) for k in range(1, 8)]) == [0.0] * 7
    assert spec(model) == "`beta:13,8`"


def write_silicon(data: Path, gap_s: float) -> Path:
    """A table of four cells as the H100 profile with this gap would have measured them."""
    profile = with_constant(with_constant(load(H100.profile), "step_s", 0.0), "gap_s", gap_s)
    path = data / SILICON
    path.parent.mkdir(parents=True)
    header = ["isl", "osl", "batch_size", "silicon_ttft_ms", "silicon_tpot_ms"]
    points = [(isl, 24, float(c)) for c in (8, 16) for isl in (128, 512)]

    def write(rows: list[tuple[float, ...]]) -> None:
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([header, *rows])

    columns = parse_columns("isl=input_len,osl=output_len,batch_size=concurrency,silicon_tpot_ms=tpot_ms")
    write([(*point, 1.0, 1.0) for point in points])
    found = [simulate_cell(cell, profile, H100.setup) for cell in read_cells(path, columns).cells]
    write([(*point, 99.0, each["mean_tpot_ms"]) for point, each in zip(points, found, strict=True)])
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
    text = out.read_text()
    assert text.count("| judged |") == text.count("| fit |") == 2
    assert "1 of 1 bars met." in text
    assert "step_s = " in text
    assert main([str(tmp_path / "data"), "--out", str(out), "--only", "h100", "--only", "a100"]) == 1
    assert "a100 could not be run: " in out.read_text()
