"""Power by the use of the roofs, beside measured averages where those are at hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sim.metrics.energy import EXPONENT
from tests.calibrate.support import published
from validation.accuracy.power import FITTED, errors, fitted, read, splits, table

BAR = 0.15
PAGE = Path(__file__).parents[2] / "docs" / "validation" / "power.md"
COLUMNS = "model,hardware,prompt_size,batch_size,token_size,peak_power,average_power,prompt_time,token_time,e2e_time"


def test_the_exponent_is_what_the_fitted_rows_give() -> None:
    settings, _ = read(published("splitwise/perf_model.csv"))
    assert fitted([each for each in settings if each.model == FITTED]) == pytest.approx(EXPONENT, abs=0.001)


def test_average_power_is_as_far_off_as_the_page_says() -> None:
    settings, broken = read(published("splitwise/perf_model.csv"))
    assert (len(settings), len(broken)) == (41, 3)
    judged = np.abs(errors([each for each in settings if each.model != FITTED]))
    assert judged.max() < BAR
    for split in splits(settings):
        assert np.abs(errors(split.judged, fitted(split.fitted))).mean() < BAR / 2
    assert table(settings) in PAGE.read_text()


def test_a_setting_is_left_out_by_its_neighbours_and_not_by_its_error(tmp_path: Path) -> None:
    rows = [("512", "0.74"), ("1024", "0.72"), ("2048", "0.35"), ("4096", "0.18"), ("8192", "0.0")]
    lines = [f"llama2-70b,a100-80gb,{prompt},1,128,1.0,{power},200,50,6550,8" for prompt, power in rows]
    path = tmp_path / "perf_model.csv"
    path.write_text("\n".join([f"{COLUMNS},tensor_parallel", *lines]) + "\n")
    kept, broken = read(path)
    assert [each.prompt_tokens for each in kept] == [512, 1024]
    assert [each.prompt_tokens for each in broken] == [2048, 4096]
