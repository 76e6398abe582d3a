"""Roofs of the device and host times of a measured profile: preparing a work, launching, threads in each other's way.

Not here: device times (calibrate.measure.timing), the constants made of these
(calibrate.measure.fits.measured_profile), the way of a result (calibrate.measure.serving_overhead).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from threading import Barrier
from time import perf_counter

import torch

from calibrate.fit.point_works import TimedPass
from calibrate.measure.timing import Bench, at_once
from realrun.host import cuda
from realrun.host.machine import device_name
from realrun.kernels import host_slots
from realrun.kernels.host_slots import Slot
from realrun.kernels.issuer import Issuer
from sim.costs.datasheets import datasheet_of_device
from sim.costs.profile import Gpu

ISSUERS = 3
"""Threads that issue at once, at most."""
PREPARATIONS = 30
ROUNDS = 3
ROOF_REPETITIONS = 7
MATRIX = {"cpu": 1024, "cuda": 8192}
"""Side of the square matrices whose product stands for the compute roof."""
COPY_BYTES = {"cpu": 1 << 28, "cuda": 1 << 31}
"""Bytes read by the copy that stands for the bandwidth roof: far beyond any cache."""


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
    """Slowdown of issuing `timed` with 1, 2, 3 ... threads at once, each on its stream and slots, of `num_rows` in all.
    Medians over rounds of all thread counts, so that a drift of the machine hits them alike."""
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


def roofs(device: str, dtype: str) -> Gpu:
    """The datasheet's roofs where the device has one here, else what is `achieved`."""
    name = device_name(device)
    sheet = datasheet_of_device(name) if device == "cuda" else None
    if sheet is not None and dtype in ("bfloat16", "float16"):
        return sheet.gpu
    flops_per_s, bytes_per_s = achieved(device, dtype)
    properties = cuda.properties() if device == "cuda" else None
    return Gpu(
        name=name.lower().replace(" ", "-"),
        memory_bytes=cuda.find(device).free_bytes() if properties is None else int(properties.total_memory),
        peak_flops=flops_per_s,
        bandwidth_bytes_per_s=bytes_per_s,
    )


def achieved(device: str, dtype: str) -> tuple[float, float]:
    """FLOP/s of a large matrix product and bytes/s, read and written, of a long copy: medians of a few."""
    side = MATRIX[device]
    matrix = torch.randn(side, side, device=device).to(getattr(torch, dtype))
    product_s = _typical_s(device, lambda: matrix @ matrix)
    source = torch.zeros(COPY_BYTES[device] // 4, dtype=torch.float32, device=device).normal_()
    target = torch.empty_like(source)
    copy_s = _typical_s(device, lambda: target.copy_(source))
    return 2.0 * side**3 / product_s, 2.0 * COPY_BYTES[device] / copy_s


def _typical_s(device: str, run: Callable[[], torch.Tensor]) -> float:
    times, runs_on = [], cuda.find(device)
    for _ in range(ROOF_REPETITIONS + 1):
        runs_on.synchronize()
        started_s = perf_counter()
        run()
        runs_on.synchronize()
        times.append(perf_counter() - started_s)
    return median(times[1:])
