"""Published comparisons of streams beside what phi makes of them, on figures made by hand."""

from __future__ import annotations

from io import StringIO

import pandas as pd
import pytest

from sim.devices.partition import MEASURED
from validation.pages import overlap
from validation.pages.overlap import Dynamic, cells_of, error_points, partitioned, predicted_pct, report

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
SHARES = """gpu,table,model,engine,mode,isl,osl,qps,tpot_mean_ms,ttft_mean_ms,itl_p99_ms,tpot_p50_ms
H,a,m,e,off,8,4,8,15,60,100,
H,a,m,e,green-ctx 20%,8,4,8,14,90,30,
H,b,m,e,off,8,4,1,,,,10
H,b,m,e,off,8,4,2,,,,11
"""


@pytest.fixture
def cells() -> pd.DataFrame:
    return cells_of(pd.read_csv(StringIO(CORUN)), pd.read_csv(StringIO(MODES)))


def test_each_cell_stands_once_with_the_times_that_were_published(cells: pd.DataFrame) -> None:
    assert cells["metric"].tolist() == ["TPOT mean", "TTFT median"] * 2 + ["decode gap p99"] * 3 + ["TPOT mean"]
    # 30 and 50 over 100 and 200 tokens: 10 without a chunk. A single request has nothing prefilled beside it.
    assert cells["alone"].tolist()[:7] == [10.0] * 7
    assert cells["prefill"].tolist()[:7] == [90.0, 90.0, 0.0, 0.0, 20.0, 40.0, 30.0]
    serial, assumed, full = (predicted_pct(cells, phi).tolist() for phi in (0.0, 0.07, 1.0))
    assert serial[:7] == pytest.approx([0.0] * 7)
    assert full[0] == pytest.approx(-100.0 * 2 / 12)
    # Decode loses 0.9 * 0.93 / (0.9 + 0.007) of the time of 90 beside 10; that takes 90 / 0.907 in place of 100.
    assert assumed[:3] == pytest.approx([-100.0 * (1.0 - 0.837 / 0.907) * 2 / 12, 100.0 * (0.9 / 0.907 - 1.0), 0.0])
    # A step of 10 beside 30 goes at 0.25 + 0.07 * 0.75.
    assert assumed[6] == pytest.approx(100.0 * (10.0 / 0.3025 / 40.0 - 1.0))
    assert pd.isna(assumed[7])


def test_only_judging_changes_of_tpot_count_towards_the_bar(cells: pd.DataFrame) -> None:
    predicted = predicted_pct(cells, 0.07)[0]
    assert error_points(cells) == pytest.approx((predicted + 100 / 12 + 1.0) / 2.0)
    changes = {"TPOT mean": -1.0, "TTFT mean": 1.0, "ITL p99": 1.0}
    profile = overlap.load(overlap.SIMULATED_ON)
    text = report(cells, partitioned(pd.read_csv(StringIO(SHARES))), Dynamic(profile, changes, changes))
    assert "bar 3: not met" in text
    assert "Signs right where prompts are deferred, as that engine does it: 2 of 3." in text
    places = [text.index(part) for part in ("judge phi", "H, t, 8->4, c=16", "chosen on:", "chunk of 100")]
    assert places == sorted(places)


def test_a_share_of_multiprocessors_beside_a_prefill_shortens_gaps_and_delays_first_tokens() -> None:
    """Decode alone takes 10 of 100; on a fifth, 1 / (0.835 + 0.165 / 0.2) of its rate."""
    found = partitioned(pd.read_csv(StringIO(SHARES)))
    tpot, ttft, gap = predicted_pct(found, 0.0)
    assert (found["alone"][0], found["prefill"][0]) == (10.0, 90.0)
    assert tpot < 0.0 < ttft
    assert gap == pytest.approx(100.0 * (10.0 * MEASURED.slowdown(0.0, 1.0, 0.2) / 100.0 - 1.0))


def test_deferred_prompts_have_later_first_tokens_in_runs_and_decode_shorter_gaps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The signs that were measured on an RTX 5090; prompts that begin when they come show less of the first."""
    monkeypatch.setattr(overlap, "NUM_PROMPTS", 300)
    found = overlap.simulated(128, 8.0, 974)
    assert found.deferred["TPOT mean"] < 0.0
    assert found.deferred["ITL p99"] < 0.0
    assert found.deferred["TTFT mean"] > found.at_once["TTFT mean"] + 10.0 > 10.0
