"""A profile fitted to a running server by requests that were sent to it, each simulated again when it was sent.

None of the looks is the load that is predicted. Some numbers of requests at once, with the scenario's lengths, tell
what a step takes: without a profile by the steps that their tokens came in (calibrate.served.line), with one by
its engine's constants (calibrate.served.fit). Requests one after the other tell the price of a prompt; a
light open loop, sent right before the load, how fast the machine is at the moment, and what a request spends before the
engine has it. Closed loops of equal lengths would go in step, and whether a newcomer meets its neighbours' step is then
a matter of microseconds. No prompt of a look shares a prefix with another.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, sqrt
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple

from msgspec import structs

from calibrate.served.as_sent import as_requests, simulated
from calibrate.served.line import (
    PromptPrice,
    SeenStep,
    pace_of,
    price_of,
    steps_of,
    with_pace,
    with_price,
    with_steps,
)
from calibrate.served.load import ServedLoad, ServedRequest
from sim.costs.compact_kernels import LinearKernels
from sim.costs.engine_costs import engine_of, with_engine
from sim.costs.profile import Profile
from sim.interface.request import Request
from sim.metrics.stats import t_975
from sim.metrics.summary import latencies_s
from sim.run.experiment import Experiment
from sim.run.resolve import resolve_all
from sim.run.scenario import Scenario

REQUESTS_PER_STREAM, MIN_REQUESTS = 4, 12
"""Requests of a round: the first and the last of a stream have fewer neighbours, which is simulated, too."""
ENGINES_OWN = ("step_s", "row_s", "gap_s", "draft_pass_s", "draft_phase_s", "frontend_s", "frontend_token_s")
"""Times of an engine that are part of the steps as they are seen."""
TWO_PACES = 2.0**0.5
"""The pace of the light loop is as far off as that of the load is: their difference, over what one round is off."""
MAX_OFF = 0.2
"""Relative error of a round's mean E2EL beyond which steps by rows and prompts do not describe the server."""
FIRST_SEED, NEXT_SEED = 7919, 104_729
"""Seeds of rounds' lengths and prompts, beyond the scenario's: none of its own requests is sent for the fit."""


def of_a_round(at_once: int) -> int:
    """Requests of a round."""
    return max(MIN_REQUESTS, REQUESTS_PER_STREAM * at_once)


def round_requests(scenario: Scenario, profile: Profile, at_once: int, number: int) -> list[Request]:
    """The scenario's lengths drawn anew, all of them there from the start."""
    return _drawn(scenario, profile, look_seed(scenario, at_once, number), of_a_round(at_once), inf)


def look_seed(scenario: Scenario, at_once: int, number: int) -> int:
    """Seed of a look's lengths and prompts; `at_once` 0: of a light loop."""
    return scenario.seed + FIRST_SEED * (at_once + 1) + NEXT_SEED * number


def _drawn(scenario: Scenario, profile: Profile, seed: int, count: int, rate: float) -> list[Request]:
    """So many requests of the scenario's lengths, none of which has content in common with another."""
    workload = structs.replace(scenario.workload, num_prompts=count, request_rate=rate, max_concurrency=None)
    resolved = resolve_all(structs.replace(scenario, workload=workload), profile)[0]
    requests = Experiment(resolved, seed).requests().objects()
    for each in requests:
        each.content = ()
    return requests


class Fit(NamedTuple):
    """A line and how far it is off rounds that it is not of."""

    profile: Profile
    off: list[float]
    """Relative errors of the steps of each round, by those of all others, times TWO_PACES."""
    doubt: str
    """A warning where it does not describe the server; else empty."""


def fit_line(scenario: Scenario, profile: Profile, rounds: Sequence[ServedLoad], lone: Sequence[ServedRequest]) -> Fit:
    """A line by the steps of `rounds`, drafts and verification included, whatever the engine itself would add.
    Raises ValueError where there are none."""
    engine = engine_of(scenario.engine.name, profile)
    plain = with_engine(profile, structs.replace(engine, **dict.fromkeys(ENGINES_OWN, 0.0)))
    alone = _first_tokens(as_requests(lone))
    steps = [steps_of(each.requests) for each in rounds]

    def of(parts: Sequence[Sequence[SeenStep]]) -> Profile:
        return with_steps(plain, [step for part in parts for step in part], alone)

    fitted = of(steps)
    others = [[other for other in steps if other is not part] for part in steps]
    off = [TWO_PACES * (pace_of(of(rest), part) - 1.0) for part, rest in zip(steps, others, strict=True) if rest]
    e2els_s = {each.source: e2el_s(scenario, fitted, each) for each in rounds}
    errors = {source: ours_s / real_s - 1.0 for source, (real_s, ours_s) in e2els_s.items()}
    source, worst = max(errors.items(), key=lambda error: abs(error[1]))
    doubt = f"Steps do not tell how this server serves: {worst:+.0%} in E2EL, {source}." if abs(worst) > MAX_OFF else ""
    if doubt and max(step.rows for part in steps for step in part) == 1 < max(each.concurrency for each in rounds):
        doubt += " None of its steps served two requests: it does not batch, as simulated engines do."
    return Fit(fitted, off, doubt)


