"""A scenario with one policy on one profile, resolved once: limits, cost models, pool size, shares and draft lengths.

`resolve` is the only door that refuses what a scenario says, seen together with its policy and its profile; what runs
it reads fields and looks nothing up. Variants of one scenario (another load, another phi, drawn costs) are made of what
is resolved. Not here: keys by themselves (sim.run.scenario), requests and coroutines of one seed (sim.run.experiment).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import msgspec

from sim.acceptance.forms import parse_quoted
from sim.acceptance.models import Acceptance
from sim.acceptance.pairs import ANY, PROMPTS, OnPrompts, PairAcceptance, ends_of, measured_of, origin_of
from sim.acceptance.quoted import Quoted
from sim.acceptance.spread import AssumedSpread
from sim.costs.cost import Link
from sim.costs.engine_costs import NO_SPECULATION, EngineCosts
from sim.costs.forms.build import build_costs
from sim.costs.memory import beside_states, kept_blocks, kv_capacity_tokens, loaded_models
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.costs.shapes import ModelShape, kv_bytes_per_token, rank_weight_bytes
from sim.costs.work_costs import WorkCosts
from sim.devices.contention import Contention, Regime, contention_of
from sim.devices.link import link_of
from sim.drafters.registry import pair_of
from sim.engine.controllers import VERIFYING
from sim.engine.draft_length import Controller
from sim.engine.kv import KvPool, SpreadPool
from sim.engine.paged import PagedPool, SlottedPool
from sim.engine.radix import RadixPool
from sim.files.json_values import Json
from sim.policies.adaptive import seed_table
from sim.policies.disaggregated import LINK
from sim.policies.options import PREEMPTIVE, EngineLimits, rows_per_work
from sim.policies.registry import Policy, PolicyOptions, find_policy
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
from sim.run.draft_lengths import DraftLengths, RoundTimes, acceptance_at, controller_of, lengths_of
from sim.run.drafters import DrafterCosts, draft_shape, pair_with
from sim.run.limits import draft_slots, engine_for, limits_of, name_in_rules, pool_rules, served_by
from sim.run.scenario import Scenario
from sim.workload.served import Served

HEAVY_BYTES = 60e9
"""Weights of a target that report 002's table calls heavy: 34B and more, in bf16."""
LOAD_KEYS = {"workload", "window", "goodput", "seed", "replications", "energy", "policy"}
"""Keys of a scenario that nothing depends on which `resolve` decides, but for the load that shares are chosen for."""


