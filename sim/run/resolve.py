"""A scenario with one policy on one profile, resolved once: limits, cost models, pool size, shares and draft lengths.

`resolve` is the only place that refuses what a scenario says, seen together with its policy and its profile; what runs
it reads fields and looks nothing up. Not here: keys by themselves (sim.run.scenario), requests and coroutines of
one seed (sim.run.experiment).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import msgspec

from sim.acceptance.forms import parse_quoted
from sim.acceptance.models import Acceptance
from sim.costs.cost import Link
from sim.costs.drafters import DrafterCosts, draft_shape, pair_with
from sim.costs.engine_costs import EngineCosts, engine_of
from sim.costs.forms.build import ShippedCosts, build_costs
from sim.costs.memory import kv_capacity_blocks, loaded_models
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.costs.shapes import ModelShape, kv_bytes_per_token
from sim.devices.contention import Contention, PhiLevel, Regime, contention_of, phi_at
from sim.devices.link import link_of
from sim.engine.controllers import VERIFYING, build_controller
from sim.engine.draft_choice import DraftChoice
from sim.engine.draft_length import Controller
from sim.engine.kv import KvPool, SpreadPool
from sim.engine.paged import PagedPool, SlottedPool
from sim.engine.radix import RadixPool
from sim.interface.request import Request
from sim.interface.work import Kind
from sim.policies.adaptive import seed_table
from sim.policies.disaggregated import LINK
from sim.policies.options import PREEMPTIVE, EngineLimits, Method, PolicyOptions, rows_per_work
from sim.policies.registry import Policy, find_policy
from sim.run.checks import (
    BeyondMemoryWarning,
    IgnoredKeyWarning,
    ShortAcceptanceWarning,
    beyond_memory,
    check_policy,
    ignored_keys,
    is_lockstep,
    short_rates,
)
from sim.run.forecast import MeanLoad, StepForecast
from sim.run.lane_shares import PartitionOption, best_partition
from sim.run.limits import DraftLengths, build_acceptance, draft_slots, drafter_of, engine_for, limits_on, served_by
from sim.run.scenario import Scenario
from sim.workload.generate import is_trace
from sim.workload.served import Served

HEAVY_BYTES = 60e9
"""Weights of a target that report 002's table calls heavy: 34B and more, in bf16."""
_chosen: dict[tuple[str, str], tuple[Profile, PartitionOption | None]] = {}
"""What `partition: auto` gave, by scenario and policy, on the profile that was last: every seed asks again."""


class Caps(msgspec.Struct, frozen=True, kw_only=True):
    """The limits that a policy serves under, all resolved; None where it has no such thing."""

    max_num_seqs: int
    max_num_batched_tokens: int
    decode_batch: int | None
    """Most requests of one draft, or of one round where draft and verify are atomic."""
    verify_batch: int | None
    workers: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The KV memory of one replica, and how it is divided."""

    num_blocks: int
    new: Callable[[], KvPool]
    """An empty one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What `resolve` found; nothing in it depends on a seed of a run."""

    scenario: Scenario
    policy: Policy
    profile: Profile
    num_slots: int | None
    """Requests that a real host can hold at once; None = as many as memory does, on no real host."""
    engine: EngineCosts
    """What is added to the GPU's time."""
    limits: EngineLimits
    caps: Caps
    lengths: DraftLengths
    new_controller: Callable[[], Controller]
    pool: Pool
    models: tuple[ModelShape, ...]
    """Whose weights and KV are in memory."""
    kv_bytes_per_token: int
    """KV bytes per token of the models whose KV is sent between GPUs, on one of them."""
    costs: ShippedCosts
    """Costs of the profile's own pair."""
    host_costs: ShippedCosts | DrafterCosts
    """What the host prices works with: `costs`; works of further draft models by their own."""
    costs_elsewhere: dict[int, ShippedCosts]
    """Costs by index of GPUs that are others than the profile's."""
    links: dict[str, Link]
    contention: Contention
    regime: Regime | None
    """What works of several plain streams do to each other; None where the profile's measurement says it, or where
    streams are not plain, but have shares of the multiprocessors."""
    options: PolicyOptions
    """The scenario's, with partition and table as they are."""
    acceptances: tuple[Acceptance, ...]
    """[draft models] the profile's own first; of a policy that drafts ahead, as its late features have it."""
    num_engines: int
    """GPUs of a replica that seat requests."""
    num_gpus: int
    """GPUs of one replica."""
    served: Served
    """The workload as the engine serves it."""
    max_seated: int
    """Requests that one replica admits at once, memory apart."""

    @property
    def is_lockstep(self) -> bool:
        """The replicas are the data-parallel ranks of the profile's deployment, which share its experts."""
        return is_lockstep(self.scenario, self.profile, self.policy)

    @property
    def is_partitioned(self) -> bool:
        """Lanes of the policy run on shares of the multiprocessors."""
        return self.partition is not None

    @property
    def partition(self) -> PartitionOption | None:
        """Shares of the multiprocessors by lane, and when they hold; where the scenario leaves them open, what suits
        its load. None where streams share all of them."""
        partition = self.options.partition
        assert not isinstance(partition, str), "auto is resolved"
        return partition


