"""The leaderboard: its figures are those of the data that it is made of, and cells that judge nothing are apart."""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import fmean

import pytest

from validation.accuracy.specs import specs
from validation.pages.leaderboard import FOLDER, PAGE, PEERS, main
from validation.silicon.silicon_page import COLUMNS
from validation.tables import csv_rows

TITLES = {spec.part: spec.title for spec in specs()}
METRICS = ("tpot_ms", "ttft_ms", "e2el_ms")
SIDES = [f"{name}{side}" for name in (*METRICS, "speedup") for side in ("", "_simulated")]
PEER = [f"peer_{name}{side}" for name in METRICS for side in ("", "_real")]
HEADER = ",".join(["part,gpu,engine,method,workload,num_prompts,role", *SIDES, *PEER])
RUN = "runs,G,e,none,w,300,judged,,,100,98,100,103,,,99,100,104,100,105,100"
EVERY = """h100,H100,trtllm-1.0,none,w,,fitted,100,190,100,190,,,,,190,100,10,100,,
h100,H100,trtllm-1.0,none,w,,judged,100,103,100,70,,,,,99,100,50,100,,
open-loops,H100,vllm-0.19,none,"codegen, open loop",100,judged,,,100,100,100,50,,,,,,,,
open-loops,H100,vllm-0.19,none,"codegen, open loop",300,judged,,,100,112,100,62,,,,,,,,
gh200,GH200,vllm-0.23,eagle3,w,,judged,,,,,,,100,99,,,,,,
gh200,GH200,vllm-0.23,eagle3,w,,judged,,,,,,,100,103,,,,,,
gh200,GH200,vllm-0.23,eagle3,w,,fitted,,,,,,,100,180,,,,,,
"""
SERVED_CELLS = [
    ["a", "vllm dense fp8", "judged", 1, 1, 8, 0, -4.0, 10.0, 6.0, 30.0],
    ["b", "vllm dense fp8", "judged", 2, 1, 64, 1, 8.0, 90.0, -10.0, 95.0],
    ["c", "vllm moe fp8", "judged", 1, 4, 64, 0, 20.0, 40.0, 5.0, 50.0],
    ["alone", "vllm moe fp8", "judged", 1, 4, 64, 0, 70.0, 70.0, "", ""],
    ["seen", "vllm dense fp8", "fitted", 1, 1, 8, 0, 0.5, 2.0, 6.0, 30.0],
    ["odd", "vllm dense fp8", "doubtful", 1, 1, 8, 0, 400.0, 400.0, 300.0, 300.0],
]


@pytest.fixture
def lines(tmp_path: Path) -> list[str]:
    """The page of the cells above."""
    with (tmp_path / "served-cells.csv").open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *SERVED_CELLS])
    (tmp_path / "accuracy-cells.csv").write_text("\n".join([HEADER, RUN, RUN, RUN, EVERY]))
    (tmp_path / "left-out.csv").write_text("constant,engines,source,own_ms\nstep_s,all,one,1.5\n")
    rows = [f"b200-sxm fp8 1024/1024,8,1,{load},2.5,{error}" for load, error in ((64, 3.0), (4, -6.0), (8, 7.5))]
    head = "group,tensor_parallel,expert_parallel,concurrency,acceptance_length,error_pct"
    (tmp_path / "mtp-pairs.csv").write_text("\n".join([head, *rows, "b200-sxm fp8 1024/1024,8,8,4,2.5,-1.0\n"]))
    main(tmp_path / "page.md", tmp_path)
    return (tmp_path / "page.md").read_text().splitlines()


def test_the_page_is_of_the_data_that_it_is_made_of(tmp_path: Path) -> None:
    main(tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text() == PAGE.read_text(), "python -m validation leaderboard"


def test_the_first_line_has_the_means_of_the_committed_cells() -> None:
    cells = [row for row in csv_rows(FOLDER / "served-cells.csv") if row["role"] == "judged"]
    cells = [cell for cell in cells if cell["peer_tpot_error_pct"]]
    ours, theirs = (fmean(abs(float(cell[f"{who}tpot_error_pct"])) for cell in cells) for who in ("", "peer_"))
    first = PAGE.read_text().splitlines()[2]
    assert f"On {len(cells):,} measured serving cells" in first
    assert f"by {ours:.1f} %, aiconfigurator 0.12's by {theirs:.1f} %" in first


def test_means_are_over_judged_cells_that_both_predict_and_ttft_over_those_that_do_not_wait(lines: list[str]) -> None:
    assert "On 3 measured serving cells" in lines[2]
    assert "TPOT is off by 10.7 %, aiconfigurator 0.12's by 7.0 %; TTFT by 25.0 and 40.0 %" in lines[2]
    assert "| vLLM, dense | 2 | 2 | 6.0 / 8.0 | 10.0 / 30.0 |" in lines
    assert "| vLLM, mixtures of experts | 2 | 1 | 20.0 / 5.0 | 40.0 / 50.0 |" in lines
    assert "| 1 to 8 in flight | 1 | 1 | 4.0 / 6.0 | 10.0 / 30.0 |" in lines
    assert "| 33 to 128 in flight | 3 | 2 | 14.0 / 7.5 | 40.0 / 50.0 |" in lines
    assert [line.split(" | ")[:2] for line in lines if line.startswith(("| TP", "| data"))] == [
        ["| TP 1", "1"],
        ["| TP 2", "1"],
        ["| data-parallel attention", "2"],
    ]


def test_cells_that_judge_nothing_are_apart(lines: list[str]) -> None:
    assert "| fitted | 1 | 1 | 0.5 / 6.0 | 2.0 / 30.0 |" in lines
    assert "| doubtful | 1 | 1 | 400.0 / 300.0 | 400.0 / 300.0 |" in lines
    assert "| GH200, vllm-0.23, eagle3 | 2 | 2.0 (3.0) | 1 | 80.0 |" in lines


def test_drift_is_from_the_lowest_load_to_the_highest_of_one_deployment(lines: list[str]) -> None:
    name = "b200-sxm fp8 1024/1024, TP 8"
    assert f"| {name} | 3 | 4, 8, 64 | 2.5 | 5.5 | +9.0 |" in lines
    assert f"| {name}, EP 8 | 1 | 4 | 2.5 | 1.0 | – |" in lines


def test_losses_are_named(lines: list[str]) -> None:
    assert "behind in TPOT in 1 of 2 classes (vllm moe fp8); and in " in lines[2]
    assert f"worst where its E2EL is 41.0 % off ({TITLES['open-loops']}).**" in lines[2]


def test_a_run_has_its_means_and_none_where_a_constant_was_fitted(lines: list[str]) -> None:
    run = "RTX PRO 6000, Llama-3.1-8B, vLLM 0.19"
    assert f"| {run} | LLMServingSim | 1 | – / 1.0 | 2.0 / 4.0 | 3.0 / 5.0 |" in lines
    assert any(line.endswith("| aiconfigurator 0.12 | 1 | 3.0 / 1.0 | 30.0 / 50.0 | – |") for line in lines)
    assert f"| {TITLES['open-loops']} | Vidur | 1 | – | 9.0 / 13.6 | 41.0 / 2.4 |" in lines


def test_every_figure_of_another_simulator_has_its_source_and_date() -> None:
    assert all(peer["source"] and peer["date"] and float(peer["error_pct"]) > 0.0 for peer in csv_rows(PEERS))
