"""One run: a scenario, a policy and a seed become a record.

Not here: comparing runs (sim.experiment.compare), metrics (sim.metrics.summary), files (sim.report.results).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import msgspec

from sim.acceptance.forms import AcceptanceSummary, parse_acceptance
from sim.acceptance.luck import Luck
from sim.acceptance.models import Acceptance, IidAcceptance
from sim.costs.forms.build import build_costs
from sim.costs.memory import kv_capacity_tokens
from sim.costs.profile import Profile
from sim.costs.shapes import ModelShape
from sim.devices.contention import contention_of
from sim.engine.draft_length import build_controller
from sim.engine.kv import KvPool
from sim.engine.paged import PagedPool
from sim.engine.serving import Serving
from sim.experiment.scenario import Scenario, Speculation
from sim.hosts.simulated import SimHost
from sim.metrics.records import RunRecord, StreamUsage, WorkRecord, work_record
from sim.policies import continuous_lazy
from sim.policies.options import Batching, EngineLimits, KvMode, Method
from sim.policies.registry import Policy, find_policy
from sim.seam.request import Request
from sim.workload.generate import build_requests


class PolicyStalled(RuntimeError):
    """A policy stopped with requests unserved: a defect of the policy, not of the input."""


def check(scenario: Scenario, profile: Profile) -> None:
    """Raise ValueError for what only shows when scenario, policies and profile are seen together."""
    draft_tokens = scenario.speculation.num_speculative_tokens
    build_acceptance(scenario.speculation, draft_tokens)
    for name in scenario.policy:
        policy = find_policy(name)
        if policy.needs_draft and draft_tokens == 0:
            raise ValueError(f"policy {name!r} needs a draft: num_speculative_tokens=0 must be at least 1")
        needs_model = scenario.speculation.method is not Method.NGRAM
        if policy.is_speculative and draft_tokens and needs_model and profile.draft is None:
            raise ValueError(
                f"policy {name!r} with num_speculative_tokens={draft_tokens} needs a draft model, and profile "
                f"{profile.name!r} has none: name a pair (target+draft), or set --num-speculative-tokens 0"
            )
        method = limits_of(scenario, profile).method
        is_lane = policy.is_speculative and not policy.is_continuous
        if draft_tokens and is_lane and method is not Method.DRAFT_MODEL:
            raise ValueError(
                f"policy {name!r} drafts with a model of its own: speculation.method={method} is served by "
                "continuous only"
            )
        if scenario.speculation.method is Method.EAGLE3 and draft_tokens and not _has_head(profile):
            raise ValueError(
                f"speculation.method=eagle3 needs a profile with an EAGLE-3 head (…/target+eagle3); the draft of "
                f"{profile.name!r} is {profile.draft.name if profile.draft else 'none'}"
            )
        options = scenario.policy_options
        if policy.is_continuous and (options.kv is not KvMode.ROLLBACK or options.batching is not Batching.BATCHED):
            raise ValueError(
                f"policy {name!r} always batches and keeps its KV: policy_options batching={options.batching}, "
                f"kv={options.kv} cannot apply to it"
            )


def build_acceptance(speculation: Speculation, draft_tokens: int) -> Acceptance:
    """The acceptance model of a scenario, vLLM's keys first. Raises ValueError."""
    length, rates = speculation.synthetic_acceptance_length, speculation.synthetic_acceptance_rates
    if draft_tokens and (length is not None or rates is not None):
        summary = AcceptanceSummary.from_vllm(
            draft_tokens, synthetic_acceptance_length=length, synthetic_acceptance_rates=rates
        )
        return summary.model
    if not draft_tokens and speculation.acceptance.startswith("length:"):
        return IidAcceptance(0.0)
    return parse_acceptance(speculation.acceptance, max(1, draft_tokens))


