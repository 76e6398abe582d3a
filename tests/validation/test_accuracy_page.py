"""docs/accuracy.md: its figures are those of the tables that it is made of, and README states the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pytest

from calibrate.served.load import JudgedLoad, ServedLoad
from sim.metrics.compared import compared
from validation.claims.ledger import ClaimVerdict, sections
from validation.judge.sections import FOLDER, JudgedSection, frame
from validation.judge.served_judge import REFUSED, SERVED, write_tables
from validation.judge.specs import SectionSpec
from validation.pages.accuracy import COLUMNS, PAGE, SET_UP, class_lines, crossing, decisions, groups, main
from validation.tables import csv_rows


def test_the_page_is_of_the_tables_that_it_is_made_of(tmp_path: Path) -> None:
    main(tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text() == PAGE.read_text(), "python -m validation accuracy_page"


def test_every_figure_of_another_simulator_has_its_source_and_date() -> None:
    peers = csv_rows(FOLDER / "peers.csv")
    assert all(peer["source"] and peer["date"] and float(peer["error_pct"]) > 0.0 for peer in peers)


def test_readme_states_the_figures_of_the_results() -> None:
    """Of the claims, of the atlas, and of the first table of docs/accuracy.md."""
    readme = " ".join((FOLDER.parents[1] / "README.md").read_text().split())
    claims = [claim for section in sections().values() for claim in section.claims]
    fitted = sum(claim.if_met is ClaimVerdict.FITTED for claim in claims)
    table = PAGE.read_text().partition("\n|")[2].partition("\n\n")[0].splitlines()
    figures = [
        f"{len(claims)} published figures. Constants were fitted on {fitted} of them.",
        f"the atlas of {len(csv_rows(FOLDER.parent / 'atlas.csv'))} published pairs",
        *table[2:],
    ]
    assert len(table) == 7
    assert [each for each in figures if each not in readme] == []


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
    result = tmp_path / "result.json"
    result.write_text(json.dumps({"cells": cells, "refusals": [["vllm moe fp8", "m", "b200-sxm", why]]}))
    write_tables([result], tmp_path)
    assert [list(row.values()) for row in csv_rows(tmp_path / SERVED.name)] == [
        ["a", "vllm moe fp8", "judged", "4", "1", "64", "0", "-4.0", "1.0", "20.0", "-50.0"],
        ["b", "vllm moe fp8", "doubtful", "4", "1", "64", "0", "40.0", "1.0", "20.0", "-50.0"],
        ["c", "vllm moe fp8", "judged", "4", "1", "64", "1", "99.0", "9.0", "", ""],
    ]
    refused = pd.read_csv(tmp_path / REFUSED.name)
    assert refused.to_numpy().tolist() == [["vllm moe fp8", "m", "b200-sxm", "x_config.json has no attention"]]
    lines = class_lines(pd.read_csv(tmp_path / SERVED.name), refused)
    assert lines.to_numpy().tolist() == [
        ["vllm moe fp8", "2", "1", "75.0 %", "51.5", "+47.5", "4.0", "20.0", "1.0", "1"]
    ]


def drafting(concurrency: int, real: float, simulated: float, k: int = 3, **changes: Any) -> JudgedLoad:
    """A cell whose plain partner has 100 tokens per second on both sides."""
    fields = {"gpu": "G", "engine": "e", "target": "m", "method": "eagle3", "label": "chat"} | changes
    metrics = {"output_throughput": compared(100 * real, 100 * simulated), "speedup": compared(real, simulated)}
    cell = ServedLoad(concurrency=concurrency, num_speculative_tokens=k, **fields)
    return JudgedLoad(cell=cell, metrics={**metrics} if k else {"output_throughput": metrics["output_throughput"]})


def plain(concurrency: int) -> JudgedLoad:
    return drafting(concurrency, 1.0, 1.0, k=0, method="none")


def table_of(judged: Sequence[JudgedLoad]) -> pd.DataFrame:
    spec = SectionSpec(part="p", title="A run", source="s", fitted="nothing", runs=[], decides=True)
    return frame([JudgedSection(spec, list(judged), [], "nothing")])


def decided(judged: Sequence[JudgedLoad]) -> list[list[str]]:
    lines: list[list[str]] = decisions(table_of(judged)).to_numpy().tolist()
    return lines


def test_a_crossing_lies_between_two_cells_on_their_logs() -> None:
    assert crossing([(32, 0.8), (1, 1.5), (8, 1.2)]) == pytest.approx(16.0)
    assert crossing([(1, 1.5), (8, 1.2)]) is None
    assert crossing([(1, 0.9), (8, 0.8)]) is None


def test_the_matrix_counts_signs_crossings_and_the_regret_of_the_best_draft_length() -> None:
    """At 8 lanesim would deploy k=3, which loses 10 % of the best, k=5; at 32 both deploy none. A measured speed-up
    within 5 % of 1 has no sign."""
    last = drafting(32, 0.97, 1.2, k=5, role="fitted")
    level = {**last.metrics, "output_throughput": compared(97.0, 97.0)}
    judged = [
        plain(8), drafting(8, 1.8, 1.9), drafting(8, 2.0, 1.7, k=5),
        plain(32), drafting(32, 0.9, 0.8), msgspec.structs.replace(last, metrics=level),
    ]  # fmt: skip
    first, second = decided(judged)
    assert first == ["G", "m", "chat", "eagle3", "3", "2 of 2", "27", "25", "-9.3 %", "5.00 (10.00)"]
    assert second == ["G", "m", "chat", "eagle3", "5", "1 of 1", "31", "none", "", ""]
    _, three, five = groups(table_of(judged), SET_UP, COLUMNS).to_numpy().tolist()
    assert three[:7] == ["G", "e", "m", "eagle3", "3", "2 of 2", "8.3 (11.1)"]
    assert five[:7] == ["G", "e", "m", "eagle3", "5", "1 of 2", "15.0 (15.0)"]
