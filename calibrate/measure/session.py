"""One measurement of a pair on this machine: plan, points, host times, co-runs and serving, each saved at once.

Everything measured goes to the points file first, and the profile is made from that file alone. So a measurement may
be killed. Not here: the fits (calibrate.measure.fits), the command (calibrate.measure.command).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from functools import cached_property
from itertools import pairwise
from math import ceil
from pathlib import Path
from time import perf_counter
from typing import TypeVar

import msgspec

from calibrate.fit import grid, points_file
from calibrate.fit.grid import coruns_within
from calibrate.fit.point_works import VISITS, TimedPass
from calibrate.fit.points_file import MeasuredSession
from calibrate.measure import host_times
from calibrate.measure.fits.measured_profile import profile_of
from calibrate.measure.pair import PairSpec, build, limits
from calibrate.measure.rates import MAX_CORUN_S, measure
from calibrate.measure.serving_overhead import REPEATS, measure_serving
from calibrate.measure.timing import BLOCK, MAX_REPETITIONS, MIN_REPETITIONS, Bench, count_kernels, repeat
from realrun.host import cuda
from realrun.host.machine import fingerprint, frozen_heap
from realrun.model.kv import LAYOUT
from sim.costs.passes import HEAD_KERNELS
from sim.costs.profile import MeasuredPoint, Profile
from sim.files.json_values import Json

PILOT_RUNS = 2
"""Runs of which the faster one counts: one that something disturbed would spoil the plan."""
BESIDE_EAGER_S = 4.0
REPEAT_EVERY_S = 24.0
"""Seconds of the budget for which requests are served once more, up to REPEATS times."""
SHARES = {"points": 0.6, "host": 0.05, "overlap": 0.2}
"""Shares of the budget. The rest is building, warming up and fitting."""
Pass = TypeVar("Pass", TimedPass, MeasuredPoint)
OnStep = Callable[[str, int, int], None]
"""Callback with the stage, steps done and steps in all."""


def measure_pair(
    spec: PairSpec,
    path: Path,
    budget_s: float,
    *,
    on_step: OnStep = lambda stage, done, total: None,
    say: Callable[[str], None],
) -> Profile:
    """Time a pair, alone, beside itself and in service, into the points file `path`, and go on where a measurement was
    killed. Slots too short for serving are told to `say`. Raises ValueError for the rest."""
    with points_file.alone(path):
        session = Session(spec, path, on_step)
        session.measure(budget_s)
        try:
            # Before what runs beside each other: of an interrupted measurement this is worth more.
            session.serve(budget_s)
        except ValueError as error:
            say(f"what serving adds was not measured: {error}")
        session.measure_beside(budget_s)
        return session.profile()


class Session:
    def __init__(self, spec: PairSpec, path: Path, on_step: OnStep = lambda stage, done, total: None) -> None:
        """`path` is the points file. Raises ValueError if it is of another machine or of other options."""
        self.spec, self.path, self.on_step = spec, path, on_step
        cuda.find(spec.device)
        self._gpu = cuda.properties() if spec.device == "cuda" else None
        self.fingerprint = {**fingerprint(spec.device), "dtype": spec.dtype}
        if path.exists():
            former = points_file.read(path)
            points_file.check_same(path, former, self.fingerprint, spec.as_options())
            points_file.check_host(path, former)
            points_file.mend(path)

    @cached_property
    def bench(self) -> Bench:
        """The bench of the pair, built when it is first needed. Raises ValueError for what cannot be built."""
        return Bench(build(self.spec))

    @property
    def held(self) -> MeasuredSession:
        if not self.path.exists():
            return MeasuredSession(fingerprint=self.fingerprint, options=self.spec.as_options())
        return points_file.read(self.path)

    def append(self, kind: str, content: object) -> None:
        """Add a line to the points file, which is begun with the first one."""
        if not self.path.exists():
            points_file.create(self.path, self.fingerprint, self.spec.as_options())
        points_file.append(self.path, kind, content)

    def measure(self, budget_s: float) -> None:
        """Measure what the file does not hold yet of passes alone and the host."""
        with frozen_heap():
            if not self.held.passes:
                self._plan(budget_s)
            self._points(budget_s)
            if not self.held.host:
                self._host(budget_s)

    def measure_beside(self, budget_s: float) -> None:
        held, planned = self.held.rates, coruns_within(limits(self.spec))
        left = [corun for corun in planned if corun not in {ran.corun for ran in held}]
        ends_s = perf_counter() + SHARES["overlap"] * budget_s * len(left) / max(1, len(planned))
        with frozen_heap():
            for done, corun in enumerate(left):
                self.on_step("overlap", len(planned) - len(left) + done, len(planned))
                share_s = max(0.0, ends_s - perf_counter()) / (len(left) - done)
                # Of a captured side and one that is not, few rates tell everything.
                is_both = len({timed.launch for timed in corun.passes}) > 1
                seconds = max(BESIDE_EAGER_S, share_s) if is_both else share_s
                self.append("rates", measure(self.bench, corun, min(MAX_CORUN_S, seconds)))

    def profile(self) -> Profile:
        """The profile of what the file holds. Raises ValueError where it holds too little."""
        self.on_step("fit", 0, 1)
        return profile_of(self.held, self.spec.target.shape, self.spec.draft.shape if self.spec.draft else None)

    def serve(self, budget_s: float) -> None:
        """Measure what serving adds, once. Raises ValueError where slots are too short for its requests."""
        if not self.held.serving:
            repeats = min(REPEATS, ceil(budget_s / REPEAT_EVERY_S))
            self.append("serving", measure_serving(self.profile(), self.bench.kernels, repeats))

    def _plan(self, budget_s: float) -> None:
        allowed = limits(self.spec)
        pilots = grid.pilots(allowed)
        timed_s = {}
        for done, timed in enumerate(pilots):
            self.on_step("pilot", done, len(pilots))
            run = self.bench.timer(timed._replace(launch="eager"))
            run()
            moments_s = [perf_counter()]
            for _ in range(PILOT_RUNS):
                run()
                moments_s.append(perf_counter())
            timed_s[timed] = min(after_s - before_s for before_s, after_s in pairwise(moments_s))
        estimate_s = grid.estimator(timed_s)
        # Fewer visits where all of them would leave passes of the grid unmeasured.
        for visits in range(VISITS[self.spec.device], 0, -1):
            repeats = visits * (BLOCK + _least(visits))
            planned = grid.plan(allowed, SHARES["points"] * budget_s, estimate_s, repeats)
            if len(planned) == len(grid.grid(allowed)):
                break
        if not self._decodes(planned):
            raise ValueError(f"measure.budget_s={budget_s:g} is too small to time a single decode pass. Raise it")
        self.append("plan", {"visits": visits, "passes": planned})

    def _points(self, budget_s: float) -> None:
        held = self.held
        left = held.left
        num_visits = held.num_visits * len(held.passes)
        ends_s = perf_counter() + SHARES["points"] * budget_s * len(left) / max(1, num_visits)
        for done, timed in enumerate(left):
            self.on_step("points", num_visits - len(left) + done, num_visits)
            share_s = max(0.0, ends_s - perf_counter()) / (len(left) - done)
            timing = repeat(
                self.bench.timer(timed),
                share_s=share_s,
                clock=perf_counter,
                least=_least(held.num_visits),
                most=MAX_REPETITIONS // held.num_visits,
            )
            point = MeasuredPoint(
                **timed._asdict(),
                **timing._asdict(),
                is_held_out=grid.is_held_out(timed, held.passes),
            )
            self.append("point", point)

    def _host(self, budget_s: float) -> None:
        self.on_step("host", 0, 2)
        has_graphs = limits(self.spec).has_graphs
        smallest = min(self._decodes(self.held.points), key=lambda point: (point.rows, point.context_tokens))
        timed = TimedPass("decode", "target", 1, 1, smallest.context_tokens, "eager")
        seconds = SHARES["host"] * budget_s / (2 * host_times.ISSUERS)
        num_kernels = count_kernels(self.bench, timed)
        times: dict[str, Json] = {
            "is_cpu": self.spec.device == "cpu",
            "gpu": msgspec.to_builtins(host_times.roofs(self.spec.device, self.spec.dtype)),
            # A CPU has no waves of tiles.
            "multiprocessors": int(self._gpu.multi_processor_count) if self._gpu else 1,
            "kv_layout": LAYOUT,
            "date": date.today().isoformat(),
            "kernels_per_layer": max(1, round((num_kernels - HEAD_KERNELS) / self.spec.target.shape.layers)),
            **host_times.prepare_times(self.bench, self.spec.rows),
        }
        times["inflation_eager"] = host_times.inflation(self.bench, timed, self.spec.rows, seconds)
        self.on_step("host", 1, 2)
        if has_graphs:
            graphed = timed._replace(launch="graphed")
            times["inflation_graphed"] = host_times.inflation(self.bench, graphed, self.spec.rows, seconds)
        self.append("host", times)

    def _decodes(self, passes: Sequence[Pass]) -> list[Pass]:
        """Decodes as a replay launches them."""
        launch = "graphed" if limits(self.spec).has_graphs else "eager"
        return [each for each in passes if each.kind == "decode" and each.launch == launch]


def _least(visits: int) -> int:
    """Repetitions of each of so many visits, after the first block."""
    return max(BLOCK, ceil(MIN_REPETITIONS / visits))
