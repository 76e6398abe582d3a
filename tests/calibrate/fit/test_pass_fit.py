"""Fits to made-up measurements whose law is known: a profile's own costs, with and without noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from calibrate.fit.fit_errors import compare_points, summary
from calibrate.fit.measured_profile import profile_of
from calibrate.fit.overlap_fit import Costs, fit_overlap, predict_s
from calibrate.measure.grid import Limits, grid, is_held_out
from calibrate.points.point_works import Place, Together, work_of
from calibrate.points.points_file import Clocks, Points, Ran
from sim.costs.forms.build import build_costs
from sim.costs.profile import MeasuredPoint, Profile
from sim.costs.profile_files import decode, encode, load
from sim.devices.contention import Contention, contention_of

LIMITS = Limits(rows=16, slot_tokens=512, pass_tokens=512, draft_tokens=8, has_draft=True, has_graphs=False)
NOISE = 0.03
HOST: dict[str, Any] = {
    "is_cpu": True,
    "kv_layout": "slot-head-token",
    "date": "2026-01-01",
    "kernels_per_layer": 12,
    "result_s": 0.0,
    "step_s": 1e-5,
    "row_s": 1e-6,
    "inflation_eager": [1.0, 1.9, 2.8],
}


def law() -> Profile:
    """The shipped pair, with costs unlike those that the fit starts from."""
    profile = load("cpu/tiny")
    gemm = msgspec.structs.replace(profile.kernels.gemm, compute_share=0.35, fixed_s=6e-5)
    return msgspec.structs.replace(profile, kernels=msgspec.structs.replace(profile.kernels, gemm=gemm))


CLOCKS = [
    Clocks(sm_mhz=1980.0),
    Clocks(sm_mhz=1410.0, throttled=("power cap", "hardware slowdown")),
    Clocks(throttled=("power cap",)),
]


def measured(noise: float, seed: int = 0) -> Points:
    profile, generator = law(), np.random.default_rng(seed)
    costs, places = build_costs(profile), grid(LIMITS, 2)
    points = []
    for place in places:
        seconds = costs.cost(work_of(place)).device_s * float(np.exp(noise * generator.standard_normal()))
        fields = {**place._asdict(), "device_s": seconds, "host_s": seconds, "half_width_pct": 100 * noise}
        more = {"repetitions": 9, "is_noisy": False, "is_held_out": is_held_out(place, places)}
        points.append(msgspec.convert({**fields, **more}, MeasuredPoint))
    options = {"attention": "flash-cpu"}
    return Points({"device": "cpu"}, options, places, points, CLOCKS, set(), HOST, [], {})


@pytest.fixture(scope="module")
def fitted() -> Profile:
    profile = law()
    return profile_of(measured(NOISE), profile.gpu, 1, profile.target, profile.draft)


def test_the_law_behind_noisy_points_is_found_again(fitted: Profile) -> None:
    costs, truth = build_costs(fitted), build_costs(law())
    for place in grid(LIMITS, 1):
        work = work_of(place)
        assert costs.cost(work).device_s == pytest.approx(truth.cost(work).device_s, rel=0.12), place.name


def test_errors_are_of_points_that_the_fit_did_not_use(fitted: Profile) -> None:
    held_out = [point for point in fitted.points if point.is_held_out]
    assert summary(compare_points(fitted, held_out), "")["verify"].points == fitted.errors["verify"].points
    for kind in ("prefill", "decode", "draft", "verify", "draft_prefill"):
        error = fitted.errors[kind]
        assert error.mean_error_pct is not None
        assert error.mean_error_pct < 3.0 * 100.0 * NOISE
        assert "median" in error.held_out
    assert fitted.errors["body"].points == 0


def test_the_profile_carries_its_points_and_survives_its_file(fitted: Profile) -> None:
    assert fitted.name == "cpu/tiny-target+tiny-draft"
    assert len(fitted.points) == len(grid(LIMITS, 2))
    assert "SM clock 1410 to 1980 MHz, of 3 visits slowed: 2 by power cap, 1 by hardware slowdown" in fitted.source
    assert fitted.fingerprint == {"device": "cpu"}
    assert "L2" not in fitted.source
    assert not fitted.overlap.measured
    assert decode(encode(fitted), "copy") == fitted


def test_a_work_inside_the_measured_range_gives_no_warning(fitted: Profile, recwarn: pytest.WarningsRecorder) -> None:
    costs = build_costs(fitted)
    for place in grid(LIMITS, 2):
        costs.cost(work_of(place))
    assert not recwarn.list


def test_the_state_of_the_l2_cache_is_told_where_it_is_known() -> None:
    profile, held = law(), measured(0.0)
    cold = [msgspec.structs.replace(point, l2="cold") for point in held.points[:3]]
    known = held._replace(points=[*cold, *held.points[3:]])
    source = profile_of(known, profile.gpu, 1, profile.target, profile.draft).source
    assert f"L2 never flushed between repetitions: 3 cold, 0 warm, {len(held.points) - 3} unknown" in source


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_points_in_other_units_are_refused(factor: float) -> None:
    profile, held = law(), measured(0.0)
    points = [msgspec.structs.replace(point, device_s=factor * point.device_s) for point in held.points]
    with pytest.raises(ValueError, match="are they not in seconds"):
        profile_of(held._replace(points=points), profile.gpu, 1, profile.target, profile.draft)


def test_too_few_points_are_refused() -> None:
    profile = law()
    nothing = measured(0.0)._replace(points=[])
    with pytest.raises(ValueError, match="raise --budget"):
        profile_of(nothing, profile.gpu, 1, profile.target, profile.draft)


def ran(costs: Costs, contention: Contention, places: Sequence[Place], offsets_s: Sequence[float]) -> Ran:
    """Passes that ran at once exactly as `contention` has it."""
    solo_s = tuple(costs.eager.cost(work_of(place)).device_s for place in places)
    what = Together(tuple(places), (0,) * len(places), tuple(offset_s / solo_s[0] for offset_s in offsets_s))
    run = Ran(what=what, solo_s=solo_s, together_s=solo_s, offsets_s=tuple(offsets_s), runs=5)
    return msgspec.structs.replace(run, together_s=predict_s(costs, contention, run))


def floorless(profile: Profile) -> Costs:
    overlap = msgspec.structs.replace(profile.overlap, demand_floor=0.0)
    return Costs(msgspec.structs.replace(profile, overlap=overlap))


def pairs_ran(profile: Profile, contention: Contention, noise: float = 0.0) -> list[Ran]:
    """Pairs that ran together exactly as `contention` has it, but for `noise`."""
    generator, costs = np.random.default_rng(1), floorless(profile)
    prefill = Place("prefill", "target", 1, 256, 0, "eager")
    verify, draft = Place("verify", "target", 8, 5, 128, "eager"), Place("draft", "draft", 8, 4, 128, "eager")
    found = []
    for first, second in ((prefill, verify), (verify, prefill), (prefill, draft), (draft, verify), (verify, draft)):
        for share in (0.0, 0.25, 0.5):
            offset_s = share * costs.eager.cost(work_of(first)).device_s
            run = ran(costs, contention, (first, second), (0.0, offset_s))
            noisy = np.array(run.together_s) * np.exp(noise * generator.standard_normal(2))
            found.append(msgspec.structs.replace(run, together_s=tuple(noisy.tolist())))
    return found


def test_contention_behind_pairs_is_found_again() -> None:
    profile = law()
    entries = pairs_ran(profile, Contention(eta_compute=0.5, eta_bandwidth=0.4, tau_s=2e-5), noise=0.02)
    fitted = fit_overlap(profile, entries)
    assert fitted.overlap.measured
    assert fitted.overlap.demand_floor == 0.0
    error = fitted.errors["overlap"]
    assert error.points == 2 * (len(entries) // 2)
    assert error.mean_error_pct is not None
    assert error.mean_error_pct < 5.0


def test_on_a_cpu_works_have_a_core_each_and_the_length_of_a_turn_is_found_again() -> None:
    profile = law()
    contention = Contention(eta_compute=2.0, eta_bandwidth=2.0, tau_s=2e-5, takes_turns=True)
    fitted = fit_overlap(profile, pairs_ran(profile, contention, noise=0.02), cores=2.0)
    assert contention_of(fitted.overlap) == msgspec.structs.replace(contention, tau_s=fitted.overlap.tau_s)
    assert fitted.overlap.tau_s == pytest.approx(2e-5, rel=0.2)


def test_three_passes_at_once_are_predicted_from_the_pairs() -> None:
    profile, contention = law(), Contention(eta_compute=0.5, eta_bandwidth=0.4, tau_s=2e-5)
    places = [
        Place("prefill", "target", 1, 256, 0, "eager"),
        Place("draft", "draft", 5, 4, 128, "eager"),
        Place("verify", "target", 5, 5, 128, "eager"),
    ]
    three = ran(floorless(profile), contention, places, (0.0, 1e-4, 0.0))
    assert all(slow > 1.2 * solo for slow, solo in zip(three.together_s, three.solo_s, strict=True))
    fitted = fit_overlap(profile, [*pairs_ran(profile, contention), three])
    error = fitted.errors["overlap_three"]
    assert error.points == 3
    assert error.mean_error_pct is not None
    assert error.mean_error_pct < 5.0
    without = fit_overlap(profile, pairs_ran(profile, contention))
    assert without.overlap == fitted.overlap
    assert "overlap_three" not in without.errors


def test_the_order_in_which_the_threads_began_is_kept() -> None:
    profile = law()
    costs, contention = Costs(profile), Contention()
    run = pairs_ran(profile, contention)[0]
    alone_s = 0.5 * run.solo_s[1]
    first_s, second_s = predict_s(costs, contention, msgspec.structs.replace(run, offsets_s=(0.0, -alone_s)))
    assert second_s > alone_s
    assert first_s >= run.solo_s[0]


def test_a_few_pairs_fit_nothing() -> None:
    profile = law()
    entries = pairs_ran(profile, Contention())
    assert fit_overlap(profile, entries[:3]) == profile
