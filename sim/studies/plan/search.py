"""Which deployment of a model to rent for a load and SLOs, of several candidates: how many GPUs per replica and how
split, with or without a drafter, at which draft length, in how many replicas.

A first pass prunes and ranks: closed loops of ever more requests in flight, costs and acceptance as given, each setting
until its goodput falls; what does not fit in memory, or misses the SLOs alone, is refused with the reason. The best few
are refined: draft length by load as `tune` has it, the highest rate and the replicas as `capacity` has it, both in
draws of costs and acceptance. Where two tables of the same kernels contradict each other, the sentence says what the
best row comes to by the other one, too (`with_world`). A candidate is a profile; of one of several ranks
(`data_parallel`) a rank is simulated, and replicas are whole. Not here: where profiles come from (calibrate.importers),
draws, how it is shown (sim.report).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, log2
from statistics import median
from typing import NamedTuple

import msgspec

from sim.compare.point_runs import Point, run_point
from sim.compare.pool import lasting
from sim.costs.profile import SERVED_KINDS, Profile
from sim.draws import child_seed
from sim.engine.fleet import Routing
from sim.files.json_values import Json
from sim.metrics.summary import number
from sim.run.limits import limits_of, served_by
from sim.run.resolve import resolve, with_keys
from sim.run.scenario import PlainScenario, Scenario, parse_scenario, to_plain
from sim.studies.attainment import DEFAULT_SHARE, Fleet, Highest, highest_load
from sim.studies.cost_draws import DEFAULT_DRAWS, covers
from sim.studies.evidence import asked_of, evidence
from sim.studies.load_search import REQUESTS, with_length
from sim.studies.plan.answer import Answer, Stated
from sim.studies.plan.candidate_ranking import POLICY, Candidate, OnDone, Ranked, Refused, cost, first_pass
from sim.studies.serve_commands import VLLM, checking_lines, deployment, server_of
from sim.studies.tune import Tuning, tune

PLAN_SCHEMA = 1
ROWS = 5
REFINED, MARGIN = 3, 1.3
"""Candidates that are simulated in draws at most, of those that the first pass has within so many times the best; one
more is wherever it has that cheaper than the best of these."""
MIN_SEATS = 32
"""Fewest seats of an engine; more are twice the requests in flight at which its goodput is best: beyond that the SLOs
are missed."""
TUNING_DRAWS = 10
"""Draft lengths are chosen by fewer draws than replicas: what they lose differs less."""


class PlannedDeployment(Answer, frozen=True, kw_only=True):
    """One row: `replicas` of `tp` x `dp` GPUs."""

    deployment: str
    profile: str
    gpus: int
    """GPUs of all replicas."""
    tp: int
    ep: int
    dp: int
    num_speculative_tokens: int
    """Draft length that the fleet was simulated with; 0: no drafter is loaded."""
    rate_per_replica: float
    """Highest requests per second of a replica that meet the SLOs, the median of the draws; as given where there is no
    interval."""
    rate_interval: tuple[float, float] | None
    """5 to 95 % of the draws."""
    output_tokens_per_s_per_gpu: float
    """Output tokens at the rate that was given, or else at that of `rate_per_replica`."""
    worlds_met: int | None
    """Draws in which these replicas hold the SLOs; None without a rate and in a first pass."""
    is_first_pass: bool
    """Figures are rough: they come from closed loops alone."""


class Plan(Stated, frozen=True, kw_only=True):
    """What `plan --json` holds."""

    schema: int = PLAN_SCHEMA
    scenario: PlainScenario
    """Scenario of the best row."""
    gpu: str
    target: str
    draft: str | None
    rate_per_s: float | None
    share: float
    price_per_gpu_h: float | None
    draws: int
    covers: str
    verdict: str
    """The answer in a sentence."""
    deployments: list[PlannedDeployment]
    """Best first."""
    tuning: Tuning | None
    """Draft length by load, of the best row; None where no drafter contends."""
    refused: list[Refused]
    start: str
    """The line that starts the engine that was simulated; empty where none is known."""
    vllm_serve: str
    """The same where that is vLLM, else empty, as is `vllm_bench`."""
    vllm_bench: str
    notes: list[str]

    @property
    def plain(self) -> dict[str, Json]:
        """The plan as plain values, ready for JSON."""
        rows = [msgspec.to_builtins(row) for row in self.deployments]
        for row in rows:
            row["nearest_evidence"] = row.pop("evidence")
        return super().plain | {"deployments": rows}


@lasting()
def plan(
    scenario: Scenario,
    candidates: Sequence[Candidate],
    *,
    rate_per_s: float | None = None,
    share: float = DEFAULT_SHARE,
    price_per_gpu_h: float | None = None,
    draws: int = DEFAULT_DRAWS,
    refused: Sequence[Refused] = (),
    target_model: str | None = None,
    workers: int | None = None,
    on_done: OnDone = lambda stage, done, total: None,
    on_ranking: Callable[[Sequence[Ranked]], None] = lambda ranking: None,
) -> Plan:
    """The deployments that serve the scenario's requests within `scenario.goodput`, best first: fewest GPUs for
    `rate_per_s`, or without one the most requests per second and GPU.

    Draft lengths are tried up to the scenario's num_speculative_tokens; `refused` are candidates that were none
    already, `on_ranking` hears the first pass. Raises ValueError where no candidate meets the SLOs, with what comes
    nearest.
    """
    _check(scenario, candidates, rate_per_s, draws)
    refine = _Refinement(scenario, rate_per_s, share, price_per_gpu_h, draws, target_model, workers, on_done)
    ranking, misses = first_pass(refine.scenario, candidates, rate_per_s, share, workers, on_done)
    refused = [*refused, *misses]
    if not ranking:
        raise ValueError(_nothing(scenario, refused))
    on_ranking(ranking)
    waiting = list(ranking)
    refined: list[_Refined] = []
    while waiting and refine.is_worth_it(waiting[0], ranking[0], refined):
        found = refine(waiting.pop(0))
        if isinstance(found, Refused):
            refused.append(found)
        else:
            refined.append(found)
    if not refined:
        raise ValueError(_nothing(scenario, refused))
    refined.sort(key=lambda row: _order(row.row, rate_per_s))
    best = refined[0]
    rows = [row.row for row in refined] + [refine.about(each) for each in waiting]
    profile = best.candidate.profile
    start, bench, notes = _lines(best, rate_per_s, target_model)
    return Plan(
        scenario=to_plain(best.scenario),
        gpu=profile.gpu.name,
        target=profile.target.name,
        draft=None if profile.draft is None else profile.draft.name,
        rate_per_s=rate_per_s,
        share=share,
        price_per_gpu_h=price_per_gpu_h,
        draws=draws,
        covers=covers(best.scenario, profile),
        verdict=verdict(best.row, best.scenario, profile, rate_per_s, share, draws),
        deployments=rows[:ROWS],
        tuning=best.tuning,
        refused=list(refused),
        start=start,
        vllm_serve=start if server_of(best.scenario, profile) == VLLM else "",
        vllm_bench=bench,
        notes=notes,
    )


def _lines(best: _Refined, rate_per_s: float | None, target_model: str | None) -> tuple[str, str, list[str]]:
    """The lines that start the best deployment and load it, and their differences from what was simulated."""
    scenario, profile = best.scenario, best.candidate.profile
    k = scenario.speculation.num_speculative_tokens
    line = deployment(scenario, profile, ((1, 1, k),), {}, target_model=target_model)
    start, bench, notes = line.start, "", line.notes
    if server_of(scenario, profile) == VLLM:
        start, bench, notes = checking_lines(scenario, profile, target_model=target_model)
    if rate_per_s is None and best.tuning is not None and len(best.tuning.table) > 1:
        start = best.tuning.deployment.start
    return start, bench, notes


def _check(scenario: Scenario, candidates: Sequence[Candidate], rate_per_s: float | None, draws: int) -> None:
    if not any(bound is not None for bound in scenario.goodput.bounds_ms.values()):
        raise ValueError("plan: no SLO given; want some of --goodput ttft:MS tpot:MS e2el:MS")
    if rate_per_s is not None and not 0.0 < rate_per_s < float("inf"):
        raise ValueError(f"rate {rate_per_s!r} must be a finite number of requests per second above 0")
    if draws < 1:
        raise ValueError(f"draws={draws!r} must be at least 1")


# -- refinement


def _nothing(scenario: Scenario, refused: Sequence[Refused]) -> str:
    """Nothing meets the SLOs: which comes nearest, or why nothing fits."""
    simulated = [each for each in refused if each.miss is not None]
    if not simulated:
        reasons = "; ".join(dict.fromkeys(f"{each.deployment}: {each.why}" for each in refused[-2:]))
        return f"plan: no deployment of {len(refused)} can be simulated: {reasons}"
    nearest = min(simulated, key=lambda each: each.miss or 0.0)
    return f"plan: no deployment meets {_bounds(scenario)}; nearest is {nearest.deployment}: {nearest.why}"


class _Refined(NamedTuple):
    row: PlannedDeployment
    candidate: Candidate
    scenario: Scenario
    """The scenario that was simulated: the candidate's profile, one draft length."""
    tuning: Tuning | None


