"""The policies by name: one file each, with what it takes, built as coroutines over a host.

A third party adds one through the entry-point group `lanesim.policies`, naming a `Policy`. Not here: any scheduling.
"""

from __future__ import annotations

from dataclasses import dataclass

from sim.names import unknown
from sim.plugins import PluginError, installed, loaded, shown
from sim.policies import adaptive, baseline, disaggregated, pd, pdv, pipelined, unified
from sim.policies.adaptive import AdaptiveOptions
from sim.policies.continuous.loop import AUTOREGRESSIVE, CONTINUOUS
from sim.policies.disaggregated import PooledOptions
from sim.policies.policy import Policy as Policy

GROUP = "lanesim.policies"
"""Entry points of installed packages."""
MODULES = (baseline, pd, pdv, unified, adaptive, pipelined, disaggregated)
POLICIES = {policy.name: policy for policy in (AUTOREGRESSIVE, CONTINUOUS, *(module.POLICY for module in MODULES))}
"""Those that come with lanesim."""
_registered: dict[str, Policy] = {}


@dataclass(frozen=True, kw_only=True)
class PolicyOptions(AdaptiveOptions, PooledOptions):
    """Options of lane policies, one block for all of a comparison: each takes what concerns it.

    >>> import lanesim
    >>> scenario = lanesim.Scenario.of(profile="cpu/tiny", policy="pd", **{"policy_options.batching": "per_request"})
    >>> scenario.policy_options.batching.value, scenario.policy_options.workers
    ('per_request', 4)
    """


def register(policy: Policy) -> Policy:
    """Add `policy` under its name to this process, for a caller's scenarios. A later one of a name replaces it. To have
    it everywhere, name it in the entry-point group `lanesim.policies` of a package instead. Raises ValueError for the
    name of a built-in one.

    >>> import lanesim
    >>> from sim.policies import pd
    >>> mine = lanesim.register(
    ...     lanesim.Policy(name="my-pd", summary="prefill and decode lanes", source="example", build=pd.coroutines)
    ... )
    >>> lanesim.simulate(profile="cpu/tiny", policy="my-pd", num_prompts=5, request_rate=10).metrics["completed"]
    5
    """
    if not isinstance(policy, Policy):
        raise PluginError(f"register: {shown(policy)} is not a lanesim.Policy")
    if policy.name in POLICIES:
        raise ValueError(f"policy {policy.name!r} is built in. Register under another name")
    _registered[policy.name] = policy
    return policy


def registered() -> list[Policy]:
    """Policies that `register` made known in this process."""
    return list(_registered.values())


def policy_names() -> list[str]:
    """Every policy that `find_policy` knows: built in, registered, installed.

    >>> import lanesim
    >>> lanesim.policy_names()[:4]
    ['autoregressive', 'continuous', 'baseline', 'pd']
    """
    return [*POLICIES, *_registered, *installed(GROUP)]


def find_policy(name: str) -> Policy:
    """The policy called `name`, built in, registered or installed. Raises ValueError naming the nearest one."""
    policy = POLICIES.get(name) or _registered.get(name)
    if policy is not None:
        return policy
    entries = installed(GROUP)
    if name not in entries:
        raise ValueError(unknown("policy", name, policy_names()))
    return loaded(f"policy {name!r}", entries[name], Policy)
