"""Text forms, conversions and closed forms of acceptance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.acceptance.draws import AcceptanceDraws
from sim.acceptance.forms import parse_quoted
from sim.acceptance.models import BetaAcceptance, IidAcceptance, MarkovAcceptance, PerPositionAcceptance, to_conditional
from sim.acceptance.quoted import checked_rates, iid_rate_for_length
from sim.acceptance.tape import TapeAcceptance

rates = st.floats(0.0, 1.0)


def test_every_form_is_read(tmp_path: Path) -> None:
    tape = tmp_path / "tape.jsonl"
    tape.write_text("[1, 3, 2, 1]\n[1, 1]\n")
    assert parse_quoted("iid:0.7").model(4) == IidAcceptance(0.7)
    assert parse_quoted("per-position:.8,.6,.5").model(4) == PerPositionAcceptance((0.8, 0.6, 0.5))
    assert parse_quoted("beta:13,8").model(4) == BetaAcceptance(13.0, 8.0)
    assert parse_quoted("markov:.9,.1,.2,.3").model(4) == MarkovAcceptance(0.9, 0.1, 0.2, 0.3)
    assert parse_quoted("markov:.9,.1,.2,.3,.95").model(4) == MarkovAcceptance(0.9, 0.1, 0.2, 0.3, 0.95)
    played = parse_quoted(f"tape:{tape}").model(4)
    assert isinstance(played, TapeAcceptance)
    assert [row.tolist() for row in played.tapes] == [[1, 3, 2, 1], [1, 1]]


def test_a_tape_field_is_named_after_a_hash(tmp_path: Path) -> None:
    tape = tmp_path / "tape.jsonl"
    tape.write_text('{"eagle": [1, 2, 1], "ngram": [1, 1, 3], "prompt_len": 5}\n')
    played = parse_quoted(f"tape:{tape}#ngram").model(4)
    assert isinstance(played, TapeAcceptance)
    assert played.tapes[0].tolist() == [1, 1, 3]


@given(rates, st.integers(1, 20))
def test_iid_length_is_the_formula_of_leviathan(alpha: float, draft_tokens: int) -> None:
    length = IidAcceptance(alpha).expected_length(draft_tokens)
    wanted = draft_tokens + 1 if alpha == 1.0 else (1.0 - alpha ** (draft_tokens + 1)) / (1.0 - alpha)
    assert length == pytest.approx(wanted, rel=1e-6)


@given(st.integers(1, 20), st.floats(0.0, 1.0))
def test_a_length_becomes_the_rate_that_gives_it(draft_tokens: int, share: float) -> None:
    length = 1.0 + share * draft_tokens
    alpha = iid_rate_for_length(length, draft_tokens)
    assert IidAcceptance(alpha).expected_length(draft_tokens) == pytest.approx(length, rel=1e-9)
    assert [iid_rate_for_length(end, draft_tokens) for end in (1.0, draft_tokens + 1.0)] == [0.0, 1.0]


def test_the_short_markov_form_means_what_it_says() -> None:
    """Seed 0, 400,000 positions; tolerance 2 % of each rate. Its draft rates are about those quoted for n-gram."""
    model = parse_quoted("markov:.13,.82").model(4)
    draws = AcceptanceDraws(model, 0)
    hits = np.array([[draws.run_length(index, p, 1) for p in range(1, 1001)] for index in range(400)], dtype=bool)
    assert hits[:, 1:][~hits[:, :-1]].mean() == pytest.approx(0.13, rel=0.02)
    assert hits[:, 1:][hits[:, :-1]].mean() == pytest.approx(0.82, rel=0.02)
    assert model.conditional_rates(4) == pytest.approx((0.13, 0.82, 0.82, 0.82), abs=0.06)


@given(st.lists(rates, min_size=1, max_size=10))
def test_conditional_and_unconditional_rates_convert_into_each_other(conditional: list[float]) -> None:
    count = len(conditional)
    unconditional = PerPositionAcceptance(tuple(conditional)).unconditional_rates(count)
    again = PerPositionAcceptance(to_conditional(checked_rates(unconditional)))
    assert again.unconditional_rates(count) == pytest.approx(unconditional, abs=1e-12)


@pytest.mark.parametrize("draft_tokens", [1, 4, 7])
@pytest.mark.parametrize(
    "spec",
    ["iid:0.7", "per-position:.8,.6,.5,.9", "beta:13,8", "beta:1,2", "markov:.13,.82", "markov:1,.53,.008,.007,.97"],
)
@pytest.mark.slow
def test_closed_forms_agree_with_a_long_simulation(spec: str, draft_tokens: int) -> None:
    """Seed 3, 3,000 requests of 800 tokens; rates within 0.006 and length within 0.6 %, some four standard errors."""
    model = parse_quoted(spec).model(draft_tokens)
    draws = AcceptanceDraws(model, 3)
    accepted = draws.all_rounds(np.arange(3000), np.full(3000, 800), draft_tokens).accepted
    at_least = [(accepted >= place).mean() for place in range(1, draft_tokens + 1)]
    assert at_least == pytest.approx(model.unconditional_rates(draft_tokens), abs=0.006)
    assert 1.0 + accepted.mean() == pytest.approx(model.expected_length(draft_tokens), rel=0.006)


def test_a_narrow_beta_is_iid_and_its_request_rates_have_the_stated_moments() -> None:
    """20,000 requests; mean within 0.003 and standard deviation within 2 %."""
    assert BetaAcceptance(7e5, 3e5).expected_length(4) == pytest.approx(IidAcceptance(0.7).expected_length(4), rel=1e-5)
    from sim.draws import Positions

    window = Positions(5, np.arange(20_000), 0, np.full(20_000, 2))
    drawn = BetaAcceptance(13.0, 8.0).request_rates(window)
    assert drawn.mean() == pytest.approx(13 / 21, abs=0.003)
    assert drawn.std() == pytest.approx((13 * 8 / (21**2 * 22)) ** 0.5, rel=0.02)
