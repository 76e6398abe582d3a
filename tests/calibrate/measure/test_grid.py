"""The plan: which passes are timed, and that it follows from limits and budget alone."""

from __future__ import annotations

import pytest

from calibrate.fit.grid import (
    HELD_OUT_IN,
    Limits,
    estimator,
    grid,
    is_held_out,
    mixed,
    pilots,
    plan,
)
from calibrate.fit.point_works import TimedPass, error_kind, work_of
from sim.interface.work import Chunk, Kind, Model

LIMITS = Limits(rows=16, slot_tokens=512, pass_tokens=512, draft_tokens=8, has_draft=True, has_graphs=False)


def test_rows_with_prompts_have_slots_for_both() -> None:
    """64 in flight of which 4 are prompts leave 60 rows."""
    found = mixed(LIMITS._replace(rows=64, slot_tokens=4096))
    sizes = [(each.decoding.rows, each.prompts, each.prompt_tokens) for each in found]
    assert sizes == [(16, 1, 512), (16, 3, 512), (60, 4, 512)]


def test_every_place_fits_its_slots_and_is_there_once() -> None:
    passes = grid(LIMITS)
    assert len(passes) == len(set(passes))
    for timed in passes:
        assert timed.context_tokens + timed.tokens + 1 <= LIMITS.slot_tokens, timed
        assert 1 <= timed.rows <= LIMITS.rows
    assert {(timed.kind, timed.model) for timed in passes} == {
        ("prefill", "target"),
        ("prefill", "draft"),
        ("decode", "target"),
        ("verify", "target"),
        ("draft", "draft"),
    }


def test_verify_has_two_to_eight_tokens_and_several_contexts() -> None:
    verify = [timed for timed in grid(LIMITS) if timed.kind == "verify"]
    assert {2, 8} < {timed.tokens for timed in verify}
    assert len({timed.context_tokens for timed in verify}) > 1
    assert len({timed.rows for timed in verify}) > 2


def test_with_graphs_every_place_is_captured_but_prefills_and_decoding_is_launched_both_ways() -> None:
    eager, both = grid(LIMITS), grid(LIMITS._replace(has_graphs=True))
    assert {timed.kind for timed in both if timed.launch == "eager"} == {"prefill", "decode"}
    assert {timed.kind for timed in both if timed.launch == "graphed"} == {"decode", "verify", "draft"}
    # The same passes, and decodes once more.
    assert {timed._replace(launch="eager") for timed in both} == set(eager)
    assert len(both) - len(eager) == len([timed for timed in eager if timed.kind == "decode"])


def test_a_tiny_budget_leaves_out_what_is_too_long() -> None:
    assert plan(LIMITS, 10.0 * len(grid(LIMITS)), lambda _: 1.0, 10) == grid(LIMITS)
    tiny = plan(LIMITS, 1.0, lambda timed: 1e-3 * timed.rows * timed.tokens, 10)
    assert 0 < len(tiny) < len(grid(LIMITS))


def test_estimates_run_from_the_smallest_pilot_to_the_largest() -> None:
    timed_s = {timed: float(i + 1) for i, timed in enumerate(pilots(LIMITS))}
    estimate_s = estimator(timed_s)
    for timed, seconds in timed_s.items():
        if timed.kind == "decode":
            assert estimate_s(timed) == pytest.approx(seconds)
    assert all(estimate_s(timed) > 0.0 for timed in grid(LIMITS))


def test_a_fifth_of_each_kind_is_held_out_and_a_tenth_repeated() -> None:
    passes = grid(LIMITS)
    for kind in {(timed.kind, timed.model) for timed in passes}:
        alike = [timed for timed in passes if (timed.kind, timed.model) == kind]
        held_out = [timed for timed in alike if is_held_out(timed, passes)]
        assert len(held_out) == len(alike) // HELD_OUT_IN


def test_a_place_is_the_work_a_policy_would_submit() -> None:
    verify = work_of(TimedPass("verify", "target", 4, 5, 100, "eager"))
    assert (verify.kind, verify.rows, verify.row_tokens, verify.context_tokens, verify.head_rows) == (
        Kind.VERIFY,
        4,
        20,
        400,
        20,
    )
    draft = work_of(TimedPass("draft", "draft", 2, 3, 50, "eager"))
    assert (draft.model, draft.row_tokens, draft.draft_tokens, draft.head_rows) == (Model.DRAFT, 2, 3, 2)
    prefill = work_of(TimedPass("prefill", "target", 2, 64, 128, "eager"))
    assert (prefill.chunks, prefill.rows, prefill.head_rows) == ((Chunk(64, 128),) * 2, 0, 2)
    assert error_kind(TimedPass("prefill", "draft", 1, 8, 0, "eager")) == "draft_prefill"
