"""The accuracy report: every draw is in it, what misses its bar is marked. Made-up draws; no torch, no seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from validation.replays.replays_page import ReplayedCell, write_report


def errors(real: float, simulated: float) -> dict[str, Any]:
    value = {"real": real, "simulated": simulated, "error_pct": 100.0 * (simulated - real) / real}
    return {"e2el": {"mean": value, "p95": value}, "output_throughput": value}


def row(
    load: str, *, real: float, mechanism: float, total: float, alone: float = 0.8, slower: float = 1.0
) -> dict[str, Any]:
    times = {"real_alone_s": 1.0, "simulated_alone_s": alone, "real_together_s": None, "simulated_together_s": None}
    return {
        "load": load,
        "policy": "pd",
        "decomposition": {"mechanism": errors(100.0, mechanism), "contention": errors(real, total)},
        "works": {"verify target": times},
        "others_cores": 0.5,
        "machine": [slower, slower],
    }


def draw(total: float) -> dict[str, Any]:
    host = {"step_s": 1e-4, "result_s": 2e-4, "look_s": 5e-5, "served": {"verify": 1.2}, "idle_ramp": None}
    return {
        "rate": 6.0,
        "machine": "2-core CPU",
        "rows": [
            row(load, real=real, mechanism=mechanism, total=total)
            for real, mechanism in ((90.0, 101.0), (110.0, 93.0))
            for load in ("open", "closed")
        ],
        "profile": {"host": host, "overlap": {"tau_s": 1e-5}, "errors": {"verify": 3.0}},
    }


def test_every_draw_is_told_and_what_misses_its_bar_is_bold(tmp_path: Path) -> None:
    """Two replays of 90 and 110 ms: errors are of their mean, the mechanism's of each."""
    pytest.importorskip("matplotlib")
    write_report(tmp_path, [draw(104.0), draw(70.0)])
    text = (tmp_path / "README.md").read_text()
    assert "| `pd` | +4.0, **-30.0** | +4.0, **-30.0** | +4.0, **-30.0** | **-7.0**, **-7.0** |" in text
    assert "Within their bars: mechanism 8 of 16; mean E2EL 2 of 4; closed-loop throughput 1 of 2." in text
    assert "| 90.0 110.0, 104.0 | +4.0 |" in text
    assert [f"## Draw {number}, closed loop" in text for number in (1, 2, 3)] == [True, True, False]
    assert (tmp_path / "errors.png").stat().st_size > 0


def test_what_dominates_is_the_largest_part() -> None:
    """A machine 1.25 times slower than its profile explains passes that take 1.25 times as long."""
    assert ReplayedCell([row("open", real=100.0, mechanism=101.0, total=100.0, slower=1.25)]).dominant == "drift"
    assert ReplayedCell([row("open", real=100.0, mechanism=101.0, total=100.0)]).dominant == "passes alone"
    scheduled = ReplayedCell([row("open", real=100.0, mechanism=75.0, total=100.0)])
    assert scheduled.dominant == "scheduling"
    assert scheduled.works_ratio("together") is None
    assert scheduled.works_ratio("alone") == pytest.approx(0.8)
