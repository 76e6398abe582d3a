"""The price of a prompt on a running server, by requests that it served one after the other; and a server's own line.

Alone on the server a request's first token comes later by so much per token of its prompt: closed loops, whose
prompts are all of one length, do not tell that from what a step takes anyway. A profile's layers are corrected by it.
Where there is no profile of the server's models and machine, its passes are taken to be a straight line in their
tokens, of which this is the slope and everything else what closed loops tell (calibrate.server.engine_fit): true of a
CPU, and of a GPU as far as the loads that were seen reach. Not here: sending (calibrate.server.open_loop).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import combinations
from statistics import fmean, median
from typing import NamedTuple

import msgspec

from calibrate.judge.fit_cells import RATIO, with_constants
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
"""What a pass takes before anything is fitted: a fit goes by ratios."""
SURE = 2.0
"""Standard errors by which a profile's own price must differ from what was seen before it is corrected."""
RATIOS = (0.02, 50.0)
"""Least and largest correction of a profile's layers."""


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
    """
    slopes = [(two[1] - one[1]) / (two[0] - one[0]) for one, two in combinations(points, 2) if one[0] != two[0]]
    if not slopes:
        raise ValueError("no two prompts of different length were answered: their price cannot be told")
    slope = median(slopes)
    base = median(y - slope * x for x, y in points)
    left = sum((y - base - slope * x) ** 2 for x, y in points) / max(1, len(points) - 2)
    middle = fmean(x for x, _ in points)
    error_s = (left / sum((x - middle) ** 2 for x, _ in points)) ** 0.5
    return PromptPrice(slope, error_s, min(x for x, _ in points))


def with_price(profile: Profile, price: PromptPrice, simulated: Callable[[Profile], PromptPrice]) -> Profile:
    """`profile` whose prompts cost by token what was seen, as far as that is sure. `simulated` gives the price of the
    same requests as simulated with a profile. A line takes the price itself, never below 0."""
    kernels = profile.kernels
    if isinstance(kernels, LinearKernels):
        line = msgspec.structs.replace(kernels.target, token_s=max(0.0, price.token_s))
        return msgspec.structs.replace(profile, kernels=msgspec.structs.replace(kernels, target=line))
    name = f"{RATIO}{price.shortest}"
    one, two = (simulated(with_constants(profile, {name: ratio})).token_s for ratio in (1.0, 2.0))
    if two <= one or abs(price.token_s - one) <= SURE * price.error_s:
        return profile
    ratio = 1.0 + (price.token_s - one) / (two - one)
    return with_constants(profile, {name: min(RATIOS[1], max(RATIOS[0], ratio))})


def with_rows(profile: Profile, share: float) -> Profile:
    """A line whose positions that sample take this share of a prompt's token beside what a token takes."""
    line = profile.linear.target
    line = msgspec.structs.replace(line, row_s=share * line.token_s)
    return msgspec.structs.replace(profile, kernels=msgspec.structs.replace(profile.linear, target=line))


def line_of_server() -> Profile:
    """A profile of nothing but the line, all of it yet to be fitted; memory and shapes are not known and bind nothing:
    what a server says of its KV cache is a scenario's."""
    unknown = KindError(mean_error_pct=None, max_error_pct=None, points=0, held_out="a line of what clients see")
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
        source="a straight line in the tokens of a pass, fitted by lanesim to one running server from outside",
        fingerprint=None,
        date=datetime.now(UTC).date().isoformat(),
    )
