"""Policies on a late device, as the threads of the real host would run them, but one step at a time and repeatable.

The steps bear the names of the threads that would take them (one issuer and one collector per stream, the keeper with
its policies), and know of each other only what messages and the executor's lock tell: a step is never ordered by this
host's own loop. Not here: the order of the device (tests.realrun.late_device), threads (realrun.host.threads).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from realrun.host.executor import ExecutorLane, Handle, SubmittedWork
from realrun.replay.pair_executor import PairExecutor
from sim.hosts.clock import SteppedHost
from sim.interface.host import Stream
from sim.interface.wait import HostWait
from sim.interface.work import Result, Work
from tests.realrun.late_device import LateDevice, VectorClock

KEEPER = "keeper"


class SteppingClock:
    """Goes on by a step whenever it is read."""

    is_virtual = False
    step_s = 1e-4

    def __init__(self) -> None:
        self._now_s = 0.0

    @property
    def now_s(self) -> float:
        self._now_s += self.step_s
        return self._now_s

    def start(self) -> None: ...


class KnowingLock:
    """The executor's lock: whoever has it knows what those knew who had it before."""

    def __init__(self, device: LateDevice) -> None:
        self._device = device
        self._clock: VectorClock = {}

    def __enter__(self) -> None:
        self._device.join(self._clock)

    def __exit__(self, *_: object) -> None:
        self._clock = self._device.send()

    def notify_all(self) -> None: ...

    def wait(self, timeout_s: float) -> bool:
        raise AssertionError("no slot is free, and nothing else happens in this thread")


class LateTicket(HostWait[Result]):
    __slots__ = ("after", "handle", "issue_clock", "job", "stream", "submit_clock")

    def __init__(
        self, job: SubmittedWork, stream: Stream, after: Sequence[LateTicket], submit_clock: VectorClock
    ) -> None:
        super().__init__()
        self.job, self.stream, self.after, self.submit_clock = job, stream, after, submit_clock
        self.handle: Handle | None = None
        self.issue_clock: VectorClock = {}

    @property
    def work(self) -> Work:
        return self.job.work

    def cancel(self) -> None:
        """Works run to their end, which the seam allows."""


class LateHost(SteppedHost):
    """Works end in an order that the device's seed draws, those of one stream in the order of issue."""

    def __init__(self, executor: PairExecutor, device: LateDevice) -> None:
        super().__init__()
        self.device, self.executor, self.clock = device, executor, SteppingClock()
        executor._lock = KnowingLock(device)  # type: ignore[assignment]
        self._lanes: dict[str, ExecutorLane] = {}
        self._queues: dict[str, list[LateTicket]] = {}
        self._free_s: dict[str, float] = {}

    def run_until(self, stop_s: float | None = None) -> None:
        with self.device.acting(KEEPER):
            super().run_until(stop_s)
            self.executor.ran()

    def stream(self, name: str, *, device: int | str = 0, priority: int = 0, sm_share: float | None = None) -> Stream:
        self._queues[name] = []
        self._free_s[name] = 0.0
        made = Stream(name=name, device=device, priority=priority, sm_share=sm_share)
        self._lanes[name] = self.executor.lane(made, self.clock)  # type: ignore[arg-type]
        return made

    def run(self, work: Work, stream: Stream, *, after: Sequence[Any] = ()) -> LateTicket:
        requests = work.requests
        emitted = tuple(request.emitted_tokens for request in requests)
        job = SubmittedWork(work, tuple(work.checked()), emitted, None)
        self.executor.submitted(job)
        ticket = LateTicket(job, stream, after, self.device.send())
        self._queues[stream.name].append(ticket)
        self._issue_what_can()
        return ticket

    def _issue_what_can(self) -> None:
        is_stuck = False
        while not is_stuck:
            is_stuck = True
            for name, queue in self._queues.items():
                if queue and all(other.handle is not None for other in queue[0].after):
                    self._issue(queue.pop(0), name)
                    is_stuck = False

    def _issue(self, ticket: LateTicket, name: str) -> None:
        with self.device.acting(f"issuer {name}"):
            for told in (ticket.submit_clock, *(other.issue_clock for other in ticket.after)):
                self.device.join(told)
            handles = [other.handle for other in ticket.after if other.handle is not None]
            ticket.handle = self._lanes[name].issue(ticket.job, handles)
            ticket.issue_clock = self.device.send()
        self._free_s[name] = max(self._free_s[name], self._now_s) + self.device.random.uniform(0.1, 1.0)
        self.at(self._free_s[name], partial(self._finish, ticket))

    def _finish(self, ticket: LateTicket, _: Any) -> None:
        assert ticket.handle is not None
        with self.device.acting(f"collector {ticket.stream.name}"):
            self.device.join(ticket.issue_clock)
            accepted = ticket.handle.finish()
            ticket.handle.times_s()
            self.executor.ended(ticket.job)
            told = self.device.send()
        self.device.join(told)
        self.complete(ticket, Result(accepted))
