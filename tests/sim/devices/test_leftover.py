"""What is left over of a device: none of it is serial to the last bit, and more of it ends no work later."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from sim.costs.cost import Cost
from sim.costs.profile import Overlap
from sim.devices.contention import Contention, Regime, contention_of
from sim.devices.ticket import SimTicket
from sim.hosts.simulated import SimHost
from sim.interface.work import Kind, Work
from tests.sim.constant_costs import ConstantCosts
from tests.sim.support import PeriodicDraws


class Entry(NamedTuple):
    """A work of a program: seconds after the one before it, its stream and device, what it costs."""

    gap_s: float
    stream: int
    kind: Kind
    parts: tuple[float, float, float]
    after: int | None
    """So many works before it is one that it waits for."""
    is_awaited: bool
    cancel_after_s: float | None


class _Listed(ConstantCosts):
    """Costs by the number that a work carries; two launches at once take 1.5 times as long."""

    parts: list[tuple[float, float, float]]

    def cost(self, work: Work) -> Cost:
        prepare_s, launch_s, device_s = self.parts[work.num_bytes]
        tail_s = device_s / 4 if work.kind is Kind.DRAFT else 0.0
        is_host = work.kind is Kind.HOST
        return Cost(prepare_s, 0.0, 0.0, 0) if is_host else Cost(prepare_s, launch_s, device_s, 1, tail_s)


seconds = st.integers(0, 24).map(lambda value: value / 8)
PROGRAMS = st.lists(
    st.builds(
        Entry,
        gap_s=st.one_of(seconds, st.just(9.0)),
        stream=st.sampled_from([0, 0, 0, 1, 2]),
        kind=st.sampled_from([Kind.VERIFY, Kind.DRAFT, Kind.HOST]),
        parts=st.tuples(seconds, seconds, seconds),
        after=st.one_of(st.none(), st.integers(1, 3)),
        is_awaited=st.booleans(),
        cancel_after_s=st.one_of(st.none(), st.none(), seconds),
    ),
    min_size=1,
    max_size=9,
)


def run(
    program: list[Entry], result_s: float, contention: Contention
) -> tuple[list[tuple[float, ...]], list[float], float]:
    """Times of every work, when those that were awaited were over, and the device's busy seconds."""
    costs = _Listed(device_s={}, parts=[entry.parts for entry in program], inflation_per_issuer=0.5, result_s=result_s)
    host = SimHost(costs, PeriodicDraws(), contention=contention)
    streams = [host.stream(f"s{place}", priority=place) for place in range(3)]
    tickets: list[SimTicket] = []
    woken_s = [0.0] * len(program)

    async def wait_for(number: int) -> None:
        await tickets[number]
        woken_s[number] = host.now_s

    async def submit() -> None:
        for number, entry in enumerate(program):
            await host.sleep(entry.gap_s)
            work = Work(kind=entry.kind, num_bytes=number, draft_tokens=4 if entry.kind is Kind.DRAFT else 0)
            after = [tickets[number - entry.after]] if entry.after is not None and entry.after <= number else []
            tickets.append(host.run(work, streams[entry.stream], after=after))
            if entry.is_awaited:
                host.spawn(wait_for(number))
            if entry.cancel_after_s is not None:
                # At an instant of its own: what is cancelled just as it ends depends on which was asked for first.
                cancelled_s = host.now_s + entry.cancel_after_s + 0.01 * (number + 2) ** 0.5
                host.at(cancelled_s, lambda _, ticket=tickets[-1]: ticket.cancel())

    host.spawn(submit())
    host.run_until()
    times = [(t.prepared_s, t.issued_s, t.start_s, t.end_s, t.ready_s) for t in tickets]
    return times, woken_s, host.device_busy_s


@given(program=PROGRAMS, result_s=seconds, has_priorities=st.booleans(), is_preemptive=st.booleans())
def test_nothing_left_over_is_serial_to_the_last_bit(
    program: list[Entry], result_s: float, has_priorities: bool, is_preemptive: bool
) -> None:
    serial, leftover = (
        contention_of(Overlap(has_priorities=has_priorities), regime, 0.0, is_preemptive=is_preemptive)
        for regime in (Regime.SERIAL, Regime.LEFTOVER)
    )
    assert repr(run(program, result_s, serial)) == repr(run(program, result_s, leftover))


LENGTHS = st.tuples(seconds, st.floats(0.1, 9.0), st.integers(1, 50))


@given(works=st.lists(LENGTHS, min_size=2, max_size=4), phis=st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0)))
def test_no_work_ends_later_the_more_is_left_over(
    works: list[tuple[float, float, int]], phis: tuple[float, float]
) -> None:
    """One work per stream, submitted at times of their own."""

    class Kernels(ConstantCosts):
        def cost(self, work: Work) -> Cost:
            _, device_s, num_kernels = works[work.num_bytes]
            return Cost(0.0, 0.0, device_s, num_kernels)

    def ends_s(phi: float) -> list[float]:
        host = SimHost(Kernels(device_s={}), PeriodicDraws(), contention=Contention(regime=Regime.LEFTOVER, phi=phi))
        streams = [host.stream(f"s{place}") for place in range(len(works))]
        tickets: dict[int, SimTicket] = {}

        def submit(place: int) -> None:
            tickets[place] = host.run(Work(kind=Kind.VERIFY, num_bytes=place), streams[place])

        for place, (start_s, _, _) in enumerate(works):
            host.at(start_s, lambda _, place=place: submit(place))
        host.run_until()
        return [tickets[place].end_s for place in range(len(works))]

    for early, late in zip(ends_s(max(phis)), ends_s(min(phis)), strict=True):
        assert early <= late + 1e-9
