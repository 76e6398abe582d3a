"""A device that does what it is told as late, and in as odd an order, as CUDA's rules allow, and a checker of what
happens before what.

Every stream and every thread of the host has a vector clock. Issuing joins the thread's clock into the stream's,
`record`, `wait` and `synchronize` hand clocks on, and so do messages and locks between threads (`LateHost`). Each read
and write of what is watched (by slot where it has slots) must know, by its clock, of the last write, and each write of
the reads since: two accesses of which neither knows of the other are a race, whichever ran first this time.
Not here: how long anything takes (tests.realrun.timed_device).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from random import Random
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from realrun.host.device import DeviceStream, Event, RealDevice

VectorClock = dict[str, int]
EARLY = 0.3
"""Chance that a stream goes on by itself when the host calls the device."""


class Race(AssertionError):
    """Two accesses, at least one a write, that nothing orders."""


class Access(NamedTuple):
    actor: str
    count: int
    what: str

    def is_known_to(self, clock: VectorClock) -> bool:
        return clock.get(self.actor, 0) >= self.count


class _Watched:
    """A tensor whose accesses are checked, by slot or as a whole; the last slot is nobody's."""

    def __init__(self, name: str, tensor: torch.Tensor, slot_dim: int | None) -> None:
        self.name, self.tensor = name, tensor
        slots = tensor.shape[slot_dim] if slot_dim is not None else 1
        self.scratch = slots - 1 if slot_dim is not None else -1
        shape = [1] * tensor.dim()
        if slot_dim is not None:
            shape[slot_dim] = slots
        self._slot_at = torch.arange(slots, dtype=torch.int32).view(shape).expand(tensor.shape).contiguous()
        """Slot of every element."""
        self._known: dict[tuple[Any, ...], frozenset[int]] = {}
        self.writes: dict[int, Access] = {}
        self.reads: dict[int, dict[str, Access]] = {}

    def shadow(self, view: torch.Tensor) -> torch.Tensor:
        offset = view.storage_offset() - self.tensor.storage_offset()
        return self._slot_at.as_strided(view.shape, view.stride(), offset)

    def slots(self, view: torch.Tensor) -> frozenset[int]:
        key = tuple(view.shape), view.stride(), view.storage_offset()
        if key not in self._known:
            self._known[key] = self.slots_of(self.shadow(view))
        return self._known[key]

    def slots_of(self, shadow: torch.Tensor) -> frozenset[int]:
        return frozenset(shadow.unique().tolist()) - {self.scratch}


class LateDevice(RealDevice):
    """The CPU, late. `seed` draws the order; one lock guards it all."""

    is_async = True

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.lock = threading.RLock()
        self.streams: list[LateStream] = []
        self.clocks: dict[str, VectorClock] = {}
        """Of streams and threads, by name."""
        self.races: list[str] = []
        self.num_checked = 0
        self._watched: dict[int, _Watched] = {}
        self._thread = threading.local()
        self._default = LateStream(self, "default")
        self.streams.append(self._default)

    # -- the seam

    def now_s(self) -> float:
        return 0.0

    def stream(self, priority: int = 0) -> DeviceStream:
        made = LateStream(self, f"stream {len(self.streams)}")
        self.streams.append(made)
        return made

    def run_now(self, work: Callable[[], object]) -> None:
        self._default.run(work)
        self._default.record().synchronize()

    def synchronize(self) -> None:
        for stream in list(self.streams):
            stream.record().synchronize()

    def pinned(self, *shape: int) -> torch.Tensor:
        made = _Pinned.of(self, torch.zeros(shape, dtype=torch.int64))
        self.watch(f"pinned {len(self._watched)}", made)
        return made

    # -- clocks

    @property
    def actor(self) -> str:
        """Who acts in this thread: a stream while one of its works runs, else the thread. Threads that have no name of
        their own are one, as those of policies are: they run in turn."""
        found: str = getattr(self._thread, "actor", "keeper")
        return found

    @contextmanager
    def acting(self, actor: str) -> Iterator[None]:
        former, self._thread.actor = self.actor, actor
        try:
            yield
        finally:
            self._thread.actor = former

    def clock(self, actor: str | None = None) -> VectorClock:
        return self.clocks.setdefault(actor or self.actor, {})

    def tick(self, actor: str | None = None) -> int:
        """The next step of an actor."""
        actor = actor or self.actor
        clock = self.clock(actor)
        clock[actor] = clock.get(actor, 0) + 1
        return clock[actor]

    def join(self, clock: VectorClock, actor: str | None = None) -> None:
        mine = self.clock(actor)
        for name, count in clock.items():
            mine[name] = max(mine.get(name, 0), count)

    def send(self) -> VectorClock:
        """What this thread knows, to go with a message."""
        self.tick()
        return dict(self.clock())

    # -- running

    def run_until(self, is_enough: Callable[[], bool]) -> None:
        with self.lock:
            while not is_enough():
                able = [stream for stream in self.streams if stream.can_go_on()]
                assert able, "the host waits for what can never happen"
                self.random.choice(able).go_on()

    def run_some(self) -> None:
        with self.lock:
            while self.random.random() < EARLY:
                able = [stream for stream in self.streams if stream.can_go_on()]
                if not able:
                    return
                self.random.choice(able).go_on()

    # -- checking

    def watch(self, name: str, tensor: torch.Tensor, slot_dim: int | None = None) -> None:
        self._watched[tensor.untyped_storage().data_ptr()] = _Watched(name, tensor, slot_dim)

    def watched(self, tensor: Any) -> _Watched | None:
        if not isinstance(tensor, torch.Tensor) or not self._watched:
            return None
        return self._watched.get(tensor.untyped_storage().data_ptr())

    def saw(self, watched: _Watched, slots: frozenset[int], *, is_write: bool, what: str) -> None:
        """An access by whoever acts."""
        with self.lock:
            clock = self.clock()
            access = Access(self.actor, clock.get(self.actor, 0), what)
            self.num_checked += 1
            for slot in slots:
                last = watched.writes.get(slot)
                if last is not None and not last.is_known_to(clock):
                    self._race(watched, slot, last, access)
                if is_write:
                    for read in watched.reads.pop(slot, {}).values():
                        if not read.is_known_to(clock):
                            self._race(watched, slot, read, access)
                    watched.writes[slot] = access
                else:
                    watched.reads.setdefault(slot, {})[self.actor] = access

    def _race(self, watched: _Watched, slot: int, one: Access, other: Access) -> None:
        place = watched.name if watched.scratch < 0 else f"{watched.name}, slot {slot}"
        self.races.append(f"{place}: {one.actor} ({one.what}) and {other.actor} ({other.what})")

    def check(self) -> None:
        """Raises Race with the first few."""
        if self.races:
            raise Race("; ".join(self.races[:3]))


