"""Passes to be timed: a grid of shapes, those of them that a budget pays for, and those that run beside each other.

Pure: the plan follows from the limits and a few pilot times, and then heads the points file. So a measurement that was
killed ends with the points it began with. Not here: timing (calibrate.measure.timing, calibrate.measure.session).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import product
from typing import NamedTuple

from calibrate.fit.point_works import Corun, MixedPass, TimedPass
from sim.costs.profile import Launch, Role

VERIFY_TOKENS, DRAFT_TOKENS = (2, 5, 8), (1, 4, 8)
"""Query tokens per row of verify passes, and tokens per row of drafts."""
NUM_ROWS, NUM_CONTEXTS = 3, 2
NUM_CHUNKS: dict[Role, int] = {"target": 4, "draft": 3}
"""Different row counts, contexts and chunk lengths, spread geometrically."""
HELD_OUT_IN = 5
"""One point in this many is kept from the fit."""
MIN_CONTEXT = 32
MIN_CHUNK = 8

MIXED = ((16, 1), (16, 3), (64, 4))
"""Rows and prompts of passes that have both, as continuous batching has them."""
MIXED_TOKENS = 5
"""Query tokens of each of those rows."""
PROMPT_TOKENS = 512
"""Tokens of those prompts, where slots hold four times as many."""

BESIDE_DRAFT_TOKENS = 4
"""Tokens per row of a draft; a verify row has one query token more."""
CPU_CHUNKS = (16, 64)
BESIDE_ROWS = 16
"""Rows beside a prompt that is launched kernel by kernel."""


class Limits(NamedTuple):
    rows: int
    slot_tokens: int
    """Tokens per slot: history, new tokens and one more."""
    pass_tokens: int
    """Prompt tokens of one pass, over all its chunks."""
    draft_tokens: int
    has_draft: bool
    has_graphs: bool


def grid(limits: Limits) -> list[TimedPass]:
    """Every pass, in the order in which they are measured."""
    rows = spread(1, limits.rows, NUM_ROWS)
    widest = max(VERIFY_TOKENS[-1], limits.draft_tokens) + 2
    contexts = spread(MIN_CONTEXT, limits.slot_tokens - widest, NUM_CONTEXTS)
    launches: list[Launch] = ["eager", "graphed"] if limits.has_graphs else ["eager"]
    launch = launches[-1]
    passes = _prefills("target", limits)
    if limits.has_draft:
        passes += _prefills("draft", limits)
    for num_rows in rows:
        for context in contexts:
            # Eager passes have the same kernels: what launching them takes, decoding and prefilling tell.
            passes += [TimedPass("decode", "target", num_rows, 1, context, each) for each in launches]
            passes += [
                TimedPass("verify", "target", num_rows, tokens, context, launch)
                for tokens in VERIFY_TOKENS
                if tokens <= limits.draft_tokens + 1
            ]
            passes += [
                TimedPass("draft", "draft", num_rows, tokens, context, launch)
                for tokens in DRAFT_TOKENS
                if limits.has_draft and tokens <= limits.draft_tokens
            ]
    return sorted(set(passes), key=_shuffled)


def _prefills(model: Role, limits: Limits) -> list[TimedPass]:
    longest = min(limits.slot_tokens - 2, limits.pass_tokens)
    passes = []
    for tokens in spread(min(MIN_CHUNK, longest), longest, NUM_CHUNKS[model]):
        for num_rows in spread(1, min(limits.rows, 8), 2):
            for context in (0, (limits.slot_tokens - 2) // 2):
                if num_rows * tokens <= limits.pass_tokens and context + tokens + 1 < limits.slot_tokens:
                    passes.append(TimedPass("prefill", model, num_rows, tokens, context, "eager"))
    return passes


def mixed(limits: Limits) -> list[MixedPass]:
    """Verifying rows, with half an answer behind them, beside prompts: they judge a fit and are no part of it."""
    tokens = min(PROMPT_TOKENS, limits.slot_tokens // 4)
    found = []
    for rows, prompts in MIXED:
        num_rows = min(rows, limits.rows - prompts)
        decoding = TimedPass("verify", "target", num_rows, MIXED_TOKENS, tokens + tokens // 8, "graphed")
        found.append(MixedPass(decoding, prompts, tokens))
    return [*dict.fromkeys(found)]


def spread(low: int, high: int, number: int) -> list[int]:
    """About `number` whole numbers from `low` to `high`, both included, in equal ratios.

    >>> spread(1, 16, 3), spread(5, 5, 3), spread(1, 2, 4)
    ([1, 4, 16], [5], [1, 2])
    """
    if high <= low:
        return [high]
    ratio = (high / low) ** (1.0 / (number - 1))
    return sorted({round(low * ratio**i) for i in range(number - 1)} | {high})


def plan(limits: Limits, budget_s: float, estimate_s: Callable[[TimedPass], float], repeats: int) -> list[TimedPass]:
    """The grid, if `repeats` repetitions of it fit `budget_s`; else its passes that each fit their share."""
    passes = grid(limits)
    if repeats * sum(map(estimate_s, passes)) <= budget_s:
        return passes
    share_s = budget_s / len(passes)
    return [timed for timed in passes if repeats * estimate_s(timed) <= 2.0 * share_s]


def is_held_out(timed: TimedPass, passes: Sequence[TimedPass]) -> bool:
    """True if `timed` is kept from the fit: every fifth of its kind and model, in shuffled order."""
    alike = [other for other in passes if (other.kind, other.model) == (timed.kind, timed.model)]
    return sorted(alike, key=_shuffled).index(timed) % HELD_OUT_IN == HELD_OUT_IN - 1


def pilots(limits: Limits) -> list[TimedPass]:
    """Shapes that tell what a pass costs: each kind's smallest and largest."""
    passes = grid(limits)
    ends = []
    for kind in dict.fromkeys((timed.kind, timed.model) for timed in passes):
        alike = sorted((p for p in passes if (p.kind, p.model) == kind), key=_size)
        ends += [alike[0], alike[-1]] if len(alike) > 1 else alike
    return ends


