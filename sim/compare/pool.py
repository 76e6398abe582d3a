"""Many tasks over several processes: fed as they are worked off, so that memory does not grow with their number.

Workers are given once what many tasks share (`given`), and last as long as the outermost `lasting` block. They are
forked where that is safe, which is where this process has one thread. Elsewhere they start afresh and are told the
policies and acceptances registered here; one that was written in a script or notebook cannot be imported there, and
then the tasks run in this process, with a note. Not here: what a task is (sim.compare.point_runs,
sim.studies.store_rows).

What only processes need is imported where they start: it takes longer than a small run does.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import count, islice
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sim.acceptance import forms
from sim.costs.extrapolation import Extrapolation, collecting, pass_on
from sim.plugins import checked_count
from sim.policies import registry
from sim.policies.policy import Build

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future, ProcessPoolExecutor

Task = TypeVar("Task")
Result = TypeVar("Result")
AHEAD = 3
"""Tasks per worker that are handed over before they are needed, so that no worker waits."""
OnDone = Callable[[str, int, int], None]
"""(what is being done, how many of it are done, how many there are)."""
ENDING_S = 0.5
"""Time for the threads of a pool to be gone, which takes far less."""

_given: dict[str, Any] = {}
"""Objects that the tasks of this process share, by name."""
_given_number = 0
"""Number of the `started` block whose tasks share that."""
_numbers = count(1)
_lasting: list[_Processes] | None = None
"""Processes of the outermost `lasting` block, one set at most; None outside."""


class WorkerDied(RuntimeError):
    """A worker process ended in the middle of a task: killed, or out of memory. `tasks` were under way or waiting."""

    def __init__(self, tasks: list[Any]) -> None:
        super().__init__(tasks)
        self.tasks = tasks

    def __str__(self) -> str:
        return "a worker process was killed, perhaps for lack of memory; fewer --workers need less"


def given(name: str) -> Any:
    """The object that the workers were given under `name`, wherever this task runs."""
    return _given[name]


def default_workers() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def lasting() -> Iterator[None]:
    """All that is `started` within the block shares the processes that the first needed, which end with the block."""
    global _lasting
    if _lasting is not None:
        yield
        return
    _lasting = []
    is_failed = True
    try:
        yield
        is_failed = False
    finally:
        kept, _lasting = _lasting, None
        for processes in kept:
            processes.end(is_failed=is_failed)


@contextmanager
def started(
    workers: int,
    given: Mapping[str, Any] | None = None,
    *,
    uses: Collection[str] = (),
    executor: Executor | None = None,
    is_apart: bool = False,
) -> Iterator[Pool]:
    """Workers that are there when the block begins and gone when it ends, if it is not within a `lasting` one; they
    find what is `given` by its name.

    `uses` names the policies and acceptances that tasks will ask for. One worker is this process, unless it is to be
    `is_apart`, of processes that nobody shares. An `executor` stands in for the processes; it has been told itself what
    is given. On an exception or interrupt, tasks that have not begun are dropped, and those under way ended with their
    processes.
    """
    checked_count("workers", workers, 1)
    shared = Shared(dict(given or {}))
    if executor is not None or (workers <= 1 and not is_apart):
        yield Pool(executor=executor, shared=shared, workers=workers, is_told=True)
        return
    kept = None if is_apart else _lasting
    if kept and (kept[0].is_broken or kept[0].workers < workers):
        kept.pop().end(is_failed=False)
    is_forking = kept[0].is_forking if kept else sys.platform == "linux" and _num_threads() == 1
    homeless = None if is_forking else next((name for name, _ in _unimportable() if name in uses), None)
    if workers > 1 and homeless is not None:
        warnings.warn(
            f"in one process: {homeless} is written in a script, where other processes do not find it", stacklevel=3
        )
        yield Pool(executor=None, shared=shared, workers=1, is_told=True)
        return
    processes = kept[0] if kept else _Processes(workers, shared, is_forking=is_forking)
    if kept is not None and not kept:
        kept.append(processes)
    is_failed = True
    try:
        yield Pool(executor=processes.executor, shared=shared, workers=workers)
        is_failed = False
    finally:
        if kept is None or is_failed:
            processes.end(is_failed=is_failed)
            if kept:
                kept.clear()


class _Processes:
    """Worker processes, from their start to their end."""

    def __init__(self, workers: int, shared: Shared, *, is_forking: bool) -> None:
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor
        from concurrent.futures.process import BrokenProcessPool

        fresh = "forkserver" if sys.platform == "linux" else "spawn"
        self.workers, self.is_forking = workers, is_forking
        self._others, self._threads = multiprocessing.active_children(), _num_threads()
        self.executor: ProcessPoolExecutor = ProcessPoolExecutor(
            workers,
            mp_context=multiprocessing.get_context("fork" if is_forking else fresh),
            initializer=_start_worker,
            initargs=(shared.values, [] if is_forking else registered(), shared.number),
        )
        with suppress(BrokenProcessPool), _without_main():
            self.executor.submit(os.getpid)

    @property
    def is_broken(self) -> bool:
        """A worker has died."""
        return bool(self.executor._broken)

    def end(self, *, is_failed: bool) -> None:
        import multiprocessing

        if is_failed:
            # A task under way may take minutes, and nobody wants what it gives.
            for process in multiprocessing.active_children():
                if process not in self._others:
                    process.terminate()
        self.executor.shutdown(wait=True, cancel_futures=True)
        _await_threads(self._threads)


@dataclass(frozen=True)
class Shared:
    """Objects that the tasks of a `started` block have in common, by name; workers know it by its number."""

    values: dict[str, Any]
    number: int = field(default_factory=lambda: next(_numbers))

    @cached_property
    def pickled(self) -> bytes:
        return pickle.dumps(self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Workers that have started."""

    executor: Executor | None
    """None: this process."""
    shared: Shared
    workers: int
    is_told: bool = False
    """Whoever runs tasks has what they share; else workers that lasted may have what others shared."""

    def run(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[tuple[Task, Result]]:
        """(task, what `function` gave) as each is done, in whatever order that is.

        `function` is a module's, and finds in `given(name)` what is shared. An exception of a task is raised here, its
        warnings are given here, and what it extrapolated is passed on here. Raises WorkerDied.
        """
        if self.executor is None:
            for task in tasks:
                with _having(self.shared.values):
                    result = function(task)
                yield task, result
            return
        from concurrent.futures import FIRST_COMPLETED, wait
        from concurrent.futures.process import BrokenProcessPool

        waiting = iter(tasks)
        under_way: dict[Future[Heard[Result] | None], Task] = {}
        while True:
            for task in islice(waiting, max(0, AHEAD * self.workers - len(under_way))):
                try:
                    under_way[self._submitted(function, task)] = task
                except BrokenProcessPool:
                    raise WorkerDied([*under_way.values(), task]) from None
            if not under_way:
                return
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                try:
                    heard = future.result()
                    if heard is None:
                        again = self._submitted(function, under_way[future], self.shared.pickled)
                        under_way[again] = under_way.pop(future)
                        continue
                except BrokenProcessPool:
                    raise WorkerDied(list(under_way.values())) from None
                for category, text in heard.warnings:
                    warnings.warn(text, category, stacklevel=2)
                pass_on(heard.extrapolation)
                yield under_way.pop(future), heard.result

    def _submitted(
        self, function: Callable[[Task], Result], task: Task, pickled: bytes | None = None
    ) -> Future[Heard[Result] | None]:
        assert self.executor is not None
        number = 0 if self.is_told else self.shared.number
        with _without_main():
            return self.executor.submit(_listen, function, task, number, pickled)


@dataclass(frozen=True, slots=True)
class Runner:
    """Number of processes that run the tasks of a question, and the callback that hears how far they are."""

    workers: int | None = None
    """None: as many as there are cores; 1: this process."""
    on_done: OnDone = lambda stage, done, total: None

    def run(
        self,
        function: Callable[[Task], Result],
        tasks: Sequence[Task],
        stage: str,
        uses: Collection[str],
        **shared: Any,
    ) -> list[Result]:
        """Results of `function`, a module's, for each of `tasks` [tasks], in their order; it finds what is `shared` by
        `given`. Raises as Pool.run does."""
        self.on_done(stage, 0, len(tasks))
        count = max(1, min(len(tasks), default_workers() if self.workers is None else self.workers))
        done: dict[int, Result] = {}
        with started(count, shared | {"function": function, "tasks": tasks}, uses=uses) as pool:
            for index, result in pool.run(_run_one, range(len(tasks))):
                done[index] = result
                self.on_done(stage, len(done), len(tasks))
        return [done[index] for index in range(len(tasks))]


def _run_one(index: int) -> Any:
    return given("function")(given("tasks")[index])


@dataclass(frozen=True, slots=True)
class Heard(Generic[Result]):
    """Result of a task in another process, and what it would have said there."""

    result: Result
    warnings: list[tuple[type[Warning], str]]
    extrapolation: Extrapolation


def _listen(function: Callable[[Task], Result], task: Task, number: int, pickled: bytes | None) -> Heard[Result] | None:
    """None where this worker has not got what the tasks of block `number` share, and it does not come along."""
    if number not in (0, _given_number):
        if pickled is None:
            return None
        prepare(pickle.loads(pickled), [], number)
    with warnings.catch_warnings(record=True) as heard, collecting() as extrapolation:
        warnings.simplefilter("default")
        result = function(task)
    said = dict.fromkeys((warning.category, str(warning.message)) for warning in heard)
    return Heard(result, list(said), extrapolation)


Call = Callable[[], object]


def registered() -> list[Call]:
    """The calls that make what is registered here known elsewhere, as far as it can be imported there."""
    homeless = {id(build) for _, build in _unimportable()}
    calls: list[Call] = [
        partial(registry.register, policy) for policy in registry.registered() if id(policy.build) not in homeless
    ]
    return calls + [
        partial(forms.register_acceptance, *entry) for entry in forms.registered() if id(entry[1]) not in homeless
    ]


def _unimportable() -> list[tuple[str, Build | forms.Build]]:
    """Registered policies and forms, by name, that are written in a script, a notebook or inside a function."""
    named: list[tuple[str, Build | forms.Build]] = [(policy.name, policy.build) for policy in registry.registered()]
    named += [(name, build) for name, build, _ in forms.registered()]
    return [(name, build) for name, build in named if not _can_be_imported(build)]


def _can_be_imported(build: Build | forms.Build) -> bool:
    module = sys.modules.get(build.__module__)
    is_there = getattr(module, build.__qualname__, None) is build
    return is_there and build.__module__ != "__main__" and getattr(module, "__file__", None) is not None


def _start_worker(shared: Mapping[str, Any], calls: list[Call], block: int) -> None:
    """Make this process a worker that ends with its parent, however that ends."""
    import multiprocessing

    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if number := getattr(signal, name, None):
            signal.signal(number, signal.SIG_DFL)
    prepare(shared, calls, block)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def prepare(shared: Mapping[str, Any], calls: list[Call], number: int = 0) -> None:
    """Have what is registered in this process, and what tasks of block `number` share."""
    global _given_number, _lasting
    for register in calls:
        register()
    _given.clear()
    _given.update(shared)
    # A copy of a process has no processes.
    _given_number, _lasting = number, None


def _end_with(sentinel: int) -> None:
    """A parent that was killed cannot tell its workers to stop."""
    from multiprocessing import connection

    connection.wait([sentinel])
    os._exit(1)


def _num_threads() -> int:
    """Threads of this process, those of libraries among them; a copy of it would have but one of them."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return threading.active_count() + 1


def _await_threads(num: int) -> None:
    """Wait until there are `num` threads again, or ENDING_S: one that has been joined is still listed for a moment, and
    the next workers would not be forked beside it."""
    until_s = time.monotonic() + ENDING_S
    while _num_threads() > num and time.monotonic() < until_s:
        time.sleep(1e-4)


@contextmanager
def _without_main() -> Iterator[None]:
    """Fresh processes would run the user's script again, which need not expect that."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def _having(shared: dict[str, Any]) -> Iterator[None]:
    """This process as the worker; what an outer one was given comes back."""
    before = dict(_given)
    _given.clear()
    _given.update(shared)
    try:
        yield
    finally:
        _given.clear()
        _given.update(before)
