"""A server's own profile by the steps that its clients saw; and the price of a prompt by requests one after the other.

The tokens of a step reach all of its requests together, so that its length, its rows and the prompts that ended in it
are seen from outside. Where there is no profile of the server's models and machine, a pass takes by rows what such
steps took in the mean, drafts and their verification included, and as much more per token of a prompt. A profile's
layers are corrected by the price of a prompt alone. Not here: sending (calibrate.server.open_loop).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import accumulate, combinations, pairwise
from statistics import fmean, median
from typing import NamedTuple

import msgspec

from calibrate.fit.constants import RATIO, with_constants
from calibrate.served.load import ServedRequest
from sim.costs.compact_kernels import LinearKernels, LinearPass, Measured
from sim.costs.profile import Gpu, HostCosts, KindError, Overlap, Profile
from sim.costs.shapes import ModelShape
from sim.interface.request import Request

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


def with_price(profile: Profile, price: PromptPrice, simulated: Callable[[Profile], PromptPrice]) -> Profile:
    """`profile` whose prompts cost by token what was seen, as far as that is sure. `simulated` gives the price of the
    same requests as simulated with a profile."""
    name = f"{RATIO}{price.shortest}"
    one, two = (simulated(with_constants(profile, {name: ratio})).token_s for ratio in (1.0, 2.0))
    if two <= one or abs(price.token_s - one) <= SURE * price.error_s:
        return profile
    ratio = 1.0 + (price.token_s - one) / (two - one)
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
        raise ValueError("no request had two tokens one after the other: ask for longer outputs")
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
    line = msgspec.structs.replace(line, pass_s=pass_s, token_s=token_s)
    return msgspec.structs.replace(profile, kernels=msgspec.structs.replace(profile.linear, target=line))


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
    line = msgspec.structs.replace(line, pass_s=pace * line.pass_s, token_s=pace * line.token_s, by_rows=by_rows)
    return msgspec.structs.replace(profile, kernels=msgspec.structs.replace(profile.linear, target=line))


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
        draft=msgspec.structs.replace(shape, name="draft"),
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
