"""Runs over several processes. A point is everything that determines one run, so it does not matter where it is run.

Not here: processes (sim.compare.pool), which points there are (sim.compare.side_by_side, sim.studies).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, nextafter
from pathlib import Path
from typing import TypeVar

from sim.compare.pool import Runner
from sim.files.arrow_tables import writing_parquet
from sim.metrics.load import needs_capacity
from sim.metrics.records import RunRecord, request_parts
from sim.metrics.summary import Run, detailed, finished_of, measured_requests, slo_shares, summarise
from sim.run.compiled import SIMPY
from sim.run.resolve import Resolved
from sim.run.simulate import simulate
from sim.workload.generate import is_trace, num_requests

Result = TypeVar("Result")
Task = TypeVar("Task", bound="Point | Sequence[Point]")
WORTH_A_POOL = 4_000
"""Requests in all from which several processes pay."""
RECORDED = 100
"""Requests after the warm-up whose works are recorded, by Python: of more it would take longer than the comparison."""
UNKNOWN_IN_SIMPY = ("poll_cpu_share", "mean_kv_usage", "max_kv_usage", "max_kv_gb")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One run: a policy of a scenario, resolved and of settled length, with one seed."""

    resolved: Resolved
    seed: int
    is_detailed: bool = False
    record_works: bool = False
    """Until the first RECORDED requests have ended."""
    keeps_record: bool = False
    rows_path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PointRun:
    """Metrics of a point, and what tells how its load stands."""

    run: Run
    num_streams: int
    """The most that the policy used of one GPU."""
    needs_capacity: bool
    arrivals_s: list[float]
    """Of a trace's requests; empty for drawn ones, whose rate is known."""
    record: RunRecord | None
    form: str


def run_point(point: Point) -> PointRun:
    resolved, scenario = point.resolved, point.resolved.scenario
    record = simulate(resolved, point.seed)
    first, last = scenario.workload.num_warmups, scenario.workload.num_cooldowns
    bounds_ms = scenario.goodput.bounds_ms
    run = summarise(record, goodput_ms=bounds_ms, num_warmups=first, num_cooldowns=last)
    if point.record_works:
        shown = range(first, min(first + RECORDED, len(record.requests) - last))
        begun = simulate(resolved, point.seed, record_works=True, stop_s=_end_of(record, shown.stop))
        record = replace(record, works=begun.works)
    if record.form == SIMPY:
        run |= dict.fromkeys(UNKNOWN_IN_SIMPY)
    if point.is_detailed:
        run |= detailed(record)
    if point.rows_path is not None:
        with writing_parquet(Path(point.rows_path)) as write:
            for columns in request_parts(record):
                write(columns)
    used = {(usage.device, usage.stream) for usage in record.usage if usage.kind != "host"}
    return PointRun(
        run=run,
        num_streams=max(Counter(device for device, _ in used).values(), default=0),
        needs_capacity=needs_capacity(record),
        arrivals_s=record.requests.column("arrival_s").tolist() if is_trace(scenario.workload) else [],
        record=record if point.keeps_record else None,
        form=record.form,
    )


def attained_share(point: Point) -> float:
    """Share of a point's requests that meet all SLOs; nothing else is read from its run."""
    workload, bounds = point.resolved.scenario.workload, point.resolved.scenario.goodput.bounds_ms
    measured = measured_requests(simulate(point.resolved, point.seed), workload.num_warmups, workload.num_cooldowns)
    return slo_shares(finished_of(measured), bounds)["all"] or 0.0


def _end_of(record: RunRecord, count: int) -> float | None:
    """When the first `count` requests have ended; None where others do not go on or some never end."""
    ends_s = [request.last_token_s if request.is_finished else inf for request in record.requests]
    end_s = max(ends_s[:count], default=inf)
    return nextafter(end_s, inf) if end_s < max(ends_s, default=inf) < inf else None


def on_points(
    function: Callable[[Task], Result], tasks: Sequence[Task], runner: Runner, stage: str = "simulating"
) -> list[Result]:
    """Results of `function` for each of `tasks` [tasks], points or groups of them; in this process where the runner's
    workers are left open and the points are not worth starting others. An exception of a run is raised here, and the
    runs that have not begun are dropped then. Raises WorkerDied."""
    points = [point for task in tasks for point in ([task] if isinstance(task, Point) else task)]
    num_sent = sum(num_requests(point.resolved.scenario.workload) for point in points)
    if runner.workers is None and num_sent < WORTH_A_POOL:
        runner = replace(runner, workers=1)
    uses = {name for point in points for name in point.resolved.plugins}
    return runner.run(function, tasks, stage, uses)
