"""A device that several streams share, event by event: every time can be summed by hand.

Works that need the whole device go half as fast two at a time; `Parts` gives a kind its prepare, launch and device
seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sim.costs.cost import Cost, Link
from sim.devices.shared import SharedDevice
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
        streams: str = "ab",
        inflation_per_issuer: float = 0.0,
        result_s: float = 0.0,
        links: dict[str, Link] | None = None,
    ) -> None:
        costs = PartCosts(device_s={}, parts=parts, inflation_per_issuer=inflation_per_issuer, result_s=result_s)
        self.host = SimHost(costs, PeriodicDraws(), links=links)
        self.streams = {name: self.host.stream(name) for name in streams}
        self.streams |= {name: self.host.stream(name, device=name) for name in links or {}}
        self.tickets: list[SimTicket] = []

    def submit(self, time_s: float, kind: Kind, stream: str, *, after: Sequence[int] = (), host_s: float = 0.0) -> int:
        """The work's number; it comes `after` those of these numbers."""
        number = len(self.tickets)
        self.tickets.append(None)  # type: ignore[arg-type]
        work = Work(kind=kind, host_s=host_s, draft_tokens=4 if kind is DRAFT else 0)

        def act(_: object) -> None:
            waits_for = [self.tickets[other] for other in after]
            self.tickets[number] = self.host.run(work, self.streams[stream], after=waits_for)

        self.host.at(time_s, act)
        return number

    def cancel(self, time_s: float, number: int) -> None:
        self.host.at(time_s, lambda _: self.tickets[number].cancel())

    def run(self, stop_s: float | None = None) -> list[SimTicket]:
        self.host.run_until(stop_s)
        return self.tickets

    def device_times(self) -> list[tuple[float, float]]:
        """(start, end) of every work."""
        return [(ticket.start_s, ticket.end_s) for ticket in self.run()]

    def host_times(self) -> list[tuple[float, float, float]]:
        """(issue begins, prepared, issued) of every work."""
        return [(ticket.issue_start_s, ticket.prepared_s, ticket.issued_s) for ticket in self.run()]


@pytest.fixture(autouse=True, params=["closed form", "events"])
def alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How a stream runs while it is alone: as it does, and by events like any other."""
    if request.param == "events":
        monkeypatch.setattr(SharedDevice, "_is_sole", lambda *_: False)


PLAIN: Parts = {DRAFT: (0, 0, 2), VERIFY: (0, 0, 5), PREFILL: (0, 0, 10)}


# -- launches


def test_a_launch_that_nobody_waits_for_is_noted_at_its_own_end() -> None:
    """It is over at 3 s, and the next launch beside it at 6 s is not slowed by it."""
    machine = Machine({VERIFY: (1, 2, 20), DRAFT: (1, 1, 2)}, inflation_per_issuer=1.0)
    machine.submit(0.0, VERIFY, "a")
    machine.submit(6.0, DRAFT, "b")
    assert machine.host_times() == [(0.0, 1.0, 3.0), (6.0, 7.0, 8.0)]


def test_a_work_that_cannot_outrun_its_launch_goes_as_fast_as_that_is_slowed() -> None:
    """The draft's launch of 4 s is half as fast until that of the verify, which waits for the draft, is over at 2 s."""
    machine = Machine({DRAFT: (0, 4, 2), VERIFY: (0, 1, 3)}, inflation_per_issuer=1.0)
    draft = machine.submit(0.0, DRAFT, "a")
    machine.submit(0.0, VERIFY, "b", after=[draft])
    assert machine.device_times() == [(0.0, 5.0), (5.0, 8.0)]
    assert [issued_s for _, _, issued_s in machine.host_times()] == [5.0, 2.0]


