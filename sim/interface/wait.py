"""Waits and signals: what coroutines await, and what tells them. Not here: who completes them (the hosts)."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any, Generic, Protocol, TypeVar

T_co = TypeVar("T_co", covariant=True)

Task = Coroutine[Any, None, None]
"""A coroutine that awaits waits, as a host runs it."""


class Wait(Protocol[T_co]):
    """Something that completes once and can be awaited by any number of coroutines, before or after."""

    @property
    def is_done(self) -> bool: ...

    def __await__(self) -> Generator[Any, None, T_co]: ...


class Signal:
    """A condition that coroutines wait for. Its version counts notifications."""

    __slots__ = ("pending", "version")

    def __init__(self) -> None:
        self.version = 0
        self.pending: list[Any] = []
        """The host's waits that a notification must complete."""


V = TypeVar("V")


class HostWait(Generic[V]):
    """A wait completed by its host; the yield hands it to whatever drives the coroutine."""

    __slots__ = ("is_completed", "posts", "value", "watchers")

    def __init__(self) -> None:
        self.is_completed = False
        self.value: Any = None
        self.posts: list[tuple[int, Any]] = []
        """(posting order, task) of the coroutines waiting."""
        self.watchers: list[Any] = []
        """The `first` waits that include this one."""

    @property
    def is_done(self) -> bool:
        """True where it is completed, or would be if anybody waited."""
        return self.is_completed

    def arm(self) -> None:
        """Make sure that the completion will be announced; called when somebody starts to wait."""

    def __await__(self) -> Generator[HostWait[V], None, V]:
        if not self.is_completed:
            yield self
        return self.value  # type: ignore[no-any-return]
