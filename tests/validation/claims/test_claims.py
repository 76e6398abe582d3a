"""Claims: a file that reads, verdicts that follow from figures and tolerances alone, measures that compute."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim.devices.contention import PhiLevel
from tests.properties import some
from validation.__main__ import main
from validation.claims import formulas, ledger
from validation.claims.claims_command import claimed_text, simulated_text, tally
from validation.claims.formulas import finding
from validation.claims.ledger import Claim, ClaimRow, ClaimVerdict, Finding, claim, section, sections

GIVEN: dict[str, Any] = {"id": "X.one", "claimed": 100.0, "why": "got {simulated:.0f}, of {all}", "source": "a report"}


def made(**changes: Any) -> Claim:
    return Claim(**{**GIVEN, **changes})


def judged(claim_id: str, draws: int = 2) -> ClaimRow:
    one = claim(claim_id)
    return one.row(finding(one, draws))


@pytest.mark.parametrize(
    ("figure", "verdict"), [(90.0, "reproduced"), (110.0, "reproduced"), (89.9, "refuted"), (110.1, "refuted")]
)
def test_a_figure_within_its_tolerance_is_reproduced_and_beyond_it_refuted(figure: float, verdict: str) -> None:
    row = made(within_pct=10).row(Finding(figure, details={"all": 7}))
    assert (row.verdict, row.why, row.details) == (verdict, f"got {figure:.0f}, of 7", {"all": 7})


def test_the_tolerance_of_a_negative_figure_reaches_to_both_sides() -> None:
    assert made(claimed=-5.0, within=1.0, within_pct=10).bounds() == pytest.approx((-6.5, -3.5))


def test_a_single_runs_figure_is_met_where_single_runs_reach_it_and_any_other_is_not() -> None:
    one_run = made(claimed=5.0, low=4.0, high=6.0, is_one_run=True, why="")
    assert one_run.row(Finding(2.0, (0.5, 4.0))).verdict is ClaimVerdict.REPRODUCED
    assert one_run.row(Finding(2.0, (0.5, 3.9))).verdict is ClaimVerdict.REFUTED
    assert made(why="").row(Finding(80.0, (70.0, 100.0))).verdict is ClaimVerdict.REFUTED


def test_a_claim_in_words_is_judged_by_its_formula_with_the_sentence_of_its_verdict() -> None:
    words = made(claimed="better everywhere", why="yes", why_not="no", if_met="explained")
    assert [words.row(Finding("as said", None, is_met)).why for is_met in (True, False)] == ["yes", "no"]
    assert words.row(None).verdict is ClaimVerdict.NOT_TESTABLE
    with pytest.raises(ValueError, match=r"X\.one"):
        words.row(Finding(3.0))


def test_an_entry_is_every_row_of_its_tables_with_every_row_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "claims.yaml").write_text(
        """X:
  title: t
  source: s
  scenario: {policy: pd, input_len: 8}
  runs: {short: {input_len: 4, num_prompts: 2}}
  claims:
  - id: X.$gpu.$at
    each: [{gpu: [a, b]}, {at: [1, 2], claimed: [0.5, 1.5]}]
    runs: [{like: short, max_concurrency: $at}, {policy: [pdv, pd], max_concurrency: [3, 4]}]
    why: $at requests