def simulate(
    scenario: Scenario,
    policy_name: str,
    seed: int,
    profile: Profile,
    *,
    record_works: bool = False,
    requests: Sequence[Request] | None = None,
) -> RunRecord:
    """Run one policy to the end of the scenario's window, or until everything has drained.

    `requests` are served in place of the workload's, which otherwise come from its generators: fresh ones in order of
    arrival, index 0 first.

    Raises ValueError for requests that no KV memory of this profile can hold, PolicyStalled for a stuck policy.
    """
    policy = find_policy(policy_name)
    draft_tokens = scenario.speculation.num_speculative_tokens if policy.is_speculative else 0
    controller = build_controller(scenario.speculation.controller, draft_tokens)
    costs = build_costs(profile, cuda_graph=scenario.engine.cuda_graph)
    kv = _kv_pool(scenario, profile, policy, controller.draft_tokens_max)
    requests = list(requests) if requests is not None else _requests(scenario, seed)
    _check_they_fit(requests, kv, profile)
    luck = Luck(build_acceptance(scenario.speculation, draft_tokens), seed)
    if draft_tokens:
        luck.prepare([r.index for r in requests], [r.output_tokens for r in requests], draft_tokens)
    works: list[WorkRecord] = []
    host = SimHost(
        costs,
        luck,
        contention=contention_of(profile.overlap),
        on_work=(lambda ticket: works.append(work_record(ticket))) if record_works else None,
    )
    serving = Serving(host, requests, kv, controller, max_concurrency=scenario.workload.max_concurrency)
    serving.first_measured = scenario.workload.num_warmups
    if record_works:
        kv.held.series = []
    _start(policy, host, serving, scenario, profile, luck if not record_works else None)
    host.run_until(scenario.window.stop_s)
    if scenario.window.stop_s is None and not serving.is_all_finished:
        raise PolicyStalled(
            f"policy {policy_name!r} stopped with {len(requests) - serving.num_finished} of {len(requests)} "
            "requests unfinished"
        )
    return _record(scenario, policy_name, seed, profile, host, serving, works)


def _requests(scenario: Scenario, seed: int) -> list[Request]:
    """The requests that arrive within the window; at a low rate that may be none."""
    requests = build_requests(scenario.workload, seed)
    cut_s = scenario.window.arrivals_end_s
    if cut_s is not None:
        requests = [request for request in requests if request.arrival_s <= cut_s]
    return requests


def _kv_pool(scenario: Scenario, profile: Profile, policy: Policy, draft_tokens_max: int) -> KvPool:
    engine = scenario.engine
    num_blocks = num_kv_blocks(scenario, profile, draft_tokens_max)
    slots = draft_slots(scenario, policy, draft_tokens_max)
    if policy.is_continuous:
        return PagedPool(num_blocks, engine.block_size, slots, is_caching=engine.enable_prefix_caching)
    return KvPool(num_blocks, engine.block_size, slots)


def num_kv_blocks(scenario: Scenario, profile: Profile, draft_tokens_max: int) -> int:
    """As given, or as many as fit beside the weights. Raises ValueError where the weights leave no room."""
    engine = scenario.engine
    if engine.num_gpu_blocks is not None:
        return engine.num_gpu_blocks
    with_draft = len(loaded_models(scenario, profile, draft_tokens_max)) > 1
    capacity = kv_capacity_tokens(profile, engine.gpu_memory_utilization, with_draft=with_draft)
    num_blocks = int(capacity) // engine.block_size
    if num_blocks < 1:
        raise ValueError(
            f"profile {profile.name!r}: the weights leave no room for KV within "
            f"gpu_memory_utilization={engine.gpu_memory_utilization} of the GPU's memory"
        )
    return num_blocks


def loaded_models(scenario: Scenario, profile: Profile, draft_tokens_max: int) -> tuple[ModelShape, ...]:
    """Whose weights and KV are in memory: without speculation, and with n-grams, no draft's."""
    has_draft = draft_tokens_max > 0 and scenario.speculation.method is not Method.NGRAM
    return profile.models if has_draft else (profile.target,)


def draft_slots(scenario: Scenario, policy: Policy, draft_tokens_max: int) -> int:
    """Slots beyond prompt and output that drafts can take: of the round in flight, and in `continuous` of the next one,
    which asynchronous scheduling plans a round ahead."""
    if draft_tokens_max == 0:
        return 0
    rounds = 1
    if policy.is_continuous:
        rounds = 3 if scenario.engine.async_scheduling else 2
    return rounds * draft_tokens_max + 1


