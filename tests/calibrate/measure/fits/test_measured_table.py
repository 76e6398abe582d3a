"""Tables made of whole passes of a known truth that no compact form can say, with and without noise."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise

import msgspec
import numpy as np
import pytest

from calibrate.fit.fit_errors import Array
from calibrate.fit.point_works import TimedPass, timed_pass_of, work_of
from calibrate.fit.points_file import MeasuredSession
from calibrate.measure.fits.corrections import Corrections
from calibrate.measure.fits.measured_profile import profile_of
from calibrate.measure.fits.measured_table import _parts, rising
from calibrate.measure.grid import grid, is_held_out
from sim.costs.forms.build import build_costs
from sim.costs.forms.table import TableCosts
from sim.costs.profile import MeasuredPoint, Profile
from sim.costs.profile_files import decode, encode
from sim.interface.work import Model
from tests.calibrate.measure.fits.test_pass_fit import HOST, LIMITS, law

NOISE = 0.02
PLACES = grid(LIMITS, 2)
BETWEEN = [timed for timed in grid(LIMITS, 3) if timed not in PLACES]
OF_ROWS = ("decode", "verify")


@cache
def truth_s(timed: TimedPass) -> float:
    """The law's pass; of the target, a body that is slower beyond 24 tokens, more so with every doubling, and rows'
    attention that is 1.3 times slower."""
    work, costs = work_of(timed), build_costs(law())
    seconds = costs.cost(work).device_s
    if timed.model == "target":
        passes = costs.passes(work.model)
        tokens = timed.total_tokens
        seconds += 0.15 * max(0.0, np.log2(tokens / 24.0)) * passes.body_s(tokens)
        if work.rows:
            kv_tokens = work.context_tokens + work.row_tokens
            attention_s = passes.rows_s(work.rows, work.row_tokens, kv_tokens, beside_chunks=False)
            seconds += 0.3 * passes.layers * attention_s
    return float(seconds)


def measured(noise: float, change: Callable[[MeasuredPoint], MeasuredPoint] = lambda point: point) -> MeasuredSession:
    generator = np.random.default_rng(3)
    points = []
    for timed in PLACES:
        seconds = truth_s(timed) * float(np.exp(noise * generator.standard_normal()))
        fields = {**timed._asdict(), "device_s": seconds, "host_s": seconds, "half_width_pct": 100 * noise}
        more = {"repetitions": 9, "is_noisy": False, "is_held_out": is_held_out(timed, PLACES)}
        points.append(change(msgspec.convert({**fields, **more}, MeasuredPoint)))
    held = MeasuredSession(fingerprint={"device": "cpu"}, options={"attention": "flash-cpu"})
    return dataclasses.replace(held, passes=PLACES, points=points, host=HOST)


def table_of(held: MeasuredSession) -> Profile:
    shape = law()
    return profile_of(held, shape.gpu, 1, shape.target, shape.draft, is_table=True)


@pytest.fixture(scope="module")
def noisy() -> Profile:
    return table_of(measured(NOISE))


def compact_of(held: MeasuredSession) -> Profile:
    shape = law()
    return profile_of(held, shape.gpu, 1, shape.target, shape.draft)


def off(profile: Profile, passes: Sequence[TimedPass]) -> Array:
    """Relative distances from the truth [passes]."""
    costs = build_costs(profile)
    return np.array([abs(costs.cost(work_of(timed)).device_s / truth_s(timed) - 1.0) for timed in passes])


def test_exact_points_are_met_where_the_compact_form_misses() -> None:
    held = measured(0.0)
    used = [timed_pass_of(point) for point in held.points if point.kind in OF_ROWS and not point.is_held_out]
    assert off(compact_of(held), used).max() > 0.1
    assert off(table_of(held), used).max() < 0.01


def test_the_truth_behind_noisy_points_is_found_at_grid_points_and_between(noisy: Profile) -> None:
    for passes in (PLACES, BETWEEN):
        found = off(noisy, [timed for timed in passes if timed.kind != "prefill"])
        assert found.mean() < NOISE
        assert found.max() < 3 * NOISE
        found = off(noisy, [timed for timed in passes if timed.kind == "prefill" and timed.total_tokens <= 510])
        assert found.mean() < 2 * NOISE
        assert found.max() < 6 * NOISE


def test_no_pass_is_faster_than_a_smaller_one(noisy: Profile) -> None:
    """Of one count changed at a time, at grid points and between."""
    costs = build_costs(noisy)

    def rise(passes: list[TimedPass]) -> bool:
        seconds = [costs.cost(work_of(timed)).device_s for timed in passes]
        return all(small_s <= large_s for small_s, large_s in pairwise(seconds))

    for rows in (1, 3, 7, 16):
        for tokens in range(1, 9):
            contexts = [TimedPass("verify", "target", rows, tokens, context, "eager") for context in range(1, 503, 7)]
            assert rise(contexts), (rows, tokens)
    for context in (32, 150, 500):
        assert rise([TimedPass("verify", "target", rows, 5, context, "eager") for rows in range(1, 17)])
        assert rise([TimedPass("verify", "target", 6, tokens, context, "eager") for tokens in range(1, 9)])
        assert rise([TimedPass("draft", "draft", rows, 4, context, "eager") for rows in range(1, 17)])
    for history in (0, 100, 255):
        assert rise([TimedPass("prefill", "target", 1, tokens, history, "eager") for tokens in range(8, 250)])


def test_one_wild_point_moves_only_its_neighbourhood(noisy: Profile) -> None:
    """Three times too slow, and its interval as narrow as the others'."""
    wild = TimedPass("verify", "target", 3, 5, 32, "eager")
    assert not is_held_out(wild, PLACES)

    def slow(point: MeasuredPoint) -> MeasuredPoint:
        return msgspec.structs.replace(point, device_s=3 * point.device_s) if timed_pass_of(point) == wild else point

    before, after = build_costs(noisy), build_costs(table_of(measured(NOISE, slow)))
    moved = {
        timed: abs(after.cost(work_of(timed)).device_s / before.cost(work_of(timed)).device_s - 1.0) for timed in PLACES
    }
    far = [timed for timed in PLACES if not is_near(timed, wild)]
    assert max(moved[timed] for timed in far) < 0.5 * NOISE
    assert max(moved.values()) < 2 * NOISE, "what its neighbours say of it is trusted more"


