"""Acceptance belongs to the request: one answer per (seed, index, position), however it is asked for."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.acceptance.draws import AcceptanceDraws
from sim.acceptance.forms import parse_quoted
from sim.acceptance.models import MAX_DRAFT_TOKENS, Acceptance, IidAcceptance
from sim.acceptance.tape import TapeAcceptance

SPECS = (
    "iid:0.7",
    "iid:0",
    "iid:1",
    "per-position:.8,.6,.5",
    "beta:13,8",
    "markov:.13,.82",
    "markov:.9,.5,.01,.02,.95",
    "vllm:.5,.3,.1~1.3",
)
TAPE = TapeAcceptance((np.array([1, 4, 3, 2, 1, 1, 9, 2], dtype=np.uint8), np.array([1, 2, 1], dtype=np.uint8)))


def model(name: str) -> Acceptance:
    return TAPE if name == "tape" else parse_quoted(name).model(4)


models = st.sampled_from((*SPECS, "tape")).map(model)
seeds = st.integers(0, 2**70)


@given(models, seeds, st.integers(0, 5000), st.integers(1, 900), st.integers(0, 12), st.integers(0, 12))
def test_a_longer_draft_only_adds_to_the_run(
    acceptance: Acceptance, seed: int, index: int, position: int, short: int, longer: int
) -> None:
    draws = AcceptanceDraws(acceptance, seed)
    whole = draws.run_length(index, position, short + longer)
    assert draws.run_length(index, position, short) == min(short, whole)


@given(
    models,
    seeds,
    st.lists(st.tuples(st.integers(0, 200), st.integers(1, 600), st.integers(1, 20)), min_size=1),
    st.randoms(),
)
def test_the_order_of_questions_changes_no_answer(
    acceptance: Acceptance, seed: int, questions: list[tuple[int, int, int]], random: Random
) -> None:
    answers = {question: AcceptanceDraws(acceptance, seed).run_length(*question) for question in questions}
    draws = AcceptanceDraws(acceptance, seed)
    random.shuffle(questions)
    assert all(draws.run_length(*question) == answers[question] for question in questions)


@given(
    models,
    seeds,
    st.lists(st.integers(1, 700), min_size=1, max_size=60),
    st.integers(0, 10_000),
    st.integers(1, 9),
)
def test_rounds_of_many_requests_equal_one_question_at_a_time(
    acceptance: Acceptance, seed: int, outputs: list[int], first: int, draft_tokens: int
) -> None:
    draws, scalar = AcceptanceDraws(acceptance, seed), AcceptanceDraws(acceptance, seed)
    indexes = np.arange(first, first + len(outputs))
    found = draws.all_rounds(indexes, np.array(outputs), draft_tokens)
    assert found.accepted.dtype == np.int8
    wanted = [
        scalar.rounds(index, 1, output, draft_tokens) for index, output in zip(indexes.tolist(), outputs, strict=True)
    ]
    assert found.accepted.tolist() == np.concatenate(wanted).tolist()
    assert found.counts.tolist() == [len(each) for each in wanted]


def test_two_draft_lengths_share_the_draws_of_a_position() -> None:
    """Under iid each position is accepted or not, once and for all: what a short draft meets, a long one meets too."""
    draws = AcceptanceDraws(IidAcceptance(0.6), 9)
    accepted = [bool(draws.run_length(3, position, 1)) for position in range(1, 400)]
    for position in range(1, 380):
        run = draws.run_length(3, position, 12)
        assert accepted[position - 1 :][:run] == [True] * run
        assert run == 12 or not accepted[position - 1 + run]


def test_a_markov_state_is_found_however_far_back_its_reset_lies() -> None:
    slow = parse_quoted("markov:1,0,.0004,.0004").model(4)
    forwards, backwards = AcceptanceDraws(slow, 2), AcceptanceDraws(slow, 2)
    positions = range(1, 6000, 7)
    wanted = [forwards.run_length(1, position, 4) for position in positions]
    assert [backwards.run_length(1, position, 4) for position in reversed(positions)] == wanted[::-1]
    assert 0 < sum(wanted) < 4 * len(wanted)


def test_requests_and_seeds_have_different_luck() -> None:
    """60 rounds of 5 outcomes agree by chance about never."""
    rows = [
        AcceptanceDraws(IidAcceptance(0.7), seed).rounds(index, 1, 200, 4)[:60].tolist()
        for seed in (0, 1)
        for index in (0, 1)
    ]
    assert len({tuple(row) for row in rows}) == 4


def test_a_tape_plays_its_own_rounds_and_starts_over_at_its_end() -> None:
    draws = AcceptanceDraws(TAPE, 0)
    assert draws.rounds(0, 1, 8, 4).tolist() == [3, 0, 4]
    assert draws.rounds(1, 1, 7, 4).tolist() == [1, 1, 1]
    assert draws.rounds(2, 1, 8, 4).tolist() == draws.rounds(0, 1, 8, 4).tolist()
    assert draws.run_length(0, 6, 20) == 8


def test_what_luck_keeps_is_bounded() -> None:
    draws = AcceptanceDraws(IidAcceptance(0.7), 0)
    for index in range(0, 64 * 1000, 64):
        draws.run_length(index, 1, 4)
    assert sum(len(tile) for tile in draws._tiles.values()) < 8e6


def test_the_longest_draft_works_and_a_longer_one_is_refused() -> None:
    draws = AcceptanceDraws(IidAcceptance(1.0), 0)
    assert draws.run_length(0, 1, MAX_DRAFT_TOKENS) == MAX_DRAFT_TOKENS
    assert draws.rounds(0, 1, 300, MAX_DRAFT_TOKENS).tolist() == [MAX_DRAFT_TOKENS] * 3
    with pytest.raises(ValueError, match="must be in 0"):
        draws.run_length(0, 1, MAX_DRAFT_TOKENS + 1)


GOLDEN = "[0, 0, 1, 0, 4, 3, 2, 1, 0, 1, 0, 2]"
"""Run lengths of request 7, seed 1, iid:0.7: changing them changes every published result."""


def test_luck_is_the_same_in_every_process() -> None:
    draws = AcceptanceDraws(IidAcceptance(0.7), 1)
    assert str([draws.run_length(7, position, 8) for position in range(1, 13)]) == GOLDEN


@pytest.mark.slow
def test_draws_are_uniform_and_uncorrelated() -> None:
    """Seed 0, 2^20 draws; five standard errors."""
    from sim.draws import DRAW_RANGE, Positions

    draws = Positions(0, np.arange(1024), 0, np.full(1024, 1024)).draws(0).reshape(1024, 1024) / DRAW_RANGE
    error = 5.0 / 1024
    assert draws.mean() == pytest.approx(0.5, abs=error * 12**-0.5)
    centred = (draws - 0.5) * 12**0.5
    assert (centred[:, 1:] * centred[:, :-1]).mean() == pytest.approx(0.0, abs=error)
    assert (centred[1:] * centred[:-1]).mean() == pytest.approx(0.0, abs=error)
    counts = np.histogram(draws, bins=256, range=(0.0, 1.0))[0]
    assert ((counts - 4096.0) ** 2 / 4096.0).sum() == pytest.approx(255, abs=5 * (2 * 255) ** 0.5)
