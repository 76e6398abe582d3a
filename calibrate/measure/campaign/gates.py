"""Gates of a campaign: measurements that something else on the machine disturbed.

Pure, but for reading what steps left in the campaign's directory. A page whose measurements are disturbed states no
verdict. Not here: the page (calibrate.measure.campaign.report).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calibrate.measure.campaign.plan import MEASURE, Campaign
from sim.costs.profile import Profile
from sim.costs.profile_files import load

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
        f"the profile, want {low:g} to {high:g}"
    ]


def disturbed(out: Path, campaign: Campaign, step: str) -> list[str]:
    """Disturbances of a step that is over, a line each; none of steps without gates, nor of one that left nothing."""
    if step == MEASURE and campaign.job.profile_path(out).exists():
        return of_profile(load(campaign.job.profile_path(out)))
    judged = out / f"{step}.json"
    if any(step == each.name for each in campaign.loads) and judged.exists():
        return of_replay(json.loads(judged.read_text()))
    return []


def forget(out: Path, campaign: Campaign) -> None:
    """Take away the passes of a measurement, so that they are made again, but not the rates of co-runs."""
    points = campaign.job.points_path(out)
    if points.exists():
        header, *lines = points.read_text().splitlines(keepends=True)
        points.with_suffix(".former.jsonl").write_text("".join([header, *lines]))
        points.write_text("".join([header, *(line for line in lines if line.startswith('{"rates"'))]))
    campaign.job.profile_path(out).unlink(missing_ok=True)
