"""Many tasks over several processes: fed as they are worked off, so that memory does not grow with their number.

Workers start once and are given once what many tasks share (`given`). They are forked where that is safe, which is
where this process has one thread. Elsewhere they start afresh and are told the policies and acceptances registered
here; one that was written in a script or notebook cannot be imported there, and then the tasks run in this process,
with a note. Not here: what a task is (sim.experiment.points, sim.studies.rows).
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection
from types import ModuleType
from typing import Any, TypeVar

from sim.acceptance import forms
from sim.policies import registry

Task = TypeVar("Task")
Result = TypeVar("Result")
AHEAD = 3
"""Tasks per worker that are handed over before they are needed, so that no worker waits."""

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
    """What `run_tasks` was given under `name`, wherever this task runs."""
    return _given[name]


def default_workers() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_tasks(
    function: Callable[[Task], Result],
    tasks: Iterable[Task],
    *,
    workers: int,
    given: Mapping[str, Any] | None = None,
    executor: Executor | None = None,
) -> Iterator[tuple[Task, Result]]:
    """(task, what `function` gave) as each is done, in whatever order that is; 1 worker stays in this process.

    `function` is a module's, and finds in `given(name)` what is shared. `executor` stands in for the process pool; it
    has been told what is given. An exception of a task is raised here, and the tasks that have not begun are dropped
    then, as they are on an interrupt. Raises WorkerDied.
    """
    shared = dict(given or {})
    if executor is not None:
        yield from _fed(executor, function, tasks, workers)
        return
    is_forking = sys.platform == "linux" and _num_threads() == 1
    if workers > 1 and not is_forking and (homeless := _written_in_a_script()):
        warnings.warn(
            f"{homeless} is written in a script, where other processes do not find it: one process", stacklevel=2
        )
        workers = 1
    if workers <= 1:
        for task in tasks:
            with _having(shared):
                result = function(task)
            yield task, result
        return
    pool = _start(workers, shared, is_forking=is_forking)
    try:
        yield from _fed(pool, function, tasks, workers)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _fed(
    executor: Executor, function: Callable[[Task], Result], tasks: Iterable[Task], workers: int
) -> Iterator[tuple[Task, Result]]:
    """Results as they come, with no more than AHEAD tasks per worker handed over."""
    waiting = iter(tasks)
    under_way: dict[Future[Result], Task] = {}
    try:
        while True:
            for task in waiting:
                try:
                    with _without_main():
                        under_way[executor.submit(function, task)] = task
                except BrokenProcessPool:
                    raise WorkerDied([*under_way.values(), task]) from None
                if len(under_way) >= AHEAD * workers:
                    break
            if not under_way:
                return
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                result = future.result()
                yield under_way.pop(future), result
    except BrokenProcessPool:
        raise WorkerDied(list(under_way.values())) from None


def _start(workers: int, shared: Mapping[str, Any], *, is_forking: bool) -> ProcessPoolExecutor:
    fresh = "forkserver" if sys.platform == "linux" else "spawn"
    return ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("fork" if is_forking else fresh),
        initializer=_start_worker,
        initargs=(shared, [] if is_forking else registered()),
    )


Registered = list[tuple[Callable[..., Any], tuple[Any, ...]]]


def registered() -> Registered:
    """The calls that make policies and acceptances registered here known elsewhere."""
    calls: Registered = [(registry.register, (policy,)) for policy in registry.registered()]
    return calls + [(forms.register_acceptance, entry) for entry in forms.registered()]


def _start_worker(shared: Mapping[str, Any], calls: Registered) -> None:
    """Make this process a worker that ends with its parent, however that ends."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    prepare(shared, calls)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def prepare(shared: Mapping[str, Any], calls: Registered) -> None:
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


def _written_in_a_script() -> str | None:
    """A registered name that a fresh process could not import."""
    for _, arguments in registered():
        name, build = (arguments[0], arguments[1]) if len(arguments) > 1 else (arguments[0].name, arguments[0].build)
        if build.__module__ == "__main__" or "<" in build.__qualname__:
            return str(name)
    return None


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
