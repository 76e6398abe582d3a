"""One cell of the accuracy report: a policy under a load, replayed several times, beside its one prediction.

Not here: the report (validation.replays.page).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

Row = dict[str, Any]
"""One replay: `load`, `policy`, `decomposition`, `works` and what was noted around it."""
Draw = dict[str, Any]


class Cell:
    """The replays of one policy under one load in one draw. Errors are percent of the mean over the replays."""

    def __init__(self, replays: Sequence[Row]) -> None:
        self.replays = list(replays)
        self.policy = self.replays[0]["policy"]

    def real(self, metric: str, statistic: str | None = None) -> list[float]:
        """As measured, replay by replay."""
        return [float(self._value(row, "contention", metric, statistic)["real"]) for row in self.replays]

    def simulated(self, metric: str, statistic: str | None = None) -> float:
        """The same for every replay: the profile and the tape are."""
        return float(self._value(self.replays[0], "contention", metric, statistic)["simulated"])

    def error(self, metric: str, statistic: str | None = None) -> float:
        real = fmean(self.real(metric, statistic))
        return 100.0 * (self.simulated(metric, statistic) - real) / real

    def mechanism(self, statistic: str) -> list[float]:
        """Mechanism error on E2EL, replay by replay: each has its own measured times."""
        return [float(self._value(row, "mechanism", "e2el", statistic)["error_pct"]) for row in self.replays]

    @property
    def worst_mechanism(self) -> float:
        return max((error for name in ("mean", "p95") for error in self.mechanism(name)), key=abs)

    def works_ratio(self, how: str) -> float | None:
        """Simulated over real mean device time of works `alone` or `together`, weighted by the real one; None where no
        work was so on both sides."""
        pairs = [
            (kind[f"real_{how}_s"], kind[f"simulated_{how}_s"])
            for row in self.replays
            for kind in row["works"].values()
        ]
        known = [(real, simulated) for real, simulated in pairs if real and simulated]
        return sum(simulated for _, simulated in known) / sum(real for real, _ in known) if known else None

    @property
    def slowdown(self) -> float:
        """How many times as long fixed passes took before and after the replays as when the profile was measured."""
        return fmean(ratio for row in self.replays for ratio in row["machine"] or [1.0])

    @property
    def dominant(self) -> str:
        """The largest step of the error on mean E2EL: scheduling, the machine that drifted, and beyond that the passes'
        own times or works at the same time."""
        parts = {
            "scheduling": abs(fmean(self.mechanism("mean"))),
            "drift": 100.0 * abs(1.0 / self.slowdown - 1.0),
        }
        for name, how in (("passes alone", "alone"), ("together", "together")):
            ratio = self.works_ratio(how)
            parts[name] = 0.0 if ratio is None else 100.0 * abs(ratio * self.slowdown - 1.0)
        return max(parts, key=lambda name: parts[name])

    def around(self, name: str) -> float | None:
        """Mean of what was noted around the replays; None where it is unknown."""
        known = [row[name] for row in self.replays if row[name] is not None]
        return fmean(known) if known else None

    @staticmethod
    def _value(row: Row, part: str, metric: str, statistic: str | None) -> dict[str, Any]:
        found: dict[str, Any] = row["decomposition"][part][metric]
        return found if statistic is None else found[statistic]


def cells_of(draw: Draw, load: str) -> list[Cell]:
    """The cells in the order of the policies."""
    by_policy: dict[str, list[Row]] = {}
    for row in draw["rows"]:
        if row["load"] == load:
            by_policy.setdefault(row["policy"], []).append(row)
    return [Cell(replays) for replays in by_policy.values()]