class Caps(msgspec.Struct, frozen=True, kw_only=True):
    """The limits that a policy serves under, all resolved; None where it has no such thing."""

    max_num_seqs: int
    max_num_batched_tokens: int
    decode_batch: int | None
    """Most requests of one draft, or of one round where draft and verify are atomic."""
    verify_batch: int | None
    workers: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unpriced:
    """A resolved scenario before anything of it is priced; nothing in it depends on a seed of a run."""

    scenario: Scenario
    label: str
    """Name among others: the policy's, or values of keys in which it differs from them."""
    policy: Policy
    profile: Profile
    num_slots: int | None
    """Requests that a real host can hold at once; None = as many as memory does, on no real host."""
    quoted: Quoted
    """Acceptance as people quote it, to be had at any draft length."""
    engine: EngineCosts
    """The engine whose costs are added to the GPU's time."""
    limits: EngineLimits
    caps: Caps
    lengths: DraftLengths
    num_blocks: int
    """KV blocks of one replica."""
    models: tuple[ModelShape, ...]
    """Whose weights and KV are in memory."""
    pairs: tuple[Profile, ...]
    """The profile with each further draft model."""
    acceptances: tuple[Acceptance, ...]
    """[draft models] the profile's first; of a policy that drafts ahead, as its late features have it."""
    num_gpus: int
    """GPUs of one replica."""
    num_engines: int
    """GPUs of a replica that seat requests."""
    max_seated: int
    """Requests that one replica admits at once, memory apart."""
    served: Served
    """The workload as the engine serves it."""
    form: str | None = None
    """Form of the simulator that runs it (sim.run.compiled); None: the fastest that can."""
    links: dict[str, Link]
    """Links between the GPUs of each replica, as its policy names them."""
    plugins: tuple[str, str]
    """Names of the policy and of the form of acceptance, which somebody may have registered."""

    @property
    def is_lockstep(self) -> bool:
        """The replicas are the data-parallel ranks of the profile's deployment, which share its experts."""
        return is_lockstep(self.scenario, self.profile, self.policy)

    @property
    def assumed(self) -> list[str]:
        """Notes on where acceptance is from that is one of some kind of prompts, and on seats that nobody gave and that
        are fewer than the requests in flight."""
        text, k = self.scenario.speculation.acceptance, self.lengths.given
        pair = pair_of(self.profile, self.scenario.speculation.drafter)
        notes = [f"Acceptance of {pair[-1]}: {origin_of(text, *pair, k)}."] if k and text in PROMPTS else []
        return [*notes, *self._short_of_seats()]

    def _short_of_seats(self) -> list[str]:
        seats, given = self.limits.max_num_seqs, self.scenario.engine.max_num_seqs
        in_flight = (self.scenario.workload.max_concurrency or 0) / self.scenario.devices.count
        by_default = self.engine.seats(self.profile, is_drafting=self.lengths.max > 0)
        is_by_states = self.engine.rules.state_pool is not None and seats < (given or by_default)
        if not self.policy.is_continuous or in_flight <= seats or (given is not None and not is_by_states):
            return []
        why = "more states of linear attention do not fit" if is_by_states else "set --max-num-seqs N"
        return [f"{self.engine.name} serves {seats} of {in_flight:g} requests at once, others wait ({why})."]

    @property
    def prompts(self) -> tuple[PairAcceptance, ...]:
        """Those of least and of most acceptance where the prompts are left open."""
        text, k = self.scenario.speculation.acceptance, self.lengths.given
        return ends_of(text, *pair_of(self.profile, self.scenario.speculation.drafter), k) if k and text == ANY else ()

    def new_pool(self) -> KvPool:
        """The KV memory of one replica, empty."""
        policy, limits, rules, given = self.policy, self.limits, self.engine.rules, self.scenario.engine
        is_async, size = limits.async_scheduling, given.block_size
        slots = draft_slots(policy, self.lengths.max, is_async=is_async)
        kept = kept_blocks(
            *(self.models, self.profile.tensor_parallel, size, self.lengths.max),
            has_state_pool=rules.state_pool is not None,
        )
        drafter = name_in_rules(limits.method, self.profile) if self.lengths.given else NO_SPECULATION
        is_caching = given.rules.get("enable_prefix_caching", True) is True
        if self.num_slots is not None:
            return SlottedPool(self.num_blocks, size, slots, self.num_slots)
        if policy.is_continuous:
            return (RadixPool if limits.retracts else PagedPool)(
                self.num_blocks - rules.null_blocks,
                size,
                slots,
                kept_blocks=kept,
                is_caching=is_caching,
                ends_differ=self.scenario.workload.sharing.ends_with_a_block(size),
                **pool_rules(rules, drafter, is_async=is_async),
                max_tokens=self.served.max_model_len if rules.trims_at_max_model_len else None,
            )
        if self.num_engines > 1:
            return SpreadPool(self.num_blocks, size, slots, num_gpus=self.num_engines, kept_blocks=kept)
        return KvPool(self.num_blocks, size, slots, kept_blocks=kept)

    def acceptance_at(self, draft_tokens: int) -> Acceptance:
        """Acceptance of the profile's draft model at another draft length."""
        return acceptance_at(self.quoted, draft_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved(_Unpriced):
    """A scenario with one policy on one profile, decided and priced: what runs, and what sizes runs, takes this."""

    costs: WorkCosts
    """Costs of the profile's pair."""
    host_costs: WorkCosts | DrafterCosts
    """Costs that the host prices works with: `costs`; for works of further draft models those of their pairs."""
    costs_elsewhere: dict[int, WorkCosts]
    """Costs by index of GPUs that are others than the profile's."""
    contention: Contention
    regime: Regime | None
    """Contention of works of several plain streams; None where the profile's measurement says it, or where
    streams are not plain, but have shares of the multiprocessors."""
    options: PolicyOptions
    """The scenario's, with partition and table as they are."""
    group_gpus: int
    """GPUs of one replica, those of tensor-parallel groups one by one."""
    weight_bytes: int
    """Weights on all GPUs of one replica: of the draft models on those that draft, of the target on all others."""
    kv_bytes_per_token: int
    """KV bytes per token of the models whose KV is sent between GPUs, over one link: each GPU of the smaller of two
    tensor-parallel groups has one."""

    def __reduce__(self) -> tuple[Callable[[dict[str, Any]], Resolved], tuple[dict[str, Any]]]:
        """Another process knows the policy by its name, and resolves nothing again."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return _received, (values | {"policy": self.policy.name},)

    def new_controller(self) -> Controller:
        """The controller of the draft lengths of one run."""
        times = RoundTimes(
            served=self.served,
            seed=self.scenario.seed,
            costs=self.host_costs,
            limits=self.limits,
            acceptances=self.acceptances,
            drafted_anew=self.lengths.given if self.scenario.speculation.controller == VERIFYING else None,
            has_draft=self.lengths.given > 0,
        )
        return controller_of(self.scenario.speculation, self.lengths.given, times)

    def changed(self, **keys: Json | msgspec.Struct) -> Resolved:
        """The same with other values of some keys of the scenario, those of a block as a mapping (`with_keys`): another
        load replaces this one, all else is resolved anew. Raises ValueError."""
        scenario = with_keys(self.scenario, **keys)
        if not keys.keys() <= LOAD_KEYS:
            is_same = scenario.speculation.acceptance == self.scenario.speculation.acceptance
            quoted = self.quoted if is_same else None
            other = resolve(scenario, self.profile, self.policy.name, num_slots=self.num_slots, quoted=quoted)
            return replace(other, label=self.label, form=self.form)
        served = msgspec.structs.replace(self.served, workload=scenario.workload)
        return replace(self, scenario=scenario, served=served)

    def at_phi(self, phi: float) -> Resolved:
        """The same with works beside each other at that rate."""
        rate = phi if self.contention.regime is Regime.LEFTOVER else 0.0
        contention = msgspec.structs.replace(self.contention, phi=rate)
        return replace(self, scenario=with_keys(self.scenario, devices={"phi": phi}), contention=contention)

    def drawn(self, profile: Profile, quoted: Quoted | None = None) -> Resolved:
        """The same models on the same engine with other costs of passes and steps, and with the acceptance of `quoted`
        where that is given."""
        quoted = quoted or self.quoted
        other = replace(
            self,
            profile=profile,
            quoted=quoted,
            engine=engine_for(self.scenario, profile),
            pairs=_pairs(self.scenario, profile, self.lengths.given),
            acceptances=_acceptances(self.scenario, self.policy, quoted, self.lengths.given),
        )
        return _priced(other)


def resolve(
    scenario: Scenario, profile: Profile, policy: str, *, num_slots: int | None = None, quoted: Quoted | None = None
) -> Resolved:
    """The scenario with `policy` on `profile`; with `num_slots` on a real host that holds so many requests, with
    `quoted` instead of the scenario's acceptance.

    Raises ValueError, one line, for an unknown engine or policy, and for whatever the three cannot be together.
    """
    named, is_real, speculation = find_policy(policy), num_slots is not None, scenario.speculation
    if is_real and scenario.energy:
        raise ValueError("energy is simulated only: a replay reads no power. Leave it out")
    engine = engine_for(scenario, profile, is_real=is_real)
    served = served_by(scenario, profile, engine)
    limits = limits_of(scenario, profile, engine, is_speculative=named.is_speculative, is_real=is_real)
    quoted = quoted or _quoted(scenario, profile)
    acceptance_at(quoted, speculation.num_speculative_tokens)
    draft_tokens = speculation.num_speculative_tokens if named.is_speculative else 0
    pairs = _pairs(scenario, profile, draft_tokens)
    lengths = lengths_of(speculation, draft_tokens, is_real=is_real)
    check_policy(scenario, profile, named, limits, lengths)
    has_draft = lengths.max > 0 and not speculation.drafter.looks_up
    models = (*loaded_models(profile, with_draft=has_draft), *map(draft_shape, pairs))
    num_gpus, num_engines = named.gpus(scenario.policy_options)
    if named.takes_option("lanes"):
        seats = scenario.policy_options.num_seats(limits.max_num_seqs)
        limits = msgspec.structs.replace(limits, max_num_seqs=seats)
    processes = _num_processes(scenario, named)
    num_blocks, seats = _memory(scenario, profile, engine, models, limits, lengths.max, processes=processes)
    limits = msgspec.structs.replace(limits, max_num_seqs=seats)
    seated = seats * num_engines
    unpriced = _Unpriced(
        scenario=scenario,
        label=named.name,
        policy=named,
        profile=profile,
        num_slots=num_slots,
        quoted=quoted,
        engine=engine,
        limits=limits,
        caps=_caps(scenario.policy_options, named, limits, lengths.max),
        lengths=lengths,
        num_blocks=num_blocks,
        models=models,
        pairs=pairs,
        acceptances=_acceptances(scenario, named, quoted, draft_tokens),
        num_gpus=num_gpus,
        num_engines=num_engines,
        max_seated=min(seated, scenario.policy_options.workers) if named.has_workers else seated,
        served=served,
        links=_links(scenario, num_gpus),
        plugins=(named.name, speculation.acceptance_name),
    )
    return _priced(unpriced)


def _received(values: dict[str, Any]) -> Resolved:
    return Resolved(**values | {"policy": find_policy(values["policy"])})


def resolve_all(scenario: Scenario, profile: Profile) -> list[Resolved]:
    """[policies of the scenario] each resolved; warns of keys that a policy ignores, of more KV blocks than fit, and of
    fewer acceptance rates than drafts have tokens."""
    resolved = [resolve(scenario, profile, policy) for policy in scenario.policy]
    largest = max((one.models for one in resolved), key=len)
    for lines, category in (
        (ignored_keys(scenario), IgnoredKeyWarning),
        (beyond_memory(scenario, profile, largest), BeyondMemoryWarning),
        (short_rates(scenario), ShortAcceptanceWarning),
    ):
        for line in lines:
            warnings.warn(line, category, stacklevel=2)
    return resolved


def with_keys(scenario: Scenario, **changes: Json | msgspec.Struct) -> Scenario:
    """`scenario` with other values of some keys, those of a block as a mapping: `workload={"request_rate": 8.0}`."""

    def changed(name: str, keys: Mapping[str, Json]) -> object:
        block = getattr(scenario, name)
        return (replace if is_dataclass(block) else msgspec.structs.replace)(block, **keys)

    blocks = {name: changed(name, keys) for name, keys in changes.items() if isinstance(keys, Mapping)}
    return msgspec.structs.replace(scenario, **changes | blocks)


# -- drafts


def _quoted(scenario: Scenario, profile: Profile) -> Quoted:
    text = scenario.speculation.acceptance
    if text not in PROMPTS:
        return parse_quoted(text)
    return AssumedSpread(OnPrompts(measured_of(text, *pair_of(profile, scenario.speculation.drafter))))


def _pairs(scenario: Scenario, profile: Profile, draft_tokens: int) -> tuple[Profile, ...]:
    drafts = scenario.speculation.drafts if draft_tokens else ()
    return tuple(pair_with(profile, drafter.draft) for drafter in drafts)


def _acceptances(scenario: Scenario, policy: Policy, quoted: Quoted, draft_tokens: int) -> tuple[Acceptance, ...]:
    speculation = scenario.speculation
    if policy.drafts_ahead and speculation.stale_acceptance is not None:
        quoted = parse_quoted(speculation.stale_acceptance)
    further = speculation.drafts if draft_tokens else ()
    return (
        acceptance_at(quoted, draft_tokens),
        *(parse_quoted(each.acceptance).model(each.num_speculative_tokens) for each in further),
    )


# -- memory and limits


def _num_processes(scenario: Scenario, policy: Policy) -> int:
    """Processes of one replica on one GPU, each with its own weights."""
    is_split = scenario.devices.overlap is Regime.PROCESSES and policy.takes_option("lanes")
    return max(1, len(policy.lanes)) if is_split else 1


def _memory(
    scenario: Scenario,
    profile: Profile,
    engine: EngineCosts,
    models: Sequence[ModelShape],
    limits: EngineLimits,
    draft_tokens: int,
    *,
    processes: int,
) -> tuple[int, int]:
    """Blocks as given, or as many as fit beside the weights, and the requests that can be seated. Raises ValueError
    where there is room for none."""
    given, rules, seats, degree = scenario.engine, engine.rules, limits.max_num_seqs, profile.tensor_parallel
    num_blocks = given.num_gpu_blocks
    if num_blocks is None or rules.state_pool is not None:
        with_draft, share = len(models) > 1, given.gpu_memory_utilization
        tokens = kv_capacity_tokens(
            profile, share, with_draft=with_draft, beside=models[2:], engine=engine, processes=processes
        )
        fitting = tokens // given.block_size
        if not fitting:
            raise ValueError(
                f"profile {profile.name!r}: the weights leave no room for KV within gpu_memory_utilization={share} of "
                "the GPU's memory"
            )
        if (pool := rules.state_pool) is not None:
            is_caching = given.rules.get("enable_prefix_caching", True) is True
            slots = pool.slots_of(is_async=limits.async_scheduling, is_caching=is_caching)
            tokens = fitting * given.block_size
            seats, tokens = beside_states(tokens, models, degree, pool.ratio, slots, seats, draft_tokens)
            fitting = tokens // given.block_size
        num_blocks = fitting if num_blocks is None else num_blocks
    if given.max_num_seqs is None and rules.seats_by_memory is not None and not draft_tokens:
        a_context, most = rules.seats_by_memory
        by_memory = int(num_blocks * given.block_size / (given.max_model_len or profile.target.max_context) * a_context)
        seats = max(seats, min(most, by_memory)) if seats == limits.max_num_seqs else seats
    if not seats or not num_blocks:
        raise ValueError(
            f"profile {profile.name!r}: beside the weights and the states of linear attention there is no room for KV "
            f"within gpu_memory_utilization={given.gpu_memory_utilization} of the GPU's memory"
        )
    return num_blocks, seats


def _caps(options: PolicyOptions, policy: Policy, limits: EngineLimits, draft_tokens: int) -> Caps:
    """Caps that act: a lane never takes more than max_num_seqs, nor than a pass has room for."""

    def batch(key: str, given: int | None) -> int | None:
        return rows_per_work(options, limits, given, draft_tokens) if policy.takes_option(key) else None

    return Caps(
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        decode_batch=batch(
            "decode_batch", options.decode_rows if policy.takes_option("lanes") else options.decode_batch
        ),
        verify_batch=batch("verify_batch", options.verify_batch),
        workers=min(options.workers, limits.max_num_seqs) if policy.takes_option("workers") else None,
    )


def _links(scenario: Scenario, num_gpus: int) -> dict[str, Link]:
    """Links between the GPUs of each replica, as its policy names them."""
    if num_gpus == 1:
        return {}
    devices = scenario.devices
    link = link_of(scenario.policy_options.pools.link)
    return {LINK: link} if devices.count == 1 else {f"{LINK}.{index}": link for index in range(devices.count)}


# -- costs


def _priced(one: _Unpriced) -> Resolved:
    """`one` with costs, and with its lanes on shares of the GPU where those are given."""
    scenario, profile, given = one.scenario, one.profile, one.scenario.policy_options.partition
    partition = None
    if given is not None and one.policy.lanes:
        partition = {key: value for key, value in given.items() if value is not False}
    is_plain = partition is None and not profile.overlap.measured
    regime = scenario.devices.overlap or Regime.LEFTOVER if is_plain else None
    with_demands = profile
    if _num_processes(scenario, one.policy) > 1:
        alone = msgspec.structs.replace(profile.host, inflation_eager=(1.0,), inflation_graphed=(1.0,))
        with_demands = profile = msgspec.structs.replace(profile, host=alone)
    if regime is Regime.ROOFS or partition is not None:
        overlap = msgspec.structs.replace(profile.overlap, demand_floor=0.0)
        with_demands = msgspec.structs.replace(profile, overlap=overlap)
    drafted = one.lengths.max if one.policy.is_continuous else 0
    costs = _costs_of(one, with_demands, one.engine, graphed_queries=drafted + 1 if drafted else None)
    further = [_costs_of(one, pair, one.engine) for pair in one.pairs]
    table = scenario.policy_options.adaptive_table
    if isinstance(table, str):
        table = seed_table(is_heavy=profile.target.weight_bytes >= HEAVY_BYTES)
    overlap = msgspec.structs.replace(profile.overlap, phi=profile.phi)
    is_preemptive = scenario.policy_options.stream_priorities == PREEMPTIVE
    elsewhere, pool_gpus = _costs_elsewhere(one), scenario.policy_options.pools.draft
    drafting = min(pool_gpus, one.num_gpus - 1)
    degrees = [elsewhere.get(index, costs).profile.tensor_parallel for index in range(one.num_gpus)]
    target, *drafts = (rank_weight_bytes(shape, profile.data_parallel) for shape in one.models)
    weight_bytes = (one.num_gpus - drafting) * target + (drafting or one.num_gpus) * sum(drafts)
    sent, degree = one.models[:1] if pool_gpus else one.models, min(profile.tensor_parallel, *degrees)
    return Resolved(
        **{field.name: getattr(one, field.name) for field in fields(_Unpriced)},
        costs=costs,
        host_costs=DrafterCosts([costs, *further]) if further else costs,
        costs_elsewhere=elsewhere,
        contention=contention_of(overlap, regime, scenario.devices.phi, is_preemptive=is_preemptive),
        regime=regime,
        options=replace(scenario.policy_options, partition=partition, adaptive_table=table),
        group_gpus=sum(degrees),
        weight_bytes=_num_processes(scenario, one.policy) * weight_bytes,
        kv_bytes_per_token=round(sum(kv_bytes_per_token(shape, degree) for shape in sent) / degree),
    )


def _costs_of(
    one: _Unpriced, profile: Profile, engine: EngineCosts, *, graphed_queries: int | None = None
) -> WorkCosts:
    limits = one.limits
    sizes = engine.rules.graph_sizes(limits.max_num_seqs, one.lengths.given, limits.max_num_batched_tokens)
    return build_costs(
        profile, engine, cuda_graph=one.scenario.engine.cuda_graph, graphed_queries=graphed_queries, graph_sizes=sizes
    )


def _costs_elsewhere(one: _Unpriced) -> dict[int, WorkCosts]:
    """Raises ValueError for other models on those GPUs."""
    scenario, profile = one.scenario, one.profile
    name = scenario.policy_options.pools.prefill_profile
    if name is None or one.num_gpus == 1:
        return {}
    other = load(name)
    if other.target != profile.target or (one.lengths.given and other.draft != profile.draft):
        raise ValueError(
            f"policy_options.pools.prefill_profile={name!r} is of {other.target.name} and "
            f"{other.draft.name if other.draft else 'no draft'}. Give the models of {profile.name!r}"
        )
    if other.gpu.name == profile.gpu.name:
        # Whatever a draw does to the times of one pool, it does to the other's.
        host = msgspec.structs.replace(profile.host, kernels_per_layer=other.host.kernels_per_layer)
        other = msgspec.structs.replace(other, host=host)
    costs = _costs_of(one, other, engine_for(scenario, other))
    firsts = [replica * one.num_gpus for replica in range(scenario.devices.count)]
    return {first + index: costs for first in firsts for index in range(scenario.policy_options.pools.prefill)}
