"""Shares of the multiprocessors for the lanes of a policy: which can be given, and which are best for a load.

`auto` takes what has the least forecast mean E2EL, or where nothing is fast enough the highest capacity, of three:
plain streams, shares that always hold, and shares that hold only while several lanes have work. Not here: the forecast
(forecast), what works do to each other on their shares (sim.devices.partition).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from sim.costs.cost import CostModel
from sim.devices.contention import Contention
from sim.names import unknown
from sim.policies.options import DEFERRED, ONLY_TOGETHER, LaneOptions
from sim.policies.registry import POLICIES, Policy
from sim.run.forecast import PREFILL, Forecast, LaneSharing, MeanLoad

KNOWN_LANES = (PREFILL, "decode", "draft", "verify")
"""Whose works a forecast knows."""
COARSE, FINE = 10, 20
"""Shares are multiples of a tenth at first, and of a twentieth in the end."""
MARGIN = 0.15
"""Part by which shares that always hold must be forecast faster than those that give way: where they were at most 12 %,
runs were 4 to 24 % slower (pd and pdv on two GPUs)."""

Shares = dict[str, float]
PartitionOption = dict[str, float | bool]
"""Shares by lane, and options, in the form of `policy_options.partition`."""
_Parts = tuple[int, ...]
"""Parts of the device, one number per group of lanes."""


def check_partition(options: LaneOptions, policies: Sequence[Policy]) -> None:
    """Raise ValueError for shares that no policy has lanes for, or that one with lanes cannot be given."""
    partition = options.partition
    if partition is None:
        return
    with_lanes = [policy for policy in policies if policy.lanes]
    if not with_lanes:
        names = ", ".join(policy.name for policy in policies)
        known = ", ".join(policy.name for policy in POLICIES.values() if policy.lanes)
        raise ValueError(f"policy_options.partition: no lanes to give shares in {names}; there are some in {known}")
    for policy in with_lanes:
        if isinstance(partition, str):
            _check_auto(policy)
        else:
            _check_shares(options.shares, policy)
            if options.defers_prompts and not may_defer(policy):
                raise ValueError(
                    f"policy_options.partition.{DEFERRED}: one worker runs the lanes of {policy.name!r}, which has no "
                    "round of its own to wait for; want a policy with a coroutine per lane, such as pd"
                )


def _check_auto(policy: Policy) -> None:
    strange = [lane for lane in policy.lane_names if lane not in KNOWN_LANES]
    if strange or (PREFILL,) not in policy.lanes or len(policy.lanes) < 2:
        raise ValueError(
            f"policy_options.partition=auto knows policies with a lane {PREFILL} and others of "
            f"{', '.join(KNOWN_LANES[1:])}; {policy.name!r} has {', '.join(policy.lane_names)}: give it shares"
        )


def _check_shares(shares: Shares, policy: Policy) -> None:
    for lane in shares:
        if lane not in policy.lane_names:
            raise ValueError(f"policy_options.partition: {unknown(f'lane of {policy.name}', lane, policy.lane_names)}")
    without = [lane for lane in policy.lane_names if lane not in shares]
    if without and sum(shares.values()) > 1.0 - 1e-9:
        raise ValueError(
            f"policy_options.partition leaves nothing for {', '.join(without)} of {policy.name!r}; give the others less"
        )


def may_defer(policy: Policy) -> bool:
    """Prompts of `policy` can wait for a round's end: lanes that take turns are one worker's."""
    return all(len(group) == 1 for group in policy.lanes)


def best_partition(policy: Policy, costs: CostModel, load: MeanLoad, plain: Contention) -> PartitionOption | None:
    """The best partition for `load`: None, plain streams that contend as `plain` has it; or shares, where
    groups of several lanes take turns on what the others leave."""
    forecast = Forecast(policy.lanes, costs, load, plain)
    parts, score = _best_parts(forecast, len(policy.lanes), is_dynamic=False)
    partition = _shares_of(policy, parts)
    if may_defer(policy):
        parts, dynamic = _best_parts(forecast, len(policy.lanes), is_dynamic=True)
        if dynamic < (score[0] * (1.0 + MARGIN), score[1]):
            score, partition = dynamic, _shares_of(policy, parts) | {ONLY_TOGETHER: True, DEFERRED: True}
    return partition if score < forecast.score(LaneSharing()) else None


def _shares_of(policy: Policy, parts: _Parts) -> PartitionOption:
    return {group[0]: part / FINE for group, part in zip(policy.lanes, parts, strict=True) if len(group) == 1}


def _best_parts(forecast: Forecast, count: int, *, is_dynamic: bool) -> tuple[_Parts, tuple[float, float]]:
    """The best division of the device among `count` groups, and its score."""
    known: dict[_Parts, tuple[float, float]] = {}

    def score(parts: _Parts) -> tuple[float, float]:
        if parts not in known:
            known[parts] = forecast.score(LaneSharing(tuple(part / FINE for part in parts), is_dynamic))
        return known[parts]

    best = min(_divisions(count), key=score)
    while (better := min(_neighbours(best), key=score)) != best:
        best = better
    return best, score(best)


def _divisions(count: int) -> list[_Parts]:
    """Every way to divide the device among `count` in coarse steps."""
    step = FINE // COARSE
    firsts = product(range(step, FINE, step), repeat=count - 1)
    return [(*parts, FINE - sum(parts)) for parts in firsts if sum(parts) < FINE]


def _neighbours(parts: _Parts) -> list[_Parts]:
    """`parts` first, so that ties end the search, then with one part moved from one to another."""
    neighbours = [parts]
    for giver, taker in product(range(len(parts)), repeat=2):
        if giver != taker and parts[giver] > 1:
            neighbours.append(tuple(part - (i == giver) + (i == taker) for i, part in enumerate(parts)))
    return neighbours
