"""Times two or three passes at once, each on its own stream and thread: how much each slows the others down.

On a CPU streams have no priorities, so only equal ones are timed there. Solo times are taken right beside, with the
same threads, so that a drift of the machine hits both. Not here: what follows from it (calibrate.fit.overlap).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from itertools import permutations
from statistics import median
from threading import Barrier
from time import perf_counter, sleep
from typing import Any, NamedTuple

from calibrate.measure.at_once import at_once
from calibrate.measure.bench import Bench
from calibrate.measure.grid import Limits
from calibrate.points.work import Place
from realrun.kernels.issuer import Issuer

OFFSETS = (0.0, 0.25, 0.5)
"""Launch of the second pass after that of the first, as shares of the first one's solo time."""
PRIORITIES = ((0, 0), (1, 0), (0, 1))
"""Of first and second; the higher is served first."""
MIN_RUNS = 5
MAX_RUNS = 25
SPIN_S = 2e-3
"""The last part of a wait is spun: sleeping is not exact."""


class Pair(NamedTuple):
    """Two passes, the second launched after the first."""

    first: Place
    second: Place
    priorities: tuple[int, int]
    offset_share: float

    def as_key(self) -> list[Any]:
        """As it reads back from JSON."""
        return [list(self.first), list(self.second), list(self.priorities), self.offset_share]


def pairs(limits: Limits) -> list[Pair]:
    """All ordered pairs of prefill, draft and verify, by offset and priority, in a fixed random order (drifts of the
    machine must not look like effects); none with a single slot."""
    rows = limits.rows // 2
    if rows < 1:
        return []
    context = (limits.slot_tokens - limits.draft_tokens) // 4
    widths = min(4, limits.draft_tokens)
    found = []
    for launch in ("eager", "graphed") if limits.has_graphs else ("eager",):
        places = [
            Place("prefill", "target", 1, min(limits.pass_tokens, limits.slot_tokens // 2), 0, "eager"),
            Place("verify", "target", rows, widths + 1, context, launch),
        ]
        if limits.has_draft:
            places.append(Place("draft", "draft", rows, widths, context, launch))
        for priorities in PRIORITIES if limits.has_graphs else PRIORITIES[:1]:
            for first, second in permutations(places, 2):
                found += [Pair(first, second, priorities, offset) for offset in OFFSETS]
    return sorted(set(found), key=lambda pair: sha256(repr(pair.as_key()).encode()).hexdigest())


def three_ways(limits: Limits) -> list[tuple[Place, ...]]:
    """Prefill, draft and verify launched together, by way of launching; none without a draft or with too few slots."""
    rows = limits.rows // 3
    if rows < 1 or not limits.has_draft:
        return []
    context = (limits.slot_tokens - limits.draft_tokens) // 4
    widths = min(4, limits.draft_tokens)
    return [
        (
            Place("prefill", "target", 1, min(limits.pass_tokens, limits.slot_tokens // 2), 0, "eager"),
            Place("draft", "draft", rows, widths, context, launch),
            Place("verify", "target", rows, widths + 1, context, launch),
        )
        for launch in (("eager", "graphed") if limits.has_graphs else ("eager",))
    ]


class OverlapBench:
    """Times passes that run at once; keeps one issuer per side, priority and way of launching."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self._issuers: dict[tuple[int, int, str], Issuer] = {}

    def measure(self, pair: Pair, share_s: float) -> dict[str, Any]:
        """Median durations alone and together, seconds, first and second; for about `share_s` seconds."""
        jobs = self._jobs((pair.first, pair.second), pair.priorities)
        timed = self._timed(jobs, (0.0, pair.offset_share), share_s)
        _, offset_s = timed.pop("offsets_s")
        return {"pair": pair.as_key(), **timed, "offset_s": offset_s}

    def measure_three(self, places: tuple[Place, ...], share_s: float) -> dict[str, Any]:
        """Median durations of all alone and together, launched at once with equal priorities."""
        timed = self._timed(self._jobs(places, (0,) * len(places)), (0.0,) * len(places), share_s)
        return {"places": [list(place) for place in places], **timed}

    def _jobs(self, places: Sequence[Place], priorities: Sequence[int]) -> list[_Job]:
        """One side each, on slots of its own, all warm."""
        jobs, first_slot = [], 0
        for side, (place, priority) in enumerate(zip(places, priorities, strict=True)):
            issuer = self._issuer(side, priority, place.launch)
            self.bench.warm(place, issuer, first_slot)
            jobs.append(_Job(self.bench, place, issuer, first_slot))
            first_slot += place.rows
        return jobs

    def _timed(self, jobs: list[_Job], offset_shares: Sequence[float], share_s: float) -> dict[str, Any]:
        """Offsets are shares of the first job's solo time, and in the result seconds after its launch."""
        ends_s = perf_counter() + share_s
        alone: list[list[float]] = []
        together: list[tuple[list[float], list[float]]] = []
        while len(together) < MIN_RUNS or (len(together) < MAX_RUNS and perf_counter() < ends_s):
            alone.append([job.alone_s() for job in jobs])
            first_s = median(run[0] for run in alone)
            together.append(_together_s(jobs, [share * first_s for share in offset_shares]))
        sides = range(len(jobs))
        return {
            "solo_s": [median(run[side] for run in alone) for side in sides],
            "together_s": [median(durations[side] for durations, _ in together) for side in sides],
            "offsets_s": [median(offsets[side] for _, offsets in together) for side in sides],
            "runs": len(together),
        }

    def _issuer(self, side: int, priority: int, launch: str) -> Issuer:
        """An issuer replays every shape that it has captured, so eager and graphed passes have one each."""
        key = side, priority, launch
        if key not in self._issuers:
            name = f"side {side}, priority {priority}, {launch}"
            self._issuers[key] = self.bench.kernels.issuer(name, priority=priority)
        return self._issuers[key]


class _Job:
    """One of the passes that run at once."""

    def __init__(self, bench: Bench, place: Place, issuer: Issuer, first_slot: int) -> None:
        self.bench, self.issuer = bench, issuer
        self.pass_ = bench.ready(place, first_slot)
        self.started_s = self.ended_s = 0.0

    def run(self) -> None:
        self.started_s = perf_counter()
        self.issuer.issue(self.pass_.shape, self.pass_.rows).values()
        self.ended_s = perf_counter()

    def alone_s(self) -> float:
        """Duration on a thread of its own, nothing else running."""
        self.bench.reset(self.pass_)
        at_once([lambda _: self.run()])
        return self.ended_s - self.started_s


def _together_s(jobs: list[_Job], offsets_s: Sequence[float]) -> tuple[list[float], list[float]]:
    """Durations, and the true offsets of the launches from the first job's."""
    for job in jobs:
        job.bench.reset(job.pass_)

    def run(job: _Job, offset_s: float, barrier: Barrier) -> None:
        barrier.wait()
        if offset_s > 0.0:
            _wait(offset_s)
        job.run()

    at_once([partial(run, job, offset_s) for job, offset_s in zip(jobs, offsets_s, strict=True)])
    started_s = jobs[0].started_s
    return [job.ended_s - job.started_s for job in jobs], [job.started_s - started_s for job in jobs]


def _wait(seconds: float) -> None:
    until_s = perf_counter() + seconds
    if seconds > SPIN_S:
        sleep(seconds - SPIN_S)
    while perf_counter() < until_s:
        sleep(0)
