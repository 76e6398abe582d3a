"""Candidates that can meet the SLOs, and about how many requests a second each serves, by closed loops.

What does not fit in memory, or misses the SLOs with one request alone, is refused with the reason; the others are run
with ever more requests in flight until goodput falls. Not here: draws, replicas (search).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import ceil
from typing import NamedTuple

import msgspec

from sim.compare.point_runs import Point, run_point
from sim.compare.pool import OnDone, Runner
from sim.costs.profile import Profile
from sim.draws import child_seed
from sim.metrics.summary import Run, number
from sim.run.resolve import resolve, with_keys
from sim.run.scenario import Scenario
from sim.studies.length_choice import PLAIN
from sim.studies.tune import concurrencies_of, looped

POLICY = "continuous"
FALLEN = 0.7
"""Share of a setting's best goodput below which more requests in flight are not tried."""
CONTENDING = 0.95
"""Share of the best setting's goodput at some load, from which on a draft length is tried in draws."""
PLAN_KEY = 1_000_039
"""Child of the scenario's seed that first passes draw from."""


def label_of(tensor_parallel: int, expert_parallel: int | None, data_parallel: int) -> str:
    """A deployment's name, by the degrees above 1.

    >>> label_of(1, 8, 8), label_of(1, None, 1)
    ('EP8 DP8', 'TP1')
    """
    degrees = (("TP", tensor_parallel), ("EP", expert_parallel or 1), ("DP", data_parallel))
    return " ".join(f"{name}{degree}" for name, degree in degrees if degree > 1) or "TP1"


class Candidate(NamedTuple):
    """A deployment that could be rented."""

    name: str
    """The name of its profile in a scenario: shipped name or path."""
    profile: Profile

    @property
    def gpus(self) -> int:
        """GPUs of a replica."""
        return self.profile.tensor_parallel * self.profile.data_parallel

    @property
    def label(self) -> str:
        """Such as `TP2` or `EP8 DP8`."""
        profile = self.profile
        return label_of(profile.tensor_parallel, profile.expert_parallel, profile.data_parallel)


