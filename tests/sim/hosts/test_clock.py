"""Waits, polls, wake-ups and lanes on a virtual clock, to the instant; on both hosts that have one."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan, nextafter
from typing import Any

import pytest

from sim.hosts.scripted import ScriptHost
from sim.hosts.simulated import SimHost
from sim.interface.host import Host
from sim.interface.request_queue import RequestQueue
from sim.interface.wait import Signal, Wait
from sim.interface.work import Kind, Result, Work
from tests.sim.constant_costs import ConstantCosts
from tests.sim.support import SECONDS, AlwaysAccept, request

HOSTS: dict[str, Callable[[], Any]] = {
    "sim": lambda: SimHost(ConstantCosts(device_s=SECONDS), AlwaysAccept()),
    "script": lambda: ScriptHost(lambda work: SECONDS[work.kind], lambda work: Result([4])),
}


@pytest.fixture(params=HOSTS)
def host(request: pytest.FixtureRequest) -> Any:
    return HOSTS[request.param]()


def woken(host: Any, wait: Callable[[], Wait[Any]], *, start_s: float = 0.0) -> list[float]:
    """The times at which somebody wakes who begins to wait at `start_s`."""
    times: list[float] = []

    async def waiter() -> None:
        await host.sleep(start_s)
        await wait()
        times.append(host.now_s)

    host.spawn(waiter())
    return times


def notify_at(host: Any, signal: Signal, *times_s: float) -> None:
    for time_s in times_s:
        host.at(time_s, lambda _: host.notify(signal))


# -- polls


@pytest.mark.parametrize(
    ("poll_s", "start_s", "notified_s", "woken_s"),
    [
        (2.0, 1.0, 1.5, 3.0),  # Its own grid: 3, 5 ...
        (2.0, 1.0, 2.5, 3.0),
        (2.0, 1.0, 3.5, 5.0),
        (2.0, 0.0, 2.01, 4.0),  # Just missed.
        (0.1, 0.0, 0.1 + 0.2, 0.1 + 0.2),  # Three looks every 0.1 s, and a bit: still seen by the third.
        (2.0, 0.0, nextafter(2.0, inf), nextafter(2.0, inf)),  # Nobody wakes before, not even by a rounding.
    ],
)
def test_a_worker_looks_on_a_grid_that_begins_with_its_wait(
    host: Any, poll_s: float, start_s: float, notified_s: float, woken_s: float
) -> None:
    signal = Signal()
    times = woken(host, lambda: host.wait(signal, poll_s=poll_s), start_s=start_s)
    notify_at(host, signal, notified_s)
    host.run_until()
    assert times == [woken_s]
    assert host.num_polls == round((woken_s - start_s) / poll_s)


def test_a_worker_that_has_just_looked_looks_again_after_a_whole_interval(host: Any) -> None:
    signal = Signal()
    times = woken(host, lambda: host.wait(signal, poll_s=2.0), start_s=1.0)

    async def notifier() -> None:
        await host.sleep(1.0)
        host.notify(signal)

    host.spawn(notifier())
    host.run_until()
    assert (times, host.num_polls) == ([3.0], 1)


def test_looks_are_counted_by_the_interval_of_those_who_are_idle(host: Any) -> None:
    """Two look every 0.5 s and one every 2 s, until they are told, at 1 s and at 5 s."""
    often, rarely, looks = Signal(), Signal(), []
    for signal, poll_s in ((often, 0.5), (often, 0.5), (rarely, 2.0)):
        woken(host, lambda signal=signal, poll_s=poll_s: host.wait(signal, poll_s=poll_s))
    notify_at(host, often, 1.0)
    notify_at(host, rarely, 5.0)
    for time_s in (0.5, 1.5, 5.5):
        host.at(time_s, lambda _: looks.append(host.looks_per_s))
    host.run_until()
    assert looks == [2 / 0.5 + 1 / 2.0, 1 / 2.0, 0.0]
    assert host.num_polls == 2 + 2 + 3


# -- signals


def test_a_signal_wakes_all_who_wait_once(host: Any) -> None:
    signal = Signal()
    times = [woken(host, lambda: host.wait(signal), start_s=start_s) for start_s in (0.0, 1.0, 3.0)]
    notify_at(host, signal, 2.0, 4.0)
    host.run_until()
    assert times == [[2.0], [2.0], [4.0]]
    assert signal.version == 2


# -- sleeping


@pytest.mark.parametrize("duration_s", [-1.0, nan])
def test_a_sleep_that_is_no_duration_is_refused(host: Any, duration_s: float) -> None:
    with pytest.raises(ValueError, match="must be at least 0 s"):
        host.sleep(duration_s)


# -- first


def test_every_first_that_includes_a_wait_hears_of_it(host: Any) -> None:
    told = []
    shared = host.sleep(3.0)

    async def waiter(other_s: float) -> None:
        other = host.sleep(other_s)
        told.append((await host.first(other, shared), host.now_s))

    for other_s in (5.0, 6.0, 2.0):
        host.spawn(waiter(other_s))
    host.run_until()
    assert told == [(0, 2.0), (1, 3.0), (1, 3.0)]


@pytest.mark.parametrize(
    ("begin", "told"),
    [
        (lambda host, done: host.first(host.sleep(9.0), done), (1, 1.0)),
        (lambda host, done: host.first(host.sleep(2.0), host.sleep(2.0)), (0, 3.0)),
        (lambda host, done: host.sleep_until(0.5), (None, 1.0)),
    ],
    ids=["what is done already", "a wait that ends with the one behind it", "a sleep into the past"],
)
def test_what_comes_first_is_there_at_once(
    host: Any, begin: Callable[..., Any], told: tuple[int | None, float]
) -> None:
    found = []

    async def waiter() -> None:
        done = host.sleep(1.0)
        await done
        found.append((await begin(host, done), host.now_s))

    host.spawn(waiter())
    host.run_until(5.0)
    assert found == [told]


def test_first_of_works_hears_of_the_one_that_ends(host: Any) -> None:
    told = []
    streams = [host.stream(name) for name in "ab"]

    async def waiter() -> None:
        works = [
            host.run(Work(kind=kind), stream) for kind, stream in zip((Kind.STEP, Kind.HOST), streams, strict=True)
        ]
        told.append((await host.first(*works), host.now_s))
        told.append((await host.first(works[0], host.sleep(9.0)), host.now_s))

    host.spawn(waiter())
    host.run_until()
    assert told == [(1, 0.0), (0, 5.0)]


# -- waking


def test_those_who_wait_for_one_thing_wake_in_the_order_in_which_they_began_to(host: Any) -> None:
    """And a coroutine that ends takes nobody with it."""
    woken_names = []
    shared = host.sleep(3.0)

    async def waiter(name: str, start_s: float) -> None:
        await host.sleep(start_s)
        await shared
        woken_names.append(name)

    for name, start_s in (("c", 2.0), ("a", 0.0), ("b", 1.0)):
        host.spawn(waiter(name, start_s))
    host.run_until()
    assert woken_names == ["a", "b", "c"]


def test_coroutines_start_in_the_order_in_which_they_are_spawned_whoever_spawns_them(host: Any) -> None:
    started = []

    async def child(name: str) -> None:
        started.append((name, host.now_s))

    async def parent() -> None:
        started.append(("parent", host.now_s))
        for name in "xy":
            host.spawn(child(name))
        await host.sleep(1.0)
        host.spawn(child("z"))

    host.spawn(parent())
    host.spawn(child("w"))
    host.run_until()
    assert started == [("parent", 0.0), ("w", 0.0), ("x", 0.0), ("y", 0.0), ("z", 1.0)]


def test_what_is_told_within_an_instant_is_done_before_anybody_wakes_in_it(host: Any) -> None:
    """Both signals come at 1 s: who waits for the first finds the second told."""
    signals, seen = [Signal(), Signal()], []

    async def waiter() -> None:
        second = host.wait(signals[1])
        await host.wait(signals[0])
        seen.append((host.now_s, second.is_done))

    host.spawn(waiter())
    for signal in signals:
        notify_at(host, signal, 1.0)
    host.run_until()
    assert seen == [(1.0, True)]


def test_all_that_completes_at_an_instant_completes_before_anybody_wakes(host: Any) -> None:
    stream, seen = host.stream("s"), []

    async def watch() -> None:
        sleep = host.sleep(5.0)
        ticket = host.run(Work(kind=Kind.STEP), stream)
        await sleep
        seen.append((host.now_s, ticket.is_done))

    host.spawn(watch())
    host.run_until()
    assert seen == [(5.0, True)]


def test_a_result_reaches_all_who_await_it_before_and_after(host: Any) -> None:
    asked, results = request(0), []
    asked.drafted = 4
    stream = host.stream("s")
    work = Work(kind=Kind.VERIFY, requests=(asked,), rows=1)

    async def waiter(ticket: Any, start_s: float) -> None:
        await host.sleep(start_s)
        results.append((host.now_s, list((await ticket).accepted), host.now_s))

    async def submit() -> None:
        ticket = host.run(work, stream)
        for start_s in (0.0, 1.0, 9.0):
            host.spawn(waiter(ticket, start_s))

    host.spawn(submit())
    host.run_until()
    assert results == [(0.0, [4], 5.0), (1.0, [4], 5.0), (9.0, [4], 9.0)]


# -- the seam: hosts, waits and lanes with back-pressure


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
        told.append((await host.first(long, host.sleep(1.0)), host.now_s))
        await long
        told.append((await host.first(long, short), host.now_s))

    host.spawn(waiter())
    host.run_until()
    assert told == [(1, 1.0), (1, 2.0), (0, 4.0)]


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


def test_hosts_fulfil_the_protocol(host: Any) -> None:
    assert isinstance(host, Host)
