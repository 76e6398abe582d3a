"""Jobs on threads of their own that begin together. Not here: what they time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Barrier, BrokenBarrierError, Thread

NAME = "at once"
"""The beginning of the names of these threads."""


def at_once(jobs: Sequence[Callable[[Barrier], None]]) -> None:
    """Run all `jobs`; each waits at the barrier when it is ready. Raises what the first failing job raised."""
    barrier = Barrier(len(jobs))
    errors: list[BaseException] = []

    def guarded(job: Callable[[Barrier], None]) -> None:
        try:
            job(barrier)
        except BrokenBarrierError:
            return
        except BaseException as error:
            errors.append(error)
            # The others would wait for this one for ever.
            barrier.abort()

    threads = [Thread(target=guarded, args=(job,), name=f"{NAME} {number}") for number, job in enumerate(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    if barrier.broken:
        raise RuntimeError("threads that were to begin together did not; the machine is too busy")
