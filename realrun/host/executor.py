"""Executors of works for the threaded host: the protocol. An executor has one lane per stream.

Not here: real passes (realrun.replay.pair_executor), threads and order (realrun.host.gpuhost).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from realrun.host.clocks import HostClock
from sim.interface.host import Stream
from sim.interface.work import Work


class SubmittedWork(NamedTuple):
    """A work as it was submitted: its requests' state moves on while it waits for its turn."""

    work: Work
    drafted: tuple[int, ...]
    """Length of the draft in flight of each request of the work."""
    emitted: tuple[int, ...]
    """Output tokens of each request at submission."""
    forced: tuple[int, ...] | None
    """Accepted drafted tokens [rows] that a tape dictates; None lets the models decide."""


class Handle(Protocol):
    """A work that was issued."""

    def finish(self) -> tuple[int, ...]:
        """Accepted drafted tokens [rows] of VERIFY and STEP works, once the device is done. In order of issue."""
        ...

    def times_s(self) -> tuple[float, float]:
        """Start and end on the host's clock, of a work that is over; known best after `Executor.ran`."""
        ...


class ExecutorLane(Protocol):
    """One stream's executor. `enter` and `issue` are called on the stream's issuer thread."""

    is_async: bool
    """The device may still be busy when `issue` returns."""

    def enter(self) -> None:
        """The thread's settings, before its first work."""
        ...

    def issue(self, job: SubmittedWork, after: Sequence[Handle]) -> Handle:
        """Issue a work; on the device it starts after those of `after` have ended there."""
        ...


class Executor(Protocol):
    def check(self, stream: Stream) -> None:
        """Raises ValueError for a stream that this executor cannot serve; called as it is made."""
        ...

    def lane(self, stream: Stream, clock: HostClock) -> ExecutorLane: ...

    def submitted(self, job: SubmittedWork) -> None:
        """A policy has submitted a work; called in its turn."""
        ...

    def ended(self, job: SubmittedWork) -> None:
        """A work is over, or was dropped before it began."""
        ...

    def ran(self) -> None:
        """All works of a run are over: a last look at the clocks."""
        ...


def check_whole(stream: Stream) -> None:
    """Raise ValueError for any device but the one GPU there is, and for a share of it."""
    if stream.device != 0 or stream.sm_share is not None:
        raise ValueError(
            f"stream {stream.name!r}: device={stream.device!r}, sm_share={stream.sm_share!r}. A real run has device 0, "
            "whole"
        )
