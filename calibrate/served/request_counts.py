"""Requests' own counts of what became of their drafts, whoever wrote them, and by how much requests differ.

JSON lines, one a request: vLLM's responses (`--per-request-spec-decode-metrics`), SGLang's metrics of requests
(`--export-metrics-to-file`, `--log-requests-format json`), AIPerf's profile_export.jsonl. The spread is the one of most
likelihood under sim.acceptance.spread, with an interval by the likelihood's fall. Not here: counts of all requests
together (calibrate.served.metrics, calibrate.served.readers).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from math import ceil, sqrt
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import numpy as np

from calibrate.served.load import DRAFT_LENGTH, Accepted, check_counts
from sim.acceptance.forms import parse_quoted
from sim.acceptance.spread import SpreadAcceptance
from sim.draws import Floats
from sim.files.json_values import Json, convert, json_lines, value_at

BLOCKS = ("metrics.speculative_decoding", "data.metrics.speculative_decoding", "meta_info", "out.meta_info", "metrics")
"""Keys under which a line has its counts, where they are not its own."""
ALIASES = {
    "steps": ("num_spec_steps", "spec_verify_ct", "spec_decode_steps.value"),
    "accepted": (
        "num_accepted_draft_tokens", "spec_num_correct_drafts", "spec_accept_token_num",
        "spec_decode_accepted_draft_tokens.value",
    ),
    "drafted": (
        "num_draft_tokens", "spec_num_proposed_drafts", "spec_draft_token_num", "spec_decode_draft_tokens.value",
    ),
    "histogram": ("acceptance_histogram", "spec_correct_drafts_histogram", "spec_accept_histogram"),
}  # fmt: skip
"""Field of RequestCounts -> its names: vLLM's, SGLang's and AIPerf's."""
MIN_REQUESTS = 12
"""Requests that tell how they differ."""
LARGEST, COARSE, FINE = 3.0, 0.1, 41
"""Spreads that are tried, logit: up to the first by steps of the second, then so many near the likeliest."""
MEANS: Floats = np.linspace(-2.5, 2.5, 11)
"""Means of requests' shifts that are tried, in their standard errors."""
FALL_90 = 1.353
"""Fall of the logarithm of a likelihood at the ends of its 90 % interval: half of chi-squared's quantile."""

WHOLE_VARIANCE = 1.0 / 12.0
"""Of a whole number around what it was rounded from."""

Count = Annotated[int, msgspec.Meta(ge=0, le=10**9)]


class RequestCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Rounds of one request."""

    steps: Count
    accepted: Count
    """Drafted tokens, bonus tokens not among them."""
    drafted: Count = 0
    histogram: tuple[Count, ...] = ()
    """Rounds by tokens accepted; empty where it is not known."""


class SpreadOfRequests(NamedTuple):
    """Standard deviation of requests on the logit scale, and its 90 % interval."""

    value: float
    low: float
    high: float

    @property
    def form(self) -> str:
        """Behind an acceptance's numbers."""
        return f"~{self.low:g}..{self.high:g}"


def read_requests(path: Path) -> tuple[list[RequestCounts], int]:
    """The requests in `path` that drafted, and how many lines tell of no draft. Raises ValueError naming file and line,
    also where too few drafted."""
    counts, others = [], 0
    for number, raw in json_lines(path, "requests"):
        told: dict[str, Json] = {}
        for block in (raw, *(value_at(raw, name) for name in BLOCKS)):
            values = {field: [value_at(block, name) for name in names] for field, names in ALIASES.items()}
            told = {**{field: each for field, of in values.items() for each in of if each is not None}, **told}
        if told.get("steps"):
            where = f"requests {str(path)!r} line {number}"
            counts.append(convert(told, RequestCounts, where))
            check_counts(where, counts[-1].accepted, counts[-1].drafted)
        else:
            others += 1
    if len(counts) < MIN_REQUESTS:
        raise ValueError(
            f"requests {str(path)!r}: {len(counts)} lines count a request's drafts and {others} do not. Give "
            f"{MIN_REQUESTS} with {', '.join(ALIASES['steps'])}"
        )
    return counts, others


