"""Passes that run beside each other, in the slots of the pair that is measured: how fast each is relative to alone.

Pure. Not here: their rates (calibrate.measure.rates).
"""

from __future__ import annotations

from itertools import product

from calibrate.fit.grid import PROMPT_TOKENS, Limits, spread
from calibrate.fit.point_works import Corun, TimedPass
from sim.costs.profile import Launch

DRAFT_TOKENS = 4
"""Tokens per row of a draft; a verify row has one query token more."""
CPU_CHUNKS = (16, 64)
BESIDE_ROWS = 16
"""Rows beside a prompt that is launched kernel by kernel."""


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

    coruns = [Corun((_prefill(chunk, context, launch), decode(each))) for chunk, each in product(chunks, rows)]
    if limits.has_draft:
        coruns += [Corun(_draft_and_verify(each, context, launch)) for each in rows]
        if limits.has_graphs:
            prompt = _prefill(min(PROMPT_TOKENS, context), context, "eager")
            decoding = _draft_and_verify(min(BESIDE_ROWS, limits.rows - 1), context, launch)
            coruns += [Corun((prompt, each)) for each in decoding]
        three = _draft_and_verify(limits.rows // 3, context, launch)
        coruns.append(Corun((_prefill(chunks[0], context, launch), *three)))
    return [corun for corun in coruns if min(timed.rows for timed in corun.passes) and corun.num_rows <= limits.rows]


def _prefill(chunk_tokens: int, context_tokens: int, launch: Launch) -> TimedPass:
    """Prompts no longer than the context: a longer chunk is several of them, as in an engine."""
    prompts = max(1, chunk_tokens // context_tokens)
    return TimedPass("prefill", "target", prompts, min(chunk_tokens, context_tokens), 0, launch)


def _draft_and_verify(rows: int, context_tokens: int, launch: Launch) -> tuple[TimedPass, TimedPass]:
    return (
        TimedPass("draft", "draft", rows, DRAFT_TOKENS, context_tokens, launch),
        TimedPass("verify", "target", rows, DRAFT_TOKENS + 1, context_tokens, launch),
    )
