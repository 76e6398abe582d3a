"""Passes that run beside each other, the most valuable first.

On a lent GPU (calibrate.measure.campaign.corun): eight pairs whose mean kernels take 8 to 120 us on an H200, three
passes at once, then what lies between; all captured. For a pair that is measured whole (calibrate.measure.session): a
few of the same, in its slots. Pure. Not here: their rates (calibrate.measure.rates).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

from calibrate.fit.grid import PROMPT_TOKENS, Limits, spread
from calibrate.fit.point_works import Corun, TimedPass
from sim.costs.profile import Launch

DRAFT_TOKENS = 4
"""Tokens per row of a draft; a verify row has one query token more."""
CONTEXTS = {"cuda": (1024, 512, 256), "cpu": (256,)}
"""Tokens in KV of every decoding row, and the longest prompt of a chunk: the first that fits the device's memory."""
BESIDE_ROWS = 16
"""Rows beside a prompt that is launched kernel by kernel."""
NUM_FIRST = 9
"""Co-runs of a lent GPU that come first."""
ROOM_TOKENS = 256
"""Tokens of a slot beyond its context: slots come in steps of so many tokens."""


class CorunGrid(NamedTuple):
    chunk_tokens: tuple[int, ...]
    decode_rows: tuple[int, ...]
    draft_rows: tuple[int, ...]
    """Rows of a draft, and as many others of the verify pass beside it."""


GRIDS = {
    "cuda": CorunGrid((128, 512, 1024, 2048), (1, 8, 32, 128), (1, 8, 32, 64)),
    "cpu": CorunGrid((16, 64), (1, 4), (1, 4)),
}


def coruns(device: str, context_tokens: int) -> list[Corun]:
    """Every co-run of the device's grid, in the order of measuring."""
    grid, launch = GRIDS[device], _launch(device == "cuda")

    def prefills(chunks: Sequence[int], rows: Sequence[int]) -> list[Corun]:
        return [prefill_beside_decode(chunk, each, context_tokens, launch) for chunk, each in product(chunks, rows)]

    def drafts(rows: Sequence[int]) -> list[Corun]:
        return [Corun(_draft_and_verify(each, context_tokens, launch)) for each in rows]

    corners, most = prefills(_ends(grid.chunk_tokens), _ends(grid.decode_rows)), grid.draft_rows[-2:]
    listed = [*corners, *prefills(grid.chunk_tokens[1:-1], grid.decode_rows[2:3]), *drafts(most)]
    three = _prefill(grid.chunk_tokens[1], context_tokens, launch), *drafts(most)[0].passes
    listed.append(Corun(three))
    listed += [*prefills(grid.chunk_tokens, grid.decode_rows), *drafts(grid.draft_rows)]
    return [*dict.fromkeys(listed)]


def coruns_within(limits: Limits) -> list[Corun]:
    """Co-runs that the overlap of a pair with these slots is fitted to, captured where there are graphs: the device's
    overlap is requested, and launching is known from elsewhere. Last prefill, draft and verify at once, which no fit
    uses. As far as there are slots. Before those a prompt launched kernel by kernel, as a replay's are, beside a
    captured draft and verify: no fit uses them either.
    """
    launch = _launch(limits.has_graphs)
    context = (limits.slot_tokens - limits.draft_tokens) // 4
    longest, rows = min(limits.pass_tokens, limits.slot_tokens // 2), spread(1, limits.rows // 2, 3)
    chunks = (longest // 4, longest) if limits.has_graphs else GRIDS["cpu"].chunk_tokens
    coruns = [prefill_beside_decode(chunk, each, context, launch) for chunk, each in product(chunks, rows)]
    if limits.has_draft:
        coruns += [Corun(_draft_and_verify(each, context, launch)) for each in rows]
        if limits.has_graphs:
            prompt = _prefill(min(PROMPT_TOKENS, context), context, "eager")
            decoding = _draft_and_verify(min(BESIDE_ROWS, limits.rows - 1), context, launch)
            coruns += [Corun((prompt, each)) for each in decoding]
        three = _draft_and_verify(limits.rows // 3, context, launch)
        coruns.append(Corun((_prefill(chunks[0], context, launch), *three)))
    return [corun for corun in coruns if min(timed.rows for timed in corun.passes) and corun.num_rows <= limits.rows]


def slots(device: str, context_tokens: int) -> int:
    """Rows of the largest co-run, all sides."""
    return max(corun.num_rows for corun in coruns(device, context_tokens))


def prefill_beside_decode(chunk_tokens: int, rows: int, context_tokens: int, launch: Launch) -> Corun:
    """A chunk of prompts no longer than the context, and rows that decode with so much of it in KV."""
    prefill = _prefill(chunk_tokens, context_tokens, launch)
    return Corun((prefill, TimedPass("decode", "target", rows, 1, context_tokens, launch)))


def _prefill(chunk_tokens: int, context_tokens: int, launch: Launch) -> TimedPass:
    """Prompts no longer than the context: a longer chunk is several of them, as in an engine."""
    prompts = max(1, chunk_tokens // context_tokens)
    return TimedPass("prefill", "target", prompts, min(chunk_tokens, context_tokens), 0, launch)


def _draft_and_verify(rows: int, context_tokens: int, launch: Launch) -> tuple[TimedPass, TimedPass]:
    return (
        TimedPass("draft", "draft", rows, DRAFT_TOKENS, context_tokens, launch),
        TimedPass("verify", "target", rows, DRAFT_TOKENS + 1, context_tokens, launch),
    )


def _launch(has_graphs: bool) -> Launch:
    return "graphed" if has_graphs else "eager"


def _ends(values: tuple[int, ...]) -> tuple[int, int]:
    return values[0], values[-1]
