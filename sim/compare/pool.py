"""Many tasks over several processes: fed as they are worked off, so that memory does not grow with their number.

Workers last as long as the outermost `lasting` block. They are forked where that is safe, which is where this process
has one thread. Elsewhere they start afresh and are told the policies and acceptances registered here; one that was
written in a script or notebook cannot be imported there, and then the tasks run in this process, with a note. Not here:
what a task is (sim.compare.point_runs, sim.studies.sweeps.store_rows).

What only processes need is imported where they start: it takes longer than a small run does.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sim.acceptance import forms
from sim.costs.extrapolation import Extrapolation, collecting, pass_on
from sim.plugins import checked_count
from sim.policies import registry
from sim.policies.policy import Build
from sim.run import compiled

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

Task = TypeVar("Task")
Result = TypeVar("Result")
AHEAD = 3
"""Tasks per worker that are handed over before they are needed, so that no worker waits."""
OnDone = Callable[[str, int, int], None]
"""(what is being done, how many of it are done, how many there are)."""
ENDING_S = 0.5
"""Time for the threads of a pool to be gone, which takes far less."""

_lasting: list[Pool] | None = None
"""The pool of the outermost `lasting` block, one at most; None outside."""


class WorkerDied(RuntimeError):
    """A worker process ended in the middle of a task: killed, or out of memory. `tasks` were under way or waiting."""

    def __init__(self, tasks: list[Any]) -> None:
        super().__init__(tasks)
        self.tasks = tasks

    def __str__(self) -> str:
        return "a worker process was killed, perhaps for lack of memory; fewer --workers need less"


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
    kept: list[Pool] = []
    is_failed = True
    _lasting = kept
    try:
        yield
        is_failed = False
    finally:
        _lasting = None
        for pool in kept:
            pool.end(is_failed=is_failed)


@contextmanager
def started(
    workers: int, *, uses: Collection[str] = (), executor: Executor | None = None, is_apart: bool = False
) -> Iterator[Pool]:
    """Workers that are there when the block begins and gone when it ends, if it is not within a `lasting` one.

    `uses` names the policies and acceptances that tasks will ask for. One worker is this process, unless it is to be
    `is_apart`, of processes that nobody shares. An `executor` stands in for the processes. On an exception or
    interrupt, tasks that have not begun are dropped, and those under way ended with their processes.
    """
    checked_count("workers", workers, 1)
    if executor is not None or (workers <= 1 and not is_apart):
        yield Pool(executor, workers)
        return
    kept = None if is_apart else _lasting
    if kept and (getattr(kept[0].executor, "_broken", False) or kept[0].workers < workers):
        kept.pop().end(is_failed=False)
    is_fresh = kept[0].is_fresh if kept else sys.platform != "linux" or _num_threads() > 1
    homeless = next((name for name, _ in _unimportable(is_forking=not is_fresh) if name in uses), None)
    if workers > 1 and homeless is not None:
        warnings.warn(
            f"in one process: {homeless} is written in a script, where other processes do not find it", stacklevel=3
        )
        yield Pool(None, 1)
        return
    pool = kept[0] if kept else _new_pool(workers, is_fresh=is_fresh)
    if kept is not None and not kept:
        kept.append(pool)
    is_failed = True
    try:
        yield pool
        is_failed = False
    finally:
        if kept is None or is_failed:
            pool.end(is_failed=is_failed)
            if kept:
                kept.clear()


def _new_pool(workers: int, *, is_fresh: bool) -> Pool:
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    others, num_threads = multiprocessing.active_children(), _num_threads()
    executor = ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context(
            "fork" if not is_fresh else "forkserver" if sys.platform == "linux" else "spawn"
        ),
        initializer=_start_worker,
        initargs=(registered() if is_fresh else [],),
    )
    with suppress(BrokenProcessPool), _without_main():
        executor.submit(os.getpid)
    return Pool(executor, workers, is_fresh, others, num_threads)


@dataclass(frozen=True, slots=True)
class Pool:
    """Workers that have started."""

    executor: Executor | None
    """None: this process."""
    workers: int
    is_fresh: bool = False
    """Its processes begin as tasks come, and afresh."""
    others: Sequence[object] = ()
    num_threads: int = 0
    """Processes and threads that were there before it."""

    def run(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[tuple[int, Result]]:
        """(place of a task, what `function` gave) as each is done, in whatever order that is.

        `function` is a module's, or a partial of one. An exception of a task is raised here, its warnings are given
        here, and what it extrapolated is passed on here. Raises WorkerDied.
        """
        if self.executor is None:
            yield from enumerate(map(function, tasks))
            return
        from concurrent.futures import FIRST_COMPLETED, wait
        from concurrent.futures.process import BrokenProcessPool

        waiting = enumerate(tasks)
        under_way: dict[Future[Heard[Result]], tuple[int, Task]] = {}
        while True:
            for place, task in islice(waiting, max(0, AHEAD * self.workers - len(under_way))):
                try:
                    with _without_main() if self.is_fresh else nullcontext():
                        under_way[self.executor.submit(_listen, function, task)] = place, task
                except BrokenProcessPool:
                    raise WorkerDied([*(one for _, one in under_way.values()), task]) from None
            if not under_way:
                return
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                try:
                    heard = future.result()
                except BrokenProcessPool:
                    raise WorkerDied([one for _, one in under_way.values()]) from None
                for category, text in heard.warnings:
                    warnings.warn(text, category, stacklevel=2)
                pass_on(heard.extrapolation)
                compiled.told.update(heard.told)
                compiled.told_ns.update(heard.told_ns)
                yield under_way.pop(future)[0], heard.result

    def end(self, *, is_failed: bool) -> None:
        import multiprocessing

        assert self.executor is not None
        for process in multiprocessing.active_children() if is_failed else ():
            # A task under way may take minutes, and nobody wants what it gives.
            if process not in self.others:
                process.terminate()
        self.executor.shutdown(wait=True, cancel_futures=True)
        # A thread that has been joined is still listed for a moment: the next workers would not be forked beside it.
        until_s = time.monotonic() + ENDING_S
        while _num_threads() > self.num_threads and time.monotonic() < until_s:
            time.sleep(1e-4)


@dataclass(frozen=True, slots=True)
class Runner:
    """Number of processes that run the tasks of a question, and the callback that hears how far they are."""

    workers: int | None = None
    """None: as many as there are cores; 1: this process."""
    on_done: OnDone = lambda stage, done, total: None

    def run(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], stage: str, uses: Collection[str]
    ) -> list[Result]:
        """Results of `function` for each of `tasks` [tasks], in their order. Raises as Pool.run does."""
        self.on_done(stage, 0, len(tasks))
        count = max(1, min(len(tasks), default_workers() if self.workers is None else self.workers))
        done: dict[int, Result] = {}
        with started(count, uses=uses) as pool:
            for place, result in pool.run(function, tasks):
                done[place] = result
                self.on_done(stage, len(done), len(tasks))
        return [done[place] for place in range(len(tasks))]


@dataclass(frozen=True, slots=True)
class Heard(Generic[Result]):
    """Result of a task in another process, and what it would have said there."""

    result: Result
    warnings: list[tuple[type[Warning], str]]
    extrapolation: Extrapolation
    told: Counter[str]
    told_ns: Counter[str]


def _listen(function: Callable[[Task], Result], task: Task) -> Heard[Result]:
    compiled.told.clear()
    compiled.told_ns.clear()
    with warnings.catch_warnings(record=True) as heard, collecting() as extrapolation:
        warnings.simplefilter("default")
        result = function(task)
    said = dict.fromkeys((warning.category, str(warning.message)) for warning in heard)
    return Heard(result, list(said), extrapolation, compiled.told.copy(), compiled.told_ns.copy())


Call = Callable[[], object]


def registered() -> list[Call]:
    """The calls that make what is registered here known elsewhere, as far as it can be imported there."""
    homeless = {id(build) for _, build in _unimportable(is_forking=False)}
    calls: list[tuple[Callable[..., object], tuple[Any, ...], object]]
    calls = [(registry.register, (policy,), policy.build) for policy in registry.registered()]
    calls += [(forms.register_acceptance, entry, entry[1]) for entry in forms.registered()]
    return [partial(register, *entry) for register, entry, build in calls if id(build) not in homeless]


def _unimportable(*, is_forking: bool) -> list[tuple[str, Build | forms.Build]]:
    """Registered policies and forms, by name, that are written in a script, a notebook or inside a function; a copy of
    this process knows scripts, and policies by their names."""
    named: list[tuple[str, Build | forms.Build]] = [(name, build) for name, build, _ in forms.registered()]
    if not is_forking:
        named += [(policy.name, policy.build) for policy in registry.registered()]

    def is_there(build: Build | forms.Build) -> bool:
        module = sys.modules.get(build.__module__)
        is_script = build.__module__ == "__main__" or getattr(module, "__file__", None) is None
        return getattr(module, build.__qualname__, None) is build and (is_forking or not is_script)

    return [(name, build) for name, build in named if not is_there(build)]


def _start_worker(calls: list[Call]) -> None:
    """Make this process a worker that ends with its parent, however that ends, and have what is registered there."""
    global _lasting
    import multiprocessing

    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if number := getattr(signal, name, None):
            signal.signal(number, signal.SIG_DFL)
    for register in calls:
        register()
    # A copy of a process has no processes.
    _lasting = None
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


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


@contextmanager
def _without_main() -> Iterator[None]:
    """Fresh processes would run the user's script again, which need not expect that."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
