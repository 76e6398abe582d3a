"""A sweep's jobs on the workers of a Ray cluster: the extra `ray`. Not here: processes of this machine
(sim.compare.pool).

Workers must be able to import lanesim and what registers further policies. Profiles go into the object store once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

from sim.compare.pool import Call, default_workers, prepare, registered
from sim.costs.profile import Profile
from sim.studies.store_rows import PROFILES

P = ParamSpec("P")
Result = TypeVar("Result")
_prepared: list[str] = []
"""Token of what this worker was prepared for last."""


class RayExecutor(Executor):
    """Hands calls to Ray tasks."""

    def __init__(self, ray: ModuleType, shared: Mapping[str, Any]) -> None:
        self._token = os.urandom(8).hex()
        self._shared = ray.put((dict(shared), registered()))
        self._call = ray.remote(num_cpus=1)(_call)

    def submit(self, function: Callable[P, Result], /, *args: P.args, **kwargs: P.kwargs) -> Future[Result]:
        future: Future[Result] = self._call.remote(
            self._token, self._shared, partial(function, *args, **kwargs)
        ).future()
        return future


def _call(token: str, shared: tuple[Mapping[str, Any], list[Call]], task: Callable[[], Result]) -> Result:
    if _prepared != [token]:
        prepare(*shared)
        _prepared[:] = [token]
    return task()


@contextmanager
def ray_workers(profiles: Mapping[str, Profile], workers: int | None = None) -> Iterator[tuple[Executor, int]]:
    """An executor over a Ray cluster, and how many calls it works off at once.

    The cluster that `RAY_ADDRESS` or this machine has, else one that is started here with `workers` CPUs and stopped
    in the end. Raises ValueError where ray is not installed or cannot be reached.
    """
    try:
        import ray
    except ImportError:
        raise ValueError("--pool ray needs the extra: pip install 'lanesim[ray]'") from None
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
        yield RayExecutor(ray, {PROFILES: dict(profiles)}), count
    finally:
        if is_ours:
            ray.shutdown()