def test_a_launch_speeds_up_though_an_earlier_end_changed_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two issuers slow each other as three do: the first ends at 2 s, the second at 4 s, and the third has 8 s left."""
    monkeypatch.setattr(PartCosts, "host_inflation", lambda self, num_issuers: min(2.0, num_issuers))
    machine = Machine({DRAFT: (0, 1, 50), VERIFY: (0, 2, 50), PREFILL: (0, 10, 50)}, streams="abc")
    for kind, stream in ((DRAFT, "a"), (VERIFY, "b"), (PREFILL, "c")):
        machine.submit(0.0, kind, stream)
    assert [issued_s for _, _, issued_s in machine.host_times()] == [2.0, 4.0, 12.0]


# -- the device


def test_idle_time_between_works_is_not_busy() -> None:
    """0-5 s; 8-11 and 9-15 s, which overlap."""
    machine = Machine(PLAIN)
    machine.submit(0.0, VERIFY, "a")
    machine.submit(8.0, DRAFT, "b")
    machine.submit(9.0, VERIFY, "a")
    assert machine.device_times() == [(0.0, 5.0), (8.0, 11.0), (9.0, 15.0)]
    assert machine.host.device_busy_s == 5.0 + 7.0


def test_a_device_is_busy_until_the_moment_at_which_it_is_looked_at() -> None:
    machine = Machine(PLAIN)
    machine.submit(0.0, VERIFY, "a")
    machine.submit(0.0, DRAFT, "b")
    busy_s = []
    for stop_s in (3.0, 3.5, 6.0, None):
        machine.run(stop_s)
        busy_s.append(machine.host.device_busy_s)
    assert busy_s == [3.0, 3.5, 6.0, 7.0]


def test_a_stream_runs_its_next_work_beside_what_others_run() -> None:
    """Verify takes 10 s beside the prefill and the draft behind it 4 s; then 3 s are left of the prefill."""
    machine = Machine(PLAIN)
    machine.submit(0.0, PREFILL, "a")
    machine.submit(0.0, VERIFY, "b")
    machine.submit(0.0, DRAFT, "b")
    assert machine.device_times() == [(0.0, 17.0), (0.0, 10.0), (10.0, 14.0)]


def test_works_that_begin_at_one_instant_share_the_device_from_it() -> None:
    """Both come after the verify: 2 s and then 6 s more of the prefill's 10."""
    machine = Machine(PLAIN, streams="abc")
    first = machine.submit(0.0, VERIFY, "a")
    machine.submit(0.0, DRAFT, "b", after=[first])
    machine.submit(0.0, PREFILL, "c", after=[first])
    assert machine.device_times() == [(0.0, 5.0), (5.0, 9.0), (5.0, 17.0)]


def test_a_work_comes_after_the_last_of_those_it_waits_for() -> None:
    """Draft ends at 4 s and verify at 7 s. What is over already holds nobody back."""
    machine = Machine(PLAIN, streams="abc")
    both = [machine.submit(0.0, DRAFT, "a"), machine.submit(0.0, VERIFY, "b")]
    machine.submit(1.0, DRAFT, "c", after=both)
    machine.submit(9.0, DRAFT, "a", after=both)
    assert machine.device_times() == [(0.0, 4.0), (0.0, 7.0), (7.0, 9.0), (9.0, 11.0)]


def test_works_without_device_time_are_over_as_they_begin() -> None:
    machine = Machine({DRAFT: (0, 0, 0), VERIFY: (0, 0, 5)})
    machine.submit(0.0, VERIFY, "a")
    for kind in (DRAFT, DRAFT, VERIFY):
        machine.submit(1.0, kind, "b")
    assert machine.device_times() == [(0.0, 9.0), (1.0, 1.0), (1.0, 1.0), (1.0, 10.0)]


def test_two_links_wait_for_one_work_and_a_work_for_both() -> None:
    """Copies of 1 and 2 s after the verify of 5 s; a draft after both."""
    links = {"near": Link(latency_s=1.0, bytes_per_s=1.0), "far": Link(latency_s=2.0, bytes_per_s=1.0)}
    machine = Machine(PLAIN, links=links)
    first = machine.submit(0.0, VERIFY, "a")
    copies = [machine.submit(0.0, COPY, link, after=[first]) for link in links]
    machine.submit(0.0, DRAFT, "b", after=copies)
    assert machine.device_times() == [(0.0, 5.0), (5.0, 6.0), (5.0, 7.0), (7.0, 9.0)]


def test_results_take_their_time_after_the_end() -> None:
    machine = Machine(PLAIN, result_s=0.5)
    machine.submit(0.0, VERIFY, "a")
    machine.submit(0.0, HOST, "b", host_s=1.0)
    assert [(ticket.end_s, ticket.ready_s) for ticket in machine.run()] == [(5.0, 5.5), (1.0, 1.0)]


# -- issuing


def test_a_stream_issues_one_work_after_the_other() -> None:
    """Prepare 3, launch 1: a work begins when it is prepared and the one before it has ended."""
    machine = Machine({DRAFT: (3, 1, 2), VERIFY: (1, 1, 5)})
    for kind, stream in ((DRAFT, "a"), (DRAFT, "a"), (VERIFY, "b")):
        machine.submit(0.0, kind, stream)
    assert machine.host_times() == [(0.0, 3.0, 4.0), (4.0, 7.0, 8.0), (0.0, 1.0, 2.0)]
    assert machine.device_times() == [(3.0, 7.0), (7.0, 10.0), (1.0, 9.0)]


def test_host_time_of_the_policy_holds_back_what_its_stream_issues() -> None:
    machine = Machine({DRAFT: (1, 1, 2), VERIFY: (1, 1, 5)})
    machine.submit(0.0, HOST, "a", host_s=3.0)
    machine.submit(0.0, DRAFT, "a")
    machine.submit(1.0, VERIFY, "b")
    assert machine.host_times() == [(0.0, 3.0, 3.0), (3.0, 4.0, 5.0), (1.0, 2.0, 3.0)]
    assert machine.device_times() == [(0.0, 3.0), (4.0, 8.0), (2.0, 9.0)]
    assert machine.host.device_busy_s == 7.0


