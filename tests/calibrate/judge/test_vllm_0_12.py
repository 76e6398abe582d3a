"""The shipped profile of Qwen3-32B on two H100s: constants from ten measured cells, and how it meets others."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from calibrate.judge.cell_table import parse_columns, read_cells
from calibrate.judge.cells import Setup, judge_cells, summary
from sim.costs.compact_kernels import CompactKernels
from sim.costs.engine_costs import engine_of
from sim.costs.profile_files import load
from tests.calibrate.support import published

NAME = "h100-sxm/qwen3-32b-tp2"
SETUP = Setup(engine={"max_num_seqs": 1024, "max_num_batched_tokens": 8192}, waves=5)


def test_the_profile_names_its_engine_and_the_cells_that_its_constants_are_from() -> None:
    profile = load(NAME)
    assert (profile.conditions, profile.tensor_parallel, engine_of(None, profile).name) == ("served", 2, "vllm-0.12")
    assert profile.host.source.count("_tp2_epnone_") == 10
    assert isinstance(profile.kernels, CompactKernels)
    assert profile.kernels.body_ratios == ((128, 1.0), (2048, 1.168))


@pytest.mark.slow
def test_cells_that_it_was_not_fitted_on_are_met_within_5_percent(tmp_path: Path) -> None:
    """Mean size over the four of 1,024 prompt and 512 or 1,024 output tokens at concurrency 8 to 32 that are not named;
    over all twenty it is 2.5 %."""
    profile = load(NAME)
    rows = []
    with published("aiconfigurator/silicon_visible.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            is_one = row["system"] == "h100_sxm" and "32B" in row["model_path"] and row["tp_size"] == "2"
            if is_one and row["backend"] == "vllm" and not row["precision"] and row["id"] not in profile.host.source:
                rows.append(row)
    assert len(rows) == 20
    path = tmp_path / "cells.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["concurrency", "input_len", "output_len", "output_len_std", "num_gpu_blocks", "tpot_ms"])
        for row in rows:
            if int(row["osl"]) > 128 and int(row["batch_size"]) <= 32 and int(row["isl"]) == 1024:
                lengths = [row["batch_size"], row["isl"], row["osl"], 0.05 * int(row["osl"]), 18433]
                writer.writerow([*lengths, row["silicon_tpot_ms"]])
    table = read_cells(path, parse_columns(None))
    judged = judge_cells(table, profile, SETUP)
    error_pct = summary(judged)["tpot_ms"]["mean_absolute_error_pct"]
    assert error_pct is not None
    assert error_pct < 5.0
