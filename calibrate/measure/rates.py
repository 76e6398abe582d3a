"""Rates of passes that run over and over beside each other, each on a separate stream, relative to each alone there.

A thread per side issues its pass again and again, two or three in flight, so that no stream runs dry; before each pass
its slots are set back on the same stream.
Completions are the device's events, on a CPU the host's clock. A rate is completions per second while all sides
were at work, divided by those of the side alone, taken right before. Whatever is made on the device is made before.

Not here: which passes (calibrate.fit.grid), what follows from their rates (calibrate.measure.fits).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from statistics import fmean, median
from threading import Barrier
from typing import NamedTuple

from calibrate.fit.point_works import Corun
from calibrate.fit.points_file import Ran, Steady
from calibrate.measure.timing import Bench, ReadyPass, at_once
from realrun.kernels.issuer import Issuer, Pending

MAX_CORUN_S = 12.0
"""More per co-run makes nothing more certain."""
ROUNDS = 4
"""Each side alone, then all; every round begins with the next side."""
MIN_PASSES = 8
"""Passes of each side in a window, however short it is."""
WINDOWS = 3
"""Taken, each twice as long as the last one, until every side ran while the others did."""
IN_FLIGHT = {"graphed": 3, "eager": 2}
"""Passes of a side, one of which runs. More eager ones would fill a launch queue."""


class Starved(ValueError):
    """A side hardly ran while the others did."""


class _Side(NamedTuple):
    pass_: ReadyPass
    issuer: Issuer
    set_back: Callable[[], None]
    in_flight: int


def measure(bench: Bench, corun: Corun, seconds: float) -> Ran:
    """Rates of all sides, for about `seconds`. Raises ValueError where the host is too busy to keep streams fed."""
    sides = _sides(bench, corun)
    num, window_s = len(sides), seconds / ((len(sides) + 1) * ROUNDS)
    # Once unmeasured: whatever is made or loaded the first time that all run at once.
    _completions(bench, sides, 0.0, 0)
    alone: list[list[list[float]]] = [[] for _ in sides]
    together: list[list[list[float]]] = [[] for _ in sides]
    for turn in range(ROUNDS):
        for side in ((turn + step) % num for step in range(num)):
            alone[side] += periods(*_completions(bench, [sides[side]], window_s, 0))
        for side, side_rates in enumerate(_together(bench, sides, window_s, turn % num)):
            together[side].append(side_rates)
    return Ran(corun=corun, sides=tuple(map(steady, alone, together)))


def steady(alone: Sequence[Sequence[float]], together: Sequence[Sequence[float]]) -> Steady:
    """One side's account of its periods alone and together [rounds][passes]."""
    return Steady(
        alone_s=median(period_s for round_ in alone for period_s in round_),
        # By means: so many completions in so much time, whatever the order of short and long ones.
        rates=tuple(fmean(before) / fmean(during) for before, during in zip(alone, together, strict=True)),
    )


def periods(starts_s: Sequence[float], ends_s: Sequence[Sequence[float]]) -> list[list[float]]:
    """Seconds from each completion to the next [sides][passes], while every side was at work.

    `starts_s` [sides] are the first starts, `ends_s` [sides][passes] all completions. Raises Starved where a side
    has fewer than two completions while the other one was at work.

    >>> periods([0.0, 1.0], [[1.0, 3.0, 5.0, 6.0], [2.0, 4.0]])
    [[2.0], [2.0]]
    """
    begins_s, over_s = max(starts_s), min(ends[-1] for ends in ends_s)
    kept = [[end_s for end_s in ends if begins_s <= end_s <= over_s] for ends in ends_s]
    if min(len(ends) for ends in kept) < 2:
        raise Starved("one pass hardly ran while the others did: the host is too busy to issue all")
    return [[later_s - end_s for end_s, later_s in pairwise(ends)] for ends in kept]


def _sides(bench: Bench, corun: Corun) -> list[_Side]:
    """All warm, on slots and streams of their own."""
    listed, first_slot = [], 0
    for side, timed in enumerate(corun.passes):
        issuer = bench.issuer(timed.launch, side)
        pass_ = bench.ready(timed, first_slot)
        bench.warm(timed, issuer)
        listed.append(_Side(pass_, issuer, bench.back(pass_), IN_FLIGHT[timed.launch]))
        first_slot += timed.rows
    return listed


def _together(bench: Bench, sides: Sequence[_Side], window_s: float, first: int) -> list[list[float]]:
    """Periods of all sides at once. A thread that the machine kept from its core for one window is no busy host."""
    for window in range(WINDOWS - 1):
        with suppress(Starved):
            return periods(*_completions(bench, sides, window_s, first, 2**window))
    return periods(*_completions(bench, sides, window_s, first, 2 ** (WINDOWS - 1)))


def _completions(
    bench: Bench, sides: Sequence[_Side], seconds: float, first: int, times: int = 1
) -> tuple[list[float], list[list[float]]]:
    """First start [sides] and completions [sides][passes] after a common origin, in `times` windows; `first` begins."""
    bench.runs_on.synchronize()
    origin = sides[0].issuer.stream.record()
    origin.synchronize()
    issued: list[list[Pending]] = [[] for _ in sides]
    wanted = times * MIN_PASSES + max(IN_FLIGHT.values())

    def feed(side: int, barrier: Barrier) -> None:
        """Issue one side's pass until time is over and every side has had its passes."""
        pass_, issuer, set_back, in_flight = sides[side]
        barrier.wait()
        # A broken barrier: another side failed, and will never have its passes.
        while side != first and not issued[first] and not barrier.broken:
            time.sleep(0)
        ends_s = bench.runs_on.now_s() + times * seconds
        while not barrier.broken and (bench.runs_on.now_s() < ends_s or any(len(each) < wanted for each in issued)):
            issuer.stream.run(set_back)
            issued[side].append(issuer.issue(pass_.shape, pass_.rows))
            if len(issued[side]) >= in_flight:
                issued[side][-in_flight].values()

    at_once([partial(feed, side) for side in range(len(sides))])
    bench.runs_on.synchronize()
    starts_s = [passes[0].start.seconds_after(origin) for passes in issued]
    return starts_s, [[each.end.seconds_after(origin) for each in passes] for passes in issued]