class _Refinement:
    """Draft lengths, replicas, their price and their energy, in draws but for the last."""

    def __init__(
        self,
        scenario: Scenario,
        rate_per_s: float | None,
        share: float,
        price_per_gpu_h: float | None,
        draws: int,
        target_model: str | None,
        workers: int | None,
        on_done: OnDone,
    ) -> None:
        self._with_energy, self._rate_per_s, self._share = scenario.energy, rate_per_s, share
        self.scenario = msgspec.structs.replace(scenario, energy=False)
        """The scenario without energy, which only the rows that are refined have."""
        self._target_model = target_model
        self._price_per_gpu_h, self._draws, self._workers, self._on_done = price_per_gpu_h, draws, workers, on_done

    def __call__(self, ranked: Ranked) -> _Refined | Refused:
        candidate = ranked.candidate
        profile, ranks = candidate.profile, candidate.profile.data_parallel
        scenario = msgspec.structs.replace(self.scenario, profile=candidate.name, policy=(POLICY,))
        tuning = self._tuned(scenario, ranked)
        k = _length_at(tuning, ranked.in_flight)
        seats = _seats(scenario, profile, ranked.in_flight)
        scenario = with_keys(scenario, speculation={"num_speculative_tokens": k}, engine={"max_num_seqs": seats})
        found = highest_load(
            scenario,
            profile,
            share=self._share,
            target_rate=self._rate_per_s,
            draws=self._draws,
            routings=(Routing.ROUND_ROBIN,),
            near=ranked.rate_per_s / ranks,
            is_brief=True,
            workers=self._workers,
            on_done=lambda stage, done, total: self._on_done(f"{candidate.label}: {stage}", done, total),
        )
        highest = found.highest[0]
        if not highest.load or (found.fleets and found.fleets[0].replicas is None):
            return Refused(deployment=candidate.label, why=f"too few requests meet {_bounds(scenario)}, even alone")
        return _Refined(self._row(ranked, scenario, tuning, highest, found.fleets), candidate, scenario, tuning)

    def _tuned(self, scenario: Scenario, ranked: Ranked) -> Tuning | None:
        if not ranked.lengths:
            return None
        # Of throughput: what the SLOs make of a length at one load says nothing of it at the others.
        without_slo = msgspec.structs.replace(scenario, goodput=type(scenario.goodput)())
        return tune(
            without_slo,
            ranked.candidate.profile,
            concurrencies=ranked.concurrencies,
            lengths=ranked.lengths,
            draws=min(self._draws, TUNING_DRAWS),
            target_model=self._target_model,
            workers=self._workers,
            on_done=lambda stage, done, total: self._on_done(
                f"{ranked.candidate.label}: {stage} draft lengths", done, total
            ),
        )

    def _row(
        self, ranked: Ranked, scenario: Scenario, tuning: Tuning | None, highest: Highest, fleets: Sequence[Fleet]
    ) -> PlannedDeployment:
        profile, interval = ranked.candidate.profile, highest.draws_interval
        ranks, in_draws = profile.data_parallel, [load for load in highest.draw_loads if load is not None]
        load = (highest.load or 0.0) if interval is None else median(in_draws)
        fleet = fleets[0] if fleets else None
        # The fleet is one of ranks; of replicas there are as many as have them all.
        replicas = 1 if fleet is None else ceil((fleet.replicas or 1) / ranks)
        shares = fleet.attainment_by_draw if fleet is not None else []
        rate = self._rate_per_s or load * ranks
        per_gpu = self._per_gpu(ranked.candidate, rate, replicas * ranked.candidate.gpus)
        k = scenario.speculation.num_speculative_tokens
        loads = (highest.in_flight, highest.in_flight)
        return PlannedDeployment(
            deployment=ranked.candidate.label,
            profile=ranked.candidate.name,
            gpus=replicas * ranked.candidate.gpus,
            tp=profile.tensor_parallel,
            ep=profile.expert_parallel or 1,
            dp=ranks,
            replicas=replicas,
            num_speculative_tokens=k,
            k_table=[] if tuning is None else tuning.table,
            break_even_concurrency=None if tuning is None else tuning.break_even_concurrency,
            attainment_by_draw=shares,
            worlds_met=None if fleet is None else sum(each >= self._share for each in shares),
            utilisation=rate / (replicas * ranks * load),
            rate_per_replica=load * ranks,
            rate_interval=None if interval is None else (interval[0] * ranks, interval[1] * ranks),
            output_tokens_per_s_per_gpu=per_gpu,
            usd_per_million_tokens=self._usd(per_gpu),
            joules_per_output_token=self._joules(scenario, profile, rate / (replicas * ranks)),
            evidence=evidence(profile, [asked_of(scenario, profile, POLICY, loads)]),
            is_first_pass=False,
        )

    def about(self, ranked: Ranked) -> PlannedDeployment:
        """A row of the first pass alone."""
        candidate, rate = ranked.candidate, self._rate_per_s or ranked.rate_per_s
        gpus = ranked.gpus or candidate.gpus
        per_gpu = self._per_gpu(candidate, rate, gpus)
        return PlannedDeployment(
            deployment=candidate.label,
            profile=candidate.name,
            gpus=gpus,
            tp=candidate.profile.tensor_parallel,
            ep=candidate.profile.expert_parallel or 1,
            dp=candidate.profile.data_parallel,
            replicas=gpus // candidate.gpus,
            num_speculative_tokens=max(ranked.k, 0),
            k_table=[],
            worlds_met=None,
            utilisation=rate / (gpus // candidate.gpus * ranked.rate_per_s),
            rate_per_replica=ranked.rate_per_s,
            rate_interval=None,
            output_tokens_per_s_per_gpu=per_gpu,
            usd_per_million_tokens=self._usd(per_gpu),
            is_first_pass=True,
        )

    def is_worth_it(self, ranked: Ranked, best: Ranked, refined: Sequence[_Refined]) -> bool:
        """Whether the first pass has `ranked` near its `best`, or before all of those that are refined."""
        if not refined:
            return True
        if len(refined) < REFINED and cost(ranked) <= MARGIN * cost(best):
            return True
        order = _order(self.about(ranked), self._rate_per_s)
        return len(refined) < ROWS and order < min(_order(each.row, self._rate_per_s) for each in refined)

    def _per_gpu(self, candidate: Candidate, rate: float, gpus: int) -> float:
        scenario = msgspec.structs.replace(self.scenario, profile=candidate.name)
        return rate * served_by(scenario, candidate.profile).mean_tokens(scenario.seed).output_per_sent / gpus

    def _usd(self, output_tokens_per_s_per_gpu: float) -> float | None:
        if self._price_per_gpu_h is None:
            return None
        return self._price_per_gpu_h / (3600.0 * output_tokens_per_s_per_gpu) * 1e6

    def _joules(self, scenario: Scenario, profile: Profile, rate: float) -> float | None:
        """Joules per output token of one rank at its part of the load, where energy was asked for."""
        if not self._with_energy:
            return None
        scenario = with_length(with_keys(scenario, workload={"request_rate": rate}, energy=True), REQUESTS)
        point = Point(resolved=resolve(scenario, profile, POLICY), seed=child_seed(scenario.seed, 0))
        return number(run_point(point).run, "joules_per_output_token")


def _seats(scenario: Scenario, profile: Profile, in_flight: int) -> int:
    """A power of two, no more than the engine's own."""
    own = limits_of(scenario, profile).max_num_seqs
    return min(own, max(MIN_SEATS, 1 << ceil(log2(2 * in_flight))))


def _length_at(tuning: Tuning | None, in_flight: int) -> int:
    """The draft length of least expected regret at that load; 0 where the engine without a drafter is as fast."""
    if tuning is None:
        return 0
    point = min(tuning.points, key=lambda each: abs(each.concurrency - in_flight))
    best = point.best_draft
    return best.k if best.speedup is None or best.speedup > 1.0 else 0


def _order(row: PlannedDeployment, rate_per_s: float | None) -> tuple[float, float]:
    per_gpu = row.rate_per_replica * (row.replicas or 1) / row.gpus
    return (0.0 if rate_per_s is None else float(row.gpus)), -per_gpu


# -- saying


def verdict(
    row: PlannedDeployment, scenario: Scenario, profile: Profile, rate_per_s: float | None, share: float, draws: int
) -> str:
    """The sentence that the user came for."""
    k = row.num_speculative_tokens
    drafting = "without a drafter" if not k or profile.draft is None else f"with {profile.draft.name} at K = {k}"
    what = f"{profile.target.name} as {row.deployment} {drafting}"
    price = (
        "" if row.usd_per_million_tokens is None else f", ${row.usd_per_million_tokens:.3g} per million output tokens"
    )
    within = f"{100 * share:g} % within {_bounds(scenario)}"
    per_gpu = f"{row.output_tokens_per_s_per_gpu:.0f} output tokens/s/GPU"
    if rate_per_s is None:
        interval = "" if row.rate_interval is None else f" ({row.rate_interval[0]:.3g} to {row.rate_interval[1]:.3g})"
        return (
            f"{what} on {row.gpus} x {profile.gpu.name} serves {row.rate_per_replica:.3g}{interval} requests/s, "
            f"{within}: {per_gpu}{price}"
        )
    plural = "s" if row.replicas != 1 else ""
    return (
        f"rent {row.gpus} x {profile.gpu.name}: {row.replicas} replica{plural} of {what} serve {rate_per_s:g} "
        f"requests/s, {within}, in {row.worlds_met} of {draws} draws of costs and acceptance: {per_gpu}{price}"
    )


def _bounds(scenario: Scenario) -> str:
    given = {name: bound for name, bound in scenario.goodput.bounds_ms.items() if bound is not None}
    return " and ".join(f"{name.removesuffix('_ms').upper()} {bound:g} ms" for name, bound in given.items())


def with_world(
    result: Plan,
    profile: Profile,
    ratio: float,
    whose: str,
    *,
    workers: int | None = None,
    on_done: OnDone = lambda stage, done, total: None,
) -> Plan:
    """`result`, whose best row has `profile`, and in its sentence what that row comes to if passes take `ratio` times
    as long, as they do by the tables `whose` are: `; or about 16 GPUs if vllm's own tables hold`.

    Costs and acceptance are as given there, and a fleet is as many replicas as the rate takes at a replica's load.
    """
    best, host = result.deployments[0], profile.host
    served = {kind: ratio * host.served.get(kind, 1.0) for kind in SERVED_KINDS}
    slower = msgspec.structs.replace(profile, host=msgspec.structs.replace(host, served=served))
    one = highest_load(
        msgspec.structs.replace(parse_scenario(result.scenario), energy=False),
        slower,
        share=result.share,
        draws=0,
        near=best.rate_per_replica / best.dp / ratio,
        is_brief=True,
        workers=workers,
        on_done=on_done,
    )
    rate_per_s, gpus = (one.highest[0].load or 0.0) * best.dp, best.gpus // (best.replicas or 1)
    if rate_per_s == 0.0:
        comes_to = "none that meets the SLOs"
    elif result.rate_per_s is None:
        comes_to = f"{rate_per_s:.3g} requests/s"
    else:
        comes_to = f"about {ceil(result.rate_per_s / rate_per_s) * gpus} GPUs"
    return msgspec.structs.replace(result, verdict=f"{result.verdict}; or {comes_to} if {whose} tables hold")