def e2el_s(scenario: Scenario, profile: Profile, looked: ServedLoad) -> tuple[float, float]:
    """Mean E2EL of a round in seconds, measured and simulated."""
    workload = structs.replace(scenario.workload, request_rate=inf, max_concurrency=round(looked.concurrency))
    real = as_requests(looked.requests)
    ours, _ = simulated(resolve_all(structs.replace(scenario, workload=workload), profile)[0], scenario.seed, real)
    real_s, ours_s = (fmean(latencies_s(side)["e2el"]) for side in (real, ours))
    return real_s, ours_s


def one_at_a_time(scenario: Scenario, profile: Profile, count: int, number: int) -> list[Request]:
    """So many requests of the scenario's lengths, as many in flight as one in the mean."""
    resolved, *_ = resolve_all(scenario, profile)
    alone, _ = simulated(resolved, scenario.seed, Experiment(resolved, scenario.seed).requests()[:1])
    rate = 1.0 / (alone[0].last_token_s - alone[0].arrival_s)
    return _drawn(scenario, profile, look_seed(scenario, 0, number), count, rate)


def with_price_of(scenario: Scenario, profile: Profile, lone: Sequence[ServedRequest]) -> Profile:
    """`profile` with the price of prompts that `lone` requests, served one after the other, tell
    (calibrate.served.line); as it is where all are of one length. Raises ValueError where none was answered."""
    requests = as_requests(lone)
    if len({each.prompt_tokens for each in requests}) < 2:
        return profile

    def as_simulated(priced: Profile) -> PromptPrice:
        served, _ = simulated(resolve_all(scenario, priced)[0], scenario.seed, requests)
        return price_of(_first_tokens(served))

    return with_price(profile, price_of(_first_tokens(requests)), as_simulated)


def _first_tokens(requests: Sequence[Request]) -> list[tuple[int, float]]:
    return [(each.prompt_tokens, each.first_token_s - each.arrival_s) for each in requests]


def as_now(scenario: Scenario, profile: Profile, light: Sequence[ServedRequest]) -> Profile:
    """`profile` as the machine is while `light` was sent: a line by the pace of its steps; and requests that spend as
    much more before the engine as first tokens came later than simulated, which closed loops, whose newcomers meet a
    step's end, do not tell. Raises ValueError where nothing was answered."""
    if isinstance(profile.kernels, LinearKernels):
        profile = with_pace(profile, pace_of(profile, steps_of(light)))
    engine = engine_of(scenario.engine.name, profile)
    frontend_s = max(0.0, engine.frontend_s + fmean(_late_s(scenario, profile, light)))
    return with_engine(profile, structs.replace(engine, frontend_s=frontend_s))


def intake_error_s(scenario: Scenario, profile: Profile, light: Sequence[ServedRequest]) -> float:
    """Standard error of what `as_now` says that requests spend before the engine, as that of a normal distribution
    which is as wide at 95 % as few requests leave it. Raises ValueError where fewer than two were answered."""
    late_s = _late_s(scenario, profile, light)
    return stdev(late_s) / sqrt(len(late_s)) * t_975(len(late_s) - 1) / NormalDist().inv_cdf(0.975)


def _late_s(scenario: Scenario, profile: Profile, light: Sequence[ServedRequest]) -> list[float]:
    """By how much first tokens came later than simulated, by request."""
    requests = as_requests(light)
    ours, _ = simulated(resolve_all(scenario, profile)[0], scenario.seed, requests)
    real_s, ours_s = (latencies_s(side)["ttft"].tolist() for side in (requests, ours))
    return [real - simulated_s for real, simulated_s in zip(real_s, ours_s, strict=True)]
