"""What people quote: exact where it was measured, carried to other draft lengths, never less for a longer draft."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lanesim
from sim.acceptance import forms
from sim.acceptance.forms import parse_quoted
from sim.acceptance.models import IidAcceptance, PerPositionAcceptance
from sim.acceptance.quoted import (
    MeasuredLength,
    MeasuredRates,
    Quoted,
    QuotedTape,
    carried_error,
    iid_rate_for_length,
)
from tests.properties import assert_refused

PAGE = Path(__file__).parents[3] / "docs" / "acceptance.md"
SEVEN = range(1, 8)
PUBLISHED = {
    "GLM 5.2, MTP": (1.84, 2.50, 2.99, 3.33, 3.61, 3.78, 3.91),
    "Kimi K2.5, EAGLE-3": (1.83, 2.43, 2.88, 3.24, 3.46, 3.62, 3.71),
    "MiniMax M3, EAGLE-3": (1.78, 2.38, 2.83, 3.11, 3.35, 3.45, 3.53),
    "Qwen 3.5, MTP": (1.93, 2.73, 3.39, 3.97, 4.41, 4.80, 5.04),
}
"""Acceptance lengths at k = 1..7, thinking on: InferenceX's golden values, SPEED-Bench coding (ADR 021)."""


class Carried(NamedTuple):
    """Acceptance length at one draft length: by the quote's model, and mean, 5 and 95 % of draws."""

    k: int
    model: float
    mean: float
    low: float
    high: float


def lengths_by_k(quoted: Quoted, ks: Iterable[int], draws: int) -> list[Carried]:
    """The same draws, seed 0, at every draft length."""
    rng = np.random.default_rng(0)
    drawn = [quoted.draw(rng) for _ in range(draws)]
    lengths = {k: [length_at(one, k) for one in drawn] for k in ks}
    return [
        Carried(k, length_at(quoted, k), float(np.mean(at)), *np.percentile(at, [5, 95])) for k, at in lengths.items()
    ]


@st.composite
def measured_lengths(draw: st.DrawFn) -> MeasuredLength:
    measured = draw(st.integers(1, 12))
    return MeasuredLength(1.0 + draw(st.floats(0.0, 1.0)) * measured, measured)


@st.composite
def measured_rates(draw: st.DrawFn) -> MeasuredRates:
    conditional = draw(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8))
    return MeasuredRates(PerPositionAcceptance(tuple(conditional)).unconditional_rates(len(conditional)))


seeds = st.integers(0, 2**32 - 1)


def length_at(quoted: Quoted, k: int) -> float:
    return quoted.model(k).expected_length(k)


def test_a_length_is_carried_by_its_iid_rate_and_a_draft_of_one_is_not_refused() -> None:
    """1 + a + a^2 + a^3 = 2.6."""
    rate = 0.7170777533
    assert 1.0 + rate + rate**2 + rate**3 == pytest.approx(2.6, abs=1e-9)
    quoted = parse_quoted("length:2.6@3~0")
    for k in SEVEN:
        model = quoted.model(k)
        assert isinstance(model, IidAcceptance)
        assert model.alpha == pytest.approx(rate, abs=1e-9)
    assert length_at(quoted, 1) == pytest.approx(1.0 + rate, abs=1e-9)


@given(measured_lengths(), seeds)
def test_every_draw_of_a_length_is_exact_where_it_was_measured(quoted: MeasuredLength, seed: int) -> None:
    drawn = quoted.draw(np.random.default_rng(seed))
    assert length_at(drawn, quoted.measured_k) == pytest.approx(quoted.length, rel=1e-9)


@given(measured_rates(), seeds)
def test_every_draw_of_rates_is_exact_where_they_were_measured(quoted: MeasuredRates, seed: int) -> None:
    drawn = quoted.draw(np.random.default_rng(seed))
    rates = drawn.model(quoted.measured_k).unconditional_rates(quoted.measured_k)
    assert rates == pytest.approx(quoted.rates, abs=1e-12)


