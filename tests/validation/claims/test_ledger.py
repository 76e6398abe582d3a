"""The ledger of claims: files that read, verdicts that follow from figures and tolerances alone."""

from __future__ import annotations

import math
import re

import pytest

from validation.claims.claims_command import PARTS, claimed_text, simulated_text, tally, to_plain
from validation.claims.ledger import SECTIONS, Claim, Row, Section, Verdict, read_section

CLAIM = Claim(id="X.one", claimed=100.0, within_pct=10, why="got {simulated:.0f}, of {all}", source="a report")
WORDS = Claim(id="X.words", claimed="better everywhere", why="yes", why_not="no", source="a report")
ONE_RUN = Claim(id="X.run", claimed=5.0, low=4.0, high=6.0, is_one_run=True, why="", source="a report")
BY = Claim(id="X.by", claimed=-5.0, within=1.0, within_pct=10, why="", source="a report")
SECTION = Section(section="X", title="Tests", source="nowhere", claims=[CLAIM, WORDS, ONE_RUN, BY])


@pytest.mark.parametrize(
    ("simulated", "verdict"),
    [(90.0, "reproduced"), (110.0, "reproduced"), (89.9, "refuted"), (110.1, "refuted"), (None, "refuted")],
)
def test_a_figure_within_its_tolerance_is_reproduced_and_beyond_it_refuted(
    simulated: float | None, verdict: str
) -> None:
    if simulated is None:
        assert Section(section="X", title="", source="", claims=[ONE_RUN]).row("X.run", None).verdict.value == verdict
    else:
        assert SECTION.row("X.one", simulated, all=7).verdict.value == verdict


def test_a_figure_that_a_constant_was_fitted_on_is_fitted_and_not_reproduced() -> None:
    names_a_fit = re.compile(r"\(fit|\bfit:|both fit")
    for name in SECTIONS:
        for claim in read_section(name).claims:
            if names_a_fit.search(claim.source) or claim.why.startswith(("fit", "the floor per layer is fitted")):
                assert claim.if_met is Verdict.FITTED, claim.id
    fitted = [claim.id for name in SECTIONS for claim in read_section(name).claims if claim.if_met is Verdict.FITTED]
    assert len(fitted) == 27
    row = read_section("F").row("F.single.graph", 68.0)
    assert row.verdict is Verdict.FITTED
    assert tally([row, row]) == "2 rows: 2 fitted"


def test_the_tolerance_of_a_negative_figure_reaches_to_both_sides() -> None:
    assert BY.bounds() == pytest.approx((-6.5, -3.5))


def test_a_single_runs_figure_is_met_where_single_runs_reach_it_and_any_other_is_not() -> None:
    assert SECTION.row("X.run", 2.0, (0.5, 4.0)).verdict is Verdict.REPRODUCED
    assert SECTION.row("X.run", 2.0, (0.5, 3.9)).verdict is Verdict.REFUTED
    assert SECTION.row("X.one", 80.0, (70.0, 100.0), all=1).verdict is Verdict.REFUTED


def test_the_sentence_holds_what_was_simulated_and_the_other_one_where_it_was_not_met() -> None:
    row = SECTION.row("X.one", 101.0, all=7)
    assert (row.why, row.details) == ("got 101, of 7", {"all": 7})
    assert SECTION.row("X.words", "worse", is_met=False).why == "no"
    assert SECTION.row("X.words", "better", is_met=True).why == "yes"


def test_a_claim_in_words_without_bounds_is_never_judged_by_itself() -> None:
    with pytest.raises(ValueError, match=r"X\.words"):
        SECTION.row("X.words", 3.0)


def test_a_row_without_conditions_says_so_and_has_no_figure() -> None:
    row = SECTION.untested("X.one")
    assert (row.verdict, row.simulated, row.why) == (Verdict.NOT_TESTABLE, None, SECTION.claim("X.one").why)


def test_an_unknown_claim_or_section_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"X\.words"):
        SECTION.claim("X.word")
    with pytest.raises(ValueError, match="unknown section 'Z'"):
        read_section("Z")


@pytest.mark.parametrize("name", sorted({name for name, _ in PARTS}))
def test_every_section_reads_and_its_claims_have_sources_and_ids_of_their_own(name: str) -> None:
    section = read_section(name)
    ids = [claim.id for claim in section.claims]
    assert section.section == name
    assert len(set(ids)) == len(ids)
    assert all(claim.id.startswith(f"{name}.") and claim.source and claim.why for claim in section.claims)
    assert all(constant.source for constant in section.constants.values())
    assert all(math.isfinite(constant.value) for constant in section.constants.values())


def test_rows_print_with_units_and_intervals() -> None:
    row = Row(
        id="X.one", section="X", claimed=46150.0, simulated=0.348, interval=(0.0, 2.5), verdict=Verdict.REFUTED,
        why="", unit="ms", source="", details={},
    )  # fmt: skip
    assert (claimed_text(row), simulated_text(row)) == ("46,150 ms", "0.348 ms [0, 2.5]")
    assert tally([row, row]) == "2 rows: 2 refuted"
    assert set(to_plain([row])["rows"][0]) >= {
        "id", "section", "claimed", "simulated", "interval", "verdict", "why"
    }  # fmt: skip
