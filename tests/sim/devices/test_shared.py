"""A device that several streams share, event by event: every time can be summed by hand. Drawn streams that issue and
launch beside each other are in tests/sim/test_reference.py.

Works that need the whole device go half as fast two at a time; `Parts` gives a kind its prepare, launch and device
seconds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from sim.costs.cost import Cost, Link
from sim.devices.ticket import SimTicket
from sim.hosts.simulated import SimHost
from sim.interface.work import Kind, Work
from tests.sim.constant_costs import ConstantCosts
from tests.sim.support import PeriodicDraws

DRAFT, VERIFY, PREFILL, HOST, COPY = Kind.DRAFT, Kind.VERIFY, Kind.PREFILL, Kind.HOST, Kind.COPY
Parts = dict[Kind, tuple[float, float, float]]


class PartCosts(ConstantCosts):
    """Prepare, launch and device seconds by kind."""

    parts: Parts

    def cost(self, work: Work) -> Cost:
        return super().cost(work) if work.kind is HOST else Cost(*self.parts[work.kind], 1)


class Machine:
    """Streams a, b, c on one device, and works submitted to them at their time, or cancelled."""

    def __init__(
        self,
        parts: Parts,
        *,
        streams: str = "abc",
        inflation_per_issuer: float = 0.0,
        result_s: float = 0.0,
        links: dict[str, Link] | None = None,
    ) -> None:
        costs = PartCosts(device_s={}, parts=parts, inflation_per_issuer=inflation_per_issuer, result_s=result_s)
        self.host = SimHost(costs, PeriodicDraws(), links=links)
        self.streams = {name: self.host.stream(name) for name in streams}
        self.streams |= {name: self.host.stream(name, device=name) for name in links or {}}
        self.tickets: list[SimTicket] = []

    def submit(self, time_s: float, kind: Kind, stream: str, more: tuple[int, ...] | float = ()) -> None:
        """`more` is the numbers of the works that it comes after, or the seconds that the host takes for itself."""
        number = len(self.tickets)
        self.tickets.append(None)  # type: ignore[arg-type]
        after, host_s = (more, 0.0) if isinstance(more, tuple) else ((), more)
        work = Work(kind=kind, host_s=host_s, draft_tokens=4 if kind is DRAFT else 0)

        def act(_: object) -> None:
            waits_for = [self.tickets[other] for other in after]
            self.tickets[number] = self.host.run(work, self.streams[stream], after=waits_for)

        self.host.at(time_s, act)

    def cancel(self, time_s: float, number: int) -> None:
        self.host.at(time_s, lambda _: self.tickets[number].cancel())

    def run(self, stop_s: float | None = None) -> list[SimTicket]:
        self.host.run_until(stop_s)
        return self.tickets


PLAIN: Parts = {DRAFT: (0, 0, 2), VERIFY: (0, 0, 5), PREFILL: (0, 0, 10)}
LINKS = {"near": Link(latency_s=1.0, bytes_per_s=1.0), "far": Link(latency_s=2.0, bytes_per_s=1.0)}


class Case(NamedTuple):
    """Works in the order of their numbers, and what is summed by hand of them."""

    parts: Parts
    works: list[tuple[Any, ...]]
    device: list[tuple[float, float]] | None = None
    """(start, end) of every work."""
    host: list[tuple[float, float, float]] | None = None
    """(issue begins, prepared, issued) of the first ones."""
    options: dict[str, Any] | None = None
    cuts: tuple[tuple[float, int], ...] = ()
    """(time, number) of what is cancelled."""
    cancelled: tuple[int, ...] = ()
    busy_s: float | None = None
    ready: list[float] | None = None


CASES = {
    # The draft's launch of 4 s is half as fast until that of the verify, which waits for the draft, is over at 2 s.
    "a work that cannot outrun its launch goes as fast as that is slowed": Case(
        {DRAFT: (0, 4, 2), VERIFY: (0, 1, 3)}, [(0, DRAFT, "a"), (0, VERIFY, "b", (0,))],
        [(0, 5), (5, 8)], [(0, 0, 5), (0, 0, 2)], {"inflation_per_issuer": 1.0},
    ),
    # 0-5 s; 8-11 and 9-15 s, which overlap.
    "idle time between works is not busy": Case(
        PLAIN, [(0, VERIFY, "a"), (8, DRAFT, "b"), (9, VERIFY, "a")], [(0, 5), (8, 11), (9, 15)], busy_s=5 + 7
    ),
    # Verify takes 10 s beside the prefill and the draft behind it 4 s; then 3 s are left of the prefill.
    "a stream runs its next work beside what others run": Case(
        PLAIN, [(0, PREFILL, "a"), (0, VERIFY, "b"), (0, DRAFT, "b")], [(0, 17), (0, 10), (10, 14)]
    ),
    # Both come after the verify: 2 s and then 6 s more of the prefill's 10.
    "works that begin at one instant share the device from it": Case(
        PLAIN, [(0, VERIFY, "a"), (0, DRAFT, "b", (0,)), (0, PREFILL, "c", (0,))], [(0, 5), (5, 9), (5, 17)]
    ),
    # Draft ends at 4 s and verify at 7 s. What is over already holds nobody back.
    "a work comes after the last of those it waits for": Case(
        PLAIN, [(0, DRAFT, "a"), (0, VERIFY, "b"), (1, DRAFT, "c", (0, 1)), (9, DRAFT, "a", (0, 1))],
        [(0, 4), (0, 7), (7, 9), (9, 11)],
    ),
    "works without device time are over as they begin": Case(
        {DRAFT: (0, 0, 0), VERIFY: (0, 0, 5)}, [(0, VERIFY, "a"), *[(1, DRAFT, "b")] * 2, (1, VERIFY, "b")],
        [(0, 9), (1, 1), (1, 1), (1, 10)],
    ),
    # Copies of 1 and 2 s after the verify of 5 s; a draft after both.
    "two links wait for one work and a work for both": Case(
        PLAIN, [(0, VERIFY, "a"), (0, COPY, "near", (0,)), (0, COPY, "far", (0,)), (0, DRAFT, "b", (1, 2))],
        [(0, 5), (5, 6), (5, 7), (7, 9)], options={"links": LINKS},
    ),
    "results take their time after the end": Case(
        PLAIN, [(0, VERIFY, "a"), (0, HOST, "b", 1.0)], [(0, 5), (1, 1)], options={"result_s": 0.5}, ready=[5.5, 1]
    ),
    "host time of the policy holds back what its stream issues": Case(
        {DRAFT: (1, 1, 2), VERIFY: (1, 1, 5)}, [(0, HOST, "a", 3.0), (0, DRAFT, "a"), (1, VERIFY, "b")],
        [(3, 3), (4, 8), (2, 9)], [(0, 3, 3), (3, 4, 5), (1, 2, 3)], busy_s=7,
    ),
    # Launches of 2, 2 and 4 s, twice as long for three: 4 s; the last has 2 s left.
    "three issuers slow each other more than two": Case(
        {DRAFT: (0, 2, 0), VERIFY: (0, 4, 0)}, [(0, DRAFT, "a"), (0, DRAFT, "b"), (0, VERIFY, "c")],
        host=[(0, 0, 4), (0, 0, 4), (0, 0, 6)], options={"inflation_per_issuer": 0.5},
    ),
    # A draft of 8 s launched over 4 s, which the other's launch of 2 s stretches to 5. The other, of 1 s, can use a
    # third until it ends with its launch at 3 s; the draft has done 2 s by then.
    "a launch that is over bounds its work no longer": Case(
        {DRAFT: (0, 4, 8), VERIFY: (0, 2, 1)}, [(0, DRAFT, "a"), (0, VERIFY, "b")],
        [(0, 9), (0, 3)], [(0, 0, 5), (0, 0, 3)], {"inflation_per_issuer": 0.5},
    ),
    # A draft that prepares for 3 s is dropped at 1 s: the verify behind it is prepared from then on.
    "a work cancelled in preparation frees its issuer and has no result to copy": Case(
        {DRAFT: (3, 1, 2), VERIFY: (1, 1, 5)}, [(0, DRAFT, "a"), (0, VERIFY, "a")], [(1, 1), (2, 7)],
        options={"result_s": 0.5}, cuts=((1, 0),), cancelled=(0,), ready=[1, 7.5],
    ),
    # 1 s at 1.5 times its length leaves 4 - 2/3 s.
    "an issuer goes faster when the work beside it is dropped": Case(
        {DRAFT: (4, 0, 1), VERIFY: (9, 0, 1)}, [(0, DRAFT, "a"), (0, VERIFY, "b")],
        host=[(0, 5 - 1 / 1.5, 5 - 1 / 1.5)], options={"inflation_per_issuer": 0.5}, cuts=((1, 1),), cancelled=(1,),
    ),
    # A draft of 4 s has done 0.5 s at 1 s; its first token is there after 1 s, at 2 s. Verify has 4 s left then.
    "a work cut beside another ends at its checkpoint and has a result": Case(
        {DRAFT: (0, 0, 4), VERIFY: (0, 0, 5)}, [(0, DRAFT, "a"), (0, VERIFY, "b")], [(0, 2), (0, 6)],
        options={"result_s": 0.5}, cuts=((1, 0), (1.5, 0)), cancelled=(0,), ready=[2.5, 6.5],
    ),
    # A draft of 4 s launched over 8 s has done 1.5 s at 3 s. Two of its four tokens are there after 2 s, at 4 s, and
    # the next work is launched then.
    "the launch of a cut work ends with it": Case(
        {DRAFT: (0, 8, 4), VERIFY: (1, 1, 5)}, [(0, DRAFT, "a"), (0, VERIFY, "a")],
        [(0, 4), (5, 10)], [(0, 0, 4), (4, 5, 6)], cuts=((3, 0),), cancelled=(0,),
    ),
    "cancelling what is over changes nothing": Case(
        PLAIN, [(0, DRAFT, "a"), (0, VERIFY, "b")], [(0, 4), (0, 7)], cuts=((4.5, 0),)
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_works_take_the_times_that_are_summed_by_hand(case: Case) -> None:
    machine = Machine(case.parts, **(case.options or {}))
    for work in case.works:
        machine.submit(*work)
    for cut in case.cuts:
        machine.cancel(*cut)
    tickets = machine.run()
    times = [(ticket.issue_start_s, ticket.prepared_s, ticket.issued_s) for ticket in tickets]
    if case.host is not None:
        assert times[: len(case.host)] == [pytest.approx(each) for each in case.host]
    if case.device is not None:
        assert [(each.start_s, each.end_s) for each in tickets] == [pytest.approx(each) for each in case.device]
    assert case.busy_s in (None, machine.host.device_busy_s)
    assert case.ready in (None, [ticket.ready_s for ticket in tickets])
    assert tuple(number for number, ticket in enumerate(tickets) if ticket.is_cancelled) == case.cancelled


def test_a_launch_speeds_up_though_an_earlier_end_changed_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two issuers slow each other as three do: the first ends at 2 s, the second at 4 s, and the third has 8 s left."""
    monkeypatch.setattr(PartCosts, "host_inflation", lambda self, num_issuers: min(2.0, num_issuers))
    machine = Machine({DRAFT: (0, 1, 50), VERIFY: (0, 2, 50), PREFILL: (0, 10, 50)})
    for kind, stream in ((DRAFT, "a"), (VERIFY, "b"), (PREFILL, "c")):
        machine.submit(0.0, kind, stream)
    assert [ticket.issued_s for ticket in machine.run()] == [2.0, 4.0, 12.0]


def test_a_device_is_busy_until_the_moment_at_which_it_is_looked_at() -> None:
    machine = Machine(PLAIN)
    machine.submit(0.0, VERIFY, "a")
    machine.submit(0.0, DRAFT, "b")
    busy_s = []
    for stop_s in (3.0, 3.5, 6.0, None):
        machine.run(stop_s)
        busy_s.append(machine.host.device_busy_s)
    assert busy_s == [3.0, 3.5, 6.0, 7.0]


def test_a_result_is_awaited_to_its_arrival() -> None:
    machine, told = Machine(PLAIN, result_s=0.5), []

    async def wait() -> None:
        await machine.host.sleep(1.0)
        await machine.tickets[0]
        told.append(machine.host.now_s)

    machine.submit(0.0, VERIFY, "a")
    machine.host.spawn(wait())
    machine.run()
    assert told == [5.5]
