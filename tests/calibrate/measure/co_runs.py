"""Co-runs made up of numbers."""

from __future__ import annotations

from collections.abc import Sequence

from calibrate.fit.point_works import Corun
from calibrate.fit.points_file import Ran, Steady


def ran(
    corun: Corun,
    alone_s: Sequence[float],
    rates: Sequence[float],
    shares: Sequence[float] = (1.0, 1.0, 1.0),
) -> Ran:
    """What was measured of `corun`, by side; one round."""
    sides = [
        Steady(share=share, alone_s=alone, rates=(rate,))
        for alone, rate, share in zip(alone_s, rates, shares, strict=False)
    ]
    return Ran(corun=corun, sides=tuple(sides))