def estimator(timed_s: dict[TimedPass, float]) -> Callable[[TimedPass], float]:
    """Seconds of any pass from the pilots': linear in size between smallest and largest of its kind and model."""
    by_kind: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for timed, seconds in timed_s.items():
        by_kind.setdefault((timed.kind, timed.model), []).append((_size(timed), seconds))

    def estimate_s(timed: TimedPass) -> float:
        known = sorted(by_kind[timed.kind, timed.model])
        (low, low_s), (high, high_s) = known[0], known[-1]
        share = (_size(timed) - low) / (high - low) if high > low else 1.0
        return low_s + max(0.0, share) * max(0.0, high_s - low_s)

    return estimate_s


def _size(timed: TimedPass) -> float:
    """Work of a pass in tokens: what it computes, and an eighth of what it reads."""
    reads = timed.rows * timed.context_tokens * (timed.tokens if timed.kind == "draft" else 1)
    return timed.rows * timed.tokens + reads / 8.0


def _shuffled(timed: TimedPass) -> str:
    """A fixed random order: drifts of the machine must not look like effects of size."""
    return sha256(repr(tuple(timed)).encode()).hexdigest()


# -- passes beside each other


def coruns_within(limits: Limits) -> list[Corun]:
    """Co-runs that the overlap of a pair with these slots is fitted to, captured where there are graphs. A prompt
    launched kernel by kernel, as a replay's are, stands beside a captured draft and verify. The last is prefill, draft
    and verify at once, which no fit uses."""
    launch: Launch = "graphed" if limits.has_graphs else "eager"
    context = (limits.slot_tokens - limits.draft_tokens) // 4
    longest, rows = min(limits.pass_tokens, limits.slot_tokens // 2), spread(1, limits.rows // 2, 3)
    chunks = (longest // 4, longest) if limits.has_graphs else CPU_CHUNKS

    def decode(num_rows: int) -> TimedPass:
        return TimedPass("decode", "target", num_rows, 1, context, launch)

    coruns = [Corun((_prompts_beside(chunk, context, launch), decode(each))) for chunk, each in product(chunks, rows)]
    if limits.has_draft:
        coruns += [Corun(_draft_and_verify(each, context, launch)) for each in rows]
        if limits.has_graphs:
            prompt = _prompts_beside(min(PROMPT_TOKENS, context), context, "eager")
            decoding = _draft_and_verify(min(BESIDE_ROWS, limits.rows - 1), context, launch)
            coruns += [Corun((prompt, each)) for each in decoding]
        three = _draft_and_verify(limits.rows // 3, context, launch)
        coruns.append(Corun((_prompts_beside(chunks[0], context, launch), *three)))
    return [corun for corun in coruns if min(timed.rows for timed in corun.passes) and corun.num_rows <= limits.rows]


def _prompts_beside(chunk_tokens: int, context_tokens: int, launch: Launch) -> TimedPass:
    """Prompts no longer than the context: a longer chunk is several of them, as in an engine."""
    prompts = max(1, chunk_tokens // context_tokens)
    return TimedPass("prefill", "target", prompts, min(chunk_tokens, context_tokens), 0, launch)


def _draft_and_verify(rows: int, context_tokens: int, launch: Launch) -> tuple[TimedPass, TimedPass]:
    return (
        TimedPass("draft", "draft", rows, BESIDE_DRAFT_TOKENS, context_tokens, launch),
        TimedPass("verify", "target", rows, BESIDE_DRAFT_TOKENS + 1, context_tokens, launch),
    )
