"""Gates of a campaign: measurements that something else on the machine disturbed.

A page whose measurements are disturbed states no verdict. Not here: the gates themselves (realrun.validate.gates), the
page (calibrate.measure.campaign.report).
"""

from __future__ import annotations

import json
from pathlib import Path

from calibrate.measure.campaign.plan import MEASURE, Campaign
from realrun.validate.gates import of_profile, of_replay
from sim.costs.profile_files import load


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
