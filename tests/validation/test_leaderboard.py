"""The leaderboard: its figures are those of the data that it is made of, and cells that judge nothing are apart."""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import fmean

import pytest

from validation.accuracy.specs import specs
from validation.pages.leaderboard import FOLDER, PAGE, PEERS, SERVED, page
from validation.silicon.silicon_page import COLUMNS

TITLES = {spec.part: spec.title for spec in specs()}
METRICS = ("tpot_ms", "ttft_ms", "e2el_ms")
SIDES = [f"{name}{side}" for name in (*METRICS, "speedup") for side in ("", "_simulated")]
PEER = [f"peer_{name}{side}" for name in METRICS for side in ("", "_real")]
HEADER = ",".join(["part,gpu,engine,method,workload,num_prompts,role", *SIDES, *PEER])
RUN = "runs,G,e,none,w,300,judged,,,100,98,100,103,,,99,100,104,100,105,100"
EVERY = """h100,H100,trtllm-1.0,none,w,,fitted,100,190,100,190,,,,,190,100,10,100,,
h100,H100,trtllm-1.0,none,w,,judged,100,103,100,70,,,,,99,100,50,100,,
open-loops,H100,vllm-0.19,none,"codegen, open loop",100,judged,,,100,100,100,50,,,,,,,,
open-loops,H100,vllm-0.19,none,"codegen, open loop",300,judged,,,100,111,100,63,,,,,,,,
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
def folder(tmp_path: Path) -> Path:
    with (tmp_path / SERVED).open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *SERVED_CELLS])
    (tmp_path / "accuracy-cells.csv").write_text("\n".join([HEADER, RUN, RUN, RUN, EVERY]))
    (tmp_path / "left-out.csv").write_text("constant,engines,source,own_ms\nstep_s,all,one,1.5\n")
    rows = [f"b200-sxm fp8 1024/1024,8,1,{load},2.5,{error}" for load, error in ((64, 3.0), (4, -6.0), (8, 7.5))]
    head = "group,tensor_parallel,expert_parallel,concurrency,acceptance_length,error_pct"
    (tmp_path / "mtp-pairs.csv").write_text("\n".join([head, *rows, "b200-sxm fp8 1024/1024,8,8,4,2.5,-1.0\n"]))
    return tmp_path


def line(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(f"| {start} |"))


def test_the_page_is_of_the_data_that_it_is_made_of() -> None:
    assert PAGE.read_text() == page(), "python -m validation leaderboard"


def test_the_first_line_has_the_means_of_the_committed_cells() -> None:
    with (FOLDER / SERVED).open(newline="") as file:
        cells = [cell for cell in csv.DictReader(file) if cell["role"] == "judged" and cell["peer_tpot_error_pct"]]
    ours, theirs = (fmean(abs(float(cell[f"{who}tpot_error_pct"])) for cell in cells) for who in ("", "peer_"))
    first = PAGE.read_text().splitlines()[2]
    assert first.startswith(
        f"**On {len(cells):,} measured serving cells that nobody fitted on, lanesim's TPOT is off by"
    )
    assert f"by {ours:.1f} %, aiconfigurator 0.12's by {theirs:.1f} %" in first


def test_means_are_over_judged_cells_that_both_predict_and_ttft_over_those_that_do_not_wait(folder: Path) -> None:
    text = page(folder)
    assert "On 3 measured serving cells" in text
    assert "TPOT is off by 10.7 %, aiconfigurator 0.12's by 7.0 %; TTFT by 25.0 and 40.0 %" in text
    assert line(text, "vLLM, dense") == "| vLLM, dense | 2 | 2 | 6.0 / 8.0 | 10.0 / 30.0 |"
    assert line(text, "vLLM, mixtures of experts") == "| vLLM, mixtures of experts | 2 | 1 | 20.0 / 5.0 | 40.0 / 50.0 |"
    assert line(text, "33 to 128 in flight").startswith("| 33 to 128 in flight | 3 | 2 | 14.0 / 7.5 |")
    assert line(text, "TP 1").startswith("| TP 1 | 1 |")
    assert line(text, "data-parallel attention").startswith("| data-parallel attention | 2 |")


def test_cells_that_judge_nothing_are_apart(folder: Path) -> None:
    assert line(page(folder), "fitted") == "| fitted | 1 | 1 | 0.5 / 6.0 | 2.0 / 30.0 |"
    assert line(page(folder), "doubtful") == "| doubtful | 1 | 1 | 400.0 / 300.0 | 400.0 / 300.0 |"
    assert line(page(folder), "GH200, vllm-0.23, eagle3") == "| GH200, vllm-0.23, eagle3 | 2 | 2.0 (3.0) | 1 | 80.0 |"


def test_drift_is_from_the_lowest_load_to_the_highest_of_one_deployment(folder: Path) -> None:
    name = "b200-sxm fp8 1024/1024, TP 8"
    assert line(page(folder), name) == f"| {name} | 3 | 4, 8, 64 | 2.5 | 5.5 | +9.0 |"
    assert line(page(folder), f"{name}, EP 8") == f"| {name}, EP 8 | 1 | 4 | 2.5 | 1.0 | – |"


def test_losses_are_named(folder: Path) -> None:
    first = page(folder).splitlines()[2]
    assert "behind in TPOT in 1 of 2 classes (vllm moe fp8); and in " in first
    assert f"worst where its E2EL is 40.2 % off ({TITLES['open-loops']}).**" in first


def test_a_run_has_its_means_and_none_where_a_constant_was_fitted(folder: Path) -> None:
    text = page(folder)
    assert line(text, "RTX PRO 6000, Llama-3.1-8B, vLLM 0.19").endswith(
        "| LLMServingSim | 1 | – / 1.0 | 2.0 / 4.0 | 3.0 / 5.0 |"
    )
    assert "| aiconfigurator 0.12 | 1 | 3.0 / 1.0 | 30.0 / 50.0 | – |" in text
    assert f"| {TITLES['open-loops']} | Vidur | 1 | – | 8.2 / 13.6 | 40.2 / 2.4 |" in text


def test_every_figure_of_another_simulator_has_its_source_and_date() -> None:
    with PEERS.open(newline="") as file:
        peers = list(csv.DictReader(file))
    assert all(peer["source"] and peer["date"] and float(peer["error_pct"]) > 0.0 for peer in peers)