class Ranked(NamedTuple):
    """Figures of a candidate in the first pass."""

    candidate: Candidate
    k: int
    """PLAIN: without a drafter."""
    rate_per_s: float
    """Rate of a replica, about; goodput of the best closed loop."""
    in_flight: int
    """There, of one rank."""
    gpus: int | None
    """GPUs that the rate takes, about; None without one."""
    lengths: tuple[int, ...]
    """Draft lengths that come near the best at some load, and 1; none where drafting never does."""
    concurrencies: tuple[int, ...]
    """Requests in flight that were of use."""


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate that is none."""

    deployment: str
    why: str
    miss: float | None = None
    """Times that the worst SLO is missed by one request alone; None where nothing was simulated."""


class _Setting:
    """One draft length of one candidate in the first pass."""

    def __init__(self, candidate: Candidate, scenario: Scenario, k: int) -> None:
        self.candidate, self.k = candidate, k
        drafts = {"num_speculative_tokens": max(k, 0)}
        drafting = with_keys(scenario, profile=candidate.name, policy=(POLICY,), speculation=drafts)
        self.resolved = resolve(drafting, candidate.profile, POLICY)
        self.concurrencies = concurrencies_of(self.resolved)
        self.alone: Run = {}
        """The run with one request at a time."""
        self.goodput: dict[int, float] = {}
        """Goodput by requests in flight; empty where one alone misses the SLOs."""

    @property
    def best(self) -> float:
        return max(self.goodput.values(), default=0.0)

    def point(self, concurrency: int) -> Point:
        return Point(
            resolved=looped(self.resolved, concurrency), seed=child_seed(self.resolved.scenario.seed, PLAN_KEY)
        )


def first_pass(
    scenario: Scenario,
    candidates: Sequence[Candidate],
    rate_per_s: float | None,
    share: float,
    workers: int | None,
    on_done: OnDone,
) -> tuple[list[Ranked], list[Refused]]:
    """The candidates that can meet the SLOs, best first, and why the others cannot."""
    settings, refused = [], []
    for candidate in candidates:
        able, reason = _able(candidate, scenario)
        settings += able
        if not able:
            refused.append(Refused(deployment=candidate.label, why=reason))
    _climb(settings, share, Runner(workers, on_done))
    contending = [setting for setting in settings if setting.goodput]
    misses = _misses(settings, {id(each.candidate) for each in contending}, scenario)
    by_candidate: dict[int, list[_Setting]] = {}
    for setting in contending:
        by_candidate.setdefault(id(setting.candidate), []).append(setting)
    ranking = [_ranked(able, rate_per_s) for able in by_candidate.values()]
    ranking.sort(key=lambda each: (float(each.gpus or 0), -each.rate_per_s / each.candidate.gpus))
    return ranking, [*refused, *misses]


def _able(candidate: Candidate, scenario: Scenario) -> tuple[list[_Setting], str]:
    """Its settings that memory has room for; the reason where none."""
    speculation = scenario.speculation
    drafts = candidate.profile.draft is not None or speculation.drafter.looks_up
    most = speculation.num_speculative_tokens if drafts else 0
    able, reason = [], ""
    for k in (PLAIN, *range(1, most + 1)):
        try:
            able.append(_Setting(candidate, scenario, k))
        except ValueError as error:
            reason = reason or str(error)
    return able, reason


def _climb(settings: Sequence[_Setting], share: float, runner: Runner) -> None:
    """Run every setting."""
    if not settings:
        return
    climbed = runner.run(partial(_climbed, share), settings, "first pass", settings[0].resolved.plugins)
    for setting, (alone, goodput) in zip(settings, climbed, strict=True):
        setting.alone, setting.goodput = alone, goodput


def _climbed(share: float, setting: _Setting) -> tuple[Run, dict[int, float]]:
    """One request alone, and if that meets the SLOs the goodput by requests in flight, until it falls; run in a
    worker."""
    alone = run_point(setting.point(1)).run
    if joint_share(alone) < share:
        return alone, {}
    goodput = {1: number(alone, "request_goodput") or 0.0}
    for count in setting.concurrencies[1:]:
        goodput[count] = number(run_point(setting.point(count)).run, "request_goodput") or 0.0
        if goodput[count] < FALLEN * max(goodput.values()):
            break
    return alone, goodput


def joint_share(run: Run) -> float:
    """Share of the finished requests that meet all SLOs."""
    shares = run["slo_attainment"]
    assert isinstance(shares, dict)
    return float(shares["all"] or 0.0)


def _ranked(settings: Sequence[_Setting], rate_per_s: float | None) -> Ranked:
    """Figures of one candidate, by the settings tried of it."""
    best = max(settings, key=lambda each: each.best)
    candidate = best.candidate
    means = best.resolved.served.mean_tokens(best.resolved.scenario.seed)
    rate = best.best / means.served_share * candidate.profile.data_parallel
    useful = tuple(count for count in best.concurrencies if best.goodput.get(count, 0.0) >= FALLEN * best.goodput[1])
    near = {
        setting.k
        for setting in settings
        for count in useful
        if setting.goodput.get(count, 0.0) >= CONTENDING * max(each.goodput.get(count, 0.0) for each in settings)
    }
    gpus = None if rate_per_s is None else ceil(rate_per_s / rate) * candidate.gpus
    in_flight = max(best.goodput, key=lambda count: best.goodput[count])
    # One draft fits the captured graphs for longest: without it no length would, of many requests.
    lengths = sorted((near - {PLAIN}) | {1}) if near - {PLAIN} else []
    return Ranked(candidate, best.k, rate, in_flight, gpus, tuple(lengths), useful)


def cost(ranked: Ranked) -> float:
    """GPUs for the rate, without one GPUs per request per second; about."""
    return float(ranked.gpus or ranked.candidate.gpus / ranked.rate_per_s)


def _misses(settings: Sequence[_Setting], able: set[int], scenario: Scenario) -> list[Refused]:
    """Candidates of which no setting meets the SLOs even alone, with the setting that comes nearest."""
    by_candidate: dict[int, list[Refused]] = {}
    for setting in settings:
        if id(setting.candidate) in able:
            continue
        run, bounds = setting.alone, scenario.goodput.bounds_ms
        reached = {
            name: value
            for name, bound in bounds.items()
            if bound is not None and (value := number(run, f"p95_{name}") or number(run, f"mean_{name}")) is not None
        }
        miss = max((value / (bounds[name] or value) for name, value in reached.items()), default=float("inf"))
        drafter = "no drafter" if setting.k == PLAIN else f"K = {setting.k}"
        shown = ", ".join(f"{name.removesuffix('_ms')} {value:.3g} ms" for name, value in reached.items())
        why = f"one request alone has {shown} ({drafter})"
        refused = Refused(deployment=setting.candidate.label, why=why, miss=miss)
        by_candidate.setdefault(id(setting.candidate), []).append(refused)
    return [min(refused, key=lambda each: each.miss or 0.0) for refused in by_candidate.values()]
