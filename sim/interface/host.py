"""The interface: what a policy may ask of the machine it runs on, and the rules every host keeps.

A policy is a set of coroutines. Whatever takes time is awaited on the host; everything between two awaits is
instantaneous and undisturbed, so policies hold no locks. Hosts: SimHost (a virtual clock), GpuHost (threads and CUDA
streams; also a plain CPU), ScriptHost (tests). Not here: any implementation.

Rules, pinned so that simulation and reality agree:
1. Wake-ups of one instant happen in the order in which their waits were posted (awaited), and only after everything
   that completes at that instant has completed.
2. `first` returns the lowest index among the waits that are done when the waiter wakes.
3. A wait on a signal compares versions: a notification between creating the wait and awaiting it is not lost.
4. A polled wait wakes on a grid (creation + n * poll_s, n >= 1) at or after the notification.
5. A stream runs its works in submission order. Issuing them costs host time outside the policy's turn.
6. Streams are made before the first work is submitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from sim.interface.wait import Signal, Wait
from sim.interface.work import Result, Work


class Ticket(Wait[Result], Protocol):
    """A submitted work. Awaiting it yields its result once that is on the host."""

    def cancel(self) -> None:
        """Drop the work: before it starts it never runs, afterwards it ends at its next checkpoint, which a DRAFT has
        after every drafted token, other kinds at their end. The ticket still completes, and its device time is
        waste."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A FIFO of works on one device. Higher `priority` is served first where streams contend."""

    name: str
    device: int | str = 0
    """Index of a GPU, or the name of a link."""
    priority: int = 0
    sm_share: float | None = None
    """Share of the device's multiprocessors reserved for the stream; None shares them all."""


@runtime_checkable
class Host(Protocol):
    """Actions open to a policy.

    A policy that lets every request wait for half a second, and runs a new kind of work (output of one token):

    >>> import lanesim
    >>> async def late(serving, host, stream):
    ...     while True:
    ...         request = await serving.admit()
    ...         await host.sleep(0.5)
    ...         chunk = lanesim.Chunk(request.prompt_tokens, 0)
    ...         await host.run(lanesim.Work(kind=lanesim.Kind.PREFILL, chunks=(chunk,), head_rows=1), stream)
    ...         serving.commit_prefill(request)
    >>> def build(serving, options, limits):
    ...     return [late(serving, serving.host, serving.host.stream("gpu"))]
    >>> mine = lanesim.register(lanesim.Policy(name="late", summary="sleeps", source="example", build=build))
    >>> one = lanesim.simulate(profile="cpu/tiny", policy="late", num_prompts=3, request_rate=1, output_len=1)
    >>> one.metrics["mean_ttft_ms"] > 500
    True
    """

    @property
    def now_s(self) -> float: ...

    @property
    def streams(self) -> Mapping[str, Stream]:
        """Those that were made, by name."""
        ...

    def stream(
        self, name: str, *, device: int | str = 0, priority: int = 0, sm_share: float | None = None
    ) -> Stream: ...

    def run(self, work: Work, stream: Stream, *, after: Sequence[Wait[Any]] = ()) -> Ticket:
        """Submit `work` now. On the device it starts after the works of `after`, tickets, have ended there."""
        ...

    def first(self, *waits: Wait[Any]) -> Wait[int]: ...

    def sleep(self, duration_s: float) -> Wait[None]: ...

    def sleep_until(self, time_s: float) -> Wait[None]:
        """Sleep until exactly `time_s`, which now + (time - now) would miss by a rounding."""
        ...

    def wait(self, signal: Signal, *, poll_s: float | None = None) -> Wait[None]:
        """Wait for the next notification, at once or, with `poll_s`, at the worker's next poll after it."""
        ...

    def notify(self, signal: Signal) -> None: ...
