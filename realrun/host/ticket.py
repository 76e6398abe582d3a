"""A work submitted to the threaded host: its times, who may still take it, and whom to tell when it is issued.

Not here: the threads that carry it out (realrun.host.threads).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import nan

from realrun.host.clocks import Mailbox
from realrun.host.executor import Handle, Job, Outcome
from sim.interface.host import Stream
from sim.interface.wait import HostWait
from sim.interface.work import Result, Work

LOOK_AGAIN = object()
"""Message to an issuer: a work that one of its own comes after has been issued."""


@dataclass(slots=True, eq=False)
class GpuTicket(HostWait[Result]):
    """A submitted work and the times of its life, seconds on the host's clock; nan until known."""

    job: Job
    stream: Stream
    after: Sequence[GpuTicket]
    submitted_s: float
    on_cancel: Callable[[GpuTicket], None]
    eligible_s: float = nan
    """Submitted, its issuer free, and everything it comes after issued."""
    issue_start_s: float = nan
    issued_s: float = nan
    start_s: float = nan
    end_s: float = nan
    ready_s: float = nan
    reacted_s: float = nan
    """When the coroutine that awaited this had acted on it; nan if none did."""
    handle: Handle | None = None
    outcome: Outcome | None = None
    is_cancelled: bool = False
    is_issued: bool = False
    dependents: list[Mailbox] = field(default_factory=list)
    """Issuers to tell when this has been issued."""
    _issued: HostWait[None] | None = None
    _claim: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        HostWait.__init__(self)

    @property
    def work(self) -> Work:
        return self.job.work

    @property
    def issued(self) -> HostWait[None]:
        if self._issued is None:
            self._issued = HostWait()
            self._issued.is_completed = self.is_issued or self.is_done
        return self._issued

    def may_be_issued(self) -> bool:
        """Everything it comes after has been issued."""
        return all(other.is_issued for other in self.after)

    def is_issue_watched(self) -> bool:
        return self._issued is not None and not self._issued.is_done

    def claim(self) -> bool:
        """Take the work, to issue or to drop it; True for the first who asks."""
        return self._claim.acquire(blocking=False)

    def cancel(self) -> None:
        """Drop the work if it has not been issued. Later it ends at its end: an issued pass cannot be called back."""
        if not self.is_done and not self.is_cancelled:
            self.is_cancelled = True
            self.on_cancel(self)

    def mark_issued(self, now_s: float) -> None:
        """The host part is over, or never was; lets those go on that come after."""
        self.issued_s = now_s
        self.is_issued = True
        for mailbox in tuple(self.dependents):
            mailbox.put(LOOK_AGAIN)
