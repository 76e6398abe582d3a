"""Lanes on an engine that plans ahead: what is prepared of a work when it is submitted, summed by hand.

A prefill takes 10 s on the device, a draft 2 s, a verify 5 s; the host prepares each of them.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.costs.cost import Demands
from sim.interface.work import Kind
from sim.policies.disaggregated import DevicePools
from sim.policies.options import EngineLimits, KvMode
from sim.policies.registry import POLICIES, PolicyOptions
from tests.sim.constant_costs import ConstantCosts
from tests.sim.support import SECONDS, AlwaysAccept, SimRun, request

LANES = [name for name, policy in POLICIES.items() if not policy.is_continuous]
PLANNED = EngineLimits(async_scheduling=True)


def served(policy: str, asked: list, prepare_s: float, *, limits: EngineLimits = PLANNED, **more: object) -> SimRun:
    costs = ConstantCosts(device_s=SECONDS, prepare_s=prepare_s, demand=Demands(0.0, 0.0))
    options = PolicyOptions(**{"poll_s": 0.0, **more})
    return SimRun(policy, asked, draws=AlwaysAccept(), costs=costs, options=options, limits=limits)


def ahead(run: SimRun, kind: Kind) -> list[float]:
    return [ticket.work.ahead_s for ticket in run.tickets if ticket.work.kind is kind]


def test_a_verify_beside_drafts_of_other_gpus_is_planned_with_them() -> None:
    run = served("disaggregated", [request(0, output=16)], 3.0, pools=DevicePools(draft=1))
    assert ahead(run, Kind.VERIFY)[1:] == ahead(run, Kind.DRAFT)[1:] == [10.0, 7.0]


def test_the_next_prompt_is_prepared_while_one_runs() -> None:
    """Prompts at 0, 1 and 50 s, 4 s each to prepare: the second runs at 14 s, 14 s after the first was submitted; the
    third comes to an idle lane."""
    asked = [request(i, arrival_s=arrival_s, output=1) for i, arrival_s in enumerate((0.0, 1.0, 50.0))]
    run = served("disaggregated", asked, 4.0, pools=DevicePools(draft=1))
    prompts = [ticket for ticket in run.tickets if ticket.stream.name == "prefill0"]
    assert [ticket.work.ahead_s for ticket in prompts] == [0.0, 13.0, 0.0]
    assert [(ticket.start_s, ticket.end_s) for ticket in prompts] == [(4.0, 14.0), (14.0, 24.0), (54.0, 64.0)]


@pytest.mark.parametrize(("policy", "copy_s"), [("pd", 0.0), ("disaggregated", 1.0)])
def test_a_batch_is_prepared_since_its_newest_row_came(policy: str, copy_s: float) -> None:
    """Prompts take 11 s of both models: the second is through at 22 s, in the middle of a round from 18 s to 25 s;
    where its KV is sent it comes a second later, as the first one did."""
    costs = ConstantCosts(device_s={**SECONDS, Kind.PREFILL: 5.5}, demand=Demands(0.0, 0.0))
    asked = [request(i, output=21) for i in range(2)]
    run = SimRun(policy, asked, draws=AlwaysAccept(), costs=costs, limits=PLANNED)
    drafts = [ticket for ticket in run.tickets if ticket.work.kind is Kind.DRAFT]
    assert [(ticket.start_s - copy_s, ticket.work.rows, ticket.work.ahead_s) for ticket in drafts[:4]] == [
        (11.0, 1, 0.0),
        (18.0, 1, 7.0),
        (25.0, 2, 3.0),
        (32.0, 2, 7.0),
    ]


@pytest.mark.parametrize("policy", ["pd", "pipelined"])
def test_nothing_is_prepared_for_what_comes_to_an_idle_lane_before_it_looks(policy: str) -> None:
    """Polls every 4 s: the prompt of 1 s is seen at 4 s, and the request that comes from it at 24 s only at 28 s."""
    costs = ConstantCosts(device_s={**SECONDS, Kind.PREFILL: 9.0}, demand=Demands(0.0, 0.0))
    options = PolicyOptions(poll_s=4.0)
    asked = [request(0, arrival_s=1.0, output=2), request(1, arrival_s=41.0, output=2)]
    run = SimRun(policy, asked, draws=AlwaysAccept(), costs=costs, limits=PLANNED, options=options)
    assert [ticket.work.ahead_s for ticket in run.tickets] == [0.0] * 8


rows = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=9).map(
    sorted
)


@pytest.mark.parametrize("policy", LANES)
@given(rows=rows, kv=st.sampled_from(list(KvMode)), poll_s=st.sampled_from([0.0, 0.75]))
def test_where_nothing_is_to_be_prepared_planning_changes_nothing(
    policy: str, rows: list, kv: KvMode, poll_s: float
) -> None:
    """To the last bit: a work that is prepared in no time is where it was."""
    logs = []
    for limits in (EngineLimits(), PLANNED):
        asked = [request(i, arrival_s=a, prompt=p, output=o) for i, (a, p, o) in enumerate(rows)]
        logs.append(served(policy, asked, 0.0, limits=limits, kv=kv, poll_s=poll_s).works)
    assert logs[0] == logs[1]


def test_a_row_that_waits_is_prepared_no_earlier_than_the_round_before_it_is_submitted() -> None:
    """One row a round, 7 s each: whose turn is next waits for up to 14 s, and is prepared for 7 s; the second comes in
    the middle of the first round."""
    costs = ConstantCosts(device_s={**SECONDS, Kind.PREFILL: 0.5}, demand=Demands(0.0, 0.0))
    options = PolicyOptions(poll_s=0.0, decode_batch=1)
    asked = [request(i, output=16) for i in range(3)]
    run = SimRun("pd", asked, draws=AlwaysAccept(), costs=costs, limits=PLANNED, options=options)
    assert ahead(run, Kind.DRAFT) == [0.0, 6.0, *[7.0] * 7]
