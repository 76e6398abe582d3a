"""`validate cells`: cells that the simulator measured itself have no error, a planted constant is found, defects are
one line each."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from calibrate.cli.validate_file import file_command
from calibrate.fit.constants import fit_constant
from calibrate.served.judge import LoadSetup, scenario_of, simulate_load, speedups, varied_requests
from calibrate.served.load import MEASURED, JudgedLoad, ServedLoad, judged_errors
from calibrate.served.load_table import read_cells
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from tests.realrun.recorded_runs import invoke, refusal, result_of

PAIR = "h100-sxm/llama-3.1-8b+eagle3"
POINTS = [
    {"label": "chat", "arm": arm, "concurrency": c, "input_len": 300, "output_len": 40, "num_speculative_tokens": k}
    for arm, k in (("none", 0), ("eagle3", 3))
    for c in (1, 4, 8)
]
METRICS = tuple(name for name in MEASURED if name != "power_w")
Row = dict[str, Any]


def write_table(path: Path, rows: Sequence[Row]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def measured(tmp_path: Path, profile: Profile, metrics: Sequence[str] = METRICS, waves: int = 10) -> Path:
    """The table of POINTS as a real engine that is `profile` would give it."""
    rows = [point | ({"acceptance_length": 2.5} if point["arm"] == "eagle3" else {"acceptance_length": ""})
            for point in POINTS]  # fmt: skip
    bare = write_table(tmp_path / "bare.csv", [row | {"tpot_ms": 1} for row in rows])
    cells = read_cells(bare).cells
    found = [simulate_load(cell, profile, LoadSetup(engine={}, waves=waves)) for cell in cells]
    return write_table(
        tmp_path / "cells.csv",
        [row | {name: each[MEASURED[name]] for name in metrics} for row, each in zip(rows, found, strict=True)],
    )


def test_cells_that_the_simulator_measured_have_no_error(tmp_path: Path) -> None:
    result = result_of(file_command, str(measured(tmp_path, load(PAIR))), "--profile", PAIR)
    assert [cell["policy"] for cell in result["cells"]] == ["autoregressive"] * 3 + ["continuous"] * 3
    assert [cell["num_prompts"] for cell in result["cells"]] == [10, 40, 80] * 2
    for cell in result["cells"]:
        assert tuple(cell["metrics"]) == METRICS
        for values in cell["metrics"].values():
            assert values["error_pct"] == pytest.approx(0.0, abs=1e-9)
    assert result["judged"]["tpot_ms"]["cells"] == 6
    assert result["judged"]["tpot_ms"]["mean_absolute_error_pct"] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("column", "text", "bounds"), [
    ("random_range_ratio", "[0.8, 1.0]", (800, 1000)),
    ("random_range_ratio", "0.2", (800, 1200)),
    ("length_range", "0.2", (800, 1200)),
])  # fmt: skip
def test_a_range_of_lengths_means_what_the_scenarios_key_means(
    column: str, text: str, bounds: tuple[int, int], tmp_path: Path
) -> None:
    row = {"concurrency": 4, "input_len": 1000, "output_len": 40, column: text, "tpot_ms": 1}
    table = read_cells(write_table(tmp_path / "cells.csv", [row]))
    workload = scenario_of(table.cells[0], load(PAIR), LoadSetup(engine={})).workload
    assert workload.bounds(1000) == bounds
    assert not table.unused
    listed = scenario_of(table.cells[0], load(PAIR), LoadSetup(engine={}, requests=[(9, 9)]))
    assert listed.workload.random_range_ratio is None


def test_without_an_arm_the_label_up_to_its_last_slash_pairs(tmp_path: Path) -> None:
    rows = [
        {"label": label, "concurrency": 2, "input_len": 50, "output_len": 20, "num_speculative_tokens": k,
         "acceptance": "iid:.6", "output_throughput": 100}
        for label, k in (("chat/none", 0), ("chat/eagle3", 2), ("code/eagle3", 2))
    ]  # fmt: skip
    result = result_of(file_command, str(write_table(tmp_path / "t.csv", rows)), "--profile", PAIR)
    assert [(pair["line"], pair["partners"], pair["real"]) for pair in result["speedups"]] == [(3, [2], 1.0)]
    assert result["notes"][0].startswith("1 of 2 drafting cells have no partner")


def test_the_search_ends_at_the_root() -> None:
    fitted = fit_constant(load(PAIR), "gap_s", lambda profile: 1e4 * (profile.host.gap_s - 3.21e-3))
    assert fitted.values_s == {"gap_s": pytest.approx(3.21e-3, abs=1e-8)}
    slow = fit_constant(load(PAIR), "gap_s", lambda profile: 5.0)
    assert (slow.values_s, slow.error_pct) == ({"gap_s": 0.0}, 5.0)
    with pytest.raises(ValueError, match="Does this constant act"):
        fit_constant(load(PAIR), "gap_s", lambda profile: -5.0)


def test_columns_that_mean_nothing_are_named(tmp_path: Path) -> None:
    rows = [{"model": "m", "input_len": 100, "output_len": "16", "concurrency": "8.0", "tpot_ms": 9.5}]
    path = write_table(tmp_path / "silicon.csv", rows)
    result = result_of(file_command, str(path), "--profile", PAIR)
    cell = result["cells"][0]
    assert (cell["concurrency"], cell["input_len"], cell["output_len"]) == (8, 100, 16)
    assert cell["metrics"]["tpot_ms"]["real"] == 9.5
    assert "columns that mean nothing here: model" in result["notes"]


def test_waves_and_the_tables_own_columns_size_a_cell(tmp_path: Path) -> None:
    rows = [{"concurrency": 4, "input_len": 100, "output_len": 16, "num_prompts": prompts, "max_num_seqs": seqs,
             "tpot_ms": 9} for prompts, seqs in (("", ""), (6, ""), ("", 1))]  # fmt: skip
    path = str(write_table(tmp_path / "t.csv", rows))
    cells = result_of(file_command, path, "--profile", PAIR, "--set", "engine.max_num_seqs=64")["cells"]
    assert [cell["num_prompts"] for cell in cells] == [40, 6, 40]
    assert cells[2]["metrics"]["tpot_ms"]["simulated"] < cells[0]["metrics"]["tpot_ms"]["simulated"]


def test_outputs_that_vary_keep_their_mean_and_stay_below_the_most(tmp_path: Path) -> None:
    row = {
        "concurrency": 4,
        "input_len": 100,
        "output_len": 50,
        "output_len_std": 20,
        "output_len_max": 60,
        "tpot_ms": 9,
    }
    cell = read_cells(write_table(tmp_path / "t.csv", [row])).cells[0]
    requests = varied_requests(cell, 40, seed=1)
    lengths = [request.output_tokens for request in requests]
    assert sum(lengths) == 40 * 50
    assert (min(lengths), max(lengths)) == (40, 60)
    assert lengths != sorted(lengths)
    assert [request.index for request in requests] == list(range(40))
    assert lengths == [request.output_tokens for request in varied_requests(cell, 40, seed=1)]


def test_the_result_is_written(tmp_path: Path) -> None:
    table, out = measured(tmp_path, load(PAIR)), tmp_path / "cells.json"
    done = invoke(file_command, str(table), "--profile", PAIR, "--json", str(out))
    assert done.exit_code == 0, done.exception
    assert done.stdout.startswith("The profile is 0 % off these 6 loads in time per token.")
    assert "errors over all loads" in done.stdout
    assert "…" not in done.stdout
    assert "speedups" in json.loads(out.read_text())


GOOD = {"concurrency": 2, "input_len": 50, "output_len": 8, "num_speculative_tokens": 0, "acceptance_length": "",
        "output_len_std": "", "output_len_max": "", "random_range_ratio": "", "tpot_ms": 7.5}  # fmt: skip
DRAFTS = {"num_speculative_tokens": 3}
HEAD = "concurrency,input_len,output_len,tpot_ms\n"
DEFECTS: list[tuple[Row | str, str]] = [
    ({"concurrency": ""}, "line 3: concurrency=''"),
    ({"tpot_ms": "nan"}, "line 3: tpot_ms='nan'"),
    ({"output_len_max": 7}, "line 3: output_len_max=7 is below the mean"),
    ({"output_len_std": -1}, "line 3: output_len_std='-1'"),
    ({"output_len_std": 2, "random_range_ratio": 0.2}, "line 3: both output_len_std and random_"),
    ({"random_range_ratio": "[0.8"}, "line 3: random_range_ratio='[0.8'"),
    ({"tpot_ms": ""}, "line 3: nothing measured"),
    (DRAFTS, "line 3: num_speculative_tokens=3 needs acceptance_length"),
    (DRAFTS | {"acceptance_length": 4.5}, "line 3: acceptance_length=4.5 must be in 1..4"),
    ({"input_len": 9_000_000}, "line 3: every request is rejected"),
    ("", "is empty"),
    (HEAD, "no load below its header"),
    (HEAD.replace("concurrency", "concurency") + "1,1,1,1\n", "Did you mean 'concurency'"),
    (HEAD + "1,1,1\n", "line 2: 3 fields, and the header has 4"),
    ("prompt_tokens,output_tokens\n", "has no request below its header"),
    ("prompt_tokens,output_tokens\n5,0\n", "line 2: output_tokens='0': it must be `int` >= 1"),
]
"""What a second cell changes, or the text of a table, or of a list of requests."""


@pytest.mark.parametrize(("defect", "named"), DEFECTS)
def test_a_defect_is_one_line_that_names_it(defect: Row | str, named: str, tmp_path: Path) -> None:
    path, more = write_table(tmp_path / "t.csv", [GOOD]), []
    if not isinstance(defect, str):
        write_table(path, [GOOD, {**GOOD, **defect}])
    elif defect.startswith("prompt_tokens"):
        (tmp_path / "r.csv").write_text(defect)
        more = [str(tmp_path / "r.csv")]
    else:
        path.write_text(defect)
    message = refusal(file_command, str(path), "--profile", PAIR, *more)
    assert "\n" not in message
    assert named in message


def test_the_words_of_other_tables_and_of_an_open_loop_are_read(tmp_path: Path) -> None:
    rows = [{"request_rate": 2.5, "input_len": 50, "output_len": 8, "k": 3, "acceptance": "iid:.6", "gpu": "H100",
             "role": "fitted", "output_tokens_per_s": 90}]  # fmt: skip
    (cell,) = read_cells(write_table(tmp_path / "t.csv", rows)).cells
    assert (cell.num_speculative_tokens, cell.gpu, cell.measured) == (3, "H100", {"output_throughput": 90.0})
    workload = scenario_of(cell, load(PAIR), LoadSetup(engine={}, workload={"num_prompts": 40})).workload
    assert (workload.request_rate, workload.max_concurrency, workload.num_prompts) == (2.5, None, 40)
    assert JudgedLoad.beside(cell, {"output_throughput": 81.0}).is_fit
    assert judged_errors([JudgedLoad.beside(cell, {"output_throughput": 81.0})], "output_throughput") == []


def test_a_speedup_of_times_is_the_partners_over_the_cells() -> None:
    plain, drafting = (
        JudgedLoad.beside(
            ServedLoad(concurrency=1, num_speculative_tokens=k, measured={"tpot_ms": tpot_ms}), {"tpot_ms": 6.0}
        )
        for k, tpot_ms in ((0, 6.0), (2, 4.0))
    )
    assert speedups([plain, drafting]) == []
    (pair,) = speedups([plain, drafting], "tpot_ms")
    assert (pair["real"], pair["simulated"]) == (pytest.approx(1.5), 1.0)


LISTED = [(100, 12), (900, 40), (30, 5), (300, 64)]


def listed_table(path: Path, **more: Any) -> Path:
    """Two cells without lengths of their own."""
    rows = [{"concurrency": c, "num_speculative_tokens": 0, "tpot_ms": 1.0, **more} for c in (1, 3)]
    return write_table(path, rows)


def write_list(path: Path) -> str:
    path.write_text("id,prompt_tokens,output_tokens\n" + "".join(f"x,{a},{b}\n" for a, b in LISTED))
    return str(path)


def test_listed_requests_are_served_in_whole_passes_and_cells_need_no_lengths(tmp_path: Path) -> None:
    requests = write_list(tmp_path / "r.csv")
    result = result_of(file_command, str(listed_table(tmp_path / "t.csv")), "--profile", PAIR,
                       requests)  # fmt: skip
    assert [cell["num_prompts"] for cell in result["cells"]] == [12, 32]
    assert [(cell["input_len"], cell["output_len"]) for cell in result["cells"]] == [(None, None)] * 2
    assert result["requests_per_pass"] == 4


def test_a_cell_of_listed_requests_is_the_loop_over_exactly_them(tmp_path: Path) -> None:
    cells = read_cells(listed_table(tmp_path / "t.csv", num_prompts=6), has_requests=True).cells
    found = simulate_load(cells[1], load(PAIR), LoadSetup(engine={}, requests=LISTED))
    in_order = [LISTED[index % 4] for index in range(6)]
    assert found["total_input_tokens"] == sum(prompt for prompt, _ in in_order)
    assert found["total_output_tokens"] == sum(output for _, output in in_order)


def test_lengths_beside_a_list_are_not_read_and_that_is_said(tmp_path: Path) -> None:
    table = str(listed_table(tmp_path / "t.csv", input_len=5000, output_len="about 30"))
    result = result_of(file_command, table, "--profile", PAIR, write_list(tmp_path / "r.csv"))
    assert result["cells"][0]["input_len"] is None
    assert "not read, since the requests are listed: input_len, output_len" in result["notes"]


def test_a_spread_of_requests_widens_the_tail_and_leaves_what_says_its_own(tmp_path: Path) -> None:
    row = {"concurrency": 1, "input_len": 64, "output_len": 200, "num_prompts": 60, "num_speculative_tokens": 3}
    rows = [row | {"acceptance": spec, "tpot_p95_ms": 5} for spec in ("vllm:.54,.33,.21", "vllm:.54,.33,.21~0")]
    cells = read_cells(write_table(tmp_path / "t.csv", rows)).cells
    spread = LoadSetup(engine={}, acceptance_spread=1.3)
    natural, unlike, alike = (
        simulate_load(cell, load(PAIR), setup)
        for cell, setup in ((cells[0], LoadSetup(engine={})), (cells[0], spread), (cells[1], spread))
    )
    assert unlike["mean_tpot_ms"] > natural["mean_tpot_ms"]
    assert unlike["p95_tpot_ms"] > 1.4 * alike["p95_tpot_ms"]
    assert 1.05 * alike["p95_tpot_ms"] < natural["p95_tpot_ms"] < 1.2 * alike["p95_tpot_ms"]
