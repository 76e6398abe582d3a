"""Many tasks over several processes: fed as they are worked off, so that memory does not grow with their number.

Workers start once and are given once what many tasks share (`given`). They are forked where that is safe, which is
where this process has one thread. Elsewhere they start afresh and are told the policies and acceptances registered
here; one that was written in a script or notebook cannot be imported there, and then the tasks run in this process,
with a note. Not here: what a task is (sim.compare.points, sim.studies.rows).
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing import connection
from types import ModuleType
from typing import Any, Generic, TypeVar

from sim.acceptance import forms
from sim.costs.extrapolation import Extrapolation, collecting, pass_on
from sim.plugins import checked_count
from sim.policies import registry

Task = TypeVar("Task")
Result = TypeVar("Result")
AHEAD = 3
"""Tasks per worker that are handed over before they are needed, so that no worker waits."""
ENDING_S = 0.5
"""For the threads of a pool to be gone, which takes far less."""

_given: dict[str, Any] = {}
"""What the tasks of this process share, by name."""


class WorkerDied(RuntimeError):
    """A worker process ended in the middle of a task: killed, or out of memory. `tasks` were under way or waiting."""

    def __init__(self, tasks: list[Any]) -> None:
        super().__init__(tasks)
        self.tasks = tasks

    def __str__(self) -> str:
        return "a worker process was killed, perhaps for lack of memory; fewer --workers need less"


def given(name: str) -> Any:
    """What the workers were given under `name`, wherever this task runs."""
    return _given[name]


def default_workers() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def started(
    workers: int,
    given: Mapping[str, Any] | None = None,
    *,
    uses: Collection[str] = (),
    executor: Executor | None = None,
    is_apart: bool = False,
) -> Iterator[Pool]:
    """Workers that are there when the block begins and gone when it ends, and that find what is `given` by its name.

    `uses` names the policies and acceptances that tasks will ask for. One worker is this process, unless it is to be
    `is_apart`. An `executor` stands in for the processes; it has been told itself what is given. On an exception or
    interrupt, tasks that have not begun are dropped, and those under way ended with their processes.
    """
    checked_count("workers", workers, 1)
    shared = dict(given or {})
    is_forking = sys.platform == "linux" and _num_threads() == 1
    homeless = None if is_forking else next((name for name, _ in _unimportable() if name in uses), None)
    if executor is None and workers > 1 and homeless is not None:
        warnings.warn(
            f"in one process: {homeless} is written in a script, where other processes do not find it", stacklevel=3
        )
        workers = 1
    if executor is not None or (workers <= 1 and not is_apart):
        yield Pool(executor=executor, shared=shared, workers=workers)
        return
    others, threads = multiprocessing.active_children(), _num_threads()
    pool = _processes(workers, shared, is_forking=is_forking)
    try:
        with suppress(BrokenProcessPool), _without_main():
            pool.submit(os.getpid)
        yield Pool(executor=pool, shared=shared, workers=workers)
    except BaseException:
        # A task under way may take minutes, and nobody wants what it gives.
        for process in multiprocessing.active_children():
            if process not in others:
                process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        _await_threads(threads)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Workers that have started."""

    executor: Executor | None
    """None: this process."""
    shared: dict[str, Any]
    workers: int

    def run(
        self, function: Callable[[Task], Result], tasks: Iterable[Task], *, ahead: int = AHEAD
    ) -> Iterator[tuple[Task, Result]]:
        """(task, what `function` gave) as each is done, in whatever order that is; `ahead` tasks per worker are handed
        over before they are needed.

        `function` is a module's, and finds in `given(name)` what is shared. An exception of a task is raised here, its
        warnings are given here, and what it extrapolated is passed on here. Raises WorkerDied.
        """
        if self.executor is None:
            for task in tasks:
                with _having(self.shared):
                    result = function(task)
                yield task, result
            return
        waiting = iter(tasks)
        under_way: dict[Future[Heard[Result]], Task] = {}
        while True:
            for task in islice(waiting, max(0, ahead * self.workers - len(under_way))):
                try:
                    with _without_main():
                        under_way[self.executor.submit(_listen, function, task)] = task
                except BrokenProcessPool:
                    raise WorkerDied([*under_way.values(), task]) from None
            if not under_way:
                return
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                try:
                    heard = future.result()
                except BrokenProcessPool:
                    raise WorkerDied(list(under_way.values())) from None
                for category, text in heard.warnings:
                    warnings.warn(text, category, stacklevel=2)
                pass_on(heard.extrapolation)
                yield under_way.pop(future), heard.result


