"""Host times of a measured profile: preparing a work, launching kernels, threads in each other's way.

Not here: device times (calibrate.measure.timing), the constants made of these
(calibrate.measure.fits.measured_profile), the way of a result (calibrate.measure.serving_overhead).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import median
from threading import Barrier
from time import perf_counter

from calibrate.fit.point_works import TimedPass
from calibrate.measure.timing import Bench, at_once
from realrun.kernels import host_slots
from realrun.kernels.host_slots import Slot
from realrun.kernels.issuer import Issuer

ISSUERS = 3
"""Threads that issue at once, at most."""
PREPARATIONS = 30
ROUNDS = 3


def prepare_times(bench: Bench, num_rows: int) -> dict[str, float]:
    """`step_s` and `row_s`: the kernels' bookkeeping of a verify pass, planned and settled, without a policy's time."""
    few_s, many_s = (_prepare_s(bench, count) for count in (1, num_rows))
    row_s = max(0.0, (many_s - few_s) / max(1, num_rows - 1))
    return {"step_s": max(0.0, few_s - row_s), "row_s": row_s}


def _prepare_s(bench: Bench, num_rows: int) -> float:
    options = bench.kernels.options
    times = []
    for _ in range(PREPARATIONS):
        slots = [Slot(index, 8, known_tokens=8, draft_lag=1, prefilled_target=8) for index in range(num_rows)]
        started_s = perf_counter()
        plan = host_slots.plan_target(slots, (), None, options)
        host_slots.record_results(plan, slots, (), [[0, 1]] * num_rows)
        times.append(perf_counter() - started_s)
    return median(times)


def inflation(bench: Bench, timed: TimedPass, num_rows: int, seconds: float) -> list[float]:
    """Slowdown of issuing `timed` with 1, 2, 3 ... threads doing so at once, each on its stream and slots, of which
    there are `num_rows`. Rounds of all thread counts, so that a drift of the machine hits them alike; medians over the
    rounds."""
    issuers = [bench.issuer(timed.launch, side) for side in range(min(ISSUERS, num_rows // timed.rows))]
    for issuer in issuers:
        bench.warm(timed, issuer)
    rounds = []
    for _ in range(ROUNDS):
        share_s = seconds / ROUNDS
        times = [_issue_s(bench, timed, issuers[:number], share_s) for number in range(1, len(issuers) + 1)]
        rounds.append([time_s / times[0] for time_s in times])
    factors: list[float] = []
    for of_number in zip(*rounds, strict=True):
        factors.append(max(1.0, factors[-1] if factors else 1.0, round(median(of_number), 3)))
    return factors


def _issue_s(bench: Bench, timed: TimedPass, issuers: Sequence[Issuer], seconds: float) -> float:
    times: list[list[float]] = [[] for _ in issuers]

    def issue_often(side: int, barrier: Barrier) -> None:
        run = bench.issue_timer(timed, issuers[side], side * timed.rows)
        run()
        barrier.wait()
        ends_s = perf_counter() + seconds
        while perf_counter() < ends_s or not times[side]:
            times[side].append(run())

    at_once([partial(issue_often, side) for side in range(len(issuers))])
    return median(time_s for of_thread in times for time_s in of_thread)