class BeyondContextWarning(UserWarning):
    """Requests are longer than the target's context."""


def _check_they_fit(requests: Sequence[Request], kv: KvPool, profile: Profile) -> None:
    """Raise ValueError for a request that memory cannot hold; warn of those that the model was not made for."""
    for request in requests:
        if kv.blocks_for(request) > kv.num_blocks:
            raise ValueError(
                f"request {request.id}: prompt {request.prompt_tokens} + output {request.output_tokens} tokens need "
                f"{kv.blocks_for(request)} KV blocks of {kv.block_size}, and there are {kv.num_blocks} "
                f"on {profile.name!r}"
            )
    context = profile.target.max_context
    num_beyond = sum(request.prompt_tokens + request.output_tokens > context for request in requests)
    if num_beyond:
        warnings.warn(
            f"{num_beyond} of {len(requests)} requests are longer than {profile.target.name}'s context of {context} "
            "tokens; they are served all the same",
            BeyondContextWarning,
            stacklevel=2,
        )


def limits_of(scenario: Scenario, profile: Profile) -> EngineLimits:
    """What the engine is told; a profile whose draft is a head on the target's features drafts as one."""
    limits = scenario.limits
    if limits.method is Method.DRAFT_MODEL and _has_head(profile):
        return msgspec.structs.replace(limits, method=Method.EAGLE3)
    return limits


def _has_head(profile: Profile) -> bool:
    return profile.draft is not None and profile.draft.fused_features > 0


def _start(
    policy: Policy, host: SimHost, serving: Serving, scenario: Scenario, profile: Profile, luck: Luck | None
) -> None:
    """Start the policy's coroutines, then the arrivals. `luck` is None where every row must be seen."""
    limits = limits_of(scenario, profile)
    is_fixed = serving.controller.draft_tokens_max == serving.controller.draft_tokens
    is_whole = scenario.window.stop_s is None
    if policy.is_continuous and luck and is_fixed and is_whole and continuous_lazy.can_be_lazy(serving, limits):
        tasks = continuous_lazy.coroutines(serving, limits, luck)
    else:
        tasks = policy.build(serving, scenario.policy_options, limits)
    for task in tasks:
        host.spawn(task)
    host.spawn(serving.arrivals())


def _record(
    scenario: Scenario,
    policy_name: str,
    seed: int,
    profile: Profile,
    host: SimHost,
    serving: Serving,
    works: list[WorkRecord],
) -> RunRecord:
    requests = list(serving.requests[: serving.num_arrived])
    models = loaded_models(scenario, profile, serving.controller.draft_tokens_max)
    is_drained = serving.is_all_finished and requests
    end_s = max(request.last_token_s for request in requests) if is_drained else host.now_s
    return RunRecord(
        policy=policy_name,
        seed=seed,
        requests=requests,
        gaps=serving.gaps,
        end_s=end_s,
        window_s=scenario.window.stop_s,
        usage=[
            StreamUsage(
                stream=stream, kind=kind.value, num_works=usage.num_works, device_s=usage.device_s, tokens=usage.tokens
            )
            for (stream, kind), usage in host.usage.items()
        ],
        device_busy_s=host.device_busy_s,
        num_polls=host.num_polls,
        queue_mean=serving.queue.mean(host.now_s),
        queue_peak=serving.queue.peak,
        kv_tokens_mean=serving.kv.held.mean(host.now_s),
        kv_tokens_peak=serving.kv.held.peak,
        kv_capacity_tokens=serving.kv.num_blocks * serving.kv.block_size,
        is_open_loop=scenario.workload.max_concurrency is None,
        works=works,
        kv_series=serving.kv.held.series or [],
        weight_bytes=sum(shape.weight_bytes for shape in models),
        kv_bytes_per_token=sum(shape.kv_bytes_per_token for shape in models),
    )
