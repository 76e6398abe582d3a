"""What the first works after a pause lose, from one lane that served requests with pauses before them.

Not here: the runs (realrun.handover), what the simulator makes of it (sim.costs.history).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import dist, expm1, log1p
from operator import mul
from statistics import fmean, median
from typing import NamedTuple

from realrun.lanes import Served
from sim.costs import CostModel, Profile, build_costs
from sim.costs.history import SHORT_PAUSE_S, kind_in_service
from sim.costs.profile import IdleRamp

PAUSE_SCALES_S = tuple(1e-3 * 1.2**step for step in range(36))
"""1 ms to 0.6 s."""
LEAST_PAUSE_S = 1e-3
"""Beyond the short ones that any two works have between them."""
LEAST_SHARE = 0.05
"""Of what is lost in all that the prompt is taken to lose, at least; and at most all but this."""
SETTLED_SHARE = 0.5
"""The last works of a request, by this share of them, are past what a pause does."""


class Late(NamedTuple):
    """Seconds by which a request's first works took longer than its last ones had it expected, means over requests."""

    in_all_s: float
    at_once_s: float
    """With its prompt."""
    prompt_s: float
    """What the prompt's works took."""


def idle_ramp(profile: Profile, rounds: Sequence[Sequence[Served]]) -> IdleRamp | None:
    """What works lose after a pause: each round a run of one lane without pauses, and the same with longer and longer
    ones before each request. A request is compared with itself, so that a machine that drifts between two of them does
    not count; then with those that no pause went before. Medians over the rounds; None if nothing is lost.
    """
    costs = build_costs(profile, cuda_graph=False)
    late = [[_late(costs, run) for run in each] for each in rounds]
    prompt_s = median(busy.prompt_s for busy, *_ in late)
    pauses_s, lost_s, lost_at_once_s = [], [], []
    for number in range(1, len(rounds[0])):
        pauses_s.append(
            median(
                max(LEAST_PAUSE_S, run.setting.period_s - e2el_s - SHORT_PAUSE_S)
                for run in (each[number] for each in rounds)
                for e2el_s in run.e2els_s
            )
        )
        lost_s.append(median(each[number].in_all_s - each[0].in_all_s for each in late))
        lost_at_once_s.append(median(each[number].at_once_s - each[0].at_once_s for each in late))
    grown = {scale_s: [-expm1(-pause_s / scale_s) for pause_s in pauses_s] for scale_s in PAUSE_SCALES_S}
    fitted = {
        scale_s: sum(map(mul, lost_s, shares)) / sum(map(mul, shares, shares)) for scale_s, shares in grown.items()
    }
    pause_s = min(fitted, key=lambda scale_s: dist(lost_s, [fitted[scale_s] * share for share in grown[scale_s]]))
    if fitted[pause_s] <= 0.0 or lost_s[-1] <= 0.0:
        return None
    share = min(max(lost_at_once_s[-1] / lost_s[-1], LEAST_SHARE), 1.0 - LEAST_SHARE)
    return IdleRamp(
        lost_s=_rounded(fitted[pause_s]),
        pause_s=_rounded(pause_s),
        work_s=_rounded(-prompt_s / log1p(-share)),
    )


def _late(costs: CostModel, run: Served) -> Late:
    """Of all requests but the first, before which there was no pause."""
    found = []
    for index in range(1, len(run.e2els_s)):
        lasted_s, expected_s, is_prompt = [], [], []
        for work, submitted in zip(run.works, run.submitted, strict=True):
            if [request.index for request in submitted.requests] == [index]:
                lasted_s.append(work.record.end_s - work.eligible_s)
                expected_s.append(costs.cost(submitted).device_s)
                is_prompt.append(kind_in_service(submitted) in ("prefill", "draft_prefill"))
        settled = -int(SETTLED_SHARE * len(lasted_s))
        pace = sum(lasted_s[settled:]) / sum(expected_s[settled:])
        late_s = [lasted - pace * expected for lasted, expected in zip(lasted_s, expected_s, strict=True)]
        found.append(Late(sum(late_s), sum(map(mul, late_s, is_prompt)), sum(map(mul, lasted_s, is_prompt))))
    return Late(*(fmean(column) for column in zip(*found, strict=True)))


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
