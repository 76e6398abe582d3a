"""Time that the first works after a pause lose, from one lane that served requests in pairs, with pauses between the
pairs.

Not here: the runs (calibrate.measure.serving_overhead), what the simulator makes of it (sim.costs.in_service).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import dist, expm1, log1p
from operator import mul
from statistics import fmean, median
from typing import NamedTuple

from calibrate.measure.lanes import ServedLanes
from sim.costs.in_service import SHORT_PAUSE_S, kind_in_service
from sim.costs.profile import IdleRamp
from sim.costs.profile_files import round_constant

PAUSE_SCALES_S = tuple(1e-3 * 1.2**step for step in range(36))
"""1 ms to 0.6 s."""
LONGEST_SCALE = 0.5
"""Share of the longest pause: what longer ones lose was not measured, and is taken to be at most 16 % more."""
MIN_PAUSE_S = 1e-3
"""Pause beyond the short ones that any two works have between them."""
MIN_LOST_S = 1e-5
"""Less is nothing."""
MIN_SHARE = 0.05
"""Share of what is lost in all that the prompt is taken to lose, at least; and at most all but this."""


class RequestTimes(NamedTuple):
    """Seconds of one request."""

    e2el_s: float
    prompt_s: float
    """Seconds of the works on its prompt."""


def idle_ramp(rounds: Sequence[Sequence[ServedLanes]]) -> IdleRamp | None:
    """Time that works lose after a pause: each round a run of one lane without pauses, and the same with longer and
    longer ones before every other request.

    A request after a pause is compared with the one right after it, so that a machine that drifts does not count; how
    the two differ without a pause is known from the first runs. Medians over the rounds; None if nothing is lost.
    """
    lasted = [[_lasted(run) for run in each] for each in rounds]
    pairs = range(2, len(lasted[0][0]), 2)
    """Numbers of the first requests; none of the run's first ones, before which there is no known pause."""
    usual = {first: _ratios([busy for busy, *_ in lasted], first) for first in pairs}
    pauses_s, lost_s, lost_at_once_s = [], [], []
    for number in range(1, len(rounds[0])):
        runs = [each[number] for each in rounds]
        pauses_s.append(median(_pause_s(run, first) for run in runs for first in pairs))
        late = [
            [_late(requests[first], requests[first + 1], usual[first]) for first in pairs]
            for requests in (each[number] for each in lasted)
        ]
        lost_s.append(median(fmean(each.e2el_s for each in of_run) for of_run in late))
        lost_at_once_s.append(median(fmean(each.prompt_s for each in of_run) for of_run in late))
    scales_s = [scale_s for scale_s in PAUSE_SCALES_S if scale_s <= max(MIN_PAUSE_S, LONGEST_SCALE * pauses_s[-1])]
    grown = {scale_s: [-expm1(-pause_s / scale_s) for pause_s in pauses_s] for scale_s in scales_s}
    fitted = {
        scale_s: sum(map(mul, lost_s, shares)) / sum(map(mul, shares, shares)) for scale_s, shares in grown.items()
    }
    pause_s = min(fitted, key=lambda scale_s: dist(lost_s, [fitted[scale_s] * share for share in grown[scale_s]]))
    if fitted[pause_s] < MIN_LOST_S or lost_s[-1] < MIN_LOST_S:
        return None
    share = min(max(lost_at_once_s[-1] / lost_s[-1], MIN_SHARE), 1.0 - MIN_SHARE)
    prompt_s = median(busy[first].prompt_s for busy, *_ in lasted for first in pairs)
    return IdleRamp(
        lost_s=round_constant(fitted[pause_s]),
        pause_s=round_constant(pause_s),
        work_s=round_constant(-prompt_s / log1p(-share)),
    )


def _lasted(run: ServedLanes) -> list[RequestTimes]:
    """Every request, in order of arrival."""
    prompts_s = [0.0] * len(run.e2els_s)
    for work, submitted in zip(run.works, run.submitted, strict=True):
        if kind_in_service(submitted) in ("prefill", "draft_prefill"):
            (request,) = submitted.requests
            prompts_s[request.index] += work.record.end_s - work.eligible_s
    return [RequestTimes(*each) for each in zip(run.e2els_s, prompts_s, strict=True)]


def _ratios(runs: Sequence[Sequence[RequestTimes]], first: int) -> RequestTimes:
    """Ratios by which this request usually takes longer than the next one."""
    return RequestTimes(
        median(run[first].e2el_s / run[first + 1].e2el_s for run in runs),
        median(run[first].prompt_s / run[first + 1].prompt_s for run in runs),
    )


def _late(one: RequestTimes, other: RequestTimes, usual: RequestTimes) -> RequestTimes:
    """Seconds by which `one` took longer than `other` lets expect."""
    return RequestTimes(*(mine - theirs * ratio for mine, theirs, ratio in zip(one, other, usual, strict=True)))


def _pause_s(run: ServedLanes, first: int) -> float:
    """The pause before request `first`, beyond a short one."""
    busy_s = run.e2els_s[first - 2] + run.e2els_s[first - 1]
    return max(MIN_PAUSE_S, run.setting.period_s - busy_s - SHORT_PAUSE_S)
