"""The plan: which passes are timed, and that it follows from limits and budget alone."""

from __future__ import annotations

import pytest

from calibrate.measure.grid import (
    HELD_OUT_IN,
    LEVELS,
    Limits,
    estimator,
    grid,
    is_held_out,
    pilots,
    plan,
    spread,
)
from calibrate.points.point_works import Place, error_kind, work_of
from sim.interface.work import Chunk, Kind, Model

LIMITS = Limits(rows=16, slot_tokens=512, pass_tokens=512, draft_tokens=8, has_draft=True, has_graphs=False)


def test_every_level_is_finer_than_the_one_before() -> None:
    sizes = [len(grid(LIMITS, level)) for level in range(LEVELS)]
    assert sizes == sorted(set(sizes))


@pytest.mark.parametrize("level", range(LEVELS))
def test_every_place_fits_its_slots_and_is_there_once(level: int) -> None:
    places = grid(LIMITS, level)
    assert len(places) == len(set(places))
    for place in places:
        assert place.context_tokens + place.tokens + 1 <= LIMITS.slot_tokens, place
        assert 1 <= place.rows <= LIMITS.rows
    assert {(place.kind, place.model) for place in places} == {
        ("prefill", "target"),
        ("prefill", "draft"),
        ("decode", "target"),
        ("verify", "target"),
        ("draft", "draft"),
    }


def test_verify_has_two_to_eight_tokens_and_several_contexts() -> None:
    verify = [place for place in grid(LIMITS, LEVELS - 1) if place.kind == "verify"]
    assert {place.tokens for place in verify} == set(range(2, 9))
    assert len({place.context_tokens for place in verify}) > 2
    assert len({place.rows for place in verify}) > 2


def test_with_graphs_every_place_is_captured_but_prefills_and_decoding_is_launched_both_ways() -> None:
    eager, both = grid(LIMITS, 0), grid(LIMITS._replace(has_graphs=True), 0)
    assert {place.kind for place in both if place.launch == "eager"} == {"prefill", "decode"}
    assert {place.kind for place in both if place.launch == "graphed"} == {"decode", "verify", "draft"}
    # The same places, and decodes once more.
    assert {place._replace(launch="eager") for place in both} == set(eager)
    assert len(both) - len(eager) == len([place for place in eager if place.kind == "decode"])


def test_without_a_draft_the_target_alone_is_timed() -> None:
    assert {place.model for place in grid(LIMITS._replace(has_draft=False), 1)} == {"target"}


def test_a_smaller_budget_gives_a_coarser_plan_and_a_tiny_one_leaves_out_what_is_too_long() -> None:
    def second(place: Place) -> float:
        return 1.0

    assert plan(LIMITS, 1e9, second, 10) == grid(LIMITS, LEVELS - 1)
    assert plan(LIMITS, 10.0 * len(grid(LIMITS, 1)), second, 10) == grid(LIMITS, 1)
    tiny = plan(LIMITS, 1.0, lambda place: 1e-3 * place.total_tokens, 10)
    assert 0 < len(tiny) < len(grid(LIMITS, 0))


def test_estimates_run_from_the_smallest_pilot_to_the_largest() -> None:
    timed = {place: float(i + 1) for i, place in enumerate(pilots(LIMITS))}
    estimate_s = estimator(timed)
    for place, seconds in timed.items():
        if place.kind == "decode":
            assert estimate_s(place) == pytest.approx(seconds)
    assert all(estimate_s(place) > 0.0 for place in grid(LIMITS, LEVELS - 1))


def test_a_fifth_of_each_kind_is_held_out_and_a_tenth_repeated() -> None:
    places = grid(LIMITS, 2)
    for kind in {(place.kind, place.model) for place in places}:
        alike = [place for place in places if (place.kind, place.model) == kind]
        held_out = [place for place in alike if is_held_out(place, places)]
        assert len(held_out) == len(alike) // HELD_OUT_IN


def test_the_order_is_shuffled_but_fixed() -> None:
    places = grid(LIMITS, 1)
    assert places == grid(LIMITS, 1)
    assert places != sorted(places)


def test_spread_has_both_ends() -> None:
    assert spread(1, 16, 3) == [1, 4, 16]
    assert spread(5, 5, 3) == [5]
    assert spread(1, 2, 4) == [1, 2]


def test_a_place_is_the_work_a_policy_would_submit() -> None:
    verify = work_of(Place("verify", "target", 4, 5, 100, "eager"))
    assert (verify.kind, verify.rows, verify.row_tokens, verify.context_tokens, verify.head_rows) == (
        Kind.VERIFY,
        4,
        20,
        400,
        20,
    )
    draft = work_of(Place("draft", "draft", 2, 3, 50, "eager"))
    assert (draft.model, draft.row_tokens, draft.draft_tokens, draft.head_rows) == (Model.DRAFT, 2, 3, 2)
    prefill = work_of(Place("prefill", "target", 2, 64, 128, "eager"))
    assert (prefill.chunks, prefill.rows, prefill.head_rows) == ((Chunk(64, 128),) * 2, 0, 2)
    assert error_kind(Place("prefill", "draft", 1, 8, 0, "eager")) == "draft_prefill"
