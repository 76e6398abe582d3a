"""Faults that show only with scenario, policy and profile together: refused as they are resolved, or warned of.

Not here: what a scenario's keys may be by themselves (sim.run.scenario), resolving (sim.run.resolve).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sim.acceptance.forms import num_rates
from sim.costs.memory import kv_capacity_tokens
from sim.costs.profile import Profile
from sim.costs.shapes import ModelShape
from sim.devices.contention import Regime
from sim.drafters.registry import drafter_of
from sim.engine.controllers import VERIFYING
from sim.names import unknown
from sim.policies.options import DEFERRED, Batching, EngineLimits, KvMode, keys
from sim.policies.registry import POLICIES, Policy, PolicyOptions, find_policy
from sim.run.draft_lengths import DraftLengths
from sim.run.scenario import Scenario


class IgnoredKeyWarning(UserWarning):
    """A key of the scenario means nothing to a policy that it is given for."""


class BeyondMemoryWarning(UserWarning):
    """More KV blocks are given than the GPU's memory holds."""


class ShortAcceptanceWarning(UserWarning):
    """A list of acceptance rates is shorter than the drafts."""


A_DRAFT = "--draft meta-llama/Llama-3.2-1B"
"""A draft model of its own, which every policy takes."""


def is_lockstep(scenario: Scenario, profile: Profile, policy: Policy) -> bool:
    """True where the scenario's replicas are the ranks of the profile's deployment, which share its experts."""
    ranks = profile.data_parallel
    return 1 < ranks == scenario.devices.count and profile.target.experts is not None and policy.is_continuous


def check_policy(
    scenario: Scenario, profile: Profile, policy: Policy, limits: EngineLimits, lengths: DraftLengths
) -> None:
    """Raise ValueError for what only shows when scenario, `policy` and profile are seen together."""
    if scenario.policy_options.partition is not None:
        _check_partition(scenario.policy_options, [find_policy(each) for each in scenario.policy])
    for fault in _refusals(scenario, profile, policy, limits, lengths):
        raise ValueError(fault)


def _check_partition(options: PolicyOptions, policies: Sequence[Policy]) -> None:
    """Raise ValueError for shares that no policy has lanes for, or that one with lanes cannot be given."""
    with_lanes = [policy for policy in policies if policy.lanes]
    if not with_lanes:
        names = ", ".join(policy.name for policy in policies)
        known = ", ".join(policy.name for policy in POLICIES.values() if policy.lanes)
        raise ValueError(f"policy_options.partition: {names} has no lanes. These have: {known}")
    for policy in with_lanes:
        _check_shares(options.shares, policy)
        if options.defers_prompts and any(len(group) > 1 for group in policy.lanes):
            raise ValueError(
                f"policy_options.partition.{DEFERRED}: one worker runs the lanes of {policy.name!r}, which has no "
                "round of its own to wait for. Give a policy with a coroutine per lane, such as pd"
            )


def _check_shares(shares: dict[str, float], policy: Policy) -> None:
    for lane in shares:
        if lane not in policy.lane_names:
            raise ValueError(f"policy_options.partition: {unknown(f'lane of {policy.name}', lane, policy.lane_names)}")
    without = [lane for lane in policy.lane_names if lane not in shares]
    if without and sum(shares.values()) > 1.0 - 1e-9:
        raise ValueError(
            f"policy_options.partition leaves nothing for {', '.join(without)} of {policy.name!r}. Give the others less"
        )


