"""The page of served cells: shares of rows, and every cell beside the peer's."""

from __future__ import annotations

import csv
from typing import Any

from validation.silicon.silicon_page import all_lines, lines, share_of, table_text

THEIRS = {"aic_tpot_ms": "12", "silicon_tpot_ms": "10", "aic_ttft_ms": "50", "silicon_ttft_ms": "100"}
PEER = {name: {"id": name, **THEIRS} for name in ("a", "b")}


def cell(name: str, error_pct: float, *, is_doubtful: bool = False) -> dict[str, Any]:
    return {
        "id": name,
        "class": "vllm moe fp8",
        "tensor_parallel": 4,
        "data_parallel": 1,
        "concurrency": 64,
        "tpot_error_pct": error_pct,
        "ttft_error_pct": 1.0,
        "is_fitted_on": False,
        "is_doubtful": is_doubtful,
        "is_starved": False,
    }


RESULT = {
    "cells": [cell("a", -4.0), cell("b", 40.0, is_doubtful=True), cell("c", 99.0)],
    "classes": [{"class": "vllm moe fp8", "refused": 1}, {"class": "vllm moe fp8 (labels in doubt)", "refused": 0}],
}


def test_every_cell_is_a_line_of_the_table_with_its_role_and_the_peers_error() -> None:
    _, *found = list(csv.reader(table_text([RESULT], PEER).splitlines()))
    assert found == [
        ["a", "vllm moe fp8", "judged", "4", "1", "64", "0", "-4.0", "1.0", "20.0", "-50.0"],
        ["b", "vllm moe fp8", "doubtful", "4", "1", "64", "0", "40.0", "1.0", "20.0", "-50.0"],
        ["c", "vllm moe fp8", "judged", "4", "1", "64", "0", "99.0", "1.0", "", ""],
    ]


def test_a_class_says_which_share_of_its_rows_is_expressed() -> None:
    plain, doubtful = lines([RESULT], PEER).splitlines()[2:]
    assert plain.startswith("| vllm moe fp8 | 2 | 1 | 75.0 % | 51.5 |")
    assert doubtful.startswith("| vllm moe fp8 (labels in doubt) | 1 | 0 |  | 40.0 |")
    assert (share_of(0, 0), share_of(0, 3)) == ("", "0.0 %")


def test_all_cells_are_shown_as_well() -> None:
    """The doubtful one and the starved one among them."""
    assert all_lines([RESULT]).splitlines()[-1].startswith("| vllm moe fp8 | 3 | ")