def test_issuers_slow_each_other_for_as_long_as_both_are_busy() -> None:
    """Prepare 1, launch 3; beside another 1.5 times as long. The first has 2 s left when the second comes at 2 s: until
    5 s. The second has done 2 of its 4 s then, the first of them prepared at 3.5 s."""
    machine = Machine({DRAFT: (1, 3, 0), VERIFY: (1, 3, 0)}, inflation_per_issuer=0.5)
    machine.submit(0.0, DRAFT, "a")
    machine.submit(2.0, VERIFY, "b")
    assert machine.host_times() == [(0.0, 1.0, 5.0), (2.0, 3.5, 7.0)]
    assert machine.host.device_busy_s == 6.0


def test_an_issuer_is_slowed_while_it_prepares_and_not_after_the_other_is_done() -> None:
    """Two prepare 4 s from 0 s, the host work beside them takes 1 s: 1.5 s of it by 1.5 s, then 3 s alone."""
    machine = Machine({DRAFT: (4, 2, 0)}, inflation_per_issuer=0.5)
    machine.submit(0.0, DRAFT, "a")
    machine.submit(0.0, HOST, "b", host_s=1.0)
    assert machine.host_times() == [(0.0, 4.5, 6.5), (0.0, 1.5, 1.5)]


def test_three_issuers_slow_each_other_more_than_two() -> None:
    """Launches of 2, 2 and 4 s, twice as long for three: 4 s; the last has 2 s left."""
    machine = Machine({DRAFT: (0, 2, 0), VERIFY: (0, 4, 0)}, streams="abc", inflation_per_issuer=0.5)
    for kind, stream in ((DRAFT, "a"), (DRAFT, "b"), (VERIFY, "c")):
        machine.submit(0.0, kind, stream)
    assert [ticket.issued_s for ticket in machine.run()] == [4.0, 4.0, 6.0]


def test_a_work_that_is_launched_slowly_leaves_the_rest_of_the_device_to_others() -> None:
    """A draft of 2 s launched over 10 s can use a fifth: the two others have two fifths each."""
    machine = Machine({DRAFT: (0, 10, 2), VERIFY: (0, 0, 4)}, streams="abc")
    for kind, stream in ((DRAFT, "a"), (VERIFY, "b"), (VERIFY, "c")):
        machine.submit(0.0, kind, stream)
    (_, draft_s), (_, second_s), (_, third_s) = machine.device_times()
    assert (draft_s, second_s, third_s) == pytest.approx((10.0, 10.0, 10.0))


def test_a_work_cannot_end_before_its_launch_and_the_next_launch_waits_for_it() -> None:
    machine = Machine({DRAFT: (0, 4, 2), VERIFY: (0, 1, 5)})
    machine.submit(0.0, DRAFT, "a")
    machine.submit(0.0, VERIFY, "a")
    assert machine.host_times() == [(0.0, 0.0, 4.0), (4.0, 4.0, 5.0)]
    assert machine.device_times() == [(0.0, 4.0), (4.0, 9.0)]


def test_a_launch_that_is_over_bounds_its_work_no_longer() -> None:
    """A draft of 8 s launched over 4 s, which the other's launch of 2 s stretches to 5. The other, of 1 s, can use a
    third until it ends with its launch at 3 s; the draft has done 2 s by then."""
    machine = Machine({DRAFT: (0, 4, 8), VERIFY: (0, 2, 1)}, inflation_per_issuer=0.5)
    machine.submit(0.0, DRAFT, "a")
    machine.submit(0.0, VERIFY, "b")
    assert machine.host_times() == [(0.0, 0.0, 5.0), (0.0, 0.0, 3.0)]
    assert machine.device_times() == [(0.0, 9.0), (0.0, 3.0)]


# -- being told


@pytest.mark.parametrize("number", [0, 1])
def test_the_end_of_a_launch_can_be_awaited_while_the_device_runs(number: int) -> None:
    """Launches of 2 s one after the other on a stream whose works take 5 s each; nothing else happens then."""
    machine = Machine({VERIFY: (0, 2, 5)})
    told = []

    async def wait() -> None:
        await machine.host.sleep(1.0)
        ticket = machine.tickets[number]
        await ticket.issued
        told.append((machine.host.now_s, ticket.is_done))

    for _ in range(2):
        machine.submit(0.0, VERIFY, "a")
    machine.host.spawn(wait())
    machine.run()
    assert told == [(2.0 * (number + 1), False)]


