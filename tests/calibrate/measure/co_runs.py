"""Co-runs made up of numbers."""

from __future__ import annotations

from collections.abc import Sequence

from calibrate.fit.point_works import Corun
from calibrate.fit.points_file import Ran, Steady


def ran(corun: Corun, alone_s: Sequence[float], rates: Sequence[float]) -> Ran:
    """What was measured of `corun`, by side; one round."""
    return Ran(
        corun=corun,
        sides=tuple(Steady(alone_s=alone, rates=(rate,)) for alone, rate in zip(alone_s, rates, strict=False)),
    )
