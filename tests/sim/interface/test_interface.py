"""The rules of the seam: wake order, signals, first, polls, lanes with back-pressure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sim.hosts.scripted import ScriptHost
from sim.hosts.simulated import SimHost
from sim.interface.host import Host
from sim.interface.request_queue import RequestQueue
from sim.interface.wait import TIMED_OUT, Signal
from sim.interface.work import Kind, Work
from tests.sim.constant_costs import ConstantCosts
from tests.sim.support import SECONDS, PeriodicDraws, request

HOSTS: dict[str, Callable[[], Any]] = {
    "sim": lambda: SimHost(ConstantCosts(device_s=SECONDS), PeriodicDraws()),
    "script": lambda: ScriptHost(lambda work: SECONDS[work.kind]),
}


@pytest.fixture(params=HOSTS)
def host(request: pytest.FixtureRequest) -> Any:
    return HOSTS[request.param]()


def test_hosts_fulfil_the_protocol(host: Any) -> None:
    assert isinstance(host, Host)


def test_wake_ups_of_one_instant_come_in_the_order_in_which_their_waits_were_posted(host: Any) -> None:
    """Both sleeps end at 3 s; b's was made first, a's was awaited first."""
    woken = []
    early = host.sleep(3.0)

    async def a() -> None:
        await host.sleep(3.0)
        woken.append("a")

    async def b() -> None:
        await early
        woken.append("b")

    host.spawn(a())
    host.spawn(b())
    host.run_until()
    assert woken == ["a", "b"]


def test_all_that_completes_at_an_instant_completes_before_anybody_wakes(host: Any) -> None:
    stream = host.stream("s")
    seen = []

    async def watch() -> None:
        sleep = host.sleep(5.0)
        ticket = host.run(Work(kind=Kind.VERIFY), stream)
        await sleep
        seen.append((host.now_s, ticket.is_done))

    host.spawn(watch())
    host.run_until()
    assert seen == [(5.0, True)]


def test_a_notification_between_making_a_wait_and_awaiting_it_is_not_lost(host: Any) -> None:
    signal, woken = Signal(), []

    async def waiter() -> None:
        wait = host.wait(signal)
        await host.sleep(2.0)
        await wait
        woken.append(host.now_s)

    async def notifier() -> None:
        await host.sleep(1.0)
        host.notify(signal)

    host.spawn(waiter())
    host.spawn(notifier())
    host.run_until()
    assert woken == [2.0]


def test_first_tells_which_wait_was_done_and_leaves_the_others_usable(host: Any) -> None:
    told = []

    async def waiter() -> None:
        long, short = host.sleep(4.0), host.sleep(1.0)
        told.append((await host.first(long, short), host.now_s))
        told.append((await host.first(long, timeout_s=1.0), host.now_s))
        await long
        told.append((await host.first(long, short), host.now_s))

    host.spawn(waiter())
    host.run_until()
    assert told == [(1, 1.0), (TIMED_OUT, 2.0), (0, 4.0)]


def test_put_waits_while_the_lane_is_full(host: Any) -> None:
    lane, log = RequestQueue("decode", capacity=2), []

    async def producer() -> None:
        for index in range(4):
            await lane.put(host, request(index))
            log.append(("put", index, host.now_s))

    async def consumer() -> None:
        await host.sleep(3.0)
        taken = await lane.take(host, at_most=1)
        log.append(("took", taken[0].index, host.now_s))

    host.spawn(producer())
    host.spawn(consumer())
    host.run_until()
    assert log == [("put", 0, 0.0), ("put", 1, 0.0), ("took", 0, 3.0), ("put", 2, 3.0)]


def test_take_waits_while_the_lane_is_empty_and_keeps_order(host: Any) -> None:
    lane, taken = RequestQueue("verify"), []

    async def consumer() -> None:
        while len(taken) < 3:
            taken.extend(r.index for r in await lane.take(host, at_most=2))

    async def producer() -> None:
        await host.sleep(1.0)
        await lane.put_all(host, [request(index) for index in range(3)])

    host.spawn(consumer())
    host.spawn(producer())
    host.run_until()
    assert taken == [0, 1, 2]


def test_a_lane_refuses_a_capacity_below_one() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        RequestQueue("decode", capacity=0)
