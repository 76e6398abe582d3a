"""Engine, limits and drafts of a scenario, resolved on a profile.

Not here: what one policy makes of it (sim.run.resolve), keys and their defaults (sim.run.scenario).
"""

from __future__ import annotations

import msgspec

from sim.costs.engine_costs import NO_SPECULATION, EngineCosts, Rules, engine_of, own_engine, without_engine
from sim.costs.profile import Profile
from sim.drafters.drafter import Drafter
from sim.drafters.registry import drafter_of
from sim.policies.options import EngineLimits
from sim.policies.registry import Policy
from sim.run.scenario import RULES, Scenario
from sim.workload.served import Served

SERVERS = ("vllm", "sglang", "trtllm")
"""Beginnings of the names of engines that are real servers."""
LEAST_WAITING = 8
"""Seats from which on prompts wait for several of them (SGLang 0.5.23, managers/min_free_slots_delayer.py:20)."""


def engine_for(scenario: Scenario, profile: Profile, *, is_real: bool = False) -> EngineCosts:
    """The engine of the scenario on that profile. A real host (`is_real`) is no engine's: the profile that was measured
    with it has its constants.

    Raises ValueError for an engine that is not known, or that a real host is not.
    """
    name, frontend_s = scenario.engine.name, scenario.engine.frontend_s
    if not is_real:
        engine = engine_of(name, profile)
        return engine if frontend_s is None else msgspec.structs.replace(engine, frontend_s=frontend_s)
    if frontend_s is not None:
        raise ValueError("engine.frontend_s is simulated only: a replay's requests have no frontend. Leave it out")
    measured = own_engine(profile) or without_engine(profile)
    if name not in (None, measured.name):
        raise ValueError(
            f"engine.name={name!r} can be simulated only: a replay is driven by lanesim's own loop, whose times are in "
            f"its profile ({measured.name}). Leave engine.name out"
        )
    return measured


