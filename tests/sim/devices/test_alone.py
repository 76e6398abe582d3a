"""A stream that is alone on a shared device runs in closed form, and nobody can tell: the same programs by events."""

from __future__ import annotations

from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.costs.cost import Cost
from sim.costs.profile import Overlap
from sim.devices.contention import Contention, Regime, contention_of
from sim.devices.shared import SharedDevice
from sim.devices.solo import SoloDevice
from sim.devices.ticket import SimTicket
from sim.hosts.simulated import SimHost
from sim.interface.work import Kind, Work
from tests.properties import examples
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
    program: list[Entry], result_s: float, devices: list[int], contention: Contention | None = None
) -> tuple[list[tuple[float, ...]], list[float], Any]:
    """Times of every work, when those that were awaited were over, and the device's accounts."""
    costs = _Listed(device_s={}, parts=[entry.parts for entry in program], inflation_per_issuer=0.5, result_s=result_s)
    host = SimHost(costs, PeriodicDraws(), contention=contention)
    streams = [host.stream(f"s{place}", device=device, priority=place) for place, device in enumerate(devices)]
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
    times = [
        (t.prepared_s, t.issued_s, 0.0 if t.work.kind is Kind.HOST else t.start_s, t.end_s, t.ready_s) for t in tickets
    ]
    usage = {key: (one.num_works, one.device_s, one.cancelled_s) for key, one in host.usage.items()}
    return times, woken_s, (host.device_busy_s, usage)


@examples(5)
@given(
    program=PROGRAMS,
    result_s=seconds,
    devices=st.sampled_from([[0, 0, 0], [0, 0, 1]]),
    contention=st.builds(
        Contention, regime=st.sampled_from(Regime), phi=st.sampled_from([0.0, 0.07, 1.0]), has_priorities=st.booleans()
    ),
)
def test_closed_form_and_events_tell_the_same(
    program: list[Entry], result_s: float, devices: list[int], contention: Contention
) -> None:
    times, woken_s, accounts = run(program, result_s, devices, contention)
    with patch.object(SharedDevice, "_is_sole", return_value=False):
        expected_times, expected_woken_s, expected_accounts = run(program, result_s, devices, contention)
    for one, other in zip(times, expected_times, strict=True):
        assert one == pytest.approx(other, abs=1e-9, nan_ok=True)
    assert woken_s == pytest.approx(expected_woken_s, abs=1e-9)
    assert accounts[0] == pytest.approx(expected_accounts[0], abs=1e-9)
    assert accounts[1].keys() == expected_accounts[1].keys()
    for key, totals in accounts[1].items():
        assert totals == pytest.approx(expected_accounts[1][key], abs=1e-9)


def test_a_stream_that_is_alone_costs_no_events_of_its_device() -> None:
    """Ten works on an idle device: the clock is asked only for what somebody waits for."""
    work = Entry(0.0, 0, Kind.VERIFY, (0.1, 0.1, 1.0), None, False, None)
    asked: list[float] = []
    at = SimHost.at

    def counted(self: SimHost, time_s: float, callback: Any, *, is_last: bool = False) -> Any:
        asked.append(time_s)
        return at(self, time_s, callback, is_last=is_last)

    program = [work] * 9 + [work._replace(is_awaited=True)]
    with patch.object(SimHost, "at", counted):
        run(program, 0.0, [0, 0, 0])
    num_alone = len(asked)
    asked.clear()
    with patch.object(SimHost, "at", counted), patch.object(SharedDevice, "_is_sole", return_value=False):
        run(program, 0.0, [0, 0, 0])
    assert len(asked) >= num_alone + 10


def test_the_second_stream_takes_over_what_is_in_flight() -> None:
    """A verify of 5 s is 2 s old when a draft of 2 s comes: both go half as fast from 2 to 6 s."""
    released: list[int] = []
    release = SoloDevice.release
    program = [
        Entry(0.0, 0, Kind.VERIFY, (0.0, 0.0, 5.0), None, True, None),
        Entry(2.0, 1, Kind.VERIFY, (0.0, 0.0, 2.0), None, True, None),
    ]

    def counted(self: SoloDevice, now_s: float) -> list[SimTicket]:
        left = release(self, now_s)
        released.append(len(left))
        return left

    with patch.object(SoloDevice, "release", counted):
        times, woken_s, (busy_s, _) = run(program, 0.0, [0, 0, 0], Contention(has_priorities=False))
    assert [(start_s, end_s) for _, _, start_s, end_s, _ in times] == [(0.0, 7.0), (2.0, 6.0)]
    assert (woken_s, busy_s) == ([7.0, 6.0], 7.0)
    assert sum(released) == 1


@given(program=PROGRAMS, result_s=seconds, has_priorities=st.booleans(), is_preemptive=st.booleans())
def test_nothing_left_over_is_serial_to_the_last_bit(
    program: list[Entry], result_s: float, has_priorities: bool, is_preemptive: bool
) -> None:
    serial, leftover = (
        contention_of(Overlap(has_priorities=has_priorities), regime, 0.0, is_preemptive=is_preemptive)
        for regime in (Regime.SERIAL, Regime.LEFTOVER)
    )
    devices = [0, 0, 0]
    assert repr(run(program, result_s, devices, serial)) == repr(run(program, result_s, devices, leftover))


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
