"""A profile fitted to a running server by what its clients saw, and the requests that are sent for it.

No request of the predicted load is among them, and no two share a prefix. All requests of a step get their tokens
together, so closed loops show a step's time by its requests and prompts. Without a profile, passes take what such steps
took on average, drafts included. With one, its engine's constants are corrected (calibrate.served.fit), and its layers
by the price of a lone prompt. A light open loop right before the load shows the machine's speed now, and the time
before the engine. Not here: sending (calibrate.server.endpoint).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import accumulate, combinations, pairwise
from math import inf, sqrt
from statistics import NormalDist, fmean, median, stdev
from typing import NamedTuple

from msgspec import structs

from calibrate.fit.constants import RATIO, with_constants
from calibrate.served.as_sent import as_requests, simulated
from calibrate.served.load import ServedLoad, ServedRequest
from sim.costs.compact_kernels import LinearKernels, LinearPass, Measured
from sim.costs.engine_costs import engine_of, with_engine
from sim.costs.profile import Gpu, HostCosts, KindError, Overlap, Profile
from sim.costs.shapes import ModelShape
from sim.interface.request import Request
from sim.metrics.stats import t_975
from sim.metrics.summary import latencies_s
from sim.run.experiment import Experiment
from sim.run.resolve import resolve_all
from sim.run.scenario import Scenario

NAME = "this server"
LONE_REQUESTS = 12
SHORTEST_SHARE = 0.25
"""The shortest prompt that is sent alone, over the mean one."""
LONE_TOKENS = 4
"""Output tokens of each."""
UNKNOWN_TOKENS = 1_000_000
"""Sizes up to which a server's line is not said to be extrapolated: what it was seen at is in its source."""
LEAST_PASS_S = 1e-6
"""Time of a pass before anything is seen."""
SURE = 2.0
"""Standard errors by which a profile's own price must differ from what was seen before it is corrected."""
MIN_STEPS = 8
"""Steps of one kind that tell what such a step takes."""
TOGETHER = 0.25
"""Share of a usual gap between a request's tokens within which tokens are of one step."""
USUAL = 2.0
"""Times the median beyond which a step is a stall of the machine."""
RATIOS = (0.02, 50.0)
"""Least and largest correction of a profile's layers."""
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


class SeenStep(NamedTuple):
    """A step as clients saw it."""

    seconds: float
    rows: int
    """Requests that had a token already and got one by it, or several."""
    prompt_tokens: int
    """Prompts of the requests whose first token it brought."""


class PromptPrice(NamedTuple):
    """Seconds per prompt token of a request that is alone, with the standard error, and the shortest prompt of them."""

    token_s: float
    error_s: float
    shortest: int


def lone_requests(prompt_tokens: Sequence[int]) -> list[Request]:
    """Requests whose prompts are spread evenly between a part of the mean of `prompt_tokens` and the longest, to be
    sent one after the other."""
    low, high = SHORTEST_SHARE * fmean(prompt_tokens), max(prompt_tokens)
    lengths = [round(low + (high - low) * rank / (LONE_REQUESTS - 1)) for rank in range(LONE_REQUESTS)]
    # Long and short ones by turns: a server that slows down meanwhile does so for both.
    order = [*lengths[::2], *lengths[1::2]]
    return [Request(index, str(index), 0.0, max(1, length), LONE_TOKENS) for index, length in enumerate(order)]


def price_of(points: Sequence[tuple[int, float]]) -> PromptPrice:
    """The median of the slopes between any two `points`, (prompt tokens, seconds to the first token), as Theil and Sen
    have it. Raises ValueError where all are of one length.

    >>> price = price_of([(10, 0.03), (20, 0.04), (40, 0.06)])
    >>> round(price.token_s, 6), round(price.error_s, 6), price.shortest
    (0.001, 0.0, 10)
    >>> prompts = [(tokens, 0.02 + 1e-3 * tokens) for tokens in range(20, 140, 10)]
    >>> round(price_of([*prompts, (55, 0.9)]).token_s, 4)  # One stall does not bend it.
    0.001
    """
    slopes = [(two[1] - one[1]) / (two[0] - one[0]) for one, two in combinations(points, 2) if one[0] != two[0]]
    if not slopes:
        raise ValueError("no two prompts of different length were answered, so the time per prompt token is unknown")
    slope = median(slopes)
    base = median(y - slope * x for x, y in points)
    left = sum((y - base - slope * x) ** 2 for x, y in points) / max(1, len(points) - 2)
    middle = fmean(x for x, _ in points)
    error_s = (left / sum((x - middle) ** 2 for x, _ in points)) ** 0.5
    return PromptPrice(slope, error_s, min(x for x, _ in points))


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


