"""Signs that another program disturbed a measurement: a profile's passes, a replay.

Not here: measuring (calibrate.measure), the comparison (realrun.validate.error_parts).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.costs.profile import Profile

PROBE_RATIO = 0.9, 1.1
"""Fixed passes before and after a replay, relative to those of the profile."""
MAX_HELD_OUT_PCT = 10.0
"""Mean error of held-out points of a kind of pass."""
OF_CORUNS = "overlap", "overlap_three", "partition"
"""Kinds of errors that say how well a form fits co-runs, whose rates are not measured again; the page has them."""
MAX_NOISY_SHARE = 0.1
"""Largest share of passes that may be noisy."""


def of_profile(profile: Profile) -> list[str]:
    """Disturbances of the passes of a profile that holds its points, a line each."""
    noisy = sum(point.is_noisy for point in profile.points)
    lines = [
        f"held-out {kind} {error.mean_error_pct:.1f} % off, at most {MAX_HELD_OUT_PCT:g}"
        for kind, error in profile.errors.items()
        if kind not in OF_CORUNS and error.mean_error_pct is not None and error.mean_error_pct > MAX_HELD_OUT_PCT
    ]
    if noisy > MAX_NOISY_SHARE * len(profile.points):
        lines.append(f"{noisy} of {len(profile.points)} passes noisy, at most a tenth")
    return lines


def of_replay(result: Mapping[str, Any]) -> list[str]:
    """Disturbances of the runs of a judged replay, in one line; none where there are none."""
    low, high = PROBE_RATIO
    beyond = {
        run["policy"]: run["machine"]
        for run in result["runs"]
        if run["machine"] and not all(low <= ratio <= high for ratio in run["machine"])
    }
    ratios = [ratio for machine in beyond.values() for ratio in machine]
    if not ratios:
        return []
    return [
        f"fixed passes beside {', '.join(beyond)} took {min(ratios):.2f} to {max(ratios):.2f} times as long as with "
        f"the profile, where {low:g} to {high:g} is normal"
    ]


def verdict(disturbances: list[str]) -> str:
    """What they come to, in a sentence; empty for none."""
    return f"Do not use this profile: {', and '.join(disturbances)}." if disturbances else ""