@given(st.one_of(measured_lengths(), measured_rates()), seeds)
def test_a_longer_draft_never_yields_less(quoted: MeasuredLength | MeasuredRates, seed: int) -> None:
    for each in (quoted, quoted.draw(np.random.default_rng(seed))):
        lengths = [length_at(each, k) for k in range(1, 16)]
        for k, (shorter, longer) in enumerate(pairwise(lengths), start=1):
            assert shorter <= longer + 1e-12
            assert 1.0 <= shorter <= k + 1


@pytest.mark.parametrize("measured", [1, 3, 5, 7])
@pytest.mark.parametrize("name", list(PUBLISHED))
def test_published_lengths_at_other_draft_lengths_lie_within_the_draws(name: str, measured: int) -> None:
    """500 draws, seed 0; 5 to 95 %."""
    lengths = PUBLISHED[name]
    quoted = MeasuredLength(lengths[measured - 1], measured)
    for at, length in zip(lengths_by_k(quoted, SEVEN, 500), lengths, strict=True):
        assert at.low - 1e-9 <= length <= at.high + 1e-9, (name, at)
        assert at.low - 1e-9 <= at.model <= at.high + 1e-9


def test_the_error_of_a_carried_length_is_that_of_its_draws_and_grows_with_the_distance() -> None:
    """4,000 draws, seed 0; the root mean square within 4 %."""
    quoted = MeasuredLength(2.6, 3)
    errors = [carried_error(quoted, k) for k in SEVEN]
    assert errors[2] == pytest.approx(0.0, abs=1e-9)
    assert errors[2:] == sorted(errors[2:])
    rng = np.random.default_rng(0)
    drawn = np.array([length_at(quoted.draw(rng), 7) for _ in range(4_000)])
    assert errors[6] == pytest.approx(np.mean((drawn / length_at(quoted, 7) - 1.0) ** 2) ** 0.5, rel=0.04)


def test_shorter_drafts_may_yield_more_than_the_first_of_the_logged_rates_say() -> None:
    """Recordings: 1 to 6 % more (ADR 021)."""
    one, two, three = lengths_by_k(parse_quoted("vllm:.6,.376,.258"), (1, 2, 3), 100)
    assert one.low < one.model == pytest.approx(1.6)
    assert 1.03 < one.high / one.model < 1.12
    assert 1.0 < two.high / two.model < one.high / one.model
    assert three.high == pytest.approx(three.low)


@pytest.mark.parametrize("text", ["iid:.7", "length:1.9~0", "per-position:.8,.6", "beta:13,8", "markov:.13,.82"])
def test_where_nothing_is_uncertain_a_draw_is_the_quote_itself(text: str) -> None:
    quoted = parse_quoted(text)
    assert quoted.draw(np.random.default_rng(0)) is quoted
    (at,) = lengths_by_k(quoted, [3], 5)
    assert at.low == at.high == pytest.approx(at.model)


def test_a_bare_length_is_that_of_each_draft_length_and_says_so_once_there_are_two() -> None:
    quoted = parse_quoted("length:1.9~0")
    for k in SEVEN:
        assert quoted.model(k) == IidAcceptance(iid_rate_for_length(1.9, k))
    assert quoted.notes([3, 3]) == ()
    (note,) = quoted.notes([1, 2])
    assert "Write length:1.9@K" in note
    with pytest.raises(ValueError, match=r"must be from 1 to 2 .*. Write length:2\.6@K"):
        parse_quoted("length:2.6").model(1)


def test_notes_name_what_was_carried_and_are_silent_where_nothing_was() -> None:
    assert parse_quoted("length:2.6@3").notes([3]) == ()
    (note,) = parse_quoted("length:2.6@3").notes([1, 3, 7])
    assert "2 % at k=1, 9 % at k=7" in note
    rates = parse_quoted("vllm:.74,.49,.37")
    assert rates.notes([3]) == ()
    within, beyond = rates.notes([1, 5])
    assert "Shorter drafts take the first" in within
    assert "Standard error of the length: 2 % at k=5" in beyond


def test_conditional_rates_that_fall_like_logged_ones_are_remarked_on() -> None:
    (note,) = parse_quoted("per-position:.74,.49,.37").notes([3])
    assert note.endswith("write vllm:0.74,0.49,0.37")
    assert parse_quoted("per-position:.74,.66,.76").notes([3]) == ()
    assert parse_quoted("per-position:.74").notes([3]) == ()


