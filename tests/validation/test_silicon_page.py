"""The page of served cells: shares of rows, and means by engine beside the peer's."""

from __future__ import annotations

from typing import Any

from validation.silicon.page import all_lines, engine_lines, lines, share_of

PEER = {name: {"id": name, "aic_tpot_ms": "12", "silicon_tpot_ms": "10"} for name in ("a", "b")}


def cell(name: str, error_pct: float, *, is_doubtful: bool = False) -> dict[str, Any]:
    return {
        "id": name,
        "class": "vllm moe fp8",
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


def test_an_engines_means_are_over_what_both_predict_without_and_with_the_cells_apart() -> None:
    assert engine_lines([RESULT], PEER)[-1] == "| vllm | 4 | 75.0 % | 1 | 4.0 | 20.0 | 2 | 22.0 | 20.0 |"


def test_a_class_says_which_share_of_its_rows_is_expressed() -> None:
    plain, doubtful = lines([RESULT], PEER)[2:]
    assert plain.startswith("| vllm moe fp8 | 2 | 1 | 75.0 % | 51.5 |")
    assert doubtful.startswith("| vllm moe fp8 (labels in doubt) | 1 | 0 |  | 40.0 |")
    assert (share_of(0, 0), share_of(0, 3)) == ("", "0.0 %")


def test_all_cells_are_shown_as_well() -> None:
    """The doubtful one and the starved one among them."""
    assert all_lines([RESULT])[-1].startswith("| vllm moe fp8 | 3 | ")
