"""The page of served cells, and every cell beside the peer's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from validation.judge.served_judge import write_page
from validation.tables import csv_rows


def cell(name: str, error_pct: float, role: str, **others: Any) -> dict[str, Any]:
    labels = {"tensor_parallel": 4, "data_parallel": 1, "concurrency": 64, "is_starved": False}
    return {
        "id": name, "class": "vllm moe fp8", "role": role, **labels, "tpot_error_pct": error_pct, "ttft_error_pct": 1.0,
        **others,
    }  # fmt: skip


def test_every_cell_is_a_line_of_the_table_and_in_a_class_of_the_page(tmp_path: Path) -> None:
    peer = {"peer_tpot_error_pct": 20.0, "peer_ttft_error_pct": -50.0}
    late = cell("c", 99.0, "judged", ttft_error_pct=9.0, is_starved=True)
    cells = [cell("b", 40.0, "doubtful", **peer), late, cell("a", -4.0, "judged", **peer)]
    why = "'/tables/x_config.json' has no attention. Give one of a, b"
    result, out, table = tmp_path / "result.json", tmp_path / "page.md", tmp_path / "cells.csv"
    result.write_text(json.dumps({"cells": cells, "refusals": [["vllm moe fp8", "m", "b200-sxm", why]]}))
    write_page([result], out, table)
    assert [list(row.values()) for row in csv_rows(table)] == [
        ["a", "vllm moe fp8", "judged", "4", "1", "64", "0", "-4.0", "1.0", "20.0", "-50.0"],
        ["b", "vllm moe fp8", "doubtful", "4", "1", "64", "0", "40.0", "1.0", "20.0", "-50.0"],
        ["c", "vllm moe fp8", "judged", "4", "1", "64", "1", "99.0", "9.0", "", ""],
    ]
    lines = out.read_text().splitlines()
    assert "| vllm moe fp8 | 2 | 1 | 75.0 % | 51.5 | +47.5 | 4.0 | 20.0 | 1.0 | 1 |" in lines
    assert "| vllm moe fp8 (labels in doubt) | 1 | 0 | – | 40.0 | +40.0 | 40.0 | 20.0 | 1.0 | 1 |" in lines
    assert "| vllm moe fp8 | 3 | 47.7 | 40.0 | 3.7 | 1.0 |" in lines
    assert lines[-1] == "- vllm moe fp8, m on b200-sxm: x_config.json has no attention"
