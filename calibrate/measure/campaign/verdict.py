"""Verdict of a campaign: from which load on lanes pay on this GPU, measured and simulated. Pure.

A policy pays at a load where its mean E2EL is below that of continuous batching by more than its 95 % interval over
replications. Not here: the page that it stands on (calibrate.measure.campaign.report).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from calibrate.measure.campaign.plan import BESIDE, LANES

EQUAL_PCT = 3.0
"""A difference of single runs below this is none."""


class Runs(NamedTuple):
    """Mean E2EL of one policy at one load, ms; one value per replication."""

    real_ms: Sequence[float]
    simulated_ms: Sequence[float]


class Change(NamedTuple):
    """Percent of the mean E2EL of `BESIDE`; half of the 95 % interval, infinite for a single replication."""

    mean_pct: float
    half_pct: float

    @property
    def pays(self) -> bool | None:
        """None where nothing shows."""
        return None if abs(self.mean_pct) <= self.half_pct else self.mean_pct < 0.0

    def __str__(self) -> str:
        if self.half_pct < float("inf"):
            return f"{self.mean_pct:+.1f} ± {self.half_pct:.1f}"
        return f"{self.mean_pct:+.1f}, {'equal, ' * (abs(self.mean_pct) < EQUAL_PCT)}one run each"


def runs_of(result: Mapping[str, Any]) -> dict[str, Runs]:
    """Whole runs of a judged replay, by policy; one that its time ended says nothing."""
    means: dict[str, list[dict[str, float]]] = {}
    for run, about in zip(result["runs"], result["replay"]["runs"], strict=True):
        if not about["partial"]:
            means.setdefault(run["policy"], []).append(run["metrics"]["e2el"]["mean"])
    return {
        policy: Runs([each["real"] for each in pairs], [each["simulated"] for each in pairs])
        for policy, pairs in means.items()
    }


def findings(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A sentence for each judged load: how its lanes compare with continuous batching, measured and predicted."""
    found = []
    for name, result in results.items():
        by_lane = changes({0: runs_of(result)})
        said = [f"{lane} {both[0][0]} % (predicted {both[0][1]} %)" for lane, both in by_lane.items()]
        if said:
            found.append(f"{name}: mean E2EL beside {BESIDE}: {', '.join(said)}")
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


def changes(loads: Mapping[int, Mapping[str, Runs]]) -> dict[str, dict[int, tuple[Change, Change]]]:
    """Measured and simulated change of each lane policy that ran beside continuous batching, by requests at once."""
    return {
        lane: {
            at_once: (
                change(runs[lane].real_ms, runs[BESIDE].real_ms),
                change(runs[lane].simulated_ms, runs[BESIDE].simulated_ms),
            )
            for at_once, runs in sorted(loads.items())
            if lane in runs and BESIDE in runs
        }
        for lane in LANES
        if any(lane in runs and BESIDE in runs for runs in loads.values())
    }


def sentence(lane: str, by_load: Mapping[int, tuple[Change, Change]]) -> str:
    measured, simulated = ({n: both[side] for n, both in by_load.items()} for side in (0, 1))
    return f"**{lane}**: measured, it {_where(measured)}; simulated, it {_where(simulated)}."


def _where(by_load: Mapping[int, Change]) -> str:
    """The loads at which a policy pays, as the end of a sentence.

    >>> _where({1: Change(3.0, 1.0), 16: Change(-2.0, 1.0), 64: Change(-8.0, 1.0)})
    'pays from 16 at once on'
    """
    pays = [n for n, each in by_load.items() if each.pays]
    if not pays:
        is_clear = all(each.pays is False for each in by_load.values())
        return "pays at no load" if is_clear else "pays at no load that these replications can tell"
    if pays == [n for n in by_load if n >= pays[0]]:
        return "pays at every load" if len(pays) == len(by_load) else f"pays from {pays[0]} at once on"
    return f"pays at {', '.join(map(str, pays))} at once"