def one_at_a_time(scenario: Scenario, profile: Profile, count: int, number: int) -> list[Request]:
    """So many requests of the scenario's lengths, as many in flight as one in the mean."""
    resolved, *_ = resolve_all(scenario, profile)
    alone, _ = simulated(scenario, profile, Experiment(resolved, scenario.seed).requests()[:1])
    rate = 1.0 / (alone[0].last_token_s - alone[0].arrival_s)
    return _drawn(scenario, profile, look_seed(scenario, 0, number), count, rate)


def with_price_of(scenario: Scenario, profile: Profile, lone: Sequence[ServedRequest]) -> Profile:
    """`profile` whose prompts cost by token what `lone` requests, served one after the other, tell, as far as that is
    sure; as it is where all are of one length. Raises ValueError where none was answered."""
    requests = as_requests(lone)
    if len({each.prompt_tokens for each in requests}) < 2:
        return profile
    seen = price_of(_first_tokens(requests))
    name = f"{RATIO}{seen.shortest}"

    def token_s(ratio: float) -> float:
        served, _ = simulated(scenario, with_constants(profile, {name: ratio}), requests)
        return price_of(_first_tokens(served)).token_s

    one, two = token_s(1.0), token_s(2.0)
    if two <= one or abs(seen.token_s - one) <= SURE * seen.error_s:
        return profile
    ratio = 1.0 + (seen.token_s - one) / (two - one)
    return with_constants(profile, {name: min(RATIOS[1], max(RATIOS[0], ratio))})


def steps_of(sent: Sequence[ServedRequest]) -> list[SeenStep]:
    """The steps that brought a token to some request which had one by the step before.

    >>> one = ServedRequest(index=0, due_s=0.0, sent_s=0.0, first_s=0.1, prompt_tokens=9, gaps_s=(0.02, 0.05, 0.03))
    >>> two = ServedRequest(index=1, due_s=0.0, sent_s=0.1, first_s=0.171, prompt_tokens=30, gaps_s=(0.03,))
    >>> [(round(step.seconds, 3), step.rows, step.prompt_tokens) for step in steps_of([one, two])]
    [(0.02, 1, 0), (0.05, 1, 30), (0.03, 2, 0)]
    """
    answered = [each for each in sent if not each.failed]
    gaps_s = [gap_s for each in answered for gap_s in each.gaps_s]
    if not any(gaps_s):
        return []
    # Tokens of one step may come as several events.
    together_s = TOGETHER * median(gap_s for gap_s in gaps_s if gap_s > TOGETHER * fmean(gaps_s))
    events = sorted(
        (at_s, number, rank == 0)
        for number, each in enumerate(answered)
        for rank, at_s in enumerate(accumulate(each.gaps_s, initial=each.first_s))
    )
    brought: list[tuple[float, dict[int, float], set[int]]] = []
    for at_s, number, is_first in events:
        if not brought or at_s - brought[-1][0] >= together_s:
            brought.append((at_s, {}, set()))
        brought[-1][1][number] = at_s
        if is_first:
            brought[-1][2].add(number)
    steps = []
    for (_, earlier, _), (_, later, new) in pairwise(brought):
        seconds = [later[number] - earlier[number] for number in later if number in earlier and number not in new]
        if seconds:
            prompt_tokens = sum(answered[number].prompt_tokens for number in new)
            steps.append(SeenStep(median(seconds), len(later) - len(new), prompt_tokens))
    return steps


def with_steps(profile: Profile, steps: Sequence[SeenStep], lone: Sequence[tuple[int, float]]) -> Profile:
    """A line whose passes take what `steps` took; `lone` are (prompt tokens, seconds to the first token) of requests
    that were alone. Raises ValueError where there are no steps."""
    by_rows: dict[int, list[float]] = {}
    for step in steps:
        if not step.prompt_tokens:
            by_rows.setdefault(step.rows, []).append(step.seconds)
    if not by_rows:
        raise ValueError("no request had two tokens one after the other. Send a longer --output-len")
    enough = min(MIN_STEPS, max(map(len, by_rows.values())))
    points = [(rows, _usual(seconds)) for rows, seconds in sorted(by_rows.items()) if len(seconds) >= enough]
    line = LinearPass(pass_s=LEAST_PASS_S, launches=1, by_rows=tuple(points))
    beside = [step for step in steps if step.prompt_tokens]
    if len(beside) >= MIN_STEPS:
        added_s = [(step.seconds - line.seen_s(step.rows)) / step.prompt_tokens for step in beside]
        token_s = _usual(added_s, [float(step.prompt_tokens) for step in beside])
    else:
        token_s = price_of(lone).token_s
    token_s = max(0.0, token_s)
    alone_s = median(first_s - token_s * tokens for tokens, first_s in lone)
    pass_s = max(LEAST_PASS_S, min(line.seen_s(1), alone_s))
    line = structs.replace(line, pass_s=pass_s, token_s=token_s)
    return structs.replace(profile, kernels=structs.replace(profile.linear, target=line))


