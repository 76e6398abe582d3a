"""Every policy does the same on every host: equal event logs and equal emissions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from sim.interface.work import Work
from sim.policies.disaggregated import DevicePools
from sim.policies.options import BatchBy, Batching, EngineLimits, KvMode
from sim.policies.registry import PolicyOptions
from tests.sim.support import EVERY, UNCONTENDED, PeriodicDraws, SimRun, log_order, request, run_on_script

PLANNED = EngineLimits(async_scheduling=True)


def requests() -> list:
    return [request(i, arrival_s=1.5 * i * i, prompt=10 + i, output=1 + 3 * i % 11) for i in range(9)]


def outcome(served: list) -> list:
    return [
        (r.index, r.first_token_s, r.last_token_s, r.emitted_tokens, r.num_rounds, r.accepted_tokens) for r in served
    ]


def assert_same(policy: str, options: PolicyOptions, limits: EngineLimits | None = None) -> tuple[SimRun, list[Work]]:
    """The run on SimHost, and the works on ScriptHost."""
    works: list[Work] = []
    simulated = SimRun(policy, requests(), costs=UNCONTENDED, options=options, limits=limits)
    script, scripted = run_on_script(policy, requests(), PeriodicDraws(), options, limits=limits, works=works)
    assert scripted.num_finished == 9
    assert outcome(simulated.serving.requests) == outcome(scripted.requests)
    assert log_order(simulated.log) == log_order(script.log)
    return simulated, works


@pytest.mark.parametrize("poll_s", [0.0, 0.75])
@pytest.mark.parametrize("kv", list(KvMode))
@pytest.mark.parametrize("batching", list(Batching))
@pytest.mark.parametrize("policy", EVERY)
def test_a_policy_leaves_the_same_log_on_simhost_and_scripthost(
    policy: str, batching: Batching, kv: KvMode, poll_s: float
) -> None:
    assert_same(policy, PolicyOptions(batching=batching, kv=kv, poll_s=poll_s, workers=3))


VARIANTS = (
    ("unified", {"pipelined": False}),
    ("unified", {"pipelined": False, "batching": Batching.PER_REQUEST, "kv": KvMode.REFORWARD}),
    ("pd", {"batch_by": BatchBy.MEMORY}),
    ("pdv", {"hybrid_requests": 0, "batch_by": BatchBy.QUEUE}),
    ("adaptive", {"adaptive_table": ((1, "pd"), (3, "unified")), "hysteresis": 0.2}),
    ("adaptive", {"adaptive_table": ((1, "pdv"), (2, "baseline"), (4, "pd")), "pipelined": False}),
    ("disaggregated", {"pools": DevicePools(prefill=2, decode=3)}),
    ("disaggregated", {"pools": DevicePools(draft=2, draft_autoscale=1)}),
    ("pdv", {"hybrid_requests": 3, "stream_priorities": "preemptive"}),
)
"""Options that change what a policy does beside those above."""
CHUNKED = EngineLimits(long_prefill_token_threshold=4)


@pytest.mark.parametrize("poll_s", [0.0, 0.75])
@pytest.mark.parametrize(("policy", "changes"), VARIANTS)
def test_every_variant_of_a_policy_leaves_the_same_log_on_both(
    policy: str, changes: dict[str, Any], poll_s: float
) -> None:
    assert_same(policy, PolicyOptions(poll_s=poll_s, **changes), CHUNKED)


def ahead(works: Iterable[Work]) -> list:
    """What was prepared ahead of each work, in an order that no host decides."""
    return sorted((work.kind.value, [r.index for r in work.requests], work.row_tokens, work.ahead_s) for work in works)


@pytest.mark.parametrize("poll_s", [0.0, 0.75])
@pytest.mark.parametrize("policy", EVERY)
def test_a_policy_plans_ahead_by_the_same_seconds_on_both(policy: str, poll_s: float) -> None:
    simulated, works = assert_same(policy, PolicyOptions(poll_s=poll_s, workers=3), PLANNED)
    assert ahead(works) == ahead(ticket.work for ticket in simulated.tickets)
    assert any(work.ahead_s for work in works)


def test_the_contract_sees_a_policy_that_behaves_differently() -> None:
    options = PolicyOptions(poll_s=0.0, workers=3)
    simulated = SimRun("baseline", requests(), costs=UNCONTENDED, options=options)
    other, _ = run_on_script("baseline", requests(), PeriodicDraws(), PolicyOptions(poll_s=0.0, workers=2))
    assert log_order(simulated.log) != log_order(other.log)
