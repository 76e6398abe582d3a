"""Shares of the multiprocessors for the lanes of a policy: which can be given, and which are best for a load.

`auto` takes the shares with the least forecast mean E2EL, or where no shares are fast enough the highest capacity. Not
here: the forecast (forecast), what works do to each other on their shares (sim.devices.partition).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from sim.costs.cost import CostModel
from sim.names import unknown
from sim.policies.options import PolicyOptions
from sim.policies.registry import POLICIES, Policy
from sim.run.forecast import PREFILL, Forecast, MeanLoad

KNOWN_LANES = (PREFILL, "decode", "draft", "verify")
"""Whose works a forecast knows."""
COARSE, FINE = 10, 20
"""Shares are multiples of a tenth at first, and of a twentieth in the end."""

Shares = dict[str, float]
_Parts = tuple[int, ...]
"""Of the device, one number per group of lanes."""


def check_partition(options: PolicyOptions, policies: Sequence[Policy]) -> None:
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


def best_shares(lanes: Sequence[Sequence[str]], costs: CostModel, load: MeanLoad) -> Shares:
    """The shares for `lanes`; groups of several divide what the others leave, as they take turns."""
    forecast = Forecast(lanes, costs, load)
    known: dict[_Parts, tuple[float, float]] = {}

    def score(parts: _Parts) -> tuple[float, float]:
        if parts not in known:
            known[parts] = forecast.score([part / FINE for part in parts])
        return known[parts]

    best = min(_divisions(len(lanes)), key=score)
    while (better := min(_neighbours(best), key=score)) != best:
        best = better
    return {group[0]: part / FINE for group, part in zip(lanes, best, strict=True) if len(group) == 1}


def _divisions(count: int) -> list[_Parts]:
    """Every way to divide the device among `count` in coarse steps."""
    step = FINE // COARSE
    firsts = product(range(step, FINE, step), repeat=count - 1)
    return [(*parts, FINE - sum(parts)) for parts in firsts if sum(parts) < FINE]


def _neighbours(parts: _Parts) -> list[_Parts]:
    """`parts` first, so that ties end the search, then with one part moved from one to another."""
    found = [parts]
    for giver, taker in product(range(len(parts)), repeat=2):
        if giver != taker and parts[giver] > 1:
            found.append(tuple(part - (i == giver) + (i == taker) for i, part in enumerate(parts)))
    return found
