"""Times two or three passes at once, each on its own stream: how much each slows the others down.

On a GPU one thread issues them all as captured graphs, an event releases them, and events time them: no thread of the
host comes between. On a CPU each has a thread of its own, and streams have no priorities, so only equal ones are timed.
Solo times are taken right beside, in the same way, so that a drift of the machine hits both. Not here: what follows
from it (calibrate.fit.overlap_fit).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from itertools import permutations
from statistics import median
from threading import Barrier
from time import perf_counter, sleep
from typing import NamedTuple

from calibrate.measure.at_once import at_once
from calibrate.measure.bench import Bench, Pass
from calibrate.measure.grid import Limits
from calibrate.points.point_works import Place, Together
from calibrate.points.points_file import Ran
from realrun.kernels.issuer import Issuer

OFFSETS = (0.0, 0.25, 0.5)
"""Launch of the second pass after that of the first, as shares of the first one's solo time."""
PRIORITIES = ((0, 0), (1, 0), (0, 1))
"""Priorities of first and second; the higher is served first."""
MIN_RUNS = 5
MAX_RUNS = 25
SPIN_S = 2e-3
"""The last part of a wait is spun: sleeping is not exact."""


def plan(limits: Limits) -> list[Together]:
    """All ordered pairs of prefill, draft and verify, by offset and priority, and on a GPU two prefills, in a fixed
    random order (drifts of the machine must not look like effects); then all three at once. As far as there are slots.
    """
    prefill, verify, *draft = _places(limits, 2)
    priorities = PRIORITIES if limits.has_graphs else PRIORITIES[:1]
    pairs = [
        Together(places, both, (0.0, offset))
        for both in priorities
        for places in permutations((prefill, verify, *draft), 2)
        for offset in OFFSETS
    ]
    if limits.has_graphs:
        # Nothing but two prefills asks for more than the compute roof: without them its eta is anybody's guess.
        pairs += [Together((prefill, prefill), PRIORITIES[0], (0.0, offset)) for offset in OFFSETS]
    three = [Together((*_places(limits, 3),), (0,) * 3, (0.0,) * 3)] if draft else []
    found = [*sorted(set(pairs), key=lambda pair: sha256(repr(tuple(pair)).encode()).hexdigest()), *three]
    return [each for each in found if limits.rows >= len(each.places)]


def _places(limits: Limits, sides: int) -> list[Place]:
    """Prefill, verify and, where there is one, draft, of which so many run at once. Where there are graphs, all are:
    the device's overlap is asked for, and launching is known from elsewhere."""
    rows, launch = limits.rows // sides, "graphed" if limits.has_graphs else "eager"
    context, widths = (limits.slot_tokens - limits.draft_tokens) // 4, min(4, limits.draft_tokens)
    places = [
        Place("prefill", "target", 1, min(limits.pass_tokens, limits.slot_tokens // 2), 0, launch),
        Place("verify", "target", rows, widths + 1, context, launch),
    ]
    return [*places, Place("draft", "draft", rows, widths, context, launch)] if limits.has_draft else places


class OverlapBench:
    """Times passes that run at once."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def measure(self, what: Together, share_s: float) -> Ran:
        """Medians of what each takes alone and together, for about `share_s` seconds."""
        run = self._released if self.bench.runs_on.is_async else self._on_threads
        jobs, sides = self._jobs(what), range(len(what.places))
        ends_s = perf_counter() + share_s
        alone: list[list[float]] = []
        together: list[tuple[list[float], list[float]]] = []
        while len(together) < MIN_RUNS or (len(together) < MAX_RUNS and perf_counter() < ends_s):
            alone.append([run([job], [0.0])[0][0] for job in jobs])
            first_s = median(times[0] for times in alone)
            together.append(run(jobs, [share * first_s for share in what.offset_shares]))
        return Ran(
            what=what,
            solo_s=tuple(median(times[side] for times in alone) for side in sides),
            together_s=tuple(median(durations[side] for durations, _ in together) for side in sides),
            offsets_s=tuple(median(offsets[side] for _, offsets in together) for side in sides),
            runs=len(together),
        )

    def _jobs(self, what: Together) -> list[_Job]:
        """One side each, on slots of its own, all warm."""
        jobs, first_slot = [], 0
        for side, (place, priority) in enumerate(zip(what.places, what.priorities, strict=True)):
            issuer = self.bench.issuer(place.launch, side, priority)
            self.bench.warm(place, issuer)
            jobs.append(_Job(self.bench.ready(place, first_slot), issuer))
            first_slot += place.rows
        return jobs

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
