"""How many requests a second a policy can serve when its queue never empties: one saturated run, made once and kept.

Where the load is light, a short closed loop tells enough: what few requests in flight get through per second, many do.
Not here: what such a run says of a load (sim.metrics.load).
"""

from __future__ import annotations

from math import inf

import msgspec

from sim.compare.point_runs import with_keys
from sim.costs.profile import Profile
from sim.draws import child_seed
from sim.interface.request import Request
from sim.metrics.load import saturated_throughput
from sim.policies.registry import find_policy
from sim.run.resolve import resolve
from sim.run.scenario import Scenario, Window
from sim.run.simulate import simulate
from sim.workload.generate import at_most

GENERATIONS = 6
"""A saturated run serves this many times what can be in flight: one generation fills the batch, one drains it."""
FEWEST, MOST = 120, 12_000
CAPACITY_KEY = 1_000_003
"""Child of the scenario's seed that saturated runs draw from: they share nothing with the runs they judge."""

LOOPS = ((8, 48), (64, 256))
"""Requests in flight and in all of the short closed loops that bound capacity from below, the shortest first."""
FLOOR_SHARE = 0.7
"""How much of the short loop's throughput is trusted as such a bound: its requests are few, and their lengths vary."""
LONG_LOOP_SHARE, LONG_LOOP_GENERATIONS, MIN_LONG_LOOP = 0.8, 5, 16
"""The long loop: in flight are so many of those that memory or seats hold for their whole lives, so that none has to
give way, and each place is taken so often; no such loop of fewer. It reaches 92 to 100 % of the saturated throughput of
continuous batching for a tenth of its CPU time (A100, H100, azure-conv); the low end of its own interval is trusted."""

Capacity = tuple[float, tuple[float, float]]
"""Requests per second that may be sent, rejected ones among them, and its 95 % interval."""
_known: dict[tuple[str, str], list[tuple[Profile, Capacity]]] = {}
"""What was found of each profile, by scenario and policy."""


def capacity(scenario: Scenario, policy: str, profile: Profile) -> Capacity:
    """Saturated throughput of `policy` with the scenario's lengths, engine, caps and overlap; kept for the process.

    One replica is saturated: several of them serve as many times that, since none is ever idle then.
    """
    count = scenario.devices.count
    if count > 1:
        one, (low, high) = capacity(with_keys(scenario, devices={"count": 1}), policy, profile)
        return count * one, (count * low, count * high)
    saturated, _ = _saturated(scenario, policy, profile)
    return _throughput(saturated, policy, profile)


def capacity_floor(scenario: Scenario, policy: str, profile: Profile, rate_per_s: float = 0.0) -> float:
    """Requests per second that capacity surely exceeds, from closed loops of a few requests, and of more until one
    exceeds `rate_per_s`.

    Throughput rises with the requests in flight, so it is what surely gets through with fewer. 0 where no more than a
    few can be in flight at all: there the loop is the saturated run.
    """
    count = scenario.devices.count
    if count > 1:
        return count * capacity_floor(with_keys(scenario, devices={"count": 1}), policy, profile, rate_per_s / count)
    saturated, most = _saturated(scenario, policy, profile)
    floor = 0.0
    for in_flight, num_prompts in LOOPS:
        if most >= 2 * in_flight and at_most(scenario.workload, num_prompts) == num_prompts and floor <= rate_per_s:
            rate, _ = _in_loop(saturated, in_flight, num_prompts, policy, profile)
            floor = max(floor, FLOOR_SHARE * rate)
    if not find_policy(policy).is_continuous:
        # Their steps cost the same in either run.
        return floor
    in_flight = int(LONG_LOOP_SHARE * most)
    num_prompts = LONG_LOOP_GENERATIONS * in_flight
    if in_flight >= MIN_LONG_LOOP and at_most(scenario.workload, num_prompts) == num_prompts and floor <= rate_per_s:
        _, (low, _) = _in_loop(saturated, in_flight, num_prompts, policy, profile)
        floor = max(floor, low)
    return floor


def _in_loop(saturated: Scenario, in_flight: int, num_prompts: int, policy: str, profile: Profile) -> Capacity:
    """Throughput of a closed loop of the saturated run's requests; kept for the process."""
    looped = with_keys(saturated, workload={"num_prompts": num_prompts, "max_concurrency": in_flight})
    return _throughput(looped, policy, profile)


def _throughput(scenario: Scenario, policy: str, profile: Profile) -> Capacity:
    """Throughput of the whole run, in the stretch in which as many are in flight as ever; kept for the process."""
    kept = _known.setdefault((scenario.digest, policy), [])
    for known, found in kept:
        if known is profile:
            return found
    resolved, seed = resolve(scenario, profile, policy), child_seed(scenario.seed, CAPACITY_KEY)
    record = simulate(resolved, seed)
    in_flight = scenario.workload.max_concurrency or peak_in_flight(record.requests)
    mean = resolved.served.mean_tokens(seed)
    rate, (low, high) = saturated_throughput(record.requests, in_flight, (mean.prompt, mean.output))
    # Rejected requests take nothing, and count as those that are sent do.
    found = rate / mean.served_share, (low / mean.served_share, high / mean.served_share)
    kept.append((profile, found))
    return found


def forget() -> None:
    """Drop what is kept."""
    _known.clear()


def _saturated(scenario: Scenario, policy: str, profile: Profile) -> tuple[Scenario, int]:
    """All requests at once, as many as it takes; and how many of them can be in flight."""
    resolved = resolve(scenario, profile, policy)
    burst = msgspec.structs.replace(scenario.workload, request_rate=inf)
    sent = msgspec.structs.replace(resolved.served, workload=burst).sample(child_seed(scenario.seed, CAPACITY_KEY))
    pool = resolved.pool.new()
    blocks = sum(pool.blocks_for(request) for request in sent.requests) / len(sent.requests)
    in_flight = min(resolved.max_seated, max(1, int(pool.num_blocks / blocks)))
    num_prompts = min(MOST, max(FEWEST, int(GENERATIONS * in_flight / sent.served_share)))
    num_prompts = at_most(scenario.workload, num_prompts)
    # Where nobody drafts, it does not matter how well.
    names = ("acceptance", "stale_acceptance", "synthetic_acceptance_length", "synthetic_acceptance_rates")
    usual = type(scenario.speculation)()
    at_once = with_keys(
        scenario,
        workload={
            "num_prompts": num_prompts,
            "num_warmups": 0,
            "num_cooldowns": 0,
            "request_rate": inf,
            "burstiness": 1.0,
            "max_concurrency": None,
            "trace_arrivals": scenario.workload.trace_arrivals.at_rate,
        },
        speculation={} if resolved.lengths.given else {name: getattr(usual, name) for name in names},
        # Shares that suit the load stay as they are, whatever would suit a saturated run.
        policy_options={"partition": resolved.partition},
        window=Window(),
        policy=(policy,),
        replications=1,
        goodput=type(scenario.goodput)(),
        energy=False,
    )
    return at_once, in_flight


def peak_in_flight(requests: list[Request]) -> int:
    """The most requests that were admitted and unfinished at once."""
    events = [(request.scheduled_s, 1) for request in requests] + [(request.last_token_s, -1) for request in requests]
    now = peak = 0
    for _, change in sorted(events):
        now += change
        peak = max(peak, now)
    return peak