def test_a_tape_draws_its_own_requests_again(tmp_path: Path) -> None:
    tape = tmp_path / "tape.jsonl"
    tape.write_text("".join(f"[1, {tokens}, {tokens}]\n" for tokens in range(1, 9)))
    quoted = parse_quoted(f"tape:{tape}")
    assert isinstance(quoted, QuotedTape)
    drawn = quoted.draw(np.random.default_rng(0))
    assert len(drawn.tape.tapes) == 8
    kept = {tokens.tobytes() for tokens in quoted.tape.tapes}
    found = {tokens.tobytes() for tokens in drawn.tape.tapes}
    assert found < kept
    (at,) = lengths_by_k(quoted, [4], 200)
    assert at.low < at.model < at.high


def test_a_registered_form_is_quoted_and_meets_the_draft_length_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "_registered", {})
    lanesim.register_acceptance("halves", lambda values, k: IidAcceptance(values[0] / k), "halves:.5")
    quoted = lanesim.parse_quoted("halves:.5")
    assert quoted.measured_k is None
    assert [quoted.model(k) for k in (1, 2)] == [IidAcceptance(0.5), IidAcceptance(0.25)]
    assert parse_quoted("halves:.5").model(2) == IidAcceptance(0.25)
    assert quoted.draw(np.random.default_rng(0)) is quoted
    with pytest.raises(ValueError, match=r"'x' is not a number. Write halves:\.5"):
        parse_quoted("halves:x")


def run(acceptance: str, k: int) -> float:
    """Acceptance length of a small run."""
    metrics = lanesim.simulate(
        profile="cpu/tiny", policy="continuous", num_prompts=60, output_len=200, acceptance=acceptance,
        num_speculative_tokens=k,
    ).metrics  # fmt: skip
    return float(metrics["spec_decode_acceptance_length"])


@pytest.mark.parametrize("acceptance", ["length:2.6@3", "vllm:.74,.49,.37"])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_a_run_meets_the_length_that_the_quote_says(acceptance: str, k: int) -> None:
    """Some 5,000 rounds; within 2 %."""
    assert run(acceptance, k) == pytest.approx(length_at(parse_quoted(acceptance), k), rel=0.02)


def test_the_page_says_what_the_code_does() -> None:
    """The worked example, and every row of the table by draft length: 2,000 draws, seed 0."""
    text = PAGE.read_text()
    logged = parse_quoted("vllm:.74,.49,.37~0").model(3)
    assert f"Mean acceptance length: {logged.expected_length(3):.2f}" in text
    assert f"Avg Draft acceptance rate: {100 * (logged.expected_length(3) - 1.0) / 3:.1f}%" in text
    assert f"per-position:{','.join(f'{rate:.2f}'[1:] for rate in logged.conditional_rates(3))}" in text
    quoted = MeasuredLength(2.6, 3)
    rows = [
        f"| {at.k} | {at.k / 3:.2f} | {at.model:.2f} | {100 * carried_error(quoted, at.k):.1f} % | {at.mean:.2f} "
        f"| {at.low:.2f} to {at.high:.2f} |"
        for at in lengths_by_k(quoted, SEVEN, 2000)
    ]
    assert re.findall(r"^\| \d \|.*$", text, flags=re.MULTILINE) == rows
    for form in re.findall(r"`([a-z-]+:[\d.][^` ]*)`", text):
        parse_quoted(form.replace("@K", "@3").replace("L", "2"))


def test_a_length_that_a_server_pins_is_two_neighbouring_counts_of_any_request() -> None:
    """3.5 at 5 drafts: two accepted, a third in half of the rounds. Drafts of two are accepted whole."""
    pinned = parse_quoted("pinned:3.5@5")
    assert pinned.model(5).unconditional_rates(5) == (1.0, 1.0, 0.5, 0.0, 0.0)
    assert pinned.model(2).unconditional_rates(2) == (1.0, 1.0)
    for text in ("pinned:3.5", "pinned:7@5", "pinned:3.5@5~1"):
        assert_refused(lambda text=text: parse_quoted(text), "pinned")  # type: ignore[misc]
