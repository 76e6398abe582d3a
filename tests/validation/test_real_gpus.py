"""The page on real GPUs: replays beside what is simulated today, signs, and verify passes of a table."""

from __future__ import annotations

import warnings

import msgspec
import pytest

from sim.costs.profile_files import load
from sim.studies.evidence import measured
from validation.pages.real_gpus import OVER_DECODE, predicted_ms, replay_rows, replays, verify_errors


def test_replays_in_the_file_are_what_is_simulated_today() -> None:
    """Where a profile or the simulator moved: `python -m validation real_gpus`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ran = list(replays())
    assert ran == [cell for cell in measured().cells if cell.policy]
    assert len(ran) == 25


def test_what_was_predicted_of_the_h100_is_what_its_page_states_and_not_its_own_profile() -> None:
    stated = predicted_ms()
    assert len(stated) == 25
    assert stated["h100-sxm", 16, "pd"] == 1147.0
    assert stated["h200-sxm", 16, "pd"] == pytest.approx(0.961 * 966.6, abs=1.0)


def test_a_sign_is_right_where_both_sides_say_faster_slower_or_equal() -> None:
    cells = {cell.policy: cell for cell in measured().cells if (cell.gpu, cell.in_flight) == ("h100-sxm", 16)}
    beside = msgspec.structs.replace(cells["continuous"], measured_ms=1000.0, error_pct=0.0)
    for measured_ms, error_pct, sign in ((1100.0, 0.0, "right"), (1020.0, -4.0, "right"), (950.0, 10.0, "wrong")):
        one = msgspec.structs.replace(cells["pd"], measured_ms=measured_ms, error_pct=error_pct)
        assert [row["sign"] for row in replay_rows([one, beside])] == [sign, "–"]


def test_a_table_makes_of_decode_and_verify_the_same_error_and_profiles_say_what_is_beyond_it() -> None:
    errors = verify_errors()
    assert set(errors["K"]) == {1, 4, 7}
    assert errors["over_decode"].abs().max() < 0.06 < errors["verify"].abs().mean()
    stated = load("h200-sxm/qwen3-32b").errors["verify"]
    assert stated.held_out.startswith(OVER_DECODE)
    assert stated.mean_error_pct == pytest.approx(100.0 * errors["over_decode"].abs().mean(), abs=0.01)
    for name in ("h100-sxm/gpt-oss-120b", "a100-sxm/llama-3.1-8b"):
        assert load(name).errors["verify"].mean_error_pct is None
