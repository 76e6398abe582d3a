"""Checking a profile against its own points, another model's, another machine's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from calibrate.fit.measured_profile import profile_of
from calibrate.judge.profile_errors import check
from calibrate.measure.grid import grid
from calibrate.points import points_file
from calibrate.points.point_works import work_of
from sim.costs.forms.build import build_costs
from sim.costs.profile import MeasuredPoint, Profile
from sim.costs.profile_files import encode, load
from tests.calibrate.fit.test_pass_fit import LIMITS, NOISE, law, measured


@pytest.fixture(scope="module")
def fitted() -> Profile:
    profile = law()
    return profile_of(measured(NOISE), profile.gpu, 1, profile.target, profile.draft)


def test_check_gives_the_held_out_errors_and_their_points(fitted: Profile) -> None:
    found = check(fitted)
    assert found.errors == fitted.errors
    assert len(found.comparisons) == sum(point.is_held_out for point in fitted.points)
    assert all(comparison.flops > 0 and comparison.num_bytes > 0 for comparison in found.comparisons)


def of_another_model(tmp_path: Path, **changes: Any) -> Path:
    """A measured profile of a wider target under the same law, in a file."""
    profile = law()
    wide = msgspec.structs.replace(profile.target, name="wide", intermediate=4 * profile.target.intermediate)
    other = msgspec.structs.replace(profile, name="cpu/wide", target=wide, draft=None)
    costs = build_costs(other)
    places = [place for place in grid(LIMITS, 1) if place.model == "target"]
    points = []
    for place in places:
        seconds = costs.cost(work_of(place)).device_s
        fields = {**place._asdict(), "device_s": seconds, "host_s": seconds, "half_width_pct": 1.0}
        points.append(
            msgspec.convert({**fields, "repetitions": 9, "is_noisy": False, "is_held_out": False}, MeasuredPoint)
        )
    made = msgspec.structs.replace(other, points=tuple(points), fingerprint={"device": "cpu"})
    path = tmp_path / "wide.json"
    path.write_bytes(encode(msgspec.structs.replace(made, **changes)))
    return path


def test_a_model_that_the_fit_never_saw_is_predicted_with_its_own_dimensions(fitted: Profile, tmp_path: Path) -> None:
    path = of_another_model(tmp_path)
    found = check(fitted, path)
    assert sum(error.points for error in found.errors.values()) == len(load(path).points)
    for kind in ("prefill", "decode", "verify"):
        error = found.errors[kind]
        assert "wide left out of the fit, constants of cpu/tiny-target+tiny-draft" in error.held_out
        assert "another machine" not in error.held_out
        assert error.mean_error_pct is not None
        assert error.mean_error_pct < 12.0


def test_another_machine_is_told_and_another_gpu_refused(fitted: Profile, tmp_path: Path) -> None:
    found = check(fitted, of_another_model(tmp_path, fingerprint={"device": "cpu", "cpu": "a faster one"}))
    assert "measured on another machine (cpu a faster one, not None)" in found.errors["verify"].held_out
    gpu = msgspec.structs.replace(law().gpu, name="h100-sxm")
    with pytest.raises(ValueError, match="was measured on 'h100-sxm'"):
        check(fitted, of_another_model(tmp_path, gpu=gpu))


def test_a_points_file_of_another_model_is_refused(fitted: Profile, tmp_path: Path) -> None:
    path = tmp_path / "p.points.jsonl"
    points_file.create(path, {"device": "cpu"}, {"target": "llama-3.2-1b"}, [])
    with pytest.raises(ValueError, match=r"measured with target 'llama-3\.2-1b'"):
        check(fitted, path)
