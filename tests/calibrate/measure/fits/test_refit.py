"""The measured profiles that are shipped say what their committed points say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from calibrate.fit import points_file
from calibrate.measure.fits.measured_profile import profile_of, refit
from sim.costs.profile import HOPPER_PHI
from sim.costs.profile_files import load

FILES = sorted((Path(__file__).parents[4] / "docs/validation").glob("*-sxm/*.points.jsonl"))
pytestmark = [
    pytest.mark.parametrize("path", FILES, ids=[path.parent.name for path in FILES]),
    pytest.mark.filterwarnings("ignore::sim.costs.extrapolation.OutsideProfileWarning"),
]


def test_a_shipped_measured_profile_is_the_refit_of_its_committed_points(path: Path) -> None:
    """Field by field: kernels, host, errors, source. Another BLAS may round the last digit of four."""
    shipped = load(f"{path.parent.name}/{path.name.partition('.points')[0]}-measured")
    held, fresh = (leaves(msgspec.to_builtins(each)) for each in (shipped, refit(points_file.read(path), shipped)))
    numbers = {name: value for name, value in held.items() if type(value) in (int, float)}
    assert {name: fresh.pop(name, None) for name in numbers} == pytest.approx(numbers, rel=2e-3)
    assert fresh == {name: value for name, value in held.items() if name not in numbers}


def test_the_range_of_the_pooled_phi_holds_what_either_gpus_pairs_say(path: Path) -> None:
    shipped = load(f"{path.parent.name}/{path.name.partition('.points')[0]}-measured")
    phi = profile_of(points_file.read(path), shipped.gpu, 132, shipped.target, shipped.draft).phi
    assert HOPPER_PHI.low <= phi.low <= HOPPER_PHI.value <= phi.high <= HOPPER_PHI.high


def leaves(value: Any, name: str = "") -> dict[str, Any]:
    """Values by their paths."""
    if not isinstance(value, dict | list | tuple):
        return {name: value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return {path: leaf for part, of in items for path, leaf in leaves(of, f"{name}.{part}").items()}
