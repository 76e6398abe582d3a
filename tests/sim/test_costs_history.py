"""Costs with a memory, summed by hand: pauses, passes of the other model, and issuing that is executing."""

from __future__ import annotations

from math import exp

import msgspec
import pytest

from sim.costs import build_costs, load
from sim.costs.history import HistoryCosts, with_history
from sim.costs.profile import IdleRamp, Profile
from sim.devices.contention import contention_of
from sim.simhost import SimHost
from sim.work import Chunk, Kind, Model, Work
from tests.sim.support import PeriodicLuck

TINY = load("cpu/tiny")
VERIFY = Work(kind=Kind.VERIFY, rows=2, row_tokens=10, context_tokens=100, head_rows=10)
DRAFT = Work(kind=Kind.DRAFT, model=Model.DRAFT, rows=2, row_tokens=2, context_tokens=100, head_rows=2, draft_tokens=4)
RAMP = IdleRamp(lost_s=0.008, pause_s=0.02, work_s=0.005)


def changed(**host: object) -> Profile:
    return msgspec.structs.replace(TINY, host=msgspec.structs.replace(TINY.host, **host))


def test_a_profile_that_knows_no_past_prices_as_it_is() -> None:
    costs = build_costs(TINY)
    assert with_history(costs, lambda: 0.0) is costs


def test_a_pass_of_the_other_model_costs_the_switch() -> None:
    costs = HistoryCosts(build_costs(TINY), None, 0.001, lambda: 0.0)
    bare = build_costs(TINY)
    works = [VERIFY, VERIFY, DRAFT, VERIFY]
    added_s = [costs.cost(work).device_s - bare.cost(work).device_s for work in works]
    assert added_s == pytest.approx([0.0, 0.0, 0.001, 0.001])


def test_what_a_pause_costs_is_lost_little_by_little_and_once() -> None:
    """8 ms after a pause without end, of which a work of d seconds loses 1 - exp(-d / 5 ms)."""
    now_s = 1e9
    costs = HistoryCosts(build_costs(TINY), RAMP, 0.0, lambda: now_s)
    device_s = build_costs(TINY).cost(VERIFY).device_s
    share = 1.0 - exp(-device_s / RAMP.work_s)
    first_s = costs.cost(VERIFY).device_s - device_s
    second_s = costs.cost(VERIFY).device_s - device_s
    assert first_s == pytest.approx(0.008 * share)
    assert second_s == pytest.approx(0.008 * (1.0 - share) * share)
    lost_s = first_s + second_s + sum(costs.cost(VERIFY).device_s - device_s for _ in range(200))
    assert lost_s == pytest.approx(0.008)


def test_a_short_pause_costs_less_than_a_long_one() -> None:
    device_s = build_costs(TINY).cost(VERIFY).device_s
    lost_s = []
    for pause_s in (0.001, 0.02, 1.0):
        costs = HistoryCosts(build_costs(TINY), RAMP, 0.0, lambda pause_s=pause_s: pause_s)
        lost_s.append(costs.cost(VERIFY).device_s - device_s)
    share = 1.0 - exp(-device_s / RAMP.work_s)
    assert lost_s == pytest.approx([0.008 * share * (1.0 - exp(-pause_s / 0.02)) for pause_s in (0.001, 0.02, 1.0)])


def test_where_issuing_is_executing_nothing_of_the_next_work_is_hidden() -> None:
    """Two works at once: preparing 200 us + 2 rows x 3 us, then the pass; the second begins when the first is over."""
    profile = changed(is_synchronous=True, result_s=0.0)
    cost = build_costs(profile).cost(VERIFY)
    assert (cost.prepare_s, cost.launch_s) == (pytest.approx(0.000206), cost.device_s)
    machine = SimHost(build_costs(profile), PeriodicLuck())
    stream = machine.stream("a")
    tickets = [machine.run(VERIFY, stream) for _ in range(2)]
    machine.run_until()
    assert [ticket.start_s for ticket in tickets] == pytest.approx([0.000206, 2 * 0.000206 + cost.device_s])
    assert build_costs(profile).host_inflation(3) == 1.0


def test_streams_of_a_device_without_priorities_are_served_alike() -> None:
    profile = msgspec.structs.replace(
        TINY, overlap=msgspec.structs.replace(TINY.overlap, has_priorities=False, tau_s=0.0)
    )
    machine = SimHost(build_costs(profile), PeriodicLuck(), contention=contention_of(profile.overlap))
    streams = [machine.stream("a", priority=1), machine.stream("b")]
    tickets = [machine.run(VERIFY, stream) for stream in streams]
    machine.run_until()
    assert tickets[0].end_s == pytest.approx(tickets[1].end_s)


def test_chunks_that_are_not_captured_are_launched_kernel_by_kernel() -> None:
    host = {"graph_launch_s": 1e-5, "max_graph_tokens": 512}
    prefill = Work(kind=Kind.PREFILL, chunks=(Chunk(64, 0),), head_rows=1)
    pieces, eager = (build_costs(changed(**host, captures_chunks=yes)).cost(prefill) for yes in (True, False))
    assert eager.launch_s == pytest.approx(eager.num_kernels * TINY.host.eager_kernel_s)
    assert pieces.launch_s == pytest.approx(1e-5 + 2 * TINY.target.layers * TINY.host.eager_kernel_s)