def _usual(values: Sequence[float], weights: Sequence[float] | None = None) -> float:
    """Mean of `values`, those left out that are more than USUAL times the median: stalls of the machine."""
    most = USUAL * median(values)
    kept = [(value, weight) for value, weight in zip(values, weights or [1.0] * len(values), strict=True)]
    kept = [each for each in kept if each[0] <= most] or kept
    return sum(value * weight for value, weight in kept) / sum(weight for _, weight in kept)


def pace_of(profile: Profile, steps: Sequence[SeenStep]) -> float:
    """Time of `steps` over that of a line: how slow the machine is now. 1 where there are too few."""
    line = profile.linear.target
    # Not those with prompts, of which a prefix cache may hold a part.
    known = [(step.seconds, line.seen_s(step.rows)) for step in steps if not step.prompt_tokens]
    known = [(seconds, said_s) for seconds, said_s in known if seconds <= USUAL * said_s]
    if len(known) < MIN_STEPS:
        return 1.0
    return sum(seconds for seconds, _ in known) / sum(said_s for _, said_s in known)


def with_pace(profile: Profile, pace: float) -> Profile:
    """A line of a machine so many times as slow."""
    line = profile.linear.target
    by_rows = tuple((rows, pace * seconds) for rows, seconds in line.by_rows)
    line = structs.replace(line, pass_s=pace * line.pass_s, token_s=pace * line.token_s, by_rows=by_rows)
    return structs.replace(profile, kernels=structs.replace(profile.linear, target=line))


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
    ours, _ = simulated(structs.replace(scenario, workload=workload), profile, real)
    real_s, ours_s = (fmean(latencies_s(side)["e2el"]) for side in (real, ours))
    return real_s, ours_s


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
    ours, _ = simulated(scenario, profile, requests)
    real_s, ours_s = (latencies_s(side)["ttft"].tolist() for side in (requests, ours))
    return [real - simulated_s for real, simulated_s in zip(real_s, ours_s, strict=True)]


def line_of_server() -> Profile:
    """A profile of nothing but the line, all of it yet to be fitted; memory and shapes are not known and bind nothing:
    what a server says of its KV cache is a scenario's."""
    unknown = KindError(mean_error_pct=None, max_error_pct=None, points=0, held_out="steps as clients see them")
    shape = ModelShape(
        name="target",
        layers=1,
        hidden=1,
        intermediate=1,
        heads=1,
        kv_heads=1,
        head_dim=1,
        vocab=1,
        tied_embeddings=True,
        max_context=UNKNOWN_TOKENS,
    )
    line = LinearPass(pass_s=LEAST_PASS_S, launches=1)
    size = UNKNOWN_TOKENS
    return Profile(
        schema=1,
        name=NAME,
        gpu=Gpu(name="unknown", memory_bytes=2**40, peak_flops=1e15, bandwidth_bytes_per_s=1e12),
        target=shape,
        draft=structs.replace(shape, name="draft"),
        kernels=LinearKernels(
            target=line,
            draft=line,
            attention_implementation="the server's",
            kv_layout="paged",
            measured=Measured(tokens=size, rows=size, row_context_tokens=size, chunk_tokens=size),
        ),
        host=HostCosts(
            eager_kernel_s=0.0,
            graph_launch_s=0.0,
            kernels_per_layer=1,
            max_graph_tokens=0,
            captures_chunks=True,
            result_s=0.0,
            step_s=0.0,
            row_s=0.0,
            source="nothing is known but what the server showed",
        ),
        overlap=Overlap(),
        errors=dict.fromkeys(("body", "decode", "prefill", "draft", "verify"), unknown),
        conditions="served",
        source="steps of one running server by their rows and prompts, as lanesim saw them from outside",
        fingerprint=None,
        date=datetime.now(UTC).date().isoformat(),
    )
