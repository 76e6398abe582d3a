"""Many tasks over several processes: fed as they are worked off, so that memory does not grow with their number.

Workers last as long as the outermost `lasting` block. They are forked where this process has one thread, since that is
safe. Elsewhere they start afresh, and the policies and acceptances registered here are registered there. What a script
or a notebook defines cannot be imported there. Then the tasks run in this process, with a note. What only processes
need is imported where they start, since it takes longer than a small run does.
Not here: what a task is (sim.compare.point_runs, sim.studies.sweeps.store_rows).
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
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from sim.acceptance import forms
from sim.costs.extrapolation import Extrapolation, collecting, pass_on
from sim.plugins import checked_count
from sim.policies import registry
from sim.policies.policy import Build
from sim.run import compiled

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future
    from multiprocessing.process import BaseProcess

Task = TypeVar("Task")
Result = TypeVar("Result")
AHEAD = 3
"""Tasks per worker that are handed over before they are needed, so that no worker waits."""
OnDone = Callable[[str, int, int], None]
"""(what is being done, how many of it are done, how many there are)."""
ENDING_S = 0.5


class WorkerDied(RuntimeError):
    """A worker process ended in the middle of a task: killed, or out of memory. `tasks` were under way or waiting."""

    def __init__(self, tasks: list[Any]) -> None:
        super().__init__(tasks)
        self.tasks = tasks

    def __str__(self) -> str:
        return "a worker process was killed, perhaps for lack of memory. Fewer --workers need less"


def default_workers() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_lasting: list[Pool] | None = None
"""The pool of the outermost `lasting` block, if one was needed; None outside."""


@contextmanager
def lasting() -> Iterator[None]:
    """All that is `started` within the block shares the processes that the first needed, which end with the block."""
    global _lasting
    if _lasting is not None:
        yield
        return
    _lasting = []
    try:
        with _ending(_lasting):
            yield
    finally:
        _lasting = None


@contextmanager
def _ending(pools: list[Pool], *, is_kept: bool = False) -> Iterator[None]:
    """End `pools` with the block, those that are kept only on an exception."""
    is_failed = True
    try:
        yield
        is_failed = False
    finally:
        while pools and (is_failed or not is_kept):
            pools.pop().end(is_failed=is_failed)


@contextmanager
def started(
    workers: int, *, uses: Collection[str] = (), executor: Executor | None = None, is_apart: bool = False
) -> Iterator[Pool]:
    """Workers that are there when the block begins and gone when it ends, if it is not within a `lasting` one.

    `uses` names the policies and acceptances that tasks will ask for. One worker is this process, unless it is to be
    `is_apart`, of processes that nobody shares. An `executor` stands in for the processes. On an exception tasks that
    have not begun are dropped, and those under way ended with their processes.
    """
    checked_count("workers", workers, 1)
    if executor is not None or (workers <= 1 and not is_apart):
        yield Pool(executor, workers)
        return
    pools = [] if is_apart or _lasting is None else _lasting
    if pools and (getattr(pools[0].executor, "_broken", False) or pools[0].workers < workers):
        pools.pop().end(is_failed=False)
    is_fresh = pools[0].is_fresh if pools else sys.platform != "linux" or _num_threads() > 1
    homeless = [each.name for each in _registered() if each.name in uses and not each.is_there(is_fresh=is_fresh)]
    if workers > 1 and homeless:
        warnings.warn(
            f"in one process: {homeless[0]} is written in a script, where other processes do not find it", stacklevel=3
        )
        yield Pool(None, 1)
        return
    if not pools:
        pools.append(Pool.of(workers, is_fresh=is_fresh))
    with _ending(pools, is_kept=pools is _lasting):
        yield pools[0]


@dataclass(frozen=True, slots=True)
class Pool:
    executor: Executor | None
    """None: this process."""
    workers: int
    is_fresh: bool = False
    """Its processes begin as tasks come, and afresh."""
    num_threads: int = 0

    @classmethod
    def of(cls, workers: int, *, is_fresh: bool) -> Pool:
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor
        from concurrent.futures.process import BrokenProcessPool

        num_threads = _num_threads()
        method = "fork" if not is_fresh else "forkserver" if sys.platform == "linux" else "spawn"
        context, calls = multiprocessing.get_context(method), registered() if is_fresh else []
        executor = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=(calls,))
        with suppress(BrokenProcessPool), _without_main():
            executor.submit(os.getpid)
        return cls(executor, workers, is_fresh, num_threads)

    def run(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[tuple[int, Result]]:
        """(place of a task, what `function` gave) as each is done. An exception of a task is raised here, its warnings
        are given here, and what it extrapolated is passed on here. Raises WorkerDied."""
        if self.executor is None:
            yield from enumerate(map(function, tasks))
            return
        from concurrent.futures import FIRST_COMPLETED, wait
        from concurrent.futures.process import BrokenProcessPool

        waiting, asked = enumerate(tasks), dict[int, Task]()
        under_way: dict[Future[Any], int] = {}
        try:
            while True:
                for place, task in islice(waiting, max(0, AHEAD * self.workers - len(under_way))):
                    asked[place] = task
                    with _without_main() if self.is_fresh else nullcontext():
                        under_way[self.executor.submit(_listen, function, task)] = place
                if not under_way:
                    return
                for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                    result, said, extrapolation, told, told_ns = future.result()
                    for category, text in said:
                        warnings.warn(text, category, stacklevel=2)
                    pass_on(extrapolation)
                    compiled.told.update(told)
                    compiled.told_ns.update(told_ns)
                    place = under_way.pop(future)
                    del asked[place]
                    yield place, result
        except BrokenProcessPool:
            raise WorkerDied([*asked.values()]) from None

    def end(self, *, is_failed: bool) -> None:
        assert self.executor is not None
        # A task under way may take minutes, and nobody wants what it gives.
        for process in list((getattr(self.executor, "_processes", None) or {}).values()) if is_failed else ():
            process.terminate()
        self.executor.shutdown(wait=True, cancel_futures=True)
        # A thread that has been joined is still listed for a moment: the next workers would not be forked beside it.
        until_s = time.monotonic() + ENDING_S
        while _num_threads() > self.num_threads and time.monotonic() < until_s:
            time.sleep(1e-4)


@dataclass(frozen=True, slots=True)
class Runner:
    """How many processes run the tasks of a question, and who hears how far they are."""

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


def _listen(
    function: Callable[[Task], Result], task: Task
) -> tuple[Result, list[tuple[type[Warning], str]], Extrapolation, Counter[str], Counter[str]]:
    """In another process: the result of a task, its warnings, what it extrapolated, and who served its runs."""
    compiled.told.clear()
    compiled.told_ns.clear()
    with warnings.catch_warnings(record=True) as heard, collecting() as extrapolation:
        warnings.simplefilter("default")
        result = function(task)
    said = dict.fromkeys((warning.category, str(warning.message)) for warning in heard)
    return result, list(said), extrapolation, compiled.told.copy(), compiled.told_ns.copy()


Call = Callable[[], object]


class _Registered(NamedTuple):
    """A policy or a form of acceptance, and the call that makes it known elsewhere."""

    name: str
    build: Build | forms.Build
    register: Call
    is_policy: bool = False

    def is_there(self, *, is_fresh: bool) -> bool:
        """Another process finds it: not what is written inside a function, in a script or a notebook. A copy of this
        process knows scripts, and policies by their names."""
        module = sys.modules.get(self.build.__module__)
        is_script = self.build.__module__ == "__main__" or getattr(module, "__file__", None) is None
        is_found = getattr(module, self.build.__qualname__, None) is self.build
        return is_found and not is_script if is_fresh else is_found or self.is_policy


def _registered() -> list[_Registered]:
    known = [_Registered(form[0], form[1], partial(forms.register_acceptance, *form)) for form in forms.registered()]
    policies = registry.registered()
    return known + [_Registered(each.name, each.build, partial(registry.register, each), True) for each in policies]


def registered() -> list[Call]:
    """The calls that make what is registered here known elsewhere, as far as it can be imported there."""
    return [each.register for each in _registered() if each.is_there(is_fresh=True)]


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
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    """A parent that was killed cannot tell its workers to stop."""
    parent.join()
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
