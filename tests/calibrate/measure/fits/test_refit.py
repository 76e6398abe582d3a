"""The measured profiles that are shipped say what their committed points say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from calibrate.fit.points_file import read
from calibrate.measure.fits.measured_profile import refit
from sim.costs.profile_files import encode, load

FILES = sorted((Path(__file__).parents[4] / "docs/validation").glob("*-sxm/*.points.jsonl"))
NUMBER = r"(?<=[:,\[] )-?\d+(?:\.\d+)?(?:e-?\d+)?(?=[,}\]])"


@pytest.mark.filterwarnings("ignore::sim.costs.extrapolation.OutsideProfileWarning")
@pytest.mark.parametrize("path", FILES, ids=[path.parent.name for path in FILES])
def test_a_shipped_measured_profile_is_the_refit_of_its_committed_points(path: Path) -> None:
    """Kernels, host, errors and source. Another BLAS may round the last of four digits."""
    shipped = load(f"{path.parent.name}/{path.name.partition('.points')[0]}-measured")
    held, fresh = (encode(each).decode() for each in (shipped, refit(read(path), shipped)))
    assert re.sub(NUMBER, "", fresh) == re.sub(NUMBER, "", held)
    numbers, others = ([*map(float, re.findall(NUMBER, text))] for text in (held, fresh))
    assert others == pytest.approx(numbers, rel=2e-3)
