"""Length of a run, and of its beginning that is left out, for its means to be those of a long run.

A number of requests that the user gives is obeyed, and called a transient where it is one. Left open (`auto`), a pilot
run per policy says how long requests take, and where it was itself too short, a second one of that length. All policies
then have fresh runs of one length. A length that grew until an interval is narrow would stop at lucky moments.
Not here: running (sim.run.simulate, point_runs), how a load stands to capacity (capacity).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf, sqrt

import msgspec
import numpy as np

from sim.compare.capacity import load_after
from sim.compare.point_runs import Point, PointRun, on_points, run_point
from sim.compare.pool import Runner
from sim.draws import child_seed
from sim.metrics.records import RunRecord
from sim.metrics.stats import Floats, mser_5
from sim.metrics.summary import finished_of, latencies_s
from sim.run.resolve import Resolved
from sim.run.scenario import Scenario
from sim.workload.generate import MIN_AUTO_PROMPTS, is_trace, num_requests

SPAN_IN_E2EL = 20.0
"""Arrivals must span this many mean latencies, so that filling and draining weigh little."""
COMPLETIONS_PER_SLOT = 20
"""The same of a closed loop: requests per seat in flight."""
MEASURED_PER_LEFT_OUT = 2.0
"""And so many for each that is left out at its beginning or its end."""
MAX_WARMUP_SHARE = 0.1
FILLING, FILLINGS = 0.99, 2.0
"""A run takes to fill as long as this share of the requests at most, this many times. At 85 % of capacity requests
resemble the 50 to 80 after them: after one such time means were still 2 % low, their intervals right in 89 to 92 %."""
LASTING = 0.99
"""So many requests of a closed loop are left out at its end that this share of those before have theirs in a full
machine: in an emptying one they are quicker (azure-code, 32 in flight, 1,000 requests: mean E2EL 0.8 % low)."""
PILOT_KEY = 1_000_001
"""Child of the scenario's seed that pilots draw from: they share nothing with the runs that follow."""
ROUND_TO = 100


class Length(msgspec.Struct, frozen=True, kw_only=True):
    """Number of requests that every run serves, and of the first that are left out."""

    num_prompts: int
    num_warmups: int
    num_cooldowns: int = 0
    """And how many of the last, of a closed loop whose length was not given."""
    is_auto: bool


def choose_run_length(policies: Sequence[Resolved], workers: int | None = 1) -> Length:
    scenario = policies[0].scenario
    workload = scenario.workload
    is_open, cut_s = workload.num_prompts == "auto" and not is_trace(workload), scenario.window.arrivals_end_s
    if not is_open or cut_s is not None:
        fixed = MIN_AUTO_PROMPTS if is_open else num_requests(workload)
        if is_open and cut_s is not None and workload.request_rate < inf:
            # The window is to end arrivals, not their number: ten standard deviations above the mean.
            mean = workload.request_rate * cut_s
            fixed = ceil(mean + 10.0 * sqrt(max(1.0, mean / min(1.0, workload.burstiness)))) + 10
        return Length(
            num_prompts=fixed,
            num_warmups=workload.num_warmups,
            num_cooldowns=workload.num_cooldowns,
            is_auto=workload.num_prompts != fixed,
        )
    pilots = _pilots(policies, MIN_AUTO_PROMPTS, workers)
    num_prompts = max([pilot.num_prompts for pilot in pilots], default=MIN_AUTO_PROMPTS)
    if num_prompts > MIN_AUTO_PROMPTS:
        # A pilot that was itself too short saw a queue still filling.
        pilots = _pilots(policies, num_prompts, workers)
        num_prompts = max([num_prompts, *(pilot.num_prompts for pilot in pilots)])
    num_warmups = workload.num_warmups or max([pilot.num_warmups for pilot in pilots], default=0)
    num_cooldowns = workload.num_cooldowns or max([pilot.num_cooldowns for pilot in pilots], default=0)
    is_closed = workload.max_concurrency is not None
    most = int((1.0 / (1.0 + MEASURED_PER_LEFT_OUT) if is_closed else MAX_WARMUP_SHARE) * num_prompts)
    num_warmups = min(num_warmups, most)
    return Length(
        num_prompts=num_prompts,
        num_warmups=num_warmups,
        num_cooldowns=min(num_cooldowns, most - num_warmups),
        is_auto=True,
    )


def settled(resolved: Resolved, length: Length) -> Resolved:
    workload = resolved.scenario.workload
    return resolved.changed(workload=workload.sized(length.num_prompts, length.num_warmups, length.num_cooldowns))


