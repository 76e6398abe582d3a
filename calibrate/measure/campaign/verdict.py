"""Verdict of a campaign: what lanes do beside continuous batching on this GPU, measured and predicted. Pure.

A difference is that of the mean E2EL, with its 95 % interval over replications. Not here: the page that it stands on
(calibrate.measure.campaign.report).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from calibrate.measure.campaign.plan import BESIDE, LANES
from sim.metrics.compared import EQUAL_PCT


class Runs(NamedTuple):
    """Mean E2EL of one policy at one load, ms; one value per replication."""

    real_ms: Sequence[float]
    simulated_ms: Sequence[float]


class Change(NamedTuple):
    """Percent of the mean E2EL of `BESIDE`; half of the 95 % interval, infinite for a single replication."""

    mean_pct: float
    half_pct: float

    def __str__(self) -> str:
        if self.half_pct < float("inf"):
            return f"{self.mean_pct:+.1f} ± {self.half_pct:.1f}"
        return f"{self.mean_pct:+.1f}, {'equal, ' * (abs(self.mean_pct) < EQUAL_PCT)}one run each"


def runs_of(result: Mapping[str, Any]) -> dict[str, Runs]:
    """Runs of a judged replay, by policy."""
    means: dict[str, list[dict[str, float]]] = {}
    for run in result["runs"]:
        means.setdefault(run["policy"], []).append(run["metrics"]["e2el"]["mean"])
    return {
        policy: Runs([each["real"] for each in pairs], [each["simulated"] for each in pairs])
        for policy, pairs in means.items()
    }


def findings(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A sentence for each judged load: how its lanes compare with continuous batching, measured and predicted."""
    found = []
    for name, result in results.items():
        by_lane = changes(runs_of(result))
        said = [f"{lane} {measured} (predicted {predicted})" for lane, (measured, predicted) in by_lane.items()]
        if said:
            found.append(f"{name}: mean E2EL beside {BESIDE} in percent: {', '.join(said)}")
    return found


def change(values: Sequence[float], beside: Sequence[float]) -> Change:
    """The change from the mean of `beside` to that of `values`, with Welch's interval of their difference.

    >>> print(change([90.0, 91.0, 89.0], [100.0, 101.0, 99.0]))
    -10.0 ± 2.3
    """
    from scipy.stats import ttest_ind

    percent = 100.0 / fmean(beside)
    mean_pct = percent * (fmean(values) - fmean(beside))
    if min(len(values), len(beside)) < 2:
        return Change(mean_pct, float("inf"))
    if len({*values}) == len({*beside}) == 1:
        return Change(mean_pct, 0.0)
    interval = ttest_ind(values, beside, equal_var=False).confidence_interval()
    return Change(mean_pct, percent * float(interval.high - interval.low) / 2.0)


def changes(runs: Mapping[str, Runs]) -> dict[str, tuple[Change, Change]]:
    """Measured and predicted change of each lane policy that ran beside continuous batching."""
    return {
        lane: (
            change(runs[lane].real_ms, runs[BESIDE].real_ms),
            change(runs[lane].simulated_ms, runs[BESIDE].simulated_ms),
        )
        for lane in LANES
        if lane in runs and BESIDE in runs
    }