def is_near(timed: TimedPass, other: TimedPass) -> bool:
    """Within a factor of four on every axis."""
    if timed.kind not in OF_ROWS:
        return False
    pairs = ((timed.rows, other.rows), (timed.tokens, other.tokens), (timed.context_tokens, other.context_tokens))
    return all(max(pair) <= 4 * min(pair) for pair in pairs)


def test_drafts_of_several_lengths_are_corrected_at_one_place(noisy: Profile) -> None:
    """A time that comes once per draft would otherwise pass for an effect of a few tokens of context."""
    passes = TableCosts(noisy).passes(Model.DRAFT)
    drafts = [work_of(TimedPass("draft", "draft", 4, tokens, 80, "eager")) for tokens in (1, 4, 8)]
    assert len({tuple(_parts(passes, work)) for work in drafts}) == 1


def test_held_out_points_have_no_part_in_it(noisy: Profile) -> None:
    def slow(point: MeasuredPoint) -> MeasuredPoint:
        return msgspec.structs.replace(point, device_s=2 * point.device_s) if point.is_held_out else point

    other = table_of(measured(NOISE, slow))
    assert other.kernels == noisy.kernels
    assert other.errors["verify"].mean_error_pct == pytest.approx(50.0, abs=5.0)


def test_errors_are_the_tables_own_beside_those_of_the_compact_form(noisy: Profile) -> None:
    compact = compact_of(measured(NOISE))
    for kind in ("prefill", "decode", "draft", "verify", "draft_prefill"):
        error = noisy.errors[kind]
        assert error.points == compact.errors[kind].points
        assert f"compact form: mean {compact.errors[kind].mean_error_pct} %" in error.held_out
    assert noisy.errors["verify"].mean_error_pct != compact.errors["verify"].mean_error_pct
    assert noisy.errors["body"].points == 0


