"""The policies by name: one file each, built as coroutines over a host.

A third party adds one through the entry-point group `lanesim.policies`, naming a `Policy`. Not here: any scheduling.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from sim.engine.serving import Serving
from sim.names import unknown
from sim.policies import baseline, continuous, pd, pdv, unified
from sim.policies.options import EngineLimits, PolicyOptions

Build = Callable[[Serving, PolicyOptions, EngineLimits], list[Coroutine[Any, None, None]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A scheduler: `build` makes its streams and returns its coroutines, in the order in which they start."""

    name: str
    summary: str
    source: str
    build: Build
    needs_draft: bool = False
    """Makes no sense with a draft length of 0."""
    is_speculative: bool = True
    """False: drafts nothing whatever the draft length is."""
    is_continuous: bool = False
    """Continuous batching: keeps its KV and batches, so `batching` and `kv` cannot be otherwise."""


_BUILT_IN = (
    Policy(
        name="autoregressive",
        summary="continuous batching without speculation",
        source="vLLM",
        build=continuous.coroutines,
        is_speculative=False,
        is_continuous=True,
    ),
    Policy(
        name="continuous",
        summary="verify rows and prefill chunks in one pass under a token budget, then drafting",
        source="vLLM v1",
        build=continuous.coroutines,
        is_continuous=True,
    ),
    Policy(
        name="baseline",
        summary="workers that take one request end to end, one stream",
        source="seeds 000, 004",
        build=baseline.coroutines,
    ),
    Policy(
        name="pd", summary="prefill lane and decode lane, two streams", source="seeds 002, 004", build=pd.coroutines
    ),
    Policy(
        name="pdv",
        summary="prefill, decode and verify lanes, three streams",
        source="seeds 000, 004",
        build=pdv.coroutines,
        needs_draft=True,
    ),
    Policy(
        name="unified",
        summary="one worker, three streams",
        source="seed 002",
        build=unified.coroutines,
        needs_draft=True,
    ),
)

POLICIES = {policy.name: policy for policy in _BUILT_IN}


def find_policy(name: str) -> Policy:
    """The policy called `name`, built in or installed. Raises ValueError naming the nearest one."""
    if name in POLICIES:
        return POLICIES[name]
    from importlib.metadata import entry_points

    installed = {entry.name: entry for entry in entry_points(group="lanesim.policies")}
    if name in installed:
        policy = installed[name].load()
        if not isinstance(policy, Policy):
            raise ValueError(f"policy {name!r}: {installed[name].value} is not a sim.policies.Policy")
        return policy
    raise ValueError(unknown("policy", name, [*POLICIES, *installed]))
