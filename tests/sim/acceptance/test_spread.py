"""Requests that differ: the rates stay, the tails widen, draws is still the request's own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.acceptance.draws import AcceptanceDraws
from sim.acceptance.forms import parse_quoted
from sim.acceptance.models import PerPositionAcceptance
from sim.acceptance.spread import AssumedSpread, SpreadAcceptance

RATES = (0.54, 0.33, 0.21)


@given(st.lists(st.floats(0.05, 0.95), min_size=1, max_size=7), st.floats(0.0, 3.0))
def test_the_rates_are_what_was_given_whatever_the_spread(chances: list[float], spread: float) -> None:
    rates = tuple(np.cumprod(chances).tolist())
    assert SpreadAcceptance(rates, spread).unconditional_rates(len(rates)) == pytest.approx(rates, abs=1e-7)


def test_without_a_spread_every_request_is_the_middle_one() -> None:
    alike = SpreadAcceptance(RATES, 0.0)
    plain = PerPositionAcceptance((0.54, 0.33 / 0.54, 0.21 / 0.33))
    for k in (1, 3, 5):
        assert alike.unconditional_rates(k) == pytest.approx(plain.unconditional_rates(k), abs=1e-9)


@pytest.mark.slow
def test_simulated_rounds_have_the_given_rates_and_the_expected_tails() -> None:
    """400 requests of 400 tokens; one standard error of the first rate is about 0.002."""
    draws = AcceptanceDraws(SpreadAcceptance(RATES, 1.4), 3)
    rounds = [draws.rounds(index, 1, 401, 3) for index in range(400)]
    accepted = np.concatenate(rounds)
    found = [float((accepted > place).mean()) for place in range(3)]
    assert found == pytest.approx(RATES, abs=0.008)
    lengths = np.array([1.0 + each.mean() for each in rounds])
    expected = [1.198, 3.674]  # of requests 1.645 standard deviations below and above the middle one
    assert np.percentile(lengths, [5, 95]).tolist() == pytest.approx(expected, abs=0.06)


def test_a_few_dozen_requests_have_nearly_the_mean_of_all() -> None:
    """Quantiles are spread evenly: 64 requests drawn at random would have a standard error of 0.1."""
    for seed in range(5):
        draws = AcceptanceDraws(SpreadAcceptance(RATES, 1.4), seed)
        accepted = np.concatenate([draws.rounds(index, 1, 2001, 3) for index in range(64)])
        assert 1.0 + accepted.mean() == pytest.approx(2.08, abs=0.03)


def test_drafts_of_fewer_tokens_start_with_better_chances() -> None:
    """Lucky requests take fewer rounds, the more so the longer the drafts. EAGLE-3.1 on a GH200: .54 first tokens
    at k=3, .58 at k=1, .52 at k=7 (swiss-ai/apertus-speculative-decoding, quoted)."""
    quoted = parse_quoted("vllm:.54,.333,.214~1.1")
    first = [quoted.model(k).unconditional_rates(k)[0] for k in (1, 3, 7)]
    assert first == pytest.approx([0.58, 0.54, 0.515], abs=0.006)


@pytest.mark.parametrize(
    ("text", "k", "length"),
    [
        ("vllm:.5,.3~1.1", 2, 1.8),
        ("per-position:.5,.6~1.1", 2, 1.8),
        ("iid:.5~0.8", 2, 1.75),
        ("length:2.6@3~1", 3, 2.6),
        ("length:2.2~1", 5, 2.2),
    ],
)
def test_a_spread_is_written_behind_the_numbers(text: str, k: int, length: float) -> None:
    assert parse_quoted(text).model(k).expected_length(k) == pytest.approx(length, abs=1e-6)


@pytest.mark.parametrize("text", ["length:2.6@3", "vllm:.74,.49,.37"])
def test_a_length_and_logged_rates_are_of_requests_that_differ_unless_they_say_so(text: str) -> None:
    natural, random, alike = (parse_quoted(f"{text}{spread}") for spread in ("", "~random", "~0"))
    assert natural == parse_quoted(f"{text}~natural")
    for k in (1, 3, 5):
        lengths = [quoted.model(k).expected_length(k) for quoted in (natural, random)]
        assert lengths == pytest.approx([alike.model(k).expected_length(k)] * 2, rel=1e-8)

    def p90_over_mean(text: str) -> float:
        draws = AcceptanceDraws(parse_quoted(text).model(3), 0)
        num_rounds = [len(draws.rounds(index, 1, 401, 3)) for index in range(200)]
        return float(np.percentile(num_rounds, 90) / np.mean(num_rounds))

    tails = [p90_over_mean(f"{text}{spread}") for spread in ("~0", "~0.1", "", "~0.5", "~random", "~1")]
    assert tails == sorted(tails)
    assert tails[4] > tails[2] + 0.1 > tails[0] + 0.15


def test_draws_of_a_spread_are_of_its_kind_of_prompts_and_the_lengths_those_without_one() -> None:
    rng, quoted = np.random.default_rng(0), parse_quoted("length:2.6@3~random")
    drawn = [quoted.draw(rng).model(3) for _ in range(50)]
    spreads = [model.spread for model in drawn if isinstance(model, SpreadAcceptance)]
    assert 0.7 <= min(spreads) < 0.75 < 0.95 < max(spreads) <= 1.0
    assert [model.expected_length(3) for model in drawn] == pytest.approx([2.6] * 50)
    carried = parse_quoted("length:2.6@3")
    assert isinstance(carried, AssumedSpread)
    drawn_lengths = [
        quoted.draw(np.random.default_rng(5)).model(7).expected_length(7) for quoted in (carried, carried.inner)
    ]
    assert drawn_lengths[0] == pytest.approx(drawn_lengths[1])
    assert drawn_lengths[0] != pytest.approx(carried.model(7).expected_length(7))


def test_who_says_how_requests_differ_is_taken_at_his_word() -> None:
    for text in ("iid:.7", "per-position:.8,.6", "beta:13,8", "synthetic:2.6"):
        assert not isinstance(parse_quoted(text).model(3), SpreadAcceptance)


@pytest.mark.parametrize("rates", [(1.0, 0.0), (1.0 - 1e-15, 1.0 - 1e-15), (1e-12,), (0.9, 0.9, 1e-9), (0.999999, 0.5)])
def test_rates_near_their_bounds_are_kept(rates: tuple[float, ...]) -> None:
    assert SpreadAcceptance(rates, 0.3).unconditional_rates(len(rates)) == pytest.approx(rates, abs=1e-8)
