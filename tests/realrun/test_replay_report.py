"""The accuracy report: every draw is in it, what misses its bar is marked. Made-up draws; no torch, no seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.replay_report import dominant, works_ratio, write_report


def errors(error_pct: float) -> dict[str, Any]:
    value = {"real": 100.0, "simulated": 100.0 + error_pct, "error_pct": error_pct}
    return {"e2el": {"mean": value, "p95": value}, "output_throughput": value}


def row(load: str, *, mechanism: float, total: float, alone: float) -> dict[str, Any]:
    times = {"real_alone_s": 1.0, "simulated_alone_s": alone, "real_together_s": None, "simulated_together_s": None}
    return {
        "load": load,
        "policy": "pd",
        "decomposition": {"mechanism": errors(mechanism), "contention": errors(total)},
        "works": {"verify target": times},
        "others_cores": 0.5,
        "probe_verify_ms": 2.0,
        "probe_prefill_ms": 5.0,
    }


def draw(total: float) -> dict[str, Any]:
    host = {"step_s": 1e-4, "result_s": 2e-4, "idle_ramp": None}
    return {
        "rate": 6.0,
        "machine": "2-core CPU",
        "rows": [row(load, mechanism=1.0, total=total, alone=0.8) for load in ("open", "closed")],
        "profile": {"host": host, "overlap": {"tau_s": 1e-5}, "errors": {"verify": 3.0}},
    }


def test_every_draw_is_told_and_what_misses_its_bar_is_bold(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_report(tmp_path, [draw(4.0), draw(-30.0)])
    text = (tmp_path / "README.md").read_text()
    assert "| `pd` | +4.0, **-30.0** | +4.0, **-30.0** | +4.0, **-30.0** | +1.0, +1.0 |" in text
    assert [f"## Draw {number}, closed loop" in text for number in (1, 2, 3)] == [True, True, False]
    assert (tmp_path / "errors.png").stat().st_size > 0


def test_what_dominates_is_the_largest_part() -> None:
    assert dominant(row("open", mechanism=1.0, total=0.0, alone=0.8)) == "passes alone"
    assert dominant(row("open", mechanism=-25.0, total=0.0, alone=0.8)) == "scheduling"
    assert works_ratio(row("open", mechanism=0.0, total=0.0, alone=0.8), "together") is None
