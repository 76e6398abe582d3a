"""A host for tests: scripted durations, one FIFO per stream, no contention.

It executes the interface's rules with as little machinery as possible, so that a policy's event log on it can be
compared with the log on any other host. Not here: costs, devices, real time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import nan
from typing import Any

from sim.hosts.clock import SteppedHost
from sim.interface.host import Stream
from sim.interface.wait import HostWait
from sim.interface.work import NO_RESULT, Kind, Result, Work

Duration = Callable[[Work], float]
Answer = Callable[[Work], Result]


class ScriptTicket(HostWait[Result]):
    """A work that runs from `start_s` to `end_s`."""

    def __init__(self, work: Work, stream: Stream) -> None:
        super().__init__()
        self.work = work
        self.stream = stream
        self.start_s = self.end_s = nan
        self.is_cancelled = False

    def cancel(self) -> None:
        """Works of a script always run to their end, which the interface allows: they have no checkpoint before it."""
        self.is_cancelled = True


class ScriptHost(SteppedHost):
    """Runs works for `duration(work)` seconds each; `answer(work)` is what comes back. `log` holds every event."""

    def __init__(self, duration: Duration, answer: Answer | None = None) -> None:
        super().__init__()
        self._duration = duration
        self._answer = answer or (lambda work: NO_RESULT)
        self._queues: dict[str, list[tuple[ScriptTicket, Sequence[ScriptTicket], Result]]] = {}
        self._running: dict[str, ScriptTicket] = {}
        self.log: list[tuple[float, str, str, str, tuple[int, ...]]] = []
        """(time, start or end, stream, kind, arrival indices) of works in order of time."""

    def stream(self, name: str, *, device: int | str = 0, priority: int = 0, sm_share: float | None = None) -> Stream:
        self._queues[name] = []
        return Stream(name=name, device=device, priority=priority, sm_share=sm_share)

    def run(self, work: Work, stream: Stream, *, after: Sequence[Any] = ()) -> ScriptTicket:
        ticket = ScriptTicket(work, stream)
        self._queues[stream.name].append((ticket, after, self._answer(work)))
        self._start_what_can()
        return ticket

    def _start_what_can(self) -> None:
        for name, queue in self._queues.items():
            if name in self._running or not queue:
                continue
            ticket, after, result = queue[0]
            if all(other.end_s <= self._now_s for other in after):
                del queue[0]
                self._running[name] = ticket
                ticket.start_s = self._now_s
                self._note("start", ticket)
                duration_s = ticket.work.host_s if ticket.work.kind is Kind.HOST else self._duration(ticket.work)
                self.at(self._now_s + duration_s, partial(self._end, ticket, result))

    def _end(self, ticket: ScriptTicket, result: Result, _: Any) -> None:
        ticket.end_s = self._now_s
        del self._running[ticket.stream.name]
        self._note("end", ticket)
        self._start_what_can()
        self.complete(ticket, result)

    def _note(self, event: str, ticket: ScriptTicket) -> None:
        indices = tuple(request.index for request in ticket.work.requests)
        self.log.append((self._now_s, event, ticket.stream.name, ticket.work.kind.value, indices))