"""
    )
    monkeypatch.setattr(ledger, "LEDGER", tmp_path / "claims.yaml")
    sections.cache_clear()
    claims = section("X").claims
    sections.cache_clear()
    assert [(each.id, each.claimed, each.why, each.source) for each in claims] == [
        (f"X.{gpu}.{at}", claimed, f"{at} requests", "s") for gpu in "ab" for at, claimed in ((1, 0.5), (2, 1.5))
    ]
    first, *several = claims[1].runs
    assert first == {"policy": "pd", "input_len": 4, "num_prompts": 2, "max_concurrency": 2}
    assert [(run["policy"], run["max_concurrency"]) for run in several] == [
        ("pdv", 3),
        ("pdv", 4),
        ("pd", 3),
        ("pd", 4),
    ]


def test_every_claim_has_an_id_a_source_and_formulas_that_read() -> None:
    claims = [each for one in sections().values() for each in one.claims]
    assert len({each.id for each in claims}) == len(claims) == 209
    assert all(each.source and each.why and "$" not in each.why + each.source + each.id for each in claims)
    written = [(each, text) for each in claims for text in (each.of, each.figure, each.met, *each.let.values()) if text]
    words = {
        node.id for _, text in written for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Name)
    }
    assert set(formulas.FUNCTIONS) <= words
    for letter, one in sections().items():
        parts = one.parts or [f"{letter}."]
        assert [sum(each.id.startswith(part) for part in parts) for each in one.claims] == [1] * len(one.claims)
    assert sum(each.if_met is ClaimVerdict.FITTED for each in claims) == 27


def test_unknown_names_propose_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"A\.memory"):
        claim("A.memori")
    assert main(["claims", "--section", "K"]) == 2
    assert "unknown section 'K'" in capsys.readouterr().err


def test_the_command_writes_rows_with_these_keys_and_prints_the_sentences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "claims.json"
    assert main(["claims", "--section", "c", "--draws", "2", "--workers", "1", "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert {"id", "section", "claimed", "simulated", "interval", "verdict", "why"} <= set(rows[0])
    assert [row["id"] for row in rows] == [each.id for each in section("C").claims]
    assert rows[0]["why"] in " ".join(capsys.readouterr().out.split())
    (one,) = (row for row in rows if row["id"] == "C.mean.pd.1")
    assert one["simulated"] == pytest.approx(6.487, rel=0.05), "the line is fitted on one request"


def test_rows_print_with_units_and_intervals() -> None:
    row = made(claimed=46150.0, unit="ms", why="").row(Finding(0.348, (0.0, 2.5)))
    assert (claimed_text(row), simulated_text(row)) == ("46,150 ms", "0.348 ms [0, 2.5]")
    assert tally([row, row]) == "2 rows: 2 refuted"


def test_the_headline_comes_out_of_the_window_and_vanishes_when_the_run_drains() -> None:
    rows = {
        name: judged(f"A.{name}", 3)
        for name in ("rounds.pd", "rounds.pdv", "33x.windowed", "33x.drained", "completed.pd.128", "completed.pdv.128")
    }
    assert rows["rounds.pd"].simulated == pytest.approx(470, rel=0.05)
    assert rows["rounds.pdv"].simulated == pytest.approx(503, rel=0.05)
    assert rows["33x.drained"].simulated == pytest.approx(1.0, abs=0.05)
    assert sum(float(rows["33x.windowed"].details[f"p{count}"]) for count in range(4)) == pytest.approx(1.0)
    assert rows["completed.pd.128"].simulated == pytest.approx(1.0, abs=1.0)
    assert rows["completed.pdv.128"].verdict is ClaimVerdict.REPRODUCED


def test_noise_shows_the_claimed_gain_in_about_a_fifth_of_draws_and_none_in_the_mean() -> None:
    gains = formulas.noise_pct(1, 40_000)
    assert np.mean(gains) == pytest.approx(0.0, abs=0.2)
    assert np.std(np.log1p(-gains / 100.0)) == pytest.approx(0.047, rel=0.02)
    assert formulas.shows(gains, 4.1) == pytest.approx(0.186, abs=0.01)
    assert formulas.shows(gains, -9.0) < 0.05
    assert np.std(formulas.noise_pct(5, 20_000)) < np.std(gains)


@pytest.mark.parametrize(
    ("lows", "expected"),
    [((1.03, 1.04, 1.05), "PDV"), ((1.01, 1.04, 1.05), "depends on overlap"), ((0.9, 1.0, 1.019), "PD")],
)
def test_pdv_is_recommended_only_where_every_phi_says_so(lows: tuple[float, float, float], expected: str) -> None:
    assert formulas.choice(lows) == expected


def test_one_run_over_another_is_said_in_the_claims_own_form_at_every_phi() -> None:
    specs = [{**claim("B.gain.3").runs[index], "num_prompts": 6, "output_len": 8} for index in (0, 1)]
    given: dict[str, Any] = {"runs": specs, "of": "a.output_throughput / b.output_throughput", "bracket": True}
    let = {
        "pd": "mean(b.output_throughput)",
        "pairs": "(pd, 1)",
        "ratio": "mean(a.output_throughput / b.output_throughput)",
    }
    found = some(finding(made(form="more", let=let, **given), 2))
    assert set(found.details) == {*(level.value for level in PhiLevel), "low", "high", "pd", "ratio"}
    assert found.simulated == pytest.approx(100 * (float(found.details["ratio"]) - 1))
    assert found.simulated == found.details[PhiLevel.MIDDLE.value]
    assert found.interval == (found.details["low"], found.details["high"])
    less = some(finding(made(form="less", **given), 2))
    assert less.simulated == pytest.approx(-float(str(found.simulated)))
    for low, is_met in ((0.0, True), (8.0, False)):
        within = some(finding(made(met="inside(phis)", low=low, high=9.0, **given), 2))
        assert within.is_met is is_met


def test_a_figure_per_draw_has_an_interval_of_its_mean_of_single_runs_or_none() -> None:
    ends = {kind: finding(made(of="(1, 2, 6)", interval=kind, form="seconds"), 2) for kind in ("mean", "runs", "none")}
    assert all(found is not None and found.simulated == pytest.approx(0.003) for found in ends.values())
    assert ends["runs"].interval == pytest.approx((0.00105, 0.0058))  # type: ignore[union-attr]
    assert ends["mean"].interval == pytest.approx((0.003 - 0.00657, 0.003 + 0.00657), abs=1e-5)  # type: ignore[union-attr]
    assert ends["none"].interval is None  # type: ignore[union-attr]


def test_a_formula_has_its_own_words_and_no_others() -> None:
    with pytest.raises(NameError, match="open"):
        finding(made(figure="open('x')"), 2)


def test_graphed_drafts_flip_the_laptops_speculation_and_eager_ones_do_not() -> None:
    """By hand: four drafts of 20.2 ms and a verify of 31.9 ms, then of 3 ms each; 3 tokens per step."""
    assert judged("F.spec.speedup", 3).simulated == pytest.approx(3.0 * 31.9 / (4 * 20.2 + 31.9), rel=0.05)
    assert judged("F.spec.whatif", 3).simulated == pytest.approx(3.0 * 31.9 / (4 * 3.0 + 31.9), rel=0.05)
    assert judged("F.spec.tokens").details["conditional"] == pytest.approx(1.9375)
    assert judged("F.disagg.identical").verdict is ClaimVerdict.REPRODUCED