def _refusals(
    scenario: Scenario, profile: Profile, policy: Policy, limits: EngineLimits, lengths: DraftLengths
) -> Iterator[str]:
    """A line per fault of the scenario, the first of several first."""
    method, controller = scenario.speculation.drafter, scenario.speculation.controller
    draft_tokens, options, name = scenario.speculation.num_speculative_tokens, scenario.policy_options, policy.name
    is_drafting, draft = draft_tokens > 0, profile.draft
    is_lane = policy.is_speculative and not policy.is_continuous
    reads_late = policy.drafts_ahead and limits.method.reads_features
    budget = f"policy {name!r}: engine.max_num_batched_tokens={limits.max_num_batched_tokens}"
    if options.partition is not None and profile.gpu.name == "cpu":
        yield f"policy_options.partition: {profile.name!r} is of a CPU, which has no multiprocessors to give"
    if scenario.devices.phi is not None and profile.overlap.measured:
        yield (
            f"devices.phi={scenario.devices.phi} is for profiles without a measured overlap. {profile.name!r} has "
            "one. Leave it out"
        )
    if scenario.devices.overlap is Regime.PROCESSES and policy.needs_draft and not policy.takes_option("lanes"):
        yield f"devices.overlap={Regime.PROCESSES} makes a process of each lane of pd. Those of {name!r} share one"
    if is_lockstep(scenario, profile, policy) and profile.table.target.experts is None:
        yield (
            f"profile {profile.name!r} does not say what its {profile.data_parallel} ranks do together "
            "(kernels.target.experts): import it again"
        )
    if limits.scheduler is not None and not policy.is_continuous:
        yield (
            f"engine {scenario.engine.name!r} schedules continuous batching: policy {name!r} has its own order of "
            "work. Give continuous or autoregressive"
        )
    if limits.scheduler is not None and is_drafting and controller != "fixed":
        yield (
            f"engine {scenario.engine.name!r} drafts as many tokens in every round: speculation.controller="
            f"{controller} must be fixed"
        )
    if policy.needs_draft and not is_drafting:
        yield f"policy {name!r} needs a draft: num_speculative_tokens is 0. Add {A_DRAFT} --num-speculative-tokens 3"
    if policy.is_speculative and is_drafting and not method.looks_up and draft is None:
        yield (
            f"policy {name!r} with num_speculative_tokens={draft_tokens} needs a draft model, and profile "
            f"{profile.name!r} has none. Add --draft eagle3, or for lanes {A_DRAFT}"
        )
    if is_drafting and bool(scenario.speculation.drafts) and not policy.chooses_drafter:
        yield (
            f"policy {name!r} has one draft model: speculation.drafts are for baseline, pd, pdv, unified and adaptive"
        )
    if is_drafting and reads_late and scenario.speculation.stale_acceptance is None:
        yield (
            f"policy {name!r} drafts before the target's newest features exist, and the head of {profile.name!r} "
            "reads them: speculation.stale_acceptance must say what is accepted then (measured: about 0.6 of the "
            "acceptance length)"
        )
    if is_drafting and is_lane and not reads_late and not limits.method.is_model:
        yield (
            f"policy {name!r} drafts with a draft model, and speculation.method={limits.method} has none. "
            f"Give {A_DRAFT}, or --policy continuous"
        )
    if method.reads_features and is_drafting and drafter_of(profile) is not method:
        yield (
            f"speculation.method={method} needs a profile with {method.what} (…/target+{method}). The draft of "
            f"{profile.name!r} is {draft.name if draft else 'none'}"
        )
    if policy.is_continuous and (options.kv is not KvMode.ROLLBACK or options.batching is not Batching.BATCHED):
        yield (
            f"policy {name!r} always batches and keeps its KV: policy_options batching={options.batching}, "
            f"kv={options.kv} cannot apply to it"
        )
    if policy.is_continuous and limits.max_num_scheduled_tokens < 1:
        yield (
            f"{budget} has no room beside the {limits.draft_slots} slots that drafts of {limits.method} keep for each "
            f"of {limits.max_num_seqs} seats. Give at least {limits.draft_slots * limits.max_num_seqs + 1}, or fewer "
            "engine.max_num_seqs"
        )
    if is_lane and is_drafting and controller == VERIFYING:
        yield f"policy {name!r} verifies all that it drafts: speculation.controller={VERIFYING} is for continuous"
    if is_lane and options.kv is KvMode.NONE and lengths.min == 0 < lengths.max:
        yield (
            f"policy {name!r}: speculation.controller={controller} may choose not to draft, which "
            "policy_options.kv=none cannot, because its passes follow drafts. Use kv=rollback"
        )
    if is_lane and lengths.max + 1 > limits.max_num_batched_tokens:
        yield (
            f"{budget} has no room to verify {lengths.max} drafted tokens of one request. Give at least "
            f"{lengths.max + 1}, or a shorter draft"
        )


def ignored_keys(scenario: Scenario) -> list[str]:
    """One line per key that is not at its default and means nothing to some policy of the scenario."""
    policies = [find_policy(name) for name in scenario.policy]
    lines = []

    def ignored(block: str, key: str, value: object, by: list[str]) -> None:
        if by:
            lines.append(f"{block}.{key}={value} means nothing to {', '.join(by)}")

    for key in keys(PolicyOptions):
        if (value := getattr(scenario.policy_options, key)) != getattr(PolicyOptions, key):
            by = [policy.name for policy in policies if not policy.takes_option(key)]
            ignored("policy_options", key, value, by)
    for key, value in scenario.engine.rules.items():
        by = [policy.name for policy in policies if not policy.is_continuous and not policy.takes_option(key)]
        ignored("engine.rules", key, value, by)
    return lines


def short_rates(scenario: Scenario) -> list[str]:
    """One line per list of fewer acceptance rates than drafts have tokens, where some policy drafts."""
    speculation = scenario.speculation
    if not any(find_policy(name).is_speculative for name in scenario.policy):
        return []
    quotes = [(speculation.acceptance, speculation.num_speculative_tokens)]
    quotes += [(each.acceptance, each.num_speculative_tokens) for each in speculation.drafts]
    counts = [(text, num_rates(text), draft_tokens) for text, draft_tokens in quotes]
    return [
        f"acceptance {text} has {count} rate{'s' * (count > 1)} for drafts of {draft_tokens} tokens: the last "
        "conditional one repeats"
        for text, count, draft_tokens in counts
        if count is not None and count < draft_tokens
    ]


def beyond_memory(scenario: Scenario, profile: Profile, models: Sequence[ModelShape]) -> list[str]:
    """A line on given KV blocks that the GPU cannot hold beside the weights of `models`, were all its memory used."""
    given, block_size = scenario.engine.num_gpu_blocks, scenario.engine.block_size
    if given is None:
        return []
    most = kv_capacity_tokens(profile, 1.0, with_draft=len(models) > 1, beside=models[2:]) // block_size
    if given <= most:
        return []
    return [
        f"engine.num_gpu_blocks={given} is beyond the GPU's memory: beside the weights {profile.name!r} has room for "
        f"{most} blocks of {block_size} tokens. A server would fail where this one serves"
    ]