def limits_of(
    scenario: Scenario,
    profile: Profile,
    engine: EngineCosts | None = None,
    *,
    is_speculative: bool = True,
    is_real: bool = False,
) -> EngineLimits:
    """Limits of a policy: as given, else what `engine`, by default the scenario's, sets itself on that GPU.

    A profile whose draft is a head on the target's features drafts as one. Asynchronous scheduling follows the engine
    and what the policy drafts with: nothing of `speculation` changes one that never drafts (`is_speculative` false). A
    real host schedules synchronously.
    """
    engine, given, method = engine or engine_for(scenario, profile), scenario.engine, scenario.speculation.drafter
    _check_rules(scenario, engine, profile)
    method = drafter_of(profile) or method if method.is_model else method
    is_drafting = is_speculative and scenario.speculation.num_speculative_tokens > 0
    is_async = not is_real and engine.plans_ahead(method.name if is_drafting else NO_SPECULATION)
    caps, draft_tokens, told = engine.cap_rule(profile.gpu), scenario.speculation.num_speculative_tokens, given.rules
    rules, is_fixed = engine.rules, scenario.speculation.controller == "fixed"
    drafter = name_in_rules(method, profile) if is_drafting else NO_SPECULATION
    slots = rules.slots_per_seat(drafter, draft_tokens)
    interval, ranks = int(told.get("prefill_schedule_interval", 1)), profile.data_parallel
    budget = given.max_num_batched_tokens or caps.max_num_batched_tokens
    seats = given.max_num_seqs or engine.seats(profile, is_drafting=is_drafting)
    waits = drafter in rules.waits_for_seats and seats >= LEAST_WAITING
    mixes_prompts = bool(told.get("enable_mixed_chunk", engine.mixes_prompts))
    if not mixes_prompts and rules.token_ratio is None:
        raise ValueError(
            f"engine {engine.name!r} has no admission as SGLang's (token_ratio), which separate steps of prompts need. "
            "Leave engine.rules.enable_mixed_chunk out"
        )
    return EngineLimits(
        max_num_seqs=min(seats, budget // max(1, rules.queries_per_seat(drafter, draft_tokens))),
        min_free_seats=min(4, max(2, -(-seats // 6))) if waits else 0,
        max_num_batched_tokens=budget,
        draft_slots=0 if rules.slots_of_scheduled else slots,
        slots_per_request=slots if rules.slots_of_scheduled else 0,
        padded_tokens=draft_tokens + 1 if rules.pads_last_token and is_drafting and is_fixed else 0,
        seats_lookahead=rules.seats_lookahead,
        prefill_schedule_interval=interval,
        defers_last_token=rules.defers_last_token,
        counts_prompt_steps=rules.counts_prompt_steps and ranks == 1,
        goes_on_without=rules.goes_on_without,
        # Ranks that share experts would all have to agree (0.33.0, v1/worker/gpu/dp_utils.py:88).
        skips_unused_drafts=ranks == 1 and drafter in rules.skips_unused_drafts,
        preempts_by_priority=rules.preempts_by_priority,
        spares_lone_prompt=rules.spares_lone_prompt,
        long_prefill_token_threshold=int(told.get("long_prefill_token_threshold", 0)),
        async_scheduling=is_async if given.async_scheduling is None else given.async_scheduling,
        mixes_prompts=mixes_prompts,
        receive_interval=int(told.get("scheduler_recv_interval", 1)),
        batch_wait_steps=int(told.get("batch_wait_timeout_iters", 0)),
        batch_wait_ratio=told.get("batch_wait_max_tokens_ratio", 0.0),
        balance=(int(told.get("attention_dp_timeout_iters", 0)), sum(1.0 / rank for rank in range(1, ranks + 1))),
        whole_prompts=not told.get("enable_chunked_prefill", not rules.whole_prompts),
        no_evict=rules.no_evict,
        method=method,
        scheduler=engine.scheduler,
        token_ratio=rules.token_ratio,
        prefill_decode_interval=int(told.get("prefill_decode_interval", 0)),
        drafts_before_verify=rules.drafts_before_verify and not is_real,
    )


def _check_rules(scenario: Scenario, engine: EngineCosts, profile: Profile) -> None:
    """Raise ValueError for a key of engine.rules that the real engine would not act on, where it is not at the value
    that means so."""
    for key, value in scenario.engine.rules.items():
        rule = RULES[key]
        if value == rule.idle or (key == "enable_mixed_chunk" and value == engine.mixes_prompts):
            continue
        if engine.name.startswith(SERVERS) and not engine.name.startswith(rule.server):
            raise ValueError(
                f"engine.rules.{key}={value} is a flag of {rule.server}, and engine {engine.name!r} has none: leave it "
                "out"
            )
        if rule.since and not engine.rules.has_prefill_interval:
            raise ValueError(f"engine.rules.{key}={value} is {rule.since} on, and engine {engine.name!r} has none")
        if rule.of_ranks and profile.data_parallel == 1 and not engine.rules.counts_prompt_steps:
            raise ValueError(
                f"engine.rules.{key}={value} is for data-parallel ranks, and {profile.name!r} has one. Leave it out"
            )


def served_by(scenario: Scenario, profile: Profile, engine: EngineCosts | None = None) -> Served:
    """The scenario's workload as `engine` serves it, by default the scenario's, within engine.max_model_len or the
    model's context."""
    rules = (engine or engine_for(scenario, profile)).rules
    max_model_len = scenario.engine.max_model_len or profile.target.max_context
    return Served(scenario.workload, max_model_len, ends_answers=rules.ends_at_max_model_len)


def draft_slots(policy: Policy, draft_tokens_max: int, *, is_async: bool) -> int:
    """Slots beyond prompt and output that drafts can take: of the round in flight, in `continuous` and in a policy that
    drafts ahead of the next one, and of the one that asynchronous scheduling plans behind these."""
    if draft_tokens_max == 0:
        return 0
    rounds = 2 if policy.drafts_ahead or policy.is_continuous else 1
    return (rounds + is_async) * draft_tokens_max + 1


def pool_rules(rules: Rules, drafter: str, *, is_async: bool) -> dict[str, bool]:
    """Keywords of PagedPool that follow from an engine's rules, drafting as `drafter` or not at all."""
    is_drafting = drafter != NO_SPECULATION
    return {
        "drops_cached_block": drafter in rules.drops_cached_block,
        "hashes_next_token": drafter in rules.hashes_next_token,
        "seats_first_chunk": rules.seats_first_chunk,
        "caches_results": is_async or not rules.caches_planned_only or (is_drafting and rules.caches_drafted_results),
        "reuses_blank_first": rules.reuses_blank_first,
    }


def name_in_rules(method: Drafter, profile: Profile) -> str:
    """`method` as an engine's rules name it: a head that drafts in parallel is no parallel draft model."""
    own = drafter_of(profile)
    return method.name if own is None else method.on_heads.get(own.name, method.name)
