"""A sweep's jobs on the workers of a Ray cluster: the extra `ray`. Not here: processes of this machine
(sim.compare.pool).

Workers must be able to import lanesim and what registers further policies.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import ParamSpec, TypeVar

from sim.compare.pool import Call, default_workers, registered
from sim.names import install_line

P = ParamSpec("P")
Result = TypeVar("Result")


class RayExecutor(Executor):
    def __init__(self, ray: ModuleType) -> None:
        self._registered = ray.put((os.urandom(8), registered()))
        self._call = ray.remote(num_cpus=1)(_call)

    def submit(self, function: Callable[P, Result], /, *args: P.args, **kwargs: P.kwargs) -> Future[Result]:
        future: Future[Result] = self._call.remote(self._registered, partial(function, *args, **kwargs)).future()
        return future


_known: set[bytes] = set()
"""Tokens of executors whose policies and acceptances this worker has."""


def _call(calls: tuple[bytes, list[Call]], task: Callable[[], Result]) -> Result:
    token, registering = calls
    if token not in _known:
        for register in registering:
            register()
        _known.add(token)
    return task()


@contextmanager
def ray_workers(workers: int | None = None) -> Iterator[tuple[Executor, int]]:
    """An executor over a Ray cluster, and how many calls it works off at once.

    The cluster that `RAY_ADDRESS` or this machine has, else one that is started here with `workers` CPUs and stopped
    in the end. Raises ValueError where ray is not installed or cannot be reached.
    """
    try:
        import ray
    except ImportError:
        raise ValueError(f"--pool ray needs ray: {install_line('ray')}") from None
    is_ours = not ray.is_initialized()
    if is_ours:
        try:
            try:
                ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
            except ConnectionError:
                if os.environ.get("RAY_ADDRESS"):
                    raise
                ray.init(
                    num_cpus=workers or default_workers(),
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level="ERROR",
                )
        except (ConnectionError, RuntimeError, OSError) as error:
            raise ValueError(f"--pool ray: no cluster can be reached: {error}") from None
    try:
        count = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        yield RayExecutor(ray), count
    finally:
        if is_ours:
            ray.shutdown()