class LateStream:
    def __init__(self, device: LateDevice, name: str) -> None:
        self.device, self.name = device, name
        self._todo: deque[_Todo] = deque()
        self.num_done = self.num_issued = 0

    def run(self, work: Callable[[], object]) -> None:
        self._put(work)

    def capture(self, work: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        """Nothing runs while it is captured."""
        return work

    def record(self) -> Event:
        # At once: while one of its works runs, a stream's clock is that of the work.
        with self.device.lock:
            self._put(None)
            return LateEvent(self, self.num_issued, dict(self.device.clock(self.name)))

    def wait(self, event: Event) -> None:
        assert isinstance(event, LateEvent)
        with self.device.lock:
            self.device.join(event.clock, self.name)
        self._put(None, event)

    def hold(self, seconds: float) -> None:
        self._put(None)

    def _put(self, work: Callable[[], object] | None, after: LateEvent | None = None) -> None:
        device = self.device
        with device.lock:
            # Before the issue, the thread has done all that it has done; after it, it does more.
            device.join(device.send(), self.name)
            device.tick()
            device.tick(self.name)
            self._todo.append(_Todo(work, after, dict(device.clock(self.name))))
            self.num_issued += 1
        device.run_some()

    def can_go_on(self) -> bool:
        return bool(self._todo) and (self._todo[0].after is None or self._todo[0].after.is_done())

    def go_on(self) -> None:
        todo = self._todo.popleft()
        if todo.work is not None:
            with self.device.acting(self.name), _at(self.device, self.name, todo.clock), torch.no_grad():
                todo.work()
        self.num_done += 1


@contextmanager
def _at(device: LateDevice, actor: str, clock: VectorClock) -> Iterator[None]:
    """An actor as it was when a work was issued."""
    newest = device.clocks[actor]
    device.clocks[actor] = clock
    try:
        yield
    finally:
        device.clocks[actor] = newest


class _Todo(NamedTuple):
    work: Callable[[], object] | None
    after: LateEvent | None
    clock: VectorClock


class LateEvent:
    """The end of what a stream had been given so far."""

    def __init__(self, stream: LateStream, number: int, clock: VectorClock) -> None:
        self._stream, self._number, self.clock = stream, number, clock

    def is_done(self) -> bool:
        return self._stream.num_done >= self._number

    def synchronize(self) -> None:
        device = self._stream.device
        device.run_until(self.is_done)
        with device.lock:
            device.join(self.clock)

    def seconds_after(self, earlier: Event) -> float:
        return 0.0


class Accesses(TorchDispatchMode):  # type: ignore[misc]
    """Tells the device of every access to what it watches, in the thread that enters it."""

    def __init__(self, device: LateDevice) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not func.is_view:
            written = _written(func)
            for place, value in (*enumerate(args), *kwargs.items()):
                for tensor in value if isinstance(value, list | tuple) else (value,):
                    watched = self.device.watched(tensor)
                    if watched is not None:
                        slots = _touched(func, watched, tensor, args) if place == 0 else watched.slots(tensor)
                        self.device.saw(watched, slots, is_write=place in written, what=str(func))
        return func(*args, **kwargs)


@cache
def _written(func: Any) -> frozenset[int | str]:
    """Arguments of an operation that it writes, by place and by name."""
    places = [
        (number, argument.name)
        for number, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return frozenset(place for pair in places for place in pair)


def _touched(func: Any, watched: _Watched, tensor: torch.Tensor, args: Sequence[Any]) -> frozenset[int]:
    """Slots of the first argument that an operation by index reads or writes; all that the tensor covers otherwise."""
    aten = torch.ops.aten
    packet = func.overloadpacket
    if packet in (aten.index, aten.index_put_, aten.index_put, aten._unsafe_index):
        return watched.slots_of(aten.index(watched.shadow(tensor), args[1]))
    if packet in (aten.index_select, aten.index_fill_, aten.index_copy_):
        return watched.slots_of(watched.shadow(tensor).index_select(args[1], args[2]))
    return watched.slots(tensor)


class _Pinned(torch.Tensor):
    """Read by `tolist`, which no dispatch mode sees."""

    device_: LateDevice

    @staticmethod
    def of(device: LateDevice, plain: torch.Tensor) -> _Pinned:
        made = plain.as_subclass(_Pinned)
        made.device_ = device
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        owner = next(each for each in args if isinstance(each, _Pinned))
        if func is torch.Tensor.tolist:
            watched = owner.device_.watched(owner)
            assert watched is not None
            owner.device_.saw(watched, watched.slots(owner), is_write=False, what="tolist")
        found = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(found, _Pinned):
            found.device_ = owner.device_
        return found
