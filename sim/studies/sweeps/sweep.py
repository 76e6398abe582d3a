"""A grid run into a store: what is missing, over several processes, kept as it comes.

A sweep that is killed loses the runs under way, and finished ones of 1,000 requests or 2 s at most. Run again, it does
what is missing. Memory does not grow with the number of points. Not here: what a grid is (grid), what a row says
(store_rows), processes (sim.compare.pool).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import chain, islice
from math import inf

import msgspec

from sim.compare.pool import OnDone, Pool, WorkerDied, default_workers, started
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.policies.registry import POLICIES, find_policy
from sim.run.resolve import with_keys
from sim.studies.sweeps.grid import Grid
from sim.studies.sweeps.store import Store
from sim.studies.sweeps.store_rows import PointJob, Row, failed_row, policy_hash, profile_hash, row_key, run_jobs

MAX_RUNS = 1_000_000
"""Most runs of one grid: about ten hours on two cores."""
KEPT_EVERY_S, KEPT_ROWS, KEPT_REQUESTS = 2.0, 500, 1_000
"""Rows are written when they are this old, or so many, or of so many requests, which take ten times the writing."""
MAX_TOGETHER, LONG_RUN = 20_000, 2_000
"""Requests that one worker is given at once, a few seconds' work; a run of unsettled length counts as the second."""
FIRST_TOGETHER = 100
"""Requests of the first batch, each next one twice as large, so that the first rows are kept soon."""
FIRST_SORTED = 1_000
"""Jobs at the beginning of which the shortest go first."""
DIED = "its worker process died: killed, or out of memory"


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    num_runs: int
    num_known: int
    """Runs that the store had before."""
    num_failed: int
    """Among those that were run now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """A grid with its profiles loaded, ready to be told what is missing."""

    grid: Grid
    profiles: dict[str, Profile]
    hashes: dict[str, str]

    @classmethod
    def of(cls, grid: Grid) -> SweepPlan:
        """Raises ValueError for a profile or a policy that is not there."""
        for name in grid.values_of("policy"):
            find_policy(name)
        loaded = {name: load(name) for name in grid.values_of("profile")}
        return cls(grid=grid, profiles=loaded, hashes={name: profile_hash(loaded[name]) for name in loaded})

    def jobs(self, known: AbstractSet[str]) -> Iterator[PointJob]:
        for scenario in self.grid.scenarios():
            profile_hash = self.hashes[scenario.profile]
            missing = tuple(
                r for r in range(scenario.replications) if not known or row_key(scenario, r, profile_hash) not in known
            )
            if missing:
                profile = self.profiles[scenario.profile]
                yield PointJob(scenario=scenario, profile=profile, profile_hash=profile_hash, replications=missing)

    @property
    def uses(self) -> list[str]:
        policies = self.grid.values_of("policy")
        return policies + [value.partition(":")[0] for value in self.grid.values_of("speculation.acceptance")]

    @property
    def inputs(self) -> list[str]:
        """Inputs that runs of the grid may read: profiles, engines, traces and tapes, by name or path."""
        keys = ("profile", "engine.name", "workload.dataset_path", "speculation.acceptance")
        named = [value.removeprefix("tape:") for key in keys for value in self.grid.values_of(key)]
        return [each for name in named for each in (name, name.rpartition("#")[0]) if each]

    def keys(self) -> set[str]:
        return {
            row_key(scenario, replication, self.hashes[scenario.profile])
            for scenario in self.grid.scenarios()
            for replication in range(scenario.replications)
        }

    def num_missing(self, known: AbstractSet[str]) -> int:
        return sum(len(job.replications) for job in self.jobs(known)) if known else self.grid.num_runs


def sweep(
    plan: SweepPlan,
    store: Store,
    *,
    workers: int | None = None,
    executor: Executor | None = None,
    on_done: OnDone = lambda stage, done, total: None,
) -> Swept:
    """Run what `store` does not have of a grid, or what failed. Raises ValueError where rows cannot be written."""
    _check_sources(plan.grid)
    store.begin(plan.grid.source, plan.grid.keys)
    num_runs = plan.grid.num_runs
    failed = done = 0
    waiting: list[Row] = []
    written_s = -inf
    count = default_workers() if workers is None else workers
    with started(count, uses=plan.uses, executor=executor) as pool:
        known = store.keys()
        missing = plan.num_missing(known)
        on_done("simulating", 0, missing)
        try:
            for rows in rows_of(plan, short_first(plan.jobs(known)), pool):
                waiting += rows
                done += len(rows)
                failed += sum(row["error"] is not None for row in rows)
                on_done("simulating", done, missing)
                requests = sum(int(row.get("completed") or 0) for row in waiting)
                is_much = len(waiting) >= KEPT_ROWS or requests >= KEPT_REQUESTS
                if is_much or time.monotonic() - written_s > KEPT_EVERY_S:
                    store.add(waiting)
                    waiting, written_s = [], time.monotonic()
        finally:
            store.add(waiting)
    return Swept(num_runs=num_runs, num_known=num_runs - missing, num_failed=failed)


def rows_of(plan: SweepPlan, jobs: Iterable[PointJob], pool: Pool) -> Iterator[list[Row]]:
    """The rows of each job as it is done; a job that kills its worker gives rows that say so."""
    waiting = together(jobs)
    try:
        for _, rows in pool.run(run_jobs, waiting):
            yield from rows
    except WorkerDied as death:
        for job in chain.from_iterable(death.tasks):
            yield from _alone(job)
        with started(pool.workers, uses=plan.uses) as fresh:
            yield from rows_of(plan, chain.from_iterable(waiting), fresh)


def short_first(jobs: Iterable[PointJob]) -> Iterator[PointJob]:
    """`jobs`, the shortest of the first ones in front: something is kept of a sweep that is killed early."""
    waiting = iter(jobs)
    yield from sorted(islice(waiting, FIRST_SORTED), key=_requests)
    yield from waiting


def together(jobs: Iterable[PointJob]) -> Iterator[tuple[PointJob, ...]]:
    """Jobs that follow each other and differ in rate and seed alone, for one worker: they share the measured capacity,
    which costs more than a short run. Long ones and the first ones are fewer together, so that rows are kept soon."""
    batch: list[PointJob] = []
    held, requests, room = None, 0, FIRST_TOGETHER
    for job in jobs:
        same = with_keys(job.scenario, workload={"request_rate": 1.0}, seed=0)
        left = job.replications
        while left:
            fitting = max(1, room // _requests(job))
            part, left = replace(job, replications=left[:fitting]), left[fitting:]
            count = _requests(job) * len(part.replications)
            if batch and (same != held or requests + count > room):
                yield tuple(batch)
                batch, requests, room = [], 0, min(2 * room, MAX_TOGETHER)
            batch.append(part)
            held, requests = same, requests + count
    if batch:
        yield tuple(batch)


def _requests(job: PointJob) -> int:
    count = job.scenario.workload.num_prompts
    return max(1, count) if isinstance(count, int) else LONG_RUN


def _alone(job: PointJob) -> Iterator[list[Row]]:
    try:
        with started(1, is_apart=True) as pool:
            yield from chain.from_iterable(rows for _, rows in pool.run(run_jobs, [(job,)]))
    except WorkerDied:
        yield [failed_row(job, replication, DIED) for replication in job.replications]


def _check_sources(grid: Grid) -> None:
    """Raise ValueError for a policy without a file: nothing would tell when it changes, and old rows would be kept."""
    for name in grid.values_of("policy"):
        if name not in POLICIES and not policy_hash(name):
            where = "is written in a notebook, where a store sees no change"
            raise ValueError(f"policy {name!r} {where}: put it in a module")