@dataclass(frozen=True, slots=True)
class Heard(Generic[Result]):
    """What a task gave in another process, and what it would have said there."""

    result: Result
    warnings: list[tuple[type[Warning], str]]
    extrapolation: Extrapolation


def _listen(function: Callable[[Task], Result], task: Task) -> Heard[Result]:
    with warnings.catch_warnings(record=True) as heard, collecting() as extrapolation:
        warnings.simplefilter("default")
        result = function(task)
    said = dict.fromkeys((warning.category, str(warning.message)) for warning in heard)
    return Heard(result, list(said), extrapolation)


def _processes(workers: int, shared: Mapping[str, Any], *, is_forking: bool) -> ProcessPoolExecutor:
    fresh = "forkserver" if sys.platform == "linux" else "spawn"
    return ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("fork" if is_forking else fresh),
        initializer=_start_worker,
        initargs=(shared, [] if is_forking else registered()),
    )


Call = tuple[Callable[..., Any], tuple[Any, ...]]


def registered() -> list[Call]:
    """The calls that make what is registered here known elsewhere, as far as it can be imported there."""
    homeless = {id(build) for _, build in _unimportable()}
    calls: list[Call] = [
        (registry.register, (policy,)) for policy in registry.registered() if id(policy.build) not in homeless
    ]
    return calls + [(forms.register_acceptance, entry) for entry in forms.registered() if id(entry[1]) not in homeless]


def _unimportable() -> list[tuple[str, Callable[..., Any]]]:
    """What is registered here, by name, and written in a script, a notebook or inside a function."""
    named: list[tuple[str, Callable[..., Any]]] = [(policy.name, policy.build) for policy in registry.registered()]
    named += [(name, build) for name, build, _ in forms.registered()]
    return [(name, build) for name, build in named if not _can_be_imported(build)]


def _can_be_imported(build: Callable[..., Any]) -> bool:
    module = sys.modules.get(build.__module__)
    is_there = getattr(module, build.__qualname__, None) is build
    return is_there and build.__module__ != "__main__" and getattr(module, "__file__", None) is not None


def _start_worker(shared: Mapping[str, Any], calls: list[Call]) -> None:
    """Make this process a worker that ends with its parent, however that ends."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if number := getattr(signal, name, None):
            signal.signal(number, signal.SIG_DFL)
    prepare(shared, calls)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def prepare(shared: Mapping[str, Any], calls: list[Call]) -> None:
    """Have what is shared and registered in this process, once and for all."""
    for register, arguments in calls:
        register(*arguments)
    _given.clear()
    _given.update(shared)


def _end_with(sentinel: int) -> None:
    """A parent that was killed cannot tell its workers to stop."""
    connection.wait([sentinel])
    os._exit(1)


def _num_threads() -> int:
    """Threads of this process, those of libraries among them; a copy of it would have but one of them."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return threading.active_count() + 1


def _await_threads(num: int) -> None:
    """Until there are `num` threads again, or ENDING_S: one that has been joined is still listed for a moment, and the
    next workers would not be forked beside it."""
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
    """This process as its own worker; what an outer one was given comes back."""
    before = dict(_given)
    _given.clear()
    _given.update(shared)
    try:
        yield
    finally:
        _given.clear()
        _given.update(before)
