"""One cell of a claimed table: a scenario, a policy and an assumed overlap, over several draws.

What most sections are made of. Not here: which cells a section has (one module each), verdicts
(validation.claims.ledger).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from statistics import mean

from sim.costs.extrapolation import collecting
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.devices.contention import BRACKET, PhiLevel, Regime, phi_at
from sim.draws import child_seed
from sim.files.json_values import Json
from sim.metrics.stats import interval_95
from sim.metrics.summary import Run, number, summarise
from sim.run.resolve import resolve
from sim.run.scenario import Scenario
from sim.run.simulate import simulate
from validation.claims.ledger import Interval
from validation.tables import off_pct

SEED = 2002
OVERLAPPING = frozenset({"pd", "pdv", "unified", "pipelined", "adaptive"})
"""Policies with several streams, to which overlap matters."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Metrics of the same cell, one run per draw, under vLLM's keys."""

    runs: tuple[Run, ...]

    def values(self, metric: str) -> list[float]:
        """Values of every run. Raises ValueError where a run has none."""
        found = [number(run, metric) for run in self.runs]
        if any(value is None for value in found):
            raise ValueError(f"{metric}: some run has no such figure")
        return [value for value in found if value is not None]

    def mean(self, metric: str) -> float:
        return mean(self.values(metric))

    def interval(self, metric: str) -> Interval | None:
        """95 % interval of the mean over draws."""
        return interval_95(self.values(metric))


def cell(
    policy: str, draws: int, profile: str | Profile, changes: Mapping[str, Json], *, regime: Regime | None = None
) -> Cell:
    """Simulate one cell; `changes` are keys of a scenario, flat or dotted.

    Input that a profile has not measured is extrapolated without a word: claims are about such input at times.
    """
    loaded = profile if isinstance(profile, Profile) else known(profile)
    overlap = {} if regime is None else {"devices.overlap": regime.value}
    scenario = Scenario.of(profile=loaded.name, policy=policy, **changes, **overlap)
    with warnings.catch_warnings(), collecting():
        warnings.simplefilter("ignore")
        records = [simulate(resolve(scenario, loaded, policy), child_seed(SEED, draw)) for draw in range(draws)]
    return Cell(tuple(summarise(record, percentiles=(50.0, 95.0, 99.0)) for record in records))


@lru_cache(maxsize=16)
def known(name: str) -> Profile:
    """A shipped profile, read once."""
    return load(name)


def bracket(policy: str, draws: int, profile: str, changes: Mapping[str, Json]) -> dict[PhiLevel, Cell]:
    """The cell at every phi of the bracket, least overlap first; the same one for a policy with a single stream."""
    if policy not in OVERLAPPING:
        return dict.fromkeys(BRACKET, cell(policy, draws, profile, changes))
    overlap = known(profile).overlap
    return {
        level: cell(policy, draws, profile, {**changes, "devices.phi": phi_at(overlap, level)}) for level in BRACKET
    }


@dataclass(frozen=True, slots=True)
class Ratio:
    """One cell over another, draw by draw, with the interval of the mean."""

    value: float
    low: float
    high: float


def ratio(ours: Cell, theirs: Cell, metric: str) -> Ratio:
    """Ratio of a metric, paired on the same draws."""
    ratios = [one / other for one, other in zip(ours.values(metric), theirs.values(metric), strict=True)]
    low, high = interval_95(ratios) or (ratios[0], ratios[0])
    return Ratio(mean(ratios), low, high)


@dataclass(frozen=True, slots=True)
class Bracketed:
    """A ratio at every phi of the bracket."""

    by_level: Mapping[PhiLevel, Ratio]

    @property
    def value(self) -> float:
        """The ratio at the middle phi."""
        return self.by_level[PhiLevel.MIDDLE].value

    @property
    def span(self) -> Interval:
        """Range from the lowest to the highest end of their intervals: what overlap and draws leave open together."""
        return min(each.low for each in self.by_level.values()), max(each.high for each in self.by_level.values())

    @property
    def more_pct(self) -> dict[str, float]:
        """How much more than the other, by name of the level."""
        return {level.value: off_pct(each.value, 1.0) for level, each in self.by_level.items()}

    @property
    def more_span_pct(self) -> Interval:
        low, high = self.span
        return off_pct(low, 1.0), off_pct(high, 1.0)


def ratios(ours: Mapping[PhiLevel, Cell], theirs: Mapping[PhiLevel, Cell], metric: str) -> Bracketed:
    """The ratio at every phi."""
    return Bracketed({level: ratio(ours[level], theirs[level], metric) for level in BRACKET})
