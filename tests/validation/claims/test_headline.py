"""Section A from few draws: completions, work in the window, and a ratio that vanishes when the run drains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from validation.claims.claims_command import main
from validation.claims.headline import judge
from validation.claims.ledger import Row, Verdict, read_section
from validation.claims.prototype import Harness


@pytest.fixture(scope="module")
def rows() -> dict[str, Row]:
    return {row.id: row for row in judge(read_section("A"), 3)}


def harness(engine: str, label: int, **changes: object) -> Harness:
    given: dict[str, object] = {"engine": engine, "label": label, "acceptance": "length:1.6", "prompt_tokens": 100}
    return Harness(**(given | changes))  # type: ignore[arg-type]


def test_no_row_is_left_out_and_none_is_without_a_verdict(rows: dict[str, Row]) -> None:
    assert sorted(rows) == sorted(claim.id for claim in read_section("A").claims)


def test_the_work_in_the_window_is_nearly_that_of_the_real_engines(rows: dict[str, Row]) -> None:
    assert rows["A.rounds.pd"].simulated == pytest.approx(470, rel=0.05)
    assert rows["A.rounds.pdv"].simulated == pytest.approx(503, rel=0.05)


def test_the_headline_comes_out_of_the_window_and_vanishes_when_the_run_drains(rows: dict[str, Row]) -> None:
    drained = rows["A.33x.drained"].simulated
    shares = [rows["A.33x.windowed"].details[f"p{count}"] for count in range(4)]
    assert isinstance(drained, float)
    assert 0.95 <= drained <= 1.05
    assert sum(shares) == pytest.approx(1.0)
    assert rows["A.completed.pd.128"].simulated == pytest.approx(1.0, abs=1.0)
    assert rows["A.completed.pdv.128"].verdict is Verdict.REPRODUCED


def test_what_no_harness_can_measure_is_not_testable(rows: dict[str, Row]) -> None:
    assert [row.id for row in rows.values() if row.verdict is Verdict.NOT_TESTABLE] == ["A.latency.pd.128"]


def test_a_run_that_drains_before_the_stop_ends_with_its_last_completion() -> None:
    served = harness("pd", 1).run(0)
    assert served.completed == 1
    assert 9.386 < served.elapsed_s < 12.0
    assert served.completed_tokens == served.emitted_tokens >= 20


def test_a_window_that_cuts_counts_the_tokens_of_finished_requests_only() -> None:
    served = harness("pd", 128).run(0)
    assert served.elapsed_s == 60.0
    assert served.completed_tokens <= 25 * served.completed < served.emitted_tokens


def test_the_command_writes_rows_with_these_keys_and_prints_the_sentences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "claims.json"
    assert main(["--section", "c", "--draws", "2", "--workers", "1", "--json", str(path)]) == 0
    found = json.loads(path.read_text())["rows"]
    assert {"id", "section", "claimed", "simulated", "interval", "verdict", "why"} <= set(found[0])
    assert [row["id"] for row in found] == [claim.id for claim in read_section("C").claims]
    assert found[0]["why"] in " ".join(capsys.readouterr().out.split())


def test_an_unknown_section_is_one_line_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--section", "K"]) == 2
    assert "unknown section 'K'" in capsys.readouterr().err
