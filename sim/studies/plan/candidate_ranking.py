"""Candidates that can meet the SLOs, and about how many requests a second each serves, by closed loops.

What does not fit in memory, or misses the SLOs with one request alone, is refused with the reason; the others are run
with ever more requests in flight until goodput falls. Not here: draws, replicas (search).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from math import ceil
from typing import NamedTuple

import msgspec

from sim.compare.point_runs import Point, run_point
from sim.compare.pool import OnDone, Runner
from sim.costs.profile import Profile
from sim.costs.shapes import kv_bytes_per_token
from sim.devices.link import link_of
from sim.draws import child_seed
from sim.metrics.summary import Run, number
from sim.policies.disaggregated import ONE_EACH, DevicePools
from sim.run.resolve import Resolved, resolve, with_keys
from sim.run.scenario import Scenario
from sim.studies.attainment import DEFAULT_SHARE
from sim.studies.length_choice import PLAIN
from sim.studies.tune import concurrencies_of, looped

POLICY, APART, LANES = "continuous", "disaggregated", "pd"
"""Prefill and decode in one loop, on separate GPUs, and in two lanes of one GPU."""
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
    name: str
    """Of its profile in a scenario: shipped name or path."""
    profile: Profile
    policy: str = POLICY
    pools: DevicePools = ONE_EACH
    prefill_degree: int = 0
    """GPUs of each server that only prefills; 0: there is none."""

    @property
    def gpus(self) -> int:
        one = self.profile.tensor_parallel * self.profile.data_parallel
        return self.pools.prefill * self.prefill_degree + self.pools.decode * one if self.prefill_degree else one

    @property
    def label(self) -> str:
        """Such as `TP2`, `EP8 DP8`, `4P TP1 1D TP4` or `TP2 pd`."""
        profile, pools = self.profile, self.pools
        label = label_of(profile.tensor_parallel, profile.expert_parallel, profile.data_parallel)
        if self.prefill_degree:
            return f"{pools.prefill}P TP{self.prefill_degree} {pools.decode}D {label}"
        return label if self.policy == POLICY else f"{label} {self.policy}"

    @property
    def in_words(self) -> str:
        """The label, or `4 prefill (TP1) and 1 decode servers (TP4)`."""
        if not self.prefill_degree:
            return self.label
        pools, decode = self.pools, f"decode servers (TP{self.profile.tensor_parallel})"
        return f"{pools.prefill} prefill (TP{self.prefill_degree}) and {pools.decode} {decode}"

    def served(self, scenario: Scenario) -> Scenario:
        """`scenario` as this deployment serves it."""
        options = replace(scenario.policy_options, pools=self.pools)
        return msgspec.structs.replace(scenario, profile=self.name, policy=(self.policy,), policy_options=options)

    def sent(self, prompt_tokens: int) -> tuple[int, float]:
        """KV bytes of a prompt that are sent, and seconds on the link: each GPU of the smaller server has one."""
        degree, link = min(self.prefill_degree, self.profile.tensor_parallel), link_of(self.pools.link)
        num_bytes = prompt_tokens * kv_bytes_per_token(self.profile.target, max(1, degree))
        return (num_bytes, link.latency_s + num_bytes / degree / link.bytes_per_s) if degree else (0, 0.0)


class Contender(NamedTuple):
    candidate: Candidate
    k: int
    """PLAIN: without a drafter."""
    rate_per_s: float
    """Rate of a replica, about; goodput of the best closed loop."""
    in_flight: int
    """There, of one rank."""
    gpus: int
    """GPUs that the rate takes, about."""
    lengths: tuple[int, ...]
    """Draft lengths that come near the best at some load, and 1; none where drafting never does."""
    concurrencies: tuple[int, ...]
    """Requests in flight that were of use."""


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    deployment: str
    why: str
    miss: float | None = None
    """Times that the worst SLO is missed by one request alone; None where nothing was simulated."""


class _Climb(NamedTuple):
    """One draft length of one candidate, the requests in flight to try, and what they came to."""

    candidate: Candidate
    k: int
    resolved: Resolved
    concurrencies: tuple[int, ...]
    alone: Run
    goodput: Mapping[int, float]
    """By requests in flight, until it falls; empty where one alone misses the SLOs."""


def first_pass(
    scenario: Scenario, candidates: Sequence[Candidate], rate_per_s: float, workers: int | None, on_done: OnDone
) -> tuple[list[Contender], list[Refused]]:
    """The candidates that can meet the SLOs, best first, and why the others cannot."""
    settings, refused, ranking = list[_Climb](), list[Refused](), list[Contender]()
    for candidate in candidates:
        able, reason = _able(candidate, scenario)
        settings += able
        if not able:
            refused.append(Refused(deployment=candidate.label, why=reason))
    uses = settings[0].resolved.plugins if settings else ()
    climbs = Runner(workers, on_done).run(_climbed, settings, "first pass", uses) if settings else []
    for _, group in groupby(zip(settings, climbs, strict=True), key=lambda pair: id(pair[0].candidate)):
        tried = [given._replace(alone=alone, goodput=goodput) for given, (alone, goodput) in group]
        if contending := [climb for climb in tried if climb.goodput]:
            ranking.append(_ranked(contending, rate_per_s))
        else:
            misses = [_miss(climb, scenario) for climb in tried]
            refused.append(min(misses, key=lambda each: each.miss or 0.0))
    ranking.sort(key=lambda each: (each.gpus, -each.rate_per_s / each.candidate.gpus))
    return ranking, refused


def _able(candidate: Candidate, scenario: Scenario) -> tuple[list[_Climb], str]:
    """Its settings that memory has room for; the reason where none."""
    speculation, able, reason = scenario.speculation, list[_Climb](), ""
    drafts = candidate.profile.draft is not None or speculation.drafter.looks_up
    most = speculation.num_speculative_tokens if drafts else 0
    for k in (PLAIN, *range(1, most + 1)):
        drafting = {"num_speculative_tokens": max(k, 0)}
        try:
            given = with_keys(candidate.served(scenario), speculation=drafting)
            resolved = resolve(given, candidate.profile, candidate.policy)
            able.append(_Climb(candidate, k, resolved, concurrencies_of(resolved), {}, {}))
        except ValueError as error:
            reason = reason or str(error)
    return able, reason


def _climbed(setting: _Climb) -> tuple[Run, dict[int, float]]:
    """One request alone, and if that meets the SLOs the goodput by requests in flight, until it falls."""
    seed = child_seed(setting.resolved.scenario.seed, PLAN_KEY)
    goodput: dict[int, float] = {}
    alone: Run = {}
    for count in setting.concurrencies:
        run = run_point(Point(resolved=looped(setting.resolved, count), seed=seed)).run
        alone = alone or run
        shares = run["slo_attainment"]
        assert isinstance(shares, dict)
        if not goodput and (shares["all"] or 0.0) < DEFAULT_SHARE:
            break
        goodput[count] = number(run, "request_goodput") or 0.0
        if goodput[count] < FALLEN * max(goodput.values()):
            break
    return alone, goodput


def _ranked(climbs: Sequence[_Climb], rate_per_s: float) -> Contender:
    best = max(climbs, key=lambda each: max(each.goodput.values()))
    candidate, resolved = best.candidate, best.resolved
    in_flight = max(best.goodput, key=lambda count: best.goodput[count])
    served_share = resolved.served.mean_tokens(resolved.scenario.seed).served_share
    rate = best.goodput[in_flight] / served_share * candidate.profile.data_parallel
    useful = tuple(count for count in best.concurrencies if best.goodput.get(count, 0.0) >= FALLEN * best.goodput[1])
    near = {
        climb.k
        for climb in climbs
        for count in useful
        if climb.goodput.get(count, 0.0) >= CONTENDING * max(each.goodput.get(count, 0.0) for each in climbs)
    }
    gpus = ceil(rate_per_s / rate) * candidate.gpus
    # One draft fits the captured graphs for longest: without it no length would, of many requests.
    lengths = sorted((near - {PLAIN}) | {1}) if near - {PLAIN} else []
    return Contender(candidate, best.k, rate, in_flight, gpus, tuple(lengths), useful)


def _miss(climb: _Climb, scenario: Scenario) -> Refused:
    bounds = {name: bound for name, bound in scenario.goodput.bounds_ms.items() if bound is not None}
    known = {name: number(climb.alone, f"p95_{name}") or number(climb.alone, f"mean_{name}") for name in bounds}
    reached = {name: value for name, value in known.items() if value is not None}
    miss = max((value / (bounds[name] or value) for name, value in reached.items()), default=float("inf"))
    drafter = "no drafter" if climb.k == PLAIN else f"K = {climb.k}"
    shown = ", ".join(f"{name.removesuffix('_ms')} {value:.3g} ms" for name, value in reached.items())
    why = f"one request alone has {shown} ({drafter})"
    return Refused(deployment=climb.candidate.label, why=why, miss=miss)
