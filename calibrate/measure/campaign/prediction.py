"""The measured profile's prediction of every replay, written down before the first one runs.

From the profile alone, with the seeds that the replays have. Not here: replaying (realrun.replay.replays), predicted
beside measured (realrun.validate.error_parts).
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from statistics import fmean
from typing import Any

from calibrate.measure.campaign.plan import BESIDE, OPEN_SHARE, PREDICTION, Campaign, Loop
from sim.costs.extrapolation import OutsideProfileWarning
from sim.costs.profile import Profile
from sim.costs.profile_files import load as load_profile
from sim.draws import child_seed
from sim.files.json_values import Json
from sim.files.write import write_text
from sim.metrics.summary import summarise
from sim.run.resolve import resolve
from sim.run.scenario import parse_scenario
from sim.run.simulate import simulate

METRICS = (
    *(f"{statistic}_{name}_ms" for name in ("ttft", "tpot", "e2el") for statistic in ("mean", "median", "p99")),
    *("request_throughput", "output_throughput"),
)


def predict(out: Path, campaign: Campaign) -> None:
    """Write OUT/prediction.json: every run of every load, and the rate of the open loop."""
    # Replays have longer prompts than the passes alone: what is judged says so itself.
    warnings.simplefilter("ignore", OutsideProfileWarning)
    profile = load_profile(campaign.job.profile_path(out))
    runs = {each.name: _runs(out, campaign, each, profile, 0.0) for each in campaign.loads if each.concurrency}
    served = [run["request_throughput"] for run in runs[campaign.largest.name] if run["policy"] == BESIDE]
    rate_per_s = round(OPEN_SHARE * fmean(served), 3)
    for each in campaign.loads:
        if each.concurrency is None:
            runs[each.name] = _runs(out, campaign, each, profile, rate_per_s)
    stated: dict[str, Json] = {
        "profile": profile.name,
        "source": profile.source,
        "fingerprint": profile.fingerprint,
        "open_rate_per_s": rate_per_s,
        "loads": runs,
    }
    write_text(out / PREDICTION, json.dumps(stated, indent=1) + "\n")


def open_rate_per_s(out: Path) -> float:
    """Raises ValueError where nothing was predicted."""
    path = out / PREDICTION
    if not path.exists():
        raise ValueError(f"{str(path)!r} is missing. `measure` did not write it, for the reason above")
    return float(json.loads(path.read_text())["open_rate_per_s"])


def _runs(out: Path, campaign: Campaign, load: Loop, profile: Profile, rate_per_s: float) -> list[dict[str, Any]]:
    scenario = parse_scenario(campaign.scenario(load, str(campaign.job.profile_path(out)), rate_per_s))
    found = []
    for replication in range(scenario.replications):
        for policy in scenario.policy:
            seed = child_seed(scenario.seed, replication)
            run = summarise(simulate(resolve(scenario, profile, policy), seed))
            found.append({"policy": policy, "seed": seed, **{name: run[name] for name in METRICS}})
    return found
