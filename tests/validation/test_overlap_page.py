"""Published comparisons of streams beside what phi makes of them, on figures made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from validation.pages import overlap
from validation.pages.overlap import StreamPair, cells, error_points, partitioned, report

CORUN = """source,gpu,model,what,metric,one_stream,two_plain_streams,unit,use
a,G,m,decode beside a chunk of 100,decode gap p99,30,29,ms,phi was chosen on it
a,G,m,decode beside a chunk of 200,decode gap p99,50,50,ms,phi was chosen on it
b,H,m,closed loop c=16,TPOT mean,12,11,ms,judge
b,H,m,closed loop c=8,TPOT mean,9,8.9,ms,judge
b,H,m,injected,decode gap p99,40.0,26,ms,judge
"""
MODES = """table,gpu,mode,isl,osl,qps,concurrency,tpot_mean_ms,ttft_p50_ms,itl_p50_ms,itl_p99_ms,decode_only_itl_p50_ms
t,H,off,8,4,,16,12,110,10,100,
t,H,stream,8,4,,16,11,100,10,80,
t,H,green,8,4,,16,9,,10,80,
t,H,off,8,4,,1,10,50,10,11,
t,H,stream,8,4,,1,10.1,51,10,11,
i,H,off,8,1,0.5,,,,9,40.04,10
"""


def found(tmp_path: Path) -> list[StreamPair]:
    (tmp_path / "corun.csv").write_text(CORUN)
    (tmp_path / "modes.csv").write_text(MODES)
    return cells(tmp_path / "corun.csv", tmp_path / "modes.csv")


def test_each_cell_stands_once_with_the_times_that_were_published(tmp_path: Path) -> None:
    judge, first, one, _, short, long, gap, bare = found(tmp_path)
    assert (judge.change_pct, judge.alone, judge.prefill) == (pytest.approx(-100 / 12), 10.0, 90.0)
    assert judge.predicted_pct(0.0) == 0.0
    assert judge.predicted_pct(1.0) == pytest.approx(-100.0 * 2 / 12)
    assert judge.predicted_pct(0.07) == pytest.approx(-100.0 * (1.0 - 0.837 / 0.907) * 2 / 12)
    # Decode loses 0.9 * 0.93 / (0.9 + 0.007) of the time of 90 beside 10; that takes 90 / 0.907 in place of 100.
    assert (first.metric, first.predicted_pct(0.0)) == ("TTFT median", pytest.approx(0.0))
    assert first.predicted_pct(0.07) == pytest.approx(100.0 * (0.9 / 0.907 - 1.0))
    assert (one.change_pct, one.predicted_pct(0.07)) == (pytest.approx(1.0), 0.0)
    # A step of 10 beside 30 goes at 0.25 + 0.07 * 0.75.
    assert (gap.one, gap.predicted_pct(0.0)) == (40.0, pytest.approx(0.0))
    assert gap.predicted_pct(0.07) == pytest.approx(100.0 * (10.0 / 0.3025 / 40.0 - 1.0))
    # 30 and 50 over 100 and 200 tokens: 10 without a chunk.
    assert [(cell.alone, cell.prefill) for cell in (short, long)] == [(10.0, 20.0), (10.0, 40.0)]
    assert (bare.one, bare.predicted_pct(0.07)) == (9.0, None)


def test_only_judging_changes_of_tpot_count_towards_the_bar(tmp_path: Path) -> None:
    own = found(tmp_path)
    predicted = own[0].predicted_pct(0.07)
    assert predicted is not None
    assert error_points(own) == pytest.approx((predicted + 100 / 12 + 1.0) / 2.0)
    assert error_points(own[3:]) is None
    text = report(own)
    assert "bar 3: not met" in text
    assert (
        text.index("judge phi") < text.index("H, t, 8->4, c=16") < text.index("chosen on:") < text.index("chunk of 100")
    )


def test_a_share_of_multiprocessors_beside_a_prefill_shortens_gaps_and_delays_first_tokens() -> None:
    """Decode alone takes 10 of 100; on a fifth, 1 / (0.835 + 0.165 / 0.2) of its rate."""
    keys = [
        "gpu",
        "table",
        "model",
        "engine",
        "mode",
        "isl",
        "osl",
        "qps",
        "tpot_mean_ms",
        "ttft_mean_ms",
        "itl_p99_ms",
        "tpot_p50_ms",
    ]
    rows = [
        ["H", "a", "m", "e", "off", "8", "4", "8", "15", "60", "100", ""],
        ["H", "a", "m", "e", "green-ctx 20%", "8", "4", "8", "14", "90", "30", ""],
        ["H", "b", "m", "e", "off", "8", "4", "1", "", "", "", "10"],
        ["H", "b", "m", "e", "off", "8", "4", "2", "", "", "", "11"],
    ]
    found = partitioned([dict(zip(keys, row, strict=True)) for row in rows])
    tpot, ttft, gap = (cell.predicted_pct(0.0) for cell in found)
    assert (found[0].alone, found[0].prefill) == (10.0, 90.0)
    assert tpot is not None
    assert ttft is not None
    assert tpot < 0.0 < ttft
    assert gap == pytest.approx(100.0 * (10.0 * (0.835 + 0.165 / 0.2) / 100.0 - 1.0), rel=0.01)


def test_deferred_prompts_have_later_first_tokens_in_runs_and_decode_shorter_gaps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The signs that were measured on an RTX 5090; prompts that begin when they come show hardly any of the first."""
    monkeypatch.setattr(overlap, "NUM_PROMPTS", 300)
    found = overlap.simulated({"osl": "128", "qps": "8"}, 974)
    assert found.deferred["TPOT mean"] < 0.0
    assert found.deferred["ITL p99"] < 0.0
    assert found.deferred["TTFT mean"] > 10.0 > found.at_once["TTFT mean"]


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text("gpu,what\n")
    with pytest.raises(ValueError, match="has no rows; want a CSV with a header"):
        cells(tmp_path / "empty.csv", tmp_path / "empty.csv")
