"""The threaded host on a virtual clock does what the simulated one does: equal event logs for every policy.

No torch and no GPU: works are fake and take constant times.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import pytest

from realrun.host.gpuhost import GpuHost
from realrun.host.ticket import GpuTicket
from sim.engine.serving import Serving
from sim.interface.request import Request
from sim.policies.options import Batching, EngineLimits, KvMode
from sim.policies.registry import PolicyOptions, find_policy
from tests.realrun.virtual import ConstantExecutor, VirtualClock
from tests.sim.hosts.test_contract import CHUNKED, PLANNED, VARIANTS, ahead, outcome, requests
from tests.sim.support import EVERY, SECONDS, UNCONTENDED, Log, PeriodicDraws, SimRun, log_order, serve


def log_of(tickets: Sequence[GpuTicket]) -> Log:
    events = []
    for ticket in tickets:
        indices = tuple(request.index for request in ticket.work.requests)
        for event, time_s in (("start", ticket.start_s), ("end", ticket.end_s)):
            events.append((time_s, event, ticket.stream.name, ticket.work.kind.value, indices))
    return events


def run_on_threads(
    policy: str,
    served: Sequence[Request],
    options: PolicyOptions,
    *,
    is_async: bool,
    stop_s: float = inf,
    limits: EngineLimits | None = None,
    **more: Any,
) -> tuple[list[GpuTicket], Serving, GpuHost]:
    limits = limits or EngineLimits()
    executor = ConstantExecutor(SECONDS, is_async=is_async)
    with GpuHost(executor, PeriodicDraws(), clock=VirtualClock()) as host:
        serving = serve(host, policy, served, options=options, limits=limits, **more)
        for task in [*find_policy(policy).build(serving, options, limits), serving.arrivals()]:
            host.spawn(task)
        host.run_until(None if stop_s == inf else stop_s)
    return host.works, serving, host


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
        tickets, serving, _ = run_on_threads(policy, requests(), options, is_async=is_async, limits=limits)
        assert serving.num_finished == 9
        assert outcome(simulated.serving.requests) == outcome(serving.requests)
        assert log_order(simulated.log) == log_order(log_of(tickets))
        assert ahead(t.work for t in tickets) == ahead(t.work for t in simulated.tickets)
