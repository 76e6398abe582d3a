"""The threaded host by itself: cancelling, waiting, polling, failing, stopping. No torch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import pytest

from realrun.host.clocks import HostClock
from realrun.host.executor import ExecutorLane, Handle, SubmittedWork
from realrun.host.gpuhost import GpuHost
from realrun.host.threads import HostStuck
from sim.interface.host import Stream
from sim.interface.wait import Signal
from sim.interface.work import Kind, Work
from tests.realrun.virtual import ConstantExecutor, VirtualClock
from tests.sim.support import SECONDS

Task = Callable[[GpuHost], Coroutine[Any, Any, None]]
DRAFT = Work(kind=Kind.DRAFT)
VERIFY = Work(kind=Kind.VERIFY)


def run_tasks(*tasks: Task, is_async: bool = True, clock: HostClock | None = None, **options: Any) -> None:
    with GpuHost(ConstantExecutor(SECONDS, is_async=is_async), clock=clock or VirtualClock(), **options) as host:
        for task in tasks:
            host.spawn(task(host))
        host.run_until()


def our_threads() -> list[str]:
    return [
        thread.name for thread in threading.enumerate() if thread.name.split()[0] in ("policy", "issuer", "collector")
    ]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert our_threads() == []


def test_a_cancelled_work_that_has_not_been_issued_never_runs_and_holds_nobody_up() -> None:
    times: dict[str, float] = {}

    async def policy(host: GpuHost) -> None:
        one, two = host.stream("one"), host.stream("two")
        first = host.run(DRAFT, one)
        dropped = host.run(VERIFY, one)
        depends = host.run(DRAFT, two, after=(dropped,))
        await host.sleep(1.0)
        dropped.cancel()
        await dropped
        times["dropped"] = host.now_s
        await first
        await depends
        times["depends"] = host.now_s
        assert dropped.is_cancelled
        assert dropped.end_s == dropped.start_s

    run_tasks(policy, is_async=False)
    assert times == {"dropped": 1.0, "depends": 3.0}


def test_wake_ups_of_one_instant_come_in_the_order_of_posting() -> None:
    order: list[str] = []
    signal = Signal()

    def waiter(name: str, delay_s: float) -> Task:
        async def policy(host: GpuHost) -> None:
            await host.sleep(delay_s)
            await (host.sleep_until(5.0) if name == "time" else host.wait(signal))
            order.append(name)

        return policy

    async def notifier(host: GpuHost) -> None:
        stream = host.stream("gpu")
        await host.run(VERIFY, stream)
        order.append("work")
        host.notify(signal)

    run_tasks(waiter("late", 3.0), waiter("early", 1.0), notifier, waiter("time", 2.0))
    assert order == ["work", "early", "time", "late"]


class BrokenExecutor(ConstantExecutor):
    """Fails, or never comes back, at issuing or at finishing."""

    def __init__(self, where: str, *, is_async: bool) -> None:
        super().__init__({})
        self.where, self.is_async = where, is_async
        self.release = threading.Event()

    def lane(self, stream: Stream, clock: HostClock) -> ExecutorLane:
        return BrokenLane(self)


class BrokenLane:
    def __init__(self, executor: BrokenExecutor) -> None:
        self.executor, self.is_async = executor, executor.is_async

    def enter(self) -> None: ...

    def issue(self, job: SubmittedWork, after: Sequence[Handle]) -> Handle:
        if self.executor.where == "issue":
            raise ArithmeticError("the kernel broke")
        return self

    def finish(self) -> tuple[int, ...]:
        if self.executor.where == "hang":
            self.executor.release.wait(20.0)
        if self.executor.where == "finish":
            raise ArithmeticError("the device broke")
        return ()


async def one_work(host: GpuHost) -> None:
    await host.run(VERIFY, host.stream("verify"))


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("where", ["issue", "finish"])
def test_what_a_stream_raises_reaches_the_caller_and_no_thread_is_left(where: str, is_async: bool) -> None:
    with GpuHost(BrokenExecutor(where, is_async=is_async)) as host:
        host.spawn(one_work(host))
        with pytest.raises(ArithmeticError, match="broke"):
            host.run_until()


def test_what_a_policy_raises_reaches_the_caller_and_no_thread_is_left() -> None:
    async def policy(host: GpuHost) -> None:
        await host.run(VERIFY, host.stream("verify"))
        raise LookupError("no such request")

    with pytest.raises(LookupError, match="no such request"):
        run_tasks(policy)


def test_the_watchdog_names_the_work_that_does_not_end() -> None:
    executor = BrokenExecutor("hang", is_async=True)
    with GpuHost(executor, watchdog_s=0.2) as host:
        host.spawn(one_work(host))
        with pytest.raises(HostStuck, match=r"verify of 0 requests on stream 'verify' first\. one_work#0 waits for"):
            host.run_until()
        executor.release.set()


def test_the_watchdog_names_the_coroutine_that_keeps_the_baton() -> None:
    async def hog(host: GpuHost) -> None:
        time.sleep(0.6)

    with pytest.raises(HostStuck, match=r"hog#0 has held the baton for 0\.2 s"):
        run_tasks(hog, clock=HostClock(), watchdog_s=0.2)


def test_works_that_wait_for_each_other_are_noticed_on_the_virtual_clock() -> None:
    class NeverIssued(ConstantExecutor):
        def lane(self, stream: Stream, clock: HostClock) -> ExecutorLane:
            return Blocked(clock)

    class Blocked(BrokenLane):
        is_async = False

        def __init__(self, clock: HostClock) -> None:
            self.clock = clock

        def issue(self, job: SubmittedWork, after: Sequence[Handle]) -> Handle:
            self.clock.mailbox().get()
            raise AssertionError

    with GpuHost(NeverIssued({}), clock=VirtualClock()) as host:
        host.spawn(one_work(host))
        with pytest.raises(HostStuck, match="nothing can happen any more: one_work#0 waits for verify"):
            host.run_until()


def test_a_run_can_be_cut_at_a_time() -> None:
    times: list[float] = []

    async def policy(host: GpuHost) -> None:
        stream = host.stream("gpu")
        while True:
            await host.run(VERIFY, stream)
            times.append(host.now_s)

    with GpuHost(ConstantExecutor(SECONDS), clock=VirtualClock()) as host:
        host.spawn(policy(host))
        host.run_until(12.0)
        assert host.now_s == 12.0
    assert times == [5.0, 10.0]


def test_closing_drops_what_is_queued() -> None:
    async def policy(host: GpuHost) -> None:
        stream = host.stream("gpu")
        await [host.run(VERIFY, stream) for _ in range(1000)][-1]

    with GpuHost(ConstantExecutor({Kind.VERIFY: 0.02})) as host:
        host.spawn(policy(host))
        host.run_until(0.03)
    assert len(host.works) < 1000
    assert host.now_s < 10.0


@pytest.mark.parametrize("is_async", [False, True])
def test_a_result_for_nobody_may_be_the_last_thing_that_happens(is_async: bool) -> None:
    """It comes while a coroutine has the baton, which then ends without having waited for it."""

    async def policy(host: GpuHost) -> None:
        host.run(DRAFT, host.stream("gpu"))
        await host.sleep(1e-3)
        time.sleep(0.2)

    def run() -> None:
        with GpuHost(ConstantExecutor({Kind.DRAFT: 1e-3}, is_async=is_async), clock=HostClock()) as host:
            host.spawn(policy(host))
            host.run_until()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(5.0)
    assert not thread.is_alive()


def test_a_stream_the_machine_does_not_have_is_refused() -> None:
    with GpuHost(ConstantExecutor({}, is_one_gpu=True)) as host:
        for asked in ({"device": "nvlink"}, {"device": 1}, {"sm_share": 0.5}):
            with pytest.raises(ValueError, match="A real run has device 0, whole"):
                host.stream("link", **asked)  # type: ignore[arg-type]
        host.stream("gpu")
        with pytest.raises(ValueError, match="exists already"):
            host.stream("gpu")
