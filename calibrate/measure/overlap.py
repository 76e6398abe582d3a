"""Times two or three passes at once, each on its own stream: how much each slows the others down.

On a GPU one thread issues them all as captured graphs, an event releases them, and events time them: no thread of the
host comes between. On a CPU each has a thread of its own, and streams have no priorities, so only equal ones are timed.
Solo times are taken right beside, in the same way, so that a drift of the machine hits both. Not here: what follows
from it (calibrate.fit.overlap).
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
from calibrate.measure.bench import Bench, Pass
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
    """All ordered pairs of prefill, draft and verify, by offset and priority, and on a GPU two prefills, in a fixed
    random order (drifts of the machine must not look like effects); none with a single slot."""
    rows = limits.rows // 2
    if rows < 1:
        return []
    context = (limits.slot_tokens - limits.draft_tokens) // 4
    widths = min(4, limits.draft_tokens)
    found = []
    launch = _launch(limits)
    places = [
        Place("prefill", "target", 1, min(limits.pass_tokens, limits.slot_tokens // 2), 0, launch),
        Place("verify", "target", rows, widths + 1, context, launch),
    ]
    if limits.has_draft:
        places.append(Place("draft", "draft", rows, widths, context, launch))
    for priorities in PRIORITIES if limits.has_graphs else PRIORITIES[:1]:
        for first, second in permutations(places, 2):
            found += [Pair(first, second, priorities, offset) for offset in OFFSETS]
    if limits.has_graphs:
        # Nothing but two prefills asks for more than the compute roof: without them its eta is anybody's guess.
        found += [Pair(places[0], places[0], PRIORITIES[0], offset) for offset in OFFSETS]
    return sorted(set(found), key=lambda pair: sha256(repr(pair.as_key()).encode()).hexdigest())


def three_ways(limits: Limits) -> list[tuple[Place, ...]]:
    """Prefill, draft and verify launched together; none without a draft or with too few slots."""
    rows, launch = limits.rows // 3, _launch(limits)
    if rows < 1 or not limits.has_draft:
        return []
    context = (limits.slot_tokens - limits.draft_tokens) // 4
    widths = min(4, limits.draft_tokens)
    return [
        (
            Place("prefill", "target", 1, min(limits.pass_tokens, limits.slot_tokens // 2), 0, launch),
            Place("draft", "draft", rows, widths, context, launch),
            Place("verify", "target", rows, widths + 1, context, launch),
        )
    ]


def _launch(limits: Limits) -> str:
    """Where there are graphs, all are: the device's overlap is asked for, and launching is known from elsewhere."""
    return "graphed" if limits.has_graphs else "eager"


class OverlapBench:
    """Times passes that run at once."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

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
            issuer = self.bench.issuer(place.launch, side, priority)
            self.bench.warm(place, issuer)
            jobs.append(_Job(self.bench.ready(place, first_slot), issuer))
            first_slot += place.rows
        return jobs

    def _timed(self, jobs: list[_Job], offset_shares: Sequence[float], share_s: float) -> dict[str, Any]:
        """Offsets are shares of the first job's solo time, and in the result seconds after its start."""
        run = self._released if self.bench.runs_on.is_async else self._on_threads
        ends_s = perf_counter() + share_s
        alone: list[list[float]] = []
        together: list[tuple[list[float], list[float]]] = []
        while len(together) < MIN_RUNS or (len(together) < MAX_RUNS and perf_counter() < ends_s):
            alone.append([run([job], [0.0])[0][0] for job in jobs])
            first_s = median(times[0] for times in alone)
            together.append(run(jobs, [share * first_s for share in offset_shares]))
        sides = range(len(jobs))
        return {
            "solo_s": [median(times[side] for times in alone) for side in sides],
            "together_s": [median(durations[side] for durations, _ in together) for side in sides],
            "offsets_s": [median(offsets[side] for _, offsets in together) for side in sides],
            "runs": len(together),
        }

    def _released(self, jobs: Sequence[_Job], offsets_s: Sequence[float]) -> tuple[list[float], list[float]]:
        """Durations, and the true offsets from the first job's start, by the device's own clock."""
        held = self.bench.held([(*job, offset_s) for job, offset_s in zip(jobs, offsets_s, strict=True)])
        durations_s = [each.end.seconds_after(each.start) for each in held.pending]
        starts_s = [each.start.seconds_after(held.released) for each in held.pending]
        return durations_s, [start_s - starts_s[0] for start_s in starts_s]

    def _on_threads(self, jobs: Sequence[_Job], offsets_s: Sequence[float]) -> tuple[list[float], list[float]]:
        """The same by the host's clock, as a job is over when it has been issued."""
        self.bench.reset(*(job.pass_ for job in jobs))
        began_s, ended_s = [0.0] * len(jobs), [0.0] * len(jobs)

        def run(side: int, barrier: Barrier) -> None:
            pass_, issuer = jobs[side]
            barrier.wait()
            if offsets_s[side] > 0.0:
                _wait(offsets_s[side])
            began_s[side] = perf_counter()
            issuer.issue(pass_.shape, pass_.rows).values()
            ended_s[side] = perf_counter()

        at_once([partial(run, side) for side in range(len(jobs))])
        durations_s = [end_s - start_s for start_s, end_s in zip(began_s, ended_s, strict=True)]
        return durations_s, [start_s - began_s[0] for start_s in began_s]


class _Job(NamedTuple):
    """One of the passes that run at once."""

    pass_: Pass
    issuer: Issuer


def _wait(seconds: float) -> None:
    until_s = perf_counter() + seconds
    if seconds > SPIN_S:
        sleep(seconds - SPIN_S)
    while perf_counter() < until_s:
        sleep(0)
