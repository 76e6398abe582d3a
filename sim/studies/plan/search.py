"""Deployment of a model to rent for a load and SLOs, of several candidates: GPUs per replica and their split, with or
without a drafter, at which draft length, in how many replicas.

A first pass prunes and ranks (candidate_ranking). The best few are refined: draft length by load as `tune` has it, the
highest rate and the replicas as `capacity` has it, both in draws of costs and acceptance. Of a candidate of several
ranks (`data_parallel`) one is simulated, and replicas are whole.
Not here: where profiles come from (calibrate.importers), how it is shown (sim.report.say).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, log2
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec

from sim.compare.point_runs import Point, run_point
from sim.compare.pool import OnDone, lasting
from sim.costs.engine_costs import DEFAULT_ENGINE, engine_of
from sim.costs.memory import kv_capacity_tokens
from sim.costs.profile import Profile
from sim.draws import child_seed
from sim.metrics.summary import number
from sim.run.limits import limits_of, served_by
from sim.run.resolve import resolve, with_keys
from sim.run.scenario import Scenario, parse_scenario, to_plain
from sim.studies.answer import Answer, Stated
from sim.studies.attainment import DEFAULT_SHARE, Attainment, highest_load
from sim.studies.cost_draws import DEFAULT_DRAWS, covers, with_times
from sim.studies.evidence import asked_of, evidence
from sim.studies.load_search import REQUESTS, with_length
from sim.studies.plan.candidate_ranking import APART, LANES, POLICY, Candidate, Contender, Refused, first_pass
from sim.studies.serve_commands import deployment
from sim.studies.tune import Tuning, has_slo, tune
from sim.workload.classes import Goodput

ROWS = 5
REFINED, MARGIN = 3, 1.3
"""Candidates that are simulated in draws at most, of those that the first pass has within so many times the best; one
more is wherever it has that cheaper than the best of these."""
MIN_SEATS = 32
"""Fewest seats of an engine; more are twice the requests in flight at which its goodput is best."""
TUNING_DRAWS = 10
"""Draft lengths are chosen by fewer draws than replicas: what they lose differs less."""


class PlannedDeployment(
    Answer, frozen=True, kw_only=True, omit_defaults=False, rename={"evidence": "nearest_evidence"}
):
    """One row: `replicas` of `tp` x `dp` GPUs."""

    evidence: list[str]
    deployment: str
    profile: str
    policy: str = POLICY
    kv_bytes: int = 0
    """KV of a prompt that prefill servers send to decode servers."""
    link_s: float = 0.0
    """Its time on the link."""
    gpus: int
    tp: int
    ep: int
    dp: int
    num_speculative_tokens: int
    """Draft length that the fleet was simulated with; 0: no drafter is loaded."""
    rate_per_replica: float
    """Highest requests per second of a replica within the SLOs, the median of the draws."""
    rate_interval: tuple[float, float] | None = None
    """5 to 95 % of the draws."""
    output_tokens_per_s_per_gpu: float
    """Output tokens at the rate that was given."""
    worlds_met: int | None = None
    """Draws in which these replicas hold the SLOs."""
    is_first_pass: bool
    """Figures are rough: they come from closed loops alone."""
    requests_in_memory: int
    """Requests of this length whose KV fits into one replica at once."""


class Rental(Stated, frozen=True, kw_only=True):
    """The deployments that serve a load, best first; the scenario is that of the best."""

    gpu: str
    target: str
    draft: str | None
    rate_per_s: float
    share: float
    price_per_gpu_h: float | None
    deployments: list[PlannedDeployment]
    tuning: Tuning | None
    """Draft length by load, of the best row; None where no drafter contends."""
    refused: list[Refused]
    pays_from_per_s: float | None = None
    """Load from which on separate prefill and decode servers take fewer GPUs; None: at none, or not asked."""
    start: str
    """Lines that start the servers; empty where none is known."""
    notes: list[str]

    @property
    def plain(self) -> dict[str, Any]:
        return super().plain | {"tuning": None if self.tuning is None else self.tuning.plain}

    @property
    def check(self) -> str:
        """The command that checks the best row alone, with both routings."""
        best, engine, speculation = self.deployments[0], self.scenario["engine"], self.scenario["speculation"]
        workload, goodput = self.scenario["workload"], self.scenario["goodput"]
        flags = {
            "engine": None if engine["name"] == DEFAULT_ENGINE else engine["name"],
            "input-len": workload["input_len"],
            "output-len": workload["output_len"],
            "set": f"engine.max_num_seqs={engine['max_num_seqs']}",
            "acceptance": speculation["acceptance"] if best.num_speculative_tokens else None,
        }
        words = ["lanesim", "plan", "--profile", best.profile]
        words += ["--set", f"policy={best.policy}", "--set", f"num_speculative_tokens={best.num_speculative_tokens}"]
        words += [word for name, value in flags.items() if value is not None for word in (f"--{name}", str(value))]
        if best.policy == APART:
            pools = self.scenario["policy_options"]["pools"].items()
            words += [f"--set=policy_options.pools.{name}={value}" for name, value in pools if value]
        bounds = [f"{name.removesuffix('_ms')}:{ms:g}" for name, ms in goodput.items() if ms is not None]
        words += ["--goodput", *bounds, "--rate", f"{self.rate_per_s:g}"]
        return shlex.join(words).replace(f" {Path.home()}/", " ~/")


@lasting()
def plan(
    scenario: Scenario,
    candidates: Sequence[Candidate],
    *,
    rate_per_s: float,
    price_per_gpu_h: float | None = None,
    draws: int = DEFAULT_DRAWS,
    refused: Sequence[Refused] = (),
    target_model: str | None = None,
    workers: int | None = None,
    on_done: OnDone = lambda stage, done, total: None,
    on_ranking: Callable[[Sequence[Contender]], None] = lambda ranking: None,
) -> Rental:
    """The deployments that serve `rate_per_s` of the scenario's requests within `scenario.goodput`, best first: fewest
    GPUs, then most requests per second and GPU.

    Draft lengths are tried up to the scenario's num_speculative_tokens; `refused` are candidates that were none
    already, `on_ranking` hears the first pass. Raises ValueError where no candidate meets the SLOs.
    """
    if not has_slo(scenario):
        raise ValueError("no limit on latency is given. Add such as --goodput ttft:1000 tpot:40")
    # Energy is for the rows that are refined alone.
    bare = msgspec.structs.replace(scenario, energy=False)
    search = _Search(bare, scenario.energy, rate_per_s, price_per_gpu_h, draws, target_model, workers, on_done)
    waiting, misses = first_pass(bare, candidates, rate_per_s, workers, on_done)
    refused = [*refused, *misses]
    if waiting:
        on_ranking(waiting)
    refined: list[_Refined] = []
    ranking = list(waiting)
    # The best of each policy first: they are compared.
    firsts = {each.candidate.policy: each for each in reversed(ranking)}
    waiting.sort(key=lambda each: each is not firsts[each.candidate.policy])
    while waiting and search.is_worth_it(waiting[0], ranking[0], refined):
        one = search.refined(waiting.pop(0))
        if isinstance(one, Refused):
            refused.append(one)
        else:
            refined.append(one)
    if not refined:
        raise ValueError(_nothing(scenario, refused))
    refined.sort(key=lambda each: (each.row.policy == LANES, search.order(each.row)))
    best = refined[0]
    profile = best.candidate.profile
    table = ((1, 1, best.row.num_speculative_tokens),)
    line = deployment(best.scenario, profile, table, {}, target_model=target_model)
    return Rental(
        scenario=to_plain(best.scenario),
        gpu=profile.gpu.name,
        target=profile.target.name,
        draft=_drafter(best.scenario, profile),
        rate_per_s=rate_per_s,
        share=DEFAULT_SHARE,
        price_per_gpu_h=price_per_gpu_h,
        draws=draws,
        covers=covers(resolve(best.scenario, profile, best.row.policy)),
        verdict=_verdict(best, search),
        deployments=[*(each.row for each in refined), *map(search.estimate, waiting)][:ROWS],
        tuning=best.tuning,
        refused=refused,
        start=line.start,
        notes=line.notes,
    )


class _Refined(NamedTuple):
    row: PlannedDeployment
    candidate: Candidate
    scenario: Scenario
    """As it was simulated: the candidate's profile, one draft length."""
    tuning: Tuning | None


