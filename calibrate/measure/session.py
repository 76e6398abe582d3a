"""Measures a pair on this machine: plan, points, host times, overlap; each kept as soon as known.

Everything measured goes to the points file first; the profile is made from that file alone, so a measurement that was
killed and one that was not give the same kind of result. Not here: the fit (calibrate.fit.measured_profile), the
command (calibrate.cli.measure).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import ceil
from pathlib import Path
from time import perf_counter
from typing import Literal

import msgspec
from msgspec import structs

from calibrate.fit.measured_profile import profile_of, today
from calibrate.fit.overlap_fit import MIN_PAIRS, fitted_pairs
from calibrate.measure import grid, host_times
from calibrate.measure.bench import Bench, count_kernels
from calibrate.measure.clocks import Driver
from calibrate.measure.machine import fingerprint, gpu, roofs
from calibrate.measure.overlap_cells import cells_within
from calibrate.measure.pair import PairSpec, build, limits
from calibrate.measure.rates import MAX_CELL_S, measure
from calibrate.measure.repeats import BLOCK, MAX_REPETITIONS, MIN_REPETITIONS, repeat
from calibrate.points import points_file
from calibrate.points.point_works import VISITS, Place, l2_state
from calibrate.points.points_file import Ran
from realrun.host import cuda
from realrun.host.garbage_collector import frozen_heap
from realrun.model.kv import LAYOUT
from sim.costs.passes import HEAD_KERNELS
from sim.costs.profile import Gpu, MeasuredPoint, Profile
from sim.costs.shapes import ModelShape
from sim.files.json_values import Json

PILOT_RUNS = 2
"""Runs of which the faster one counts: one that something disturbed would spoil the plan."""
SHARES = {"points": 0.6, "host": 0.05, "overlap": 0.2}
"""Shares of the budget. The rest is building, warming up and fitting."""
Step = Callable[[str, int, int], None]
"""Told the stage, steps done and steps in all."""


class Session:
    """One measurement in one process."""

    def __init__(self, spec: PairSpec, path: Path, budget_s: float, on_step: Step, rates: Sequence[Ran] = ()) -> None:
        """`path` is the points file; `rates` of this pair were measured before. Raises ValueError if the file is of
        another machine or of other options, and for what cannot be built."""
        self.spec, self.path, self.budget_s, self.on_step, self.rates = spec, path, budget_s, on_step, rates
        cuda.find(spec.device)
        self._gpu = gpu(spec.device)
        self.driver = Driver(self._gpu and self._gpu.uuid)
        self._fingerprint = fingerprint(spec.device, spec.dtype, self.driver.version)
        if path.exists():
            former = points_file.read(path)
            points_file.check_same(path, former, self._fingerprint, spec.as_options())
            points_file.check_host(path, former)
            points_file.mend(path)
        self._kernels = build(spec)
        self.bench = Bench(self._kernels)

    def run(self, form: Literal["compact", "table"] = "compact") -> Profile:
        """Measure what the file does not hold yet, and fit what it then holds."""
        with frozen_heap():
            if not self.path.exists():
                self._plan()
            self._points()
            self._host()
            self._overlap()
        held = points_file.read(self.path)
        self.on_step("fit", 0, 1)
        target, draft = self.spec.target.shape, self.spec.draft.shape if self.spec.draft is not None else None
        measured = msgspec.convert(held.host["gpu"], Gpu)
        return profile_of(held, measured, int(held.host["multiprocessors"]), target, draft, form)

    def _shape(self, place: Place) -> ModelShape:
        source = self.spec.target if place.model == "target" else self.spec.draft
        assert source is not None, "a draft pass without a draft model"
        return source.shape

    def _plan(self) -> None:
        allowed = limits(self.spec)
        pilots = grid.pilots(allowed)
        timed_s = {}
        for done, place in enumerate(pilots):
            self.on_step("pilot", done, len(pilots))
            run = self.bench.timer(place._replace(launch="eager"))
            run()
            moments_s = [perf_counter()]
            for _ in range(PILOT_RUNS):
                run()
                moments_s.append(perf_counter())
            timed_s[place] = min(after_s - before_s for before_s, after_s in pairwise(moments_s))
        budget_s, estimate_s = SHARES["points"] * self.budget_s, grid.estimator(timed_s)
        # Fewer visits where all of them would leave places of the coarsest grid unmeasured.
        for visits in range(VISITS[self.spec.device], 0, -1):
            repeats = visits * (BLOCK + _least(visits))
            planned = grid.plan(allowed, budget_s, estimate_s, repeats)
            if len(planned) >= len(grid.grid(allowed, 0)):
                break
        points_file.create(self.path, self._fingerprint, self.spec.as_options(), planned, visits)

    def _points(self) -> None:
        held = points_file.read(self.path)
        left, cache = held.left, self._gpu and self._gpu.l2_bytes
        num_visits = held.num_visits * len(held.places)
        ends_s = perf_counter() + SHARES["points"] * self.budget_s * len(left) / max(1, num_visits)
        for done, place in enumerate(left):
            self.on_step("points", num_visits - len(left) + done, num_visits)
            share_s = max(0.0, ends_s - perf_counter()) / (len(left) - done)
            with self.driver.watch() as watch:
                timing = repeat(
                    self.bench.timer(place),
                    share_s=share_s,
                    clock=perf_counter,
                    least=_least(held.num_visits),
                    most=MAX_REPETITIONS // held.num_visits,
                )
            point = MeasuredPoint(
                kind=place.kind,
                model=place.model,
                rows=place.rows,
                tokens=place.tokens,
                context_tokens=place.context_tokens,
                launch=place.launch,
                device_s=timing.device_s,
                host_s=timing.host_s,
                half_width_pct=round(timing.half_width_pct, 2),
                repetitions=timing.repetitions,
                is_noisy=timing.is_noisy,
                is_held_out=grid.is_held_out(place, held.places),
                l2=l2_state(place, self._shape(place), cache),
            )
            points_file.append_point(self.path, point)
            if clocks := watch.slowest():
                points_file.append(self.path, "clocks", msgspec.to_builtins(structs.replace(clocks, place=place)))

    def _host(self) -> None:
        held = points_file.read(self.path)
        if held.host:
            return
        self.on_step("host", 0, 2)
        has_graphs = limits(self.spec).has_graphs
        launch = "graphed" if has_graphs else "eager"
        decodes = [point for point in held.points if point.kind == "decode" and point.launch == launch]
        if not decodes:
            raise ValueError(f"--budget {self.budget_s:g} is too small to time a single decode pass; raise it")
        smallest = min(decodes, key=lambda point: (point.rows, point.context_tokens))
        place = Place("decode", "target", 1, 1, smallest.context_tokens, "eager")
        seconds = SHARES["host"] * self.budget_s / (2 * host_times.ISSUERS)
        num_kernels = count_kernels(self.bench, place, self.bench.issuer())
        layers = self.spec.target.shape.layers
        found: dict[str, Json] = {
            "is_cpu": self.spec.device == "cpu",
            "gpu": msgspec.to_builtins(roofs(self.spec.device, self.spec.dtype)),
            # A CPU has no waves of tiles.
            "multiprocessors": self._gpu.multiprocessors if self._gpu else 1,
            "kv_layout": LAYOUT,
            "date": today(),
            "kernels_per_layer": max(1, round((num_kernels - HEAD_KERNELS) / layers)),
            "result_s": host_times.result_s(self.bench, smallest),
            **host_times.prepare_times(self.bench, self.spec.rows),
        }
        found["inflation_eager"] = host_times.inflation(self.bench, place, self.spec.rows, seconds)
        self.on_step("host", 1, 2)
        if has_graphs:
            graphed = place._replace(launch="graphed")
            found["inflation_graphed"] = host_times.inflation(self.bench, graphed, self.spec.rows, seconds)
        points_file.append(self.path, "host", found)

    def _overlap(self) -> None:
        """Rates of the planned cells. What was measured before is not measured again, and pairs only where there are
        too few for a fit."""
        known = {ran.cell for ran in points_file.read(self.path).rates}
        for ran in self.rates:
            if ran.cell not in known:
                points_file.append(self.path, "rates", msgspec.to_builtins(ran))
        planned = cells_within(limits(self.spec))
        if len(fitted_pairs(self.rates)) >= MIN_PAIRS:
            planned = [cell for cell in planned if len(cell.places) > 2]
        left = [cell for cell in planned if cell not in known]
        ends_s = perf_counter() + SHARES["overlap"] * self.budget_s * len(left) / max(1, len(planned))
        for done, cell in enumerate(left):
            self.on_step("overlap", len(planned) - len(left) + done, len(planned))
            share_s = max(0.0, ends_s - perf_counter()) / (len(left) - done)
            rates = measure(self.bench, cell, min(MAX_CELL_S, share_s))
            points_file.append(self.path, "rates", msgspec.to_builtins(rates.ran))


def _least(visits: int) -> int:
    """Repetitions of each of so many visits, after the first block."""
    return max(BLOCK, ceil(MIN_REPETITIONS / visits))