def acceptance_of(
    counts: Sequence[RequestCounts], source: str, draft_tokens: int | None = None
) -> tuple[Accepted, SpreadOfRequests]:
    """All requests together, and by how much they differ. Raises ValueError where the draft length is neither given nor
    counted."""
    steps = sum(each.steps for each in counts)
    counted = max(ceil(each.drafted / each.steps) for each in counts)
    tokens = draft_tokens or counted
    if not tokens:
        raise ValueError(f"{source}: no count of drafted tokens. Add {DRAFT_LENGTH}")
    is_fixed = counted > 0 and all(each.drafted == counted * each.steps for each in counts)
    if tokens < counted or (is_fixed and tokens > counted):
        raise ValueError(f"{source}: drafts of {counted} tokens, not num_speculative_tokens={tokens}. Leave that out")
    rates: tuple[float, ...] = ()
    if all(each.histogram for each in counts):
        rates = tuple(sum(sum(each.histogram[place:]) for each in counts) / steps for place in range(1, tokens + 1))
    total = sum(each.accepted for each in counts)
    check_counts(source, total, 0.0, steps, 1.0 + sum(rates) if rates else None)
    mean = None if rates else 1.0 + total / steps
    accepted = Accepted(drafts=float(steps), draft_tokens=tokens, rates=rates, mean_length=mean)
    accepted.check(source)
    rates = parse_quoted(f"{accepted.quote}~0").model(tokens).unconditional_rates(tokens)
    return accepted, spread_of_requests(rates, [(each.steps, each.steps + each.accepted) for each in counts])


def spread_of_requests(rates: tuple[float, ...], counted: Sequence[tuple[int, float]]) -> SpreadOfRequests:
    """Of requests by their rounds and the tokens of these, with `rates` in the mean.

    The tokens of n rounds as normal, over requests of all shifts alike; how a request ends is not allowed for. Of 60
    drawn requests the 90 % interval held in 88 to 98 % of 30 to 60 tries each (spreads 0.15 to 1.5, 40 to 400 tokens,
    K = 3 and 7).
    """
    steps, tokens = np.array(counted, dtype=float).T[:, :, None]

    def logs_of(spreads: Floats) -> Floats:
        models = [SpreadAcceptance(rates, spread) for spread in spreads.tolist()]
        return np.array([_log_likelihood(model, steps, tokens) for model in models])

    coarse = np.arange(0.0, LARGEST + COARSE, COARSE)
    logs = logs_of(coarse)
    near = coarse[logs >= logs.max() - 2.0 * FALL_90]
    spreads = np.linspace(max(0.0, near[0] - COARSE), near[-1] + COARSE, FINE)
    logs = logs_of(spreads)
    inside = spreads[logs >= logs.max() - FALL_90]
    if spreads[-1] == inside[-1] or inside[-1] > LARGEST:
        warnings.warn(
            f"requests differ by {inside[0]:.2f} or more: the records do not tell how much at most", stacklevel=2
        )
    value, low, high = (round(float(each), 2) for each in (spreads[logs.argmax()], inside[0], inside[-1]))
    return SpreadOfRequests(value, low, high)


def _log_likelihood(model: SpreadAcceptance, steps: Floats, tokens: Floats) -> float:
    """Of rounds [requests, 1] and their tokens, with the mean of the requests' shifts that makes it largest: a few
    requests are not of all requests' mean."""
    shifts, mean, variance = model.round_tokens(len(model.rates))
    spread = steps * variance + WHOLE_VARIANCE
    density = np.exp(-0.5 * (tokens - steps * mean) ** 2 / spread) / np.sqrt(spread)
    weights = np.exp(np.outer(shifts, MEANS / sqrt(len(steps))))
    return float(np.log((density @ (weights / weights.sum(axis=0))).clip(min=1e-300)).sum(axis=0).max())
