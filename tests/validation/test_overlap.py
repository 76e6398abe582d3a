"""Two streams beside one in closed form, on figures made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.devices.partition import MEASURED
from validation.judge.judges import JUDGES
from validation.judge.sources import cells_of_run
from validation.judge.specs import RunSpec

HEAD = (
    "table,gpu,model,engine,mode,isl,osl,qps,concurrency,tpot_mean_ms,ttft_p50_ms,ttft_mean_ms,itl_p50_ms,itl_p99_ms,"
    "decode_only_itl_p50_ms,tpot_p50_ms\n"
)
STREAMS = """t,H,m bf16,e,off,8,4,,16.0,12,110,,10,100,,
t,H,m bf16,e,stream,8,4,,16.0,11,100,,10,80,,
t,H,m bf16,e,off,8,4,,1.0,10,50,,10,11,,
t,H,m bf16,e,stream,8,4,,1.0,10.1,51,,10,11,,
i,H,m bf16,e,off,8,1,0.5,,,,,9,40,10,
i,H,m bf16,e,stream,8,1,0.5,,,,,9,26,10,
"""
SHARES = """a,H,m,e,off,8,4,8,,15,,60,,100,,
a,H,m,e,"green-ctx 20%, eager",8,4,8,,14,,90,,30,,
b,H,m,e,off,8,4,1,,,,,,,,10
b,H,m,e,off,8,4,2,,,,,,,,11
"""


def changes(folder: Path, text: str) -> list[dict[str, float]]:
    """Simulated over one stream's figure, by metric, of every cell."""
    (folder / "cells.csv").write_text(text)
    run = RunSpec(reader="overlap", file="cells.csv", set={"engine": "e"})
    cells = cells_of_run(run, folder)
    judged = JUDGES["overlap"](cells, None, run, folder)
    return [{name: (sides["simulated"] or 0.0) / float(each.cell.texts[name]) for name, sides in each.metrics.items()}
            for each in judged]  # fmt: skip


def test_every_load_with_two_streams_is_one_cell(tmp_path: Path) -> None:
    """Decode loses 0.9 x 0.93 / 0.907 of the time of 90 beside 10; that takes 90 / 0.907 in place of 100."""
    many, single, injected = changes(tmp_path, HEAD + STREAMS)
    assert many == pytest.approx({"tpot_ms": 1.0 - (1.0 - 0.837 / 0.907) * 2 / 12, "ttft_p50_ms": 0.9 / 0.907})
    assert single == {"tpot_ms": 1.0, "ttft_p50_ms": 1.0}  # Nothing is prefilled beside a single request.
    assert injected == pytest.approx({"itl_p99_ms": 10.0 / 0.3025 / 40.0})


def test_a_share_of_multiprocessors_beside_a_prefill_shortens_gaps_and_delays_first_tokens(tmp_path: Path) -> None:
    """The median at the lowest rate, 10, is a decode alone, and a prefill takes the rest of the longest gap."""
    (shares,) = changes(tmp_path, HEAD + SHARES)
    assert shares["tpot_ms"] < 1.0 < shares["ttft_ms"]
    assert shares["itl_p99_ms"] == pytest.approx(10.0 * MEASURED.slowdown(0.0, 1.0, 0.2) / 100.0)