@dataclass(frozen=True, slots=True)
class _Search:
    scenario: Scenario
    with_energy: bool
    rate_per_s: float
    price_per_gpu_h: float | None
    draws: int
    target_model: str | None
    workers: int | None
    on_done: OnDone

    def refined(self, ranked: Contender) -> _Refined | Refused:
        candidate, profile = ranked.candidate, ranked.candidate.profile
        scenario = candidate.served(self.scenario)
        tuning = self._tuned(scenario, ranked) if ranked.lengths else None
        seats = max(MIN_SEATS, 1 << ceil(log2(2 * ranked.in_flight)))
        scenario = with_keys(
            scenario,
            speculation={"num_speculative_tokens": 0 if tuning is None else tuning.length_decided},
            engine={"max_num_seqs": min(limits_of(scenario, profile).max_num_seqs, seats)},
        )
        held = highest_load(
            scenario,
            profile,
            # No server runs lanes, and several replicas of them take long to simulate.
            target_rate=None if candidate.policy == LANES else self.rate_per_s,
            draws=self.draws,
            near=ranked.rate_per_s / profile.data_parallel,
            workers=self.workers,
            on_done=lambda stage, done, total: self.on_done(f"{candidate.label}: {stage}", done, total),
        )
        if not held.highest[0].load or any(fleet.replicas is None for fleet in held.fleets):
            return Refused(deployment=candidate.label, why=f"too few requests meet {_bounds(scenario)}, even alone")
        return _Refined(self._row(ranked, scenario, tuning, held), candidate, scenario, tuning)

    def _tuned(self, scenario: Scenario, ranked: Contender) -> Tuning:
        label = ranked.candidate.label
        return tune(
            # Of throughput: what the SLOs make of a length at one load says nothing of it at the others.
            msgspec.structs.replace(scenario, goodput=Goodput()),
            ranked.candidate.profile,
            concurrencies=ranked.concurrencies,
            lengths=ranked.lengths,
            draws=min(self.draws, TUNING_DRAWS),
            at=ranked.in_flight,
            target_model=self.target_model,
            workers=self.workers,
            on_done=lambda stage, done, total: self.on_done(f"{label}: {stage} draft lengths", done, total),
        )

    def _row(self, ranked: Contender, scenario: Scenario, tuning: Tuning | None, held: Attainment) -> PlannedDeployment:
        candidate, highest = ranked.candidate, held.highest[0]
        profile, ranks, interval = candidate.profile, candidate.profile.data_parallel, highest.draws_interval
        in_draws = [load for load in highest.draw_loads if load is not None]
        load = (highest.load or 0.0) if interval is None else median(in_draws)
        # The fleet is one of ranks; of replicas there are as many as have them all.
        shares, joules, replicas = list[float](), None, ceil(self.rate_per_s / load)
        for fleet in held.fleets:
            shares, replicas = fleet.attainment_by_draw, ceil((fleet.replicas or 1) / ranks)
        if self.with_energy:
            # Of one rank at its part of the load.
            at_rate = with_keys(scenario, workload={"request_rate": self.rate_per_s / (replicas * ranks)}, energy=True)
            seed = child_seed(scenario.seed, 0)
            point = Point(resolved=with_length(resolve(at_rate, profile, candidate.policy), REQUESTS), seed=seed)
            joules = number(run_point(point).run, "joules_per_output_token")
        loads = (highest.in_flight, highest.in_flight)
        return self._deployment(
            ranked,
            replicas,
            load * ranks,
            num_speculative_tokens=scenario.speculation.num_speculative_tokens,
            k_table=[] if tuning is None else tuning.k_table,
            break_even_concurrency=None if tuning is None else tuning.break_even_concurrency,
            attainment_by_draw=shares,
            worlds_met=sum(each >= DEFAULT_SHARE for each in shares) if shares else None,
            rate_interval=None if interval is None else (interval[0] * ranks, interval[1] * ranks),
            joules_per_output_token=joules,
            evidence=evidence(profile, [asked_of(resolve(scenario, profile, candidate.policy), loads)]),
            is_first_pass=False,
        )

    def estimate(self, ranked: Contender) -> PlannedDeployment:
        """A row of the first pass alone."""
        figures = {"evidence": [], "is_first_pass": True, "num_speculative_tokens": max(ranked.k, 0)}
        return self._deployment(ranked, ranked.gpus // ranked.candidate.gpus, ranked.rate_per_s, **figures)

    def _deployment(
        self, ranked: Contender, replicas: int, rate_per_replica: float, **figures: Any
    ) -> PlannedDeployment:
        candidate, profile = ranked.candidate, ranked.candidate.profile
        scenario, gpus = msgspec.structs.replace(self.scenario, profile=candidate.name), replicas * candidate.gpus
        per_gpu = self.rate_per_s * served_by(scenario, profile).mean_tokens(scenario.seed).output_per_sent / gpus
        usd_per_s = None if self.price_per_gpu_h is None else self.price_per_gpu_h / (3600.0 * per_gpu)
        kv_bytes, link_s = candidate.sent(scenario.workload.input_len or 0)
        return PlannedDeployment(
            deployment=candidate.label,
            profile=candidate.name,
            policy=candidate.policy,
            kv_bytes=kv_bytes,
            link_s=link_s,
            gpus=gpus,
            tp=profile.tensor_parallel,
            ep=profile.expert_parallel or 1,
            dp=profile.data_parallel,
            replicas=replicas,
            utilisation=self.rate_per_s / (replicas * rate_per_replica),
            rate_per_replica=rate_per_replica,
            output_tokens_per_s_per_gpu=per_gpu,
            requests_in_memory=candidate.pools.decode * self._in_memory(profile, figures["num_speculative_tokens"]),
            usd_per_million_tokens=None if usd_per_s is None else usd_per_s * 1e6,
            **figures,
        )

    def _in_memory(self, profile: Profile, k: int) -> int:
        workload, share = self.scenario.workload, self.scenario.engine.gpu_memory_utilization
        tokens = (workload.input_len or 0) + (workload.output_len or 0)
        engine = engine_of(self.scenario.engine.name, profile)
        return kv_capacity_tokens(profile, share, with_draft=k > 0, engine=engine) // max(1, tokens)

    def is_worth_it(self, ranked: Contender, best: Contender, refined: Sequence[_Refined]) -> bool:
        """The first pass has `ranked` near its `best`, or before all of those that are refined."""
        is_new = ranked.candidate.policy not in [each.row.policy for each in refined]
        if is_new or (len(refined) < REFINED and ranked.gpus <= MARGIN * best.gpus):
            return True
        return len(refined) < ROWS and self.order(self.estimate(ranked)) < min(self.order(each.row) for each in refined)

    def order(self, row: PlannedDeployment) -> tuple[float, float]:
        """Fewest GPUs, then most requests per second and GPU."""
        return float(row.gpus), -row.rate_per_replica * (row.replicas or 1) / row.gpus


OTHER_TABLES = "By"
"""Begins a note on what other kernel tables come to."""


def _nothing(scenario: Scenario, refused: Sequence[Refused]) -> str:
    simulated = [each for each in refused if each.miss is not None]
    if not simulated:
        reasons = ". ".join(dict.fromkeys(f"{each.deployment}: {each.why}" for each in refused[-2:]))
        return f"none of {len(refused)} deployments can be simulated. {reasons}"
    nearest = min(simulated, key=lambda each: each.miss or 0.0)
    return f"no deployment meets {_bounds(scenario)}. Nearest is {nearest.deployment}: {nearest.why}"


def _drafter(scenario: Scenario, profile: Profile) -> str | None:
    """Name of what drafts; None where nothing does."""
    if scenario.speculation.drafter.looks_up:
        return scenario.speculation.method
    return None if profile.draft is None else profile.draft.name


def _verdict(best: _Refined, search: _Search) -> str:
    row, profile = best.row, best.candidate.profile
    k, plural = row.num_speculative_tokens, "s" * (row.replicas != 1)
    drafting = f"with {_drafter(best.scenario, profile)} at K = {k}" if k else "without a drafter"
    what = f"{row.replicas} replica{plural} of {profile.target.name} as {best.candidate.in_words} {drafting}"
    within = f"{100 * DEFAULT_SHARE:g} % of them within {_bounds(best.scenario)}"
    serve = f"They serve {search.rate_per_s:g} requests/s, {within}."
    return f"Rent {row.gpus} x {profile.gpu.name}: {what}.\n{serve}"


def _bounds(scenario: Scenario) -> str:
    bounds = {name: bound for name, bound in scenario.goodput.bounds_ms.items() if bound is not None}
    return " and ".join(f"{name.removesuffix('_ms').upper()} {bound:g} ms" for name, bound in bounds.items())


def in_other_tables(
    result: Rental, profile: Profile, ratio: float, whose: str, *, on_done: OnDone = lambda stage, done, total: None
) -> str:
    """What the best row of `result`, which has `profile`, comes to with passes `ratio` times as long, as they are by
    the tables `whose` are: `By vllm's own tables you need about 16 GPUs.` Costs and acceptance are as given."""
    best = result.deployments[0]
    one = highest_load(
        msgspec.structs.replace(parse_scenario(result.scenario), energy=False),
        with_times(profile, passes=ratio),
        draws=0,
        near=best.rate_per_replica / best.dp / ratio,
        on_done=on_done,
    )
    rate_per_s, gpus = (one.highest[0].load or 0.0) * best.dp, best.gpus // (best.replicas or 1)
    count = ceil(result.rate_per_s / rate_per_s) * gpus if rate_per_s else 0
    return f"{OTHER_TABLES} {whose} tables {f'you need about {count} GPUs' if count else 'nothing meets the SLOs'}."
