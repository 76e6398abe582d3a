"""Fits to made-up measurements whose law is known: a profile's own costs, with and without noise."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import numpy as np
import pytest

from calibrate.fit.fit_errors import compare_points, summary
from calibrate.fit.grid import Limits, grid, is_held_out
from calibrate.fit.point_works import work_of
from calibrate.fit.points_file import MeasuredSession
from calibrate.measure.fits.measured_profile import profile_of
from sim.costs.forms.build import build_costs
from sim.costs.profile import MeasuredPoint, Profile
from sim.costs.profile_files import decode, encode, load

LIMITS = Limits(rows=16, slot_tokens=512, pass_tokens=512, draft_tokens=8, has_draft=True, has_graphs=False)
NOISE = 0.03
HOST: dict[str, Any] = {
    "gpu": msgspec.to_builtins(load("cpu/tiny").gpu),
    "multiprocessors": 1,
    "is_cpu": True,
    "kv_layout": "slot-head-token",
    "date": "2026-01-01",
    "kernels_per_layer": 12,
    "step_s": 1e-5,
    "row_s": 1e-6,
    "inflation_eager": [1.0, 1.9, 2.8],
}


def law() -> Profile:
    """The shipped pair, with costs unlike those that the fit starts from."""
    profile = load("cpu/tiny")
    gemm = msgspec.structs.replace(profile.kernels.gemm, compute_share=0.35, fixed_s=6e-5)
    return msgspec.structs.replace(profile, kernels=msgspec.structs.replace(profile.kernels, gemm=gemm))


def measured(noise: float, seed: int = 0) -> MeasuredSession:
    profile, generator = law(), np.random.default_rng(seed)
    costs, passes = build_costs(profile), grid(LIMITS)
    points = []
    for timed in passes:
        seconds = costs.cost(work_of(timed)).device_s * float(np.exp(noise * generator.standard_normal()))
        fields = {**timed._asdict(), "device_s": seconds, "host_s": seconds, "half_width_pct": 100 * noise}
        more = {"repetitions": 9, "is_noisy": False, "is_held_out": is_held_out(timed, passes)}
        points.append(msgspec.convert({**fields, **more}, MeasuredPoint))
    options = {"attention": "flash-cpu"}
    held = MeasuredSession(fingerprint={"device": "cpu"}, options=options)
    return dataclasses.replace(held, passes=passes, points=points, host=HOST)


@pytest.fixture(scope="module")
def fitted() -> Profile:
    profile = law()
    return profile_of(measured(NOISE), profile.target, profile.draft)


def test_the_law_behind_noisy_points_is_found_again(fitted: Profile) -> None:
    costs, truth = build_costs(fitted), build_costs(law())
    for timed in grid(LIMITS):
        work = work_of(timed)
        assert costs.cost(work).device_s == pytest.approx(truth.cost(work).device_s, rel=0.12), timed.name


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
    assert len(fitted.points) == len(grid(LIMITS))
    assert fitted.fingerprint == {"device": "cpu"}
    assert not fitted.overlap.measured
    assert decode(encode(fitted), "copy") == fitted


def test_a_work_inside_the_measured_range_gives_no_warning(fitted: Profile, recwarn: pytest.WarningsRecorder) -> None:
    costs = build_costs(fitted)
    for timed in grid(LIMITS):
        costs.cost(work_of(timed))
    assert not recwarn.list


def test_too_few_points_are_refused() -> None:
    profile = law()
    nothing = dataclasses.replace(measured(0.0), points=[])
    with pytest.raises(ValueError, match=r"Raise measure\.budget_s"):
        profile_of(nothing, profile.target, profile.draft)
