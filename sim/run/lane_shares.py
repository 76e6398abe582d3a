"""Shares of the multiprocessors for the lanes of a policy: which can be given.

Not here: what works do to each other on their shares (sim.devices.partition).
"""

from __future__ import annotations

from collections.abc import Sequence

from sim.names import unknown
from sim.policies.options import DEFERRED, LaneOptions
from sim.policies.registry import POLICIES, Policy


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
        _check_shares(options.shares, policy)
        if options.defers_prompts and not may_defer(policy):
            raise ValueError(
                f"policy_options.partition.{DEFERRED}: one worker runs the lanes of {policy.name!r}, which has no "
                "round of its own to wait for; want a policy with a coroutine per lane, such as pd"
            )


def _check_shares(shares: dict[str, float], policy: Policy) -> None:
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