@pytest.mark.parametrize(("asked_s", "told_s"), [(1.0, 2.0), (2.0, 2.0), (3.0, 3.0), (9.0, 9.0)])
def test_a_launch_that_is_over_is_told_at_once(asked_s: float, told_s: float) -> None:
    machine = Machine({VERIFY: (0, 2, 5)})
    told = []

    async def wait() -> None:
        await machine.host.sleep(asked_s)
        await machine.tickets[0].issued
        told.append(machine.host.now_s)

    machine.submit(0.0, VERIFY, "a")
    machine.host.spawn(wait())
    machine.run()
    assert told == [told_s]


def test_a_result_is_awaited_to_its_arrival() -> None:
    machine = Machine(PLAIN, result_s=0.5)
    told = []

    async def wait() -> None:
        await machine.host.sleep(1.0)
        await machine.tickets[0]
        told.append(machine.host.now_s)

    machine.submit(0.0, VERIFY, "a")
    machine.host.spawn(wait())
    machine.run()
    assert told == [5.5]


# -- cancelling


def test_a_work_cancelled_in_preparation_frees_its_issuer_and_has_no_result_to_copy() -> None:
    """A draft that prepares for 3 s is dropped at 1 s: the verify behind it is prepared from then on."""
    machine = Machine({DRAFT: (3, 1, 2), VERIFY: (1, 1, 5)}, result_s=0.5)
    dropped = machine.submit(0.0, DRAFT, "a")
    machine.submit(0.0, VERIFY, "a")
    machine.cancel(1.0, dropped)
    assert machine.device_times() == [(1.0, 1.0), (2.0, 7.0)]
    assert [ticket.ready_s for ticket in machine.tickets] == [1.0, 7.5]
    assert machine.tickets[0].is_cancelled
    assert not machine.tickets[1].is_cancelled


def test_whoever_waits_for_the_launch_of_a_dropped_work_is_told_of_its_end() -> None:
    machine = Machine({DRAFT: (3, 1, 2), VERIFY: (1, 1, 5)})
    told = []

    async def wait() -> None:
        await machine.host.sleep(0.5)
        await machine.tickets[1].issued
        told.append(machine.host.now_s)

    machine.submit(0.0, VERIFY, "a")
    behind = machine.submit(0.0, DRAFT, "a")
    machine.cancel(1.0, behind)
    machine.host.spawn(wait())
    machine.run()
    assert told == [1.0]


def test_an_issuer_goes_faster_when_the_work_beside_it_is_dropped() -> None:
    """1 s at 1.5 times its length leaves 4 - 2/3 s."""
    machine = Machine({DRAFT: (4, 0, 1), VERIFY: (9, 0, 1)}, inflation_per_issuer=0.5)
    machine.submit(0.0, DRAFT, "a")
    beside = machine.submit(0.0, VERIFY, "b")
    machine.cancel(1.0, beside)
    assert machine.run()[0].prepared_s == pytest.approx(1.0 + 4.0 - 1.0 / 1.5)


def test_a_work_cut_beside_another_ends_at_its_checkpoint_and_has_a_result() -> None:
    """A draft of 4 s has done 0.5 s at 1 s; its first token is there after 1 s, at 2 s. Verify has 4 s left then."""
    machine = Machine({DRAFT: (0, 0, 4), VERIFY: (0, 0, 5)}, result_s=0.5)
    cut = machine.submit(0.0, DRAFT, "a")
    machine.submit(0.0, VERIFY, "b")
    machine.cancel(1.0, cut)
    machine.cancel(1.5, cut)
    assert machine.device_times() == [(0.0, 2.0), (0.0, 6.0)]
    assert [ticket.ready_s for ticket in machine.tickets] == [2.5, 6.5]
    assert machine.host.usage[("a", DRAFT)].cancelled_s == 2.0


def test_the_launch_of_a_cut_work_ends_with_it() -> None:
    """A draft of 4 s launched over 8 s has done 1.5 s at 3 s. Two of its four tokens are there after 2 s, at 4 s, and
    the next work is launched then."""
    machine = Machine({DRAFT: (0, 8, 4), VERIFY: (1, 1, 5)})
    cut = machine.submit(0.0, DRAFT, "a")
    machine.submit(0.0, VERIFY, "a")
    machine.cancel(3.0, cut)
    assert machine.host_times() == [(0.0, 0.0, 4.0), (4.0, 5.0, 6.0)]
    assert machine.device_times() == [(0.0, 4.0), (5.0, 10.0)]


def test_cancelling_what_is_over_changes_nothing() -> None:
    machine = Machine(PLAIN)
    over = machine.submit(0.0, DRAFT, "a")
    machine.submit(0.0, VERIFY, "b")
    machine.cancel(4.5, over)
    assert machine.device_times() == [(0.0, 4.0), (0.0, 7.0)]
    assert not machine.tickets[0].is_cancelled