def resolve(scenario: Scenario, profile: Profile, policy: str, *, num_slots: int | None = None) -> Resolved:
    """The scenario with `policy` on `profile`; with `num_slots` on a real host that holds so many requests.

    Raises ValueError, one line, for an unknown engine or policy, and for whatever the three cannot be together.
    """
    return _Resolver(scenario, profile, find_policy(policy), num_slots).resolved()


def resolve_all(scenario: Scenario, profile: Profile) -> list[Resolved]:
    """[policies of the scenario] each resolved; warns of keys that a policy ignores, of more KV blocks than fit, and of
    fewer acceptance rates than drafts have tokens."""
    found = [resolve(scenario, profile, policy) for policy in scenario.policy]
    largest = max((one.models for one in found), key=len)
    for lines, category in (
        (ignored_keys(scenario), IgnoredKeyWarning),
        (beyond_memory(scenario, profile, largest), BeyondMemoryWarning),
        (short_rates(scenario), ShortAcceptanceWarning),
    ):
        for line in lines:
            warnings.warn(line, category, stacklevel=2)
    return found


class _Resolver:
    """The steps of `resolve`, each once, in the order in which they depend on each other."""

    def __init__(self, scenario: Scenario, profile: Profile, policy: Policy, num_slots: int | None) -> None:
        self.scenario, self.profile, self.policy, self.num_slots = scenario, profile, policy, num_slots
        self.is_real = num_slots is not None
        if self.is_real and scenario.energy:
            raise ValueError("energy is simulated only: a replay reads no power; leave it out")
        self.engine = engine_for(scenario, profile, is_real=self.is_real)
        self.served = served_by(scenario, profile, self.engine)
        self.limits = limits_on(
            self.engine, scenario, profile, is_speculative=policy.is_speculative, is_real=self.is_real
        )
        self.draft_tokens = scenario.speculation.num_speculative_tokens if policy.is_speculative else 0
        drafts = scenario.speculation.drafts if self.draft_tokens else ()
        self.further_pairs = [pair_with(profile, drafter.draft) for drafter in drafts]
        self.acceptances = self._acceptances()
        self.lengths = self._lengths()
        check_policy(scenario, profile, policy, self.limits, self.lengths)
        self.models = self._models()
        self.num_gpus, self.num_engines = policy.gpus(scenario.policy_options)
        seated = self.limits.max_num_seqs * self.num_engines
        self.max_seated = min(seated, scenario.policy_options.workers) if policy.has_workers else seated
        self._known_means: tuple[float, float] | None = None
        self._steps: StepForecast | None = None
        self._price(is_partitioned=bool(scenario.policy_options.partition and policy.lanes))

    def _price(self, *, is_partitioned: bool) -> None:
        self.is_partitioned = is_partitioned
        is_plain = not is_partitioned and not self.profile.overlap.measured
        self.regime = self.scenario.devices.overlap or Regime.LEFTOVER if is_plain else None
        self.costs = self._costs()
        further = [self._costs_of(pair) for pair in self.further_pairs]
        self.host_costs = DrafterCosts([self.costs, *further]) if further else self.costs

    def resolved(self) -> Resolved:
        scenario, policy, profile = self.scenario, self.policy, self.profile
        pool, caps = self._pool(), self._caps()
        partition = self._partition(pool, caps) if self.is_partitioned else None
        if self.is_partitioned and partition is None:
            self._price(is_partitioned=False)
        table = scenario.policy_options.adaptive_table
        if isinstance(table, str):
            table = seed_table(is_heavy=profile.target.weight_bytes >= HEAVY_BYTES)
        sent = self.models[:1] if scenario.policy_options.draft_devices else self.models
        is_preemptive = scenario.policy_options.stream_priorities == PREEMPTIVE
        return Resolved(
            scenario=scenario,
            policy=policy,
            profile=profile,
            num_slots=self.num_slots,
            engine=self.engine,
            limits=self.limits,
            caps=caps,
            lengths=self.lengths,
            new_controller=self._controller,
            pool=pool,
            models=self.models,
            kv_bytes_per_token=sum(kv_bytes_per_token(shape, profile.tensor_parallel) for shape in sent),
            costs=self.costs,
            host_costs=self.host_costs,
            costs_elsewhere=self._costs_elsewhere(),
            links=self._links(),
            contention=contention_of(profile.overlap, self.regime, scenario.devices.phi, is_preemptive=is_preemptive),
            regime=self.regime,
            options=msgspec.structs.replace(scenario.policy_options, partition=partition, adaptive_table=table),
            acceptances=self.acceptances,
            num_engines=self.num_engines,
            num_gpus=self.num_gpus,
            served=self.served,
            max_seated=self.max_seated,
        )

    # -- drafts

    def _acceptances(self) -> tuple[Acceptance, ...]:
        speculation = self.scenario.speculation
        if self.policy.drafts_ahead and speculation.stale_acceptance is not None:
            speculation = msgspec.structs.replace(speculation, acceptance=speculation.stale_acceptance)
        further = speculation.drafts if self.draft_tokens else ()
        return (
            build_acceptance(speculation, self.draft_tokens),
            *(parse_quoted(each.acceptance).model(each.num_speculative_tokens) for each in further),
        )

    def _lengths(self) -> DraftLengths:
        """Raises ValueError for a controller that a real host cannot follow."""
        speculation, controller = self.scenario.speculation, self._controller()
        if self.is_real and self.further_pairs:
            raise ValueError("speculation.drafts are simulated only: a replay has one draft model loaded")
        if self.is_real and speculation.controller == VERIFYING and self.draft_tokens:
            raise ValueError(
                f"speculation.controller={VERIFYING} is simulated only: a replay verifies all that was drafted"
            )
        if self.is_real and controller.draft_tokens_min == 0 < controller.draft_tokens_max:
            raise ValueError(
                f"speculation.controller={speculation.controller} may choose not to draft, which a replay cannot: its "
                "kernels draft at least one token; simulate it, or let its lengths begin at 1"
            )
        return DraftLengths(
            given=self.draft_tokens,
            min=controller.draft_tokens_min,
            max=controller.draft_tokens_max,
            constant=controller.constant_length,
        )

    def _controller(self) -> Controller:
        speculation = self.scenario.speculation
        if self.further_pairs:
            lengths = (self.draft_tokens, *(drafter.num_speculative_tokens for drafter in speculation.drafts))
            return DraftChoice(lengths, self._tokens_per_s(lengths), hysteresis=speculation.draft_hysteresis)
        return build_controller(
            speculation.controller,
            self.draft_tokens,
            table=speculation.num_speculative_tokens_per_batch_size,
            bands=speculation.speculative_adaptive_config,
            round_s=self._round_s,
        )

    def _tokens_per_s(self, lengths: Sequence[int]) -> Callable[[int, int], float]:
        """Expected of rounds of so many rows with a draft model."""

        def tokens_per_s(drafter: int, rows: int) -> float:
            prompt, output = self._means()
            num_rounds = max(0.0, output - 1.0) / self.acceptances[drafter].expected_length(lengths[drafter])
            return output * self._forecast().lane_requests_per_s(
                rows, max(1, round(prompt)), num_rounds, lengths[drafter], drafter
            )

        return tokens_per_s

    def _round_s(self, rows: int, draft_tokens: int) -> float:
        """What a round takes by the profile's costs."""
        if self.scenario.speculation.controller == VERIFYING:
            return self._forecast().step_s(rows, draft_tokens, (), drafted_anew=self.draft_tokens)
        return self._forecast().round_s(rows, draft_tokens)

    def _forecast(self) -> StepForecast:
        """Steps of continuous batching with the requests' mean context; made when a controller first asks."""
        if self._steps is None:
            prompt, output = self._means()
            context = prompt + output / 2.0
            self._steps = StepForecast(self.host_costs, self.limits, context, has_draft=self.draft_tokens > 0)
        return self._steps

    def _means(self) -> tuple[float, float]:
        """Tokens of a prompt and of an output, of the workload's sample; drawn when a controller first asks."""
        if self._known_means is None:
            self._known_means = _mean_lengths(self.served.sample(self.scenario.seed).requests)
        return self._known_means

    # -- memory and limits

    def _models(self) -> tuple[ModelShape, ...]:
        has_draft = self.lengths.max > 0 and self.scenario.speculation.method is not Method.NGRAM
        return (*loaded_models(self.profile, with_draft=has_draft), *map(draft_shape, self.further_pairs))

    def _pool(self) -> Pool:
        """Blocks as given, or as many as fit beside the weights. Raises ValueError where none does."""
        engine, policy = self.scenario.engine, self.policy
        num_blocks = engine.num_gpu_blocks
        if num_blocks is None:
            num_blocks = kv_capacity_blocks(
                self.profile,
                engine.block_size,
                engine.gpu_memory_utilization,
                with_draft=len(self.models) > 1,
                beside=list(map(draft_shape, self.further_pairs)),
                engine=self.engine,
            )
        slots = draft_slots(policy, self.lengths.max, is_async=self.limits.async_scheduling)
        num_engines, num_slots, is_caching = self.num_engines, self.num_slots, engine.enable_prefix_caching
        drafter = drafter_of(self.limits.method, self.profile)
        rules = self.engine.rules
        max_tokens = self.served.max_model_len if rules.trims_at_max_model_len else None
        is_async = self.limits.async_scheduling
        drops_block = self.draft_tokens > 0 and drafter in rules.drops_cached_block

        def new() -> KvPool:
            if num_slots is not None:
                return SlottedPool(num_blocks, engine.block_size, slots, num_slots)
            if policy.is_continuous and self.limits.retracts:
                return RadixPool(
                    num_blocks, engine.block_size, slots, is_caching=is_caching, drops_cached_block=drops_block
                )
            if policy.is_continuous:
                return PagedPool(
                    num_blocks - rules.null_blocks,
                    engine.block_size,
                    slots,
                    is_caching=is_caching,
                    drops_cached_block=drops_block,
                    seats_first_chunk=rules.seats_first_chunk,
                    caches_results=is_async or not rules.caches_planned_only,
                    reuses_blank_first=rules.reuses_blank_first,
                    max_tokens=max_tokens,
                )
            if num_engines > 1:
                return SpreadPool(num_blocks, engine.block_size, slots, num_gpus=num_engines)
            return KvPool(num_blocks, engine.block_size, slots)

        return Pool(num_blocks=num_blocks, new=new)

    def _caps(self) -> Caps:
        """Caps that act: a lane never takes more than max_num_seqs, nor than a pass has room for."""
        limits, options, policy = self.limits, self.scenario.policy_options, self.policy

        def batch(key: str, given: int | None) -> int | None:
            return rows_per_work(options, limits, given, self.lengths.max) if policy.takes_option(key) else None

        return Caps(
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            decode_batch=batch("decode_batch", options.decode_batch),
            verify_batch=batch("verify_batch", options.verify_batch),
            workers=min(options.workers, limits.max_num_seqs) if policy.takes_option("workers") else None,
        )

    # -- costs

    def _costs(self) -> ShippedCosts:
        profile = self.profile
        if self.regime is Regime.ROOFS or self.is_partitioned:
            overlap = msgspec.structs.replace(profile.overlap, demand_floor=0.0)
            profile = msgspec.structs.replace(profile, overlap=overlap)
        drafted = self.lengths.max if self.policy.is_continuous else 0
        return self._costs_of(profile, graphed_queries=drafted + 1 if drafted else None)

    def _costs_of(
        self, profile: Profile, graphed_queries: int | None = None, engine: EngineCosts | None = None
    ) -> ShippedCosts:
        engine, limits = engine or self.engine, self.limits
        sizes = engine.rules.graph_sizes(limits.max_num_seqs, self.draft_tokens, limits.max_num_batched_tokens)
        return build_costs(
            profile,
            engine,
            cuda_graph=self.scenario.engine.cuda_graph,
            graphed_queries=graphed_queries,
            graph_sizes=sizes,
        )

    def _costs_elsewhere(self) -> dict[int, ShippedCosts]:
        """Raises ValueError for other models on those GPUs."""
        scenario, profile = self.scenario, self.profile
        name = scenario.devices.prefill_profile
        if name is None or self.num_gpus == 1:
            return {}
        other = load(name)
        if other.target != profile.target or (self.draft_tokens and other.draft != profile.draft):
            raise ValueError(
                f"devices.prefill_profile={name!r} is of {other.target.name} and "
                f"{other.draft.name if other.draft else 'no draft'}; want the models of {profile.name!r}"
            )
        engine = engine_of(scenario.engine.name, other)
        costs = self._costs_of(other, engine=engine)
        firsts = [replica * self.num_gpus for replica in range(scenario.devices.count)]
        return {first + index: costs for first in firsts for index in range(scenario.policy_options.prefill_devices)}

    def _links(self) -> dict[str, Link]:
        """Links between the GPUs of each replica, as its policy names them."""
        if self.num_gpus == 1:
            return {}
        devices = self.scenario.devices
        link = link_of(devices.link)
        return {LINK: link} if devices.count == 1 else {f"{LINK}.{index}": link for index in range(devices.count)}

    # -- shares of the multiprocessors

    def _partition(self, pool: Pool, caps: Caps) -> PartitionOption | None:
        options = self.scenario.policy_options
        if isinstance(options.partition, dict):
            return {key: value for key, value in options.partition.items() if value is not False}
        # Of plain streams the least overlap counts: what a partition does was measured, phi was not.
        plain = contention_of(
            self.profile.overlap, self.scenario.devices.overlap, phi_at(self.profile.overlap, PhiLevel.LOW)
        )
        key = self.scenario.digest, self.policy.name
        profile, partition = _chosen.get(key, (None, None))
        if profile is not self.profile:
            partition = best_partition(self.policy, self.costs, self._mean_load(pool, caps), plain)
            _chosen[key] = self.profile, partition
        return partition

    def _mean_load(self, pool: Pool, caps: Caps) -> MeanLoad:
        """The scenario in means, the same for all its seeds."""
        workload, sent = self.scenario.workload, self.served.sample(self.scenario.seed)
        sample, count = sent.requests, len(sent.requests)
        prompt, output = _mean_lengths(sample)
        (draft_tokens,) = self._controller().lengths_for(sample[:1])
        per_round = 1.0
        if draft_tokens:
            per_round = build_acceptance(self.scenario.speculation, draft_tokens).expected_length(draft_tokens)
        empty = pool.new()
        blocks = sum(empty.blocks_for(request) for request in sample) / count
        rate, span_s = workload.request_rate * sent.served_share, sample[-1].arrival_s - sample[0].arrival_s
        if is_trace(workload):
            rate = (count - 1) / span_s if span_s else inf
        max_drafted = caps.decode_batch or self.max_seated
        return MeanLoad(
            prompt_tokens=max(1, round(prompt)),
            prompt_variation=sum(request.prompt_tokens**2 for request in sample) / count / prompt**2 - 1.0,
            context_tokens=prompt + output / 2.0,
            num_rounds=max(1.0, (output - 1.0) / per_round),
            draft_tokens=draft_tokens,
            max_at_once=max(1, min(self.max_seated, int(pool.num_blocks / blocks))),
            max_rows={Kind.DRAFT: max_drafted, Kind.VERIFY: caps.verify_batch or max_drafted},
            rate_per_s=rate,
            max_concurrency=workload.max_concurrency,
            plans_ahead=self.limits.async_scheduling,
        )


def _mean_lengths(requests: Sequence[Request]) -> tuple[float, float]:
    """Tokens of a prompt and of an output."""
    prompts, outputs = (sum(r.prompt_tokens for r in requests), sum(r.output_tokens for r in requests))
    return prompts / len(requests), outputs / len(requests)