def transient_note(scenario: Scenario, length: Length, mean_e2el_ms: float | None) -> str | None:
    """A given length that is too short for steady means, in a line; None where it is long enough, or not given."""
    workload = scenario.workload
    if length.is_auto or is_trace(workload) or mean_e2el_ms is None:
        return None
    if workload.request_rate == inf:
        return None
    mean_e2el_s = mean_e2el_ms / 1e3
    needed = _needed_for(scenario, mean_e2el_s, ceil(workload.request_rate * _session_s(scenario, mean_e2el_s)))
    if length.num_prompts >= needed:
        return None
    return (
        f"{length.num_prompts} requests are too few for steady means, which take about {needed}. "
        "Try --num-prompts auto."
    )


def lockstep_note(policies: Sequence[Resolved]) -> str | None:
    """A closed loop whose requests are all alike, in a line: without drafts they go on together, wave after wave."""
    workload = policies[0].scenario.workload
    is_alike = all(length is not None and len(set(workload.bounds(length))) == 1 for length in workload.fixed_len)
    in_step = [one.label for one in policies if not one.lengths.given]
    if (workload.max_concurrency or 1) < 2 or not is_alike or not in_step or workload.sharing.num_turns > 1:
        return None
    return (
        f"All lengths are alike, so {workload.max_concurrency} requests at a time begin and end together under "
        f"{', '.join(in_step)}. Their prompts wait for each other. To vary lengths: workload.random_range_ratio."
    )


def _pilots(policies: Sequence[Resolved], num_prompts: int, workers: int | None) -> list[Length]:
    """Of policies that keep up with their load."""
    workload = policies[0].scenario.workload.sized(num_prompts)
    seed = child_seed(policies[0].scenario.seed, PILOT_KEY)
    points = [Point(resolved=one.changed(workload=workload), seed=seed, keeps_record=True) for one in policies]
    runs = zip(policies, on_points(run_point, points, Runner(workers)), strict=True)
    return [_asked(one.scenario, run) for one, run in runs if load_after(one, [run]).is_steady]


def _asked(scenario: Scenario, run: PointRun) -> Length:
    """Of a closed loop those at the end are the requests that it lets in while LASTING of the ones before them end. At
    the beginning MSER-5 on the latencies in order of arrival tells how many, but at least those of the filling."""
    assert run.record is not None
    e2els_s, in_flight = latencies_s(finished_of(run.record.requests))["e2el"], scenario.workload.max_concurrency
    if not len(e2els_s):
        return Length(num_prompts=_needed_for(scenario, 0.0), num_warmups=0, is_auto=True)
    mean_s, num_filling = float(e2els_s.mean()), _filled_by(scenario, run.record, e2els_s)
    num_ending = 0 if in_flight is None else ceil(in_flight * float(np.quantile(e2els_s, LASTING)) / mean_s)
    needed, num_warmups = _needed_for(scenario, mean_s, num_filling, num_ending), max(mser_5(e2els_s), num_filling)
    return Length(num_prompts=needed, num_warmups=num_warmups, num_cooldowns=num_ending, is_auto=True)


def _needed_for(scenario: Scenario, mean_e2el_s: float, num_filling: int = 0, num_ending: int = 0) -> int:
    """Requests that a run needs, judged by the mean latency, and so many that the `num_filling` are MAX_WARMUP_SHARE of
    them at most: at 85 % load (H100) 130 of 1,300 left out were too few, tokens/s was 1.9 % low, mean E2EL 3.1 %. A
    closed loop leaves out all the `num_filling` and `num_ending`, which come on top."""
    workload = scenario.workload
    if workload.max_concurrency is None and workload.request_rate == inf:
        return MIN_AUTO_PROMPTS
    wanted = max(SPAN_IN_E2EL * mean_e2el_s * workload.request_rate, num_filling / MAX_WARMUP_SHARE)
    left_out = num_filling + num_ending
    if workload.max_concurrency is not None:
        wanted = (
            max(float(COMPLETIONS_PER_SLOT * workload.max_concurrency), MEASURED_PER_LEFT_OUT * left_out) + left_out
        )
    return max(MIN_AUTO_PROMPTS, ceil(wanted / ROUND_TO) * ROUND_TO)


def _filled_by(scenario: Scenario, record: RunRecord, e2els_s: Floats) -> int:
    """Requests that arrive while a run fills. Until then fewer are in flight than later: tokens/s of 1,000 requests at
    60 % load were 2.0 % low after 20 of them, 0.4 % after 60."""
    filling_s = FILLINGS * float(np.quantile(e2els_s, FILLING))
    if record.cache_block_tokens is not None:
        filling_s = max(filling_s, _session_s(scenario, float(e2els_s.mean())))
    arrivals_s = record.requests.column("arrival_s")
    return int(np.count_nonzero(arrivals_s < arrivals_s[0] + filling_s))


def _session_s(scenario: Scenario, e2el_s: float) -> float:
    """Seconds from the first turn of a session to its last: until then some turns find nothing in memory of what was
    said before the run."""
    workload = scenario.workload
    gap_s = workload.sharing.turn_gap_s if workload.request_rate < inf else e2el_s
    return (workload.sharing.num_turns - 1) * gap_s
