"""Cells of SpecBundle: what is read, what is refused, and, where the public data lies, how near the fitted ones are."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from validation.accuracy.specbundle import FITTED, TABLE, cell_of, judge, read

DATA = Path(__file__).parents[3] / "shared/data"
ROW = {
    "target": FITTED,
    "dataset": "gsm8k",
    "batch_size": "1",
    "steps": "3",
    "topk": "1",
    "num_draft_tokens": "4",
    "draft": "lmsys/head",
    "baseline_output_tok_per_s": "180",
    "output_tok_per_s": "360",
    "accept_len_incl_bonus": "2.5",
    "speedup": "2",
}


def test_a_cell_has_its_set_up_and_what_was_measured() -> None:
    cell = cell_of(ROW)
    assert (cell.draft, cell.workload, cell.is_fitted) == ("lmsys/head", "gsm8k", True)
    assert (cell.k, cell.acceptance_length, cell.concurrency, cell.speedup) == (3, 2.5, 1, 2.0)


def test_only_the_8b_is_fitted() -> None:
    assert cell_of(ROW | {"target": "Llama-3.3-70B-Instruct"}).is_fitted is False
    assert cell_of(ROW | {"target": "Qwen3-30B-A3B-Instruct-2507"}).is_sparse
    assert not cell_of(ROW).is_sparse


def test_a_tree_of_drafts_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"^topk=4: trees of drafts are not simulated; want chains, topk=1$"):
        cell_of(ROW | {"topk": "4"})


@pytest.mark.skipif(not (DATA / TABLE).is_file(), reason="no public data here")
def test_cells_of_the_8b_are_what_the_engines_constants_were_fitted_on() -> None:
    judged = judge([cell for cell in read(DATA / TABLE) if cell.is_fitted])
    assert fmean(abs(each.error_pct) for each in judged) < 1.2
    assert abs(fmean(each.error_pct for each in judged)) < 0.2
    assert all(each.has_right_sign for each in judged)