def test_a_table_carries_its_points_and_survives_its_file(noisy: Profile, recwarn: pytest.WarningsRecorder) -> None:
    assert decode(encode(noisy), "copy") == noisy
    assert "tables: compact fit corrected by its points" in noisy.source
    assert [timed_pass_of(point) for point in noisy.points] == PLACES
    costs = build_costs(noisy)
    assert isinstance(costs, TableCosts)
    for timed in PLACES:
        costs.cost(work_of(timed))
    assert not recwarn.list, "every place measured is within the table's range"


def test_a_target_alone_has_one_table() -> None:
    held, shape = measured(NOISE), law()
    passes = [timed for timed in PLACES if timed.model == "target"]
    alone = dataclasses.replace(held, passes=passes, points=[point for point in held.points if point.model == "target"])
    profile = profile_of(alone, shape.gpu, 1, shape.target, None, is_table=True)
    assert profile.table.draft is None
    assert off(profile, [timed for timed in passes if timed.kind in OF_ROWS]).max() < 3 * NOISE


def test_a_model_without_prefills_is_refused() -> None:
    held = measured(0.0)
    points = [point for point in held.points if (point.kind, point.model) != ("prefill", "draft")]
    with pytest.raises(ValueError, match="too few points for a table of the draft: raise --budget"):
        table_of(dataclasses.replace(held, points=points))


def test_falls_are_pooled_and_not_raised() -> None:
    even = np.ones(5)
    assert rising(np.array([1.0, 2.0, 2.0, 4.0, 5.0]), even).tolist() == pytest.approx([1, 2, 2, 4, 5])
    wild = rising(np.array([1.0, 8.0, 1.0, 1.0, 9.0]), even)
    assert wild.tolist() == pytest.approx([1, 2, 2, 2, 9]), "their mean in logs"
    weights = np.array([1.0, 0.5, 1.0, 1.0, 1.0])
    assert rising(np.array([1.0, 32.0, 1.0, 1.0, 9.0]), weights).tolist() == pytest.approx([1, 2, 2, 2, 9])


def test_a_grid_of_noise_falls_along_no_axis_afterwards() -> None:
    generator = np.random.default_rng(5)
    grid_s = np.exp(generator.standard_normal((4, 5, 6)))
    found = rising(grid_s, generator.uniform(0.1, 10.0, grid_s.shape))
    assert all((np.diff(found, axis=axis) >= 0.0).all() for axis in range(3))
    assert np.log(found).mean() == pytest.approx(np.log(grid_s).mean(), abs=0.15), "neither raised nor lowered"


def test_corrections_are_shared_out_by_what_the_passes_have_in_common() -> None:
    """Body alone is 1.2 times slower: passes of no attention at all say which part it is."""
    parts, measured_s, predicted_s = [], [], []
    for tokens in range(8):
        for attention_s in (0.0, 1.0, 2.0):
            timed = (float(tokens),)
            parts.append({("body", timed): 1.0} | ({("rows", timed): attention_s} if attention_s else {}))
            predicted_s.append(1.0 + attention_s)
            measured_s.append(1.2 + attention_s)
    corrections = Corrections(parts, np.array(predicted_s), np.array(measured_s), np.full(len(parts), 0.02))
    body, _ = corrections.at([("body", (3.0,))])
    rows, _ = corrections.at([("rows", (3.0,))])
    head, deviations = corrections.at([("head", (3.0,))])
    assert np.exp(body[0]) == pytest.approx(1.2, rel=0.02)
    assert np.exp(rows[0]) == pytest.approx(1.0, rel=0.03)
    assert head[0] == 0.0
    assert deviations[0] == corrections.spread
