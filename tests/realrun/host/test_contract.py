"""The threaded host on a virtual clock does what the simulated one does: equal event logs for every policy.

No torch and no GPU: works are fake and take constant times.
"""

from __future__ import annotations

from typing import Any

import pytest

from realrun.host.gpuhost import GpuHost
from sim.policies.options import Batching, EngineLimits, KvMode
from sim.policies.registry import PolicyOptions
from tests.realrun.virtual import ConstantExecutor, VirtualClock
from tests.sim.hosts.test_contract import CHUNKED, PLANNED, VARIANTS, ahead, outcome, requests
from tests.sim.support import EVERY, SECONDS, UNCONTENDED, PeriodicDraws, SimRun, log_of, log_order, played


@pytest.mark.parametrize("poll_s", [0.0, 0.75])
@pytest.mark.parametrize("kv", list(KvMode))
@pytest.mark.parametrize("batching", list(Batching))
@pytest.mark.parametrize("policy", EVERY)
def test_a_policy_leaves_the_same_log_on_gpuhost_and_simhost(
    policy: str, batching: Batching, kv: KvMode, poll_s: float
) -> None:
    options = PolicyOptions(batching=batching, kv=kv, poll_s=poll_s, workers=3)
    check_threads(policy, options)


@pytest.mark.parametrize(("policy", "changes"), VARIANTS)
def test_every_variant_of_a_policy_leaves_the_same_log_on_gpuhost(policy: str, changes: dict[str, Any]) -> None:
    check_threads(policy, PolicyOptions(poll_s=0.75, **changes), CHUNKED)


@pytest.mark.parametrize("policy", EVERY)
def test_a_policy_plans_ahead_by_the_same_seconds_on_gpuhost(policy: str) -> None:
    check_threads(policy, PolicyOptions(poll_s=0.75, workers=3), PLANNED)


def check_threads(policy: str, options: PolicyOptions, limits: EngineLimits | None = None) -> None:
    """The same log, the same seconds ahead and the same tokens on threads, whether works are awaited or not."""
    simulated = SimRun(policy, requests(), costs=UNCONTENDED, options=options, limits=limits)
    for is_async in (False, True):
        executor = ConstantExecutor(SECONDS, is_async=is_async)
        with GpuHost(executor, PeriodicDraws(), clock=VirtualClock()) as host:
            serving = played(host, policy, requests(), options, limits)
        assert serving.num_finished == 9
        assert outcome(simulated.serving.requests) == outcome(serving.requests)
        assert log_order(simulated.log) == log_order(log_of(host.works))
        assert ahead(t.work for t in host.works) == ahead(t.work for t in simulated.tickets)
