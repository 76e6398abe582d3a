"""Devices: FIFO order, launching, contention, cancelling."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.costs.cost import Cost, Demands, Link
from sim.devices.contention import Contention, Regime, fill_rates, share_time
from sim.devices.ticket import SimTicket
from sim.hosts.simulated import SimHost
from sim.interface.work import Kind, Model, Work
from tests.sim.constant_costs import ConstantCosts
from tests.sim.support import SECONDS, PeriodicDraws

DRAFT = Work(kind=Kind.DRAFT, model=Model.DRAFT, draft_tokens=4)
VERIFY = Work(kind=Kind.VERIFY)
PREFILL = Work(kind=Kind.PREFILL)


def host(costs: Any = None, **options: Any) -> SimHost:
    return SimHost(costs or ConstantCosts(device_s=SECONDS), PeriodicDraws(), **options)


def times(*tickets: SimTicket) -> list[tuple[float, float]]:
    return [(ticket.start_s, ticket.end_s) for ticket in tickets]


class Kernels(ConstantCosts):
    """Kernels of 80 us in a verify, of 40 us in all others."""

    def cost(self, work: Work) -> Cost:
        cost = super().cost(work)
        return cost._replace(num_kernels=round(cost.device_s / (8e-5 if work.kind is Kind.VERIFY else 4e-5)))


@pytest.mark.parametrize(
    ("contention", "ends_s"),
    [
        # The verify has a kernel cut to 40 us for each of the draft: half of the device until the draft ends at 4 s.
        (Contention(regime=Regime.SERIAL), [7.0, 4.0]),
        # Kernels of 80 and 40 us take turns: the draft ends at 6 s, when the verify has had 4 of its 5 s.
        (Contention(regime=Regime.SERIAL, has_priorities=False), [7.0, 6.0]),
    ],
)
def test_a_stream_of_higher_priority_waits_for_a_part_of_long_kernels_and_starves_nobody(
    contention: Contention, ends_s: list[float]
) -> None:
    machine = host(Kernels(device_s=SECONDS), contention=contention)
    a, b = machine.stream("a"), machine.stream("b", priority=1)
    tickets = [machine.run(VERIFY, a), machine.run(DRAFT, b)]
    machine.run_until()
    assert [ticket.end_s for ticket in tickets] == pytest.approx(ends_s)


@pytest.mark.parametrize(
    ("regime", "ends_s"),
    [
        # Kernels of 1 s and of 0.1 s take turns: the verify has 10 parts of 11 until it ends at 5.5 s.
        (Regime.SERIAL, [5.5, 7.0]),
        # Both go on at 0.1 in the time of the other: 10.1 and 2 parts of 11; the draft has 2 - 2 * 5.5 / 10.1 s left.
        (Regime.LEFTOVER, [55.0 / 10.1, 55.0 / 10.1 + 2.0 - 10.0 / 10.1]),
        # Demands of a half leave room for both.
        (Regime.ROOFS, [5.0, 2.0]),
    ],
)
def test_what_streams_do_to_each_other_depends_on_the_regime(regime: Regime, ends_s: list[float]) -> None:
    class Few(ConstantCosts):
        def cost(self, work: Work) -> Cost:
            return super().cost(work)._replace(num_kernels=5 if work.kind is Kind.VERIFY else 20)

    costs = Few(device_s=SECONDS, demand=Demands(0.5, 0.5))
    machine = host(costs, contention=Contention(regime=regime, phi=0.1 if regime is Regime.LEFTOVER else 0.0))
    a, b = machine.stream("a"), machine.stream("b")
    tickets = [machine.run(VERIFY, a), machine.run(DRAFT, b)]
    machine.run_until()
    assert [ticket.end_s for ticket in tickets] == pytest.approx(ends_s)


@given(works=st.lists(st.tuples(st.floats(0.01, 1.0), st.floats(0.05, 20.0)), min_size=1, max_size=5))
def test_shares_of_time_sum_to_one_unless_all_are_capped(works: list[tuple[float, float]]) -> None:
    caps, weights = [cap for cap, _ in works], [weight for _, weight in works]
    rates = share_time(caps, weights)
    assert sum(rates) == pytest.approx(min(1.0, sum(caps)))
    level = max(rate / weight for rate, weight in zip(rates, weights, strict=True))
    for rate, cap, weight in zip(rates, caps, weights, strict=True):
        assert rate <= cap + 1e-12
        assert rate == pytest.approx(cap) or rate / weight == pytest.approx(level)


def test_each_kernel_is_delayed_while_another_work_runs() -> None:
    """2 s of 10 kernels at tau 0.1 s take 3 s beside another work, which meanwhile runs at 5/6 of its rate."""
    costs = ConstantCosts(device_s=SECONDS, demand=Demands(0.0, 0.0), num_kernels=10)
    machine = host(costs, contention=Contention(tau_s=0.1))
    a, b = machine.stream("a"), machine.stream("b")
    verify, draft = machine.run(VERIFY, a), machine.run(DRAFT, b)
    machine.run_until()
    assert draft.end_s == pytest.approx(3.0)
    assert verify.end_s == pytest.approx(3.0 + (5.0 - 3.0 * 5.0 / 6.0))


@pytest.mark.parametrize(
    ("takes_turns", "tau_s", "ends_s"),
    [
        (False, 0.1, 2.0 + 10 * 0.1),
        # Each has the interpreter 10 * 0.1 of its 2 s: a kernel waits 0.1 s for half of the other two.
        (True, 0.1, 2.0 + 10 * 0.1 * (0.5 + 0.5)),
        # All of the time, and no more.
        (True, 0.3, 2.0 + 10 * 0.3 * (1.0 + 1.0)),
    ],
)
def test_a_kernel_waits_for_others_by_the_share_of_time_that_they_have_the_interpreter(
    takes_turns: bool, tau_s: float, ends_s: float
) -> None:
    costs = ConstantCosts(device_s=SECONDS, demand=Demands(0.0, 0.0), num_kernels=10)
    machine = host(costs, contention=Contention(tau_s=tau_s, takes_turns=takes_turns))
    streams = [machine.stream(name) for name in "abc"]
    tickets = [machine.run(DRAFT, stream) for stream in streams]
    machine.run_until()
    assert [ticket.end_s for ticket in tickets] == pytest.approx([ends_s] * 3)


def test_transfers_on_one_link_queue_whatever_their_stream() -> None:
    machine = host(links={"tcp": Link(latency_s=0.0, bytes_per_s=1.0)})
    streams = [machine.stream(name, device="tcp") for name in ("x", "y")]
    tickets = [machine.run(Work(kind=Kind.COPY, num_bytes=3), stream) for stream in streams]
    machine.run_until()
    assert times(*tickets) == [(0.0, 3.0), (3.0, 6.0)]


def test_a_work_cancelled_before_it_starts_never_runs() -> None:
    machine = host()
    stream = machine.stream("s0")
    verify, draft, prefill = [machine.run(work, stream) for work in (VERIFY, DRAFT, PREFILL)]
    draft.cancel()
    machine.run_until()
    assert draft.end_s - draft.start_s == 0.0
    assert times(verify, prefill) == [(0.0, 5.0), (5.0, 15.0)]


def test_streams_must_exist_before_the_first_work() -> None:
    machine = host()
    machine.run(DRAFT, machine.stream("a"))
    with pytest.raises(RuntimeError, match="before the first work"):
        machine.stream("b")


share = st.integers(0, 20).map(lambda value: value / 20)


@given(
    works=st.lists(st.tuples(st.floats(0.01, 1.0), share, share), min_size=1, max_size=5),
    eta_compute=st.floats(0.3, 1.0),
    eta_bandwidth=st.floats(0.3, 1.0),
)
def test_rates_respect_both_roofs_and_waste_nothing(
    works: list[tuple[float, float, float]], eta_compute: float, eta_bandwidth: float
) -> None:
    caps, compute, bandwidth = (list(column) for column in zip(*works, strict=True))
    contention = Contention(eta_compute=eta_compute, eta_bandwidth=eta_bandwidth)
    rates = fill_rates(caps, list(zip(compute, bandwidth, strict=True)), contention)
    used_compute = sum(rate * demand for rate, demand in zip(rates, compute, strict=True))
    used_bandwidth = sum(rate * demand for rate, demand in zip(rates, bandwidth, strict=True))
    assert used_compute <= eta_compute + 1e-9
    assert used_bandwidth <= eta_bandwidth + 1e-9
    assert all(0.0 <= rate <= cap + 1e-9 for rate, cap in zip(rates, caps, strict=True))
    for i, rate in enumerate(rates):
        is_free = (compute[i] <= 1e-6 or used_compute < eta_compute - 1e-6) and (
            bandwidth[i] <= 1e-6 or used_bandwidth < eta_bandwidth - 1e-6
        )
        if is_free:
            assert rate == pytest.approx(caps[i], abs=1e-5)
