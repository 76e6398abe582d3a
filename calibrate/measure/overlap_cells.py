"""Passes that run beside each other, the most valuable first.

On a rented GPU (calibrate.measure.campaign.corun): prefill chunks beside decode rows and drafts beside verify passes,
each captured and eager, and what else a fit needs, captured; corners before what lies between them, captured before
eager. Corners of the first pair also with either side first, smaller ones on shares of the multiprocessors. For a pair
that is measured whole (calibrate.measure.session): a few of the same, in its slots. Pure. Not here: their rates
(calibrate.measure.rates).
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

from calibrate.fit.point_works import Corun, TimedPass
from calibrate.measure.grid import Limits, spread
from sim.costs.profile import Launch

DRAFT_TOKENS = 4
"""Tokens per row of a draft; a verify row has one query token more."""
CONTEXTS = {"cuda": (1024, 512, 256), "cpu": (256,)}
"""Tokens in KV of every decoding row, and the longest prompt of a chunk: the first that fits the device's memory."""
NUM_SHARED_CHUNKS = 2
"""Chunk lengths that run on shares: longer ones take most of a minute on a fifth of a GPU."""
ROOM_TOKENS = 256
"""Tokens of a slot beyond its context: slots come in steps of so many tokens."""


class CorunGrid(NamedTuple):
    chunk_tokens: tuple[int, ...]
    decode_rows: tuple[int, ...]
    draft_rows: tuple[int, ...]
    """Rows of a draft, and as many others of the verify pass beside it."""
    shares_pct: tuple[int, ...] = ()
    """Percent of the multiprocessors that a prefill gets beside a decode on the rest."""


GRIDS = {
    "cuda": CorunGrid((128, 512, 1024, 2048), (1, 8, 32, 128), (1, 8, 32, 64), (20, 40, 60, 80)),
    "cpu": CorunGrid((16, 64), (1, 4), (1, 4)),
}
Launches = tuple[Launch, Launch]
"""Passes of the two sides of a pair."""
CAPTURED: Launches = ("graphed", "graphed")
EAGER: Launches = ("eager", "eager")
LAUNCHES: dict[str, tuple[Launches, ...]] = {
    "prefill": (CAPTURED, ("eager", "graphed"), EAGER),
    "draft": (CAPTURED, EAGER),
    "shares": (CAPTURED, EAGER),
}
"""Launches of the two sides; the second of prefill is what a replay does."""


def coruns(device: str, context_tokens: int) -> list[Corun]:
    """Every co-run of the device's grid, in the order of measuring."""
    grid = GRIDS[device]
    ranked: list[tuple[int, bool, Corun]] = []
    for chunk, rows in product(grid.chunk_tokens, grid.decode_rows):
        is_corner = chunk in _ends(grid.chunk_tokens) and rows in _ends(grid.decode_rows)
        for rank, (a, b) in enumerate(_launches("prefill", device)):
            both = prefill_beside_decode(chunk, rows, context_tokens, (a, b))
            ranked.append((rank, is_corner, Corun(both)))
            if is_corner and grid.shares_pct and (a, b) == CAPTURED:
                ranked += [(rank + 1, True, Corun(both, favoured=side)) for side in (1, 0)]
            # Behind the same pair on the whole device, which they are compared with.
            if chunk in grid.chunk_tokens[:NUM_SHARED_CHUNKS] and rows in _ends(grid.decode_rows):
                on_shares = grid.shares_pct if (a, b) in LAUNCHES["shares"] else ()
                ranked += [(rank + 2, True, Corun(both, share)) for share in on_shares]
    for rows in grid.draft_rows:
        for rank, launches in enumerate(_launches("draft", device)):
            ranked.append((rank, rows in _ends(grid.draft_rows), _draft_and_verify(rows, context_tokens, launches)))
    if device == "cuda":
        ranked += [
            (0, True, corun) for corun in _telling(_ends(grid.chunk_tokens), _ends(grid.draft_rows), context_tokens)
        ]
    return [corun for rank, is_corner, corun in sorted(ranked, key=lambda each: each[0] + (0 if each[1] else 2))]


def coruns_within(limits: Limits) -> list[Corun]:
    """Co-runs that the overlap of a pair with these slots is fitted to, captured where there are graphs: the device's
    overlap is requested, and launching is known from elsewhere. Last prefill, draft and verify at once, which no fit
    uses. As far as there are slots.
    """
    launch: Launch = "graphed" if limits.has_graphs else "eager"
    context = (limits.slot_tokens - limits.draft_tokens) // 4
    longest, rows = min(limits.pass_tokens, limits.slot_tokens // 2), spread(1, limits.rows // 2, 3)
    chunks = (longest // 4, longest) if limits.has_graphs else GRIDS["cpu"].chunk_tokens
    coruns = [
        Corun(prefill_beside_decode(chunk, each, context, (launch, launch))) for chunk, each in product(chunks, rows)
    ]
    if limits.has_draft:
        coruns += [_draft_and_verify(each, context, (launch, launch)) for each in rows]
    if limits.has_graphs:
        coruns += _telling(chunks, (rows[0], rows[-1]) if limits.has_draft else (), context)
    if limits.has_draft:
        three = _draft_and_verify(limits.rows // 3, context, (launch, launch)).passes
        coruns.append(Corun((_prefill(chunks[0], context, launch), *three)))
    return [corun for corun in coruns if min(timed.rows for timed in corun.passes) and corun.num_rows <= limits.rows]


def slots(device: str, context_tokens: int) -> int:
    """Rows of the largest co-run, all sides."""
    return max(corun.num_rows for corun in coruns(device, context_tokens))


def _telling(chunks: tuple[int, ...], draft_rows: tuple[int, ...], context_tokens: int) -> list[Corun]:
    """Captured co-runs that tell what the others do not, the longest chunks first: nothing but two prefills asks for
    more than the compute roof, and the kernels of a draft wait for each other where neither roof is full."""
    prefills = [_prefill(chunk, context_tokens, "graphed") for chunk in reversed(chunks)]
    drafts = [_draft(rows, context_tokens, "graphed") for rows in draft_rows]
    return [*(Corun((prefill, prefill)) for prefill in prefills), *map(Corun, product(prefills, drafts))]


def prefill_beside_decode(
    chunk_tokens: int, rows: int, context_tokens: int, launches: Launches
) -> tuple[TimedPass, TimedPass]:
    """A chunk of prompts no longer than the context, and rows that decode with so much of it in KV."""
    prefill = _prefill(chunk_tokens, context_tokens, launches[0])
    return prefill, TimedPass("decode", "target", rows, 1, context_tokens, launches[1])


def _prefill(chunk_tokens: int, context_tokens: int, launch: Launch) -> TimedPass:
    """Prompts no longer than the context: a longer chunk is several of them, as in an engine."""
    prompts = max(1, chunk_tokens // context_tokens)
    return TimedPass("prefill", "target", prompts, min(chunk_tokens, context_tokens), 0, launch)


def _draft_and_verify(rows: int, context_tokens: int, launches: Launches) -> Corun:
    verify = TimedPass("verify", "target", rows, DRAFT_TOKENS + 1, context_tokens, launches[1])
    return Corun((_draft(rows, context_tokens, launches[0]), verify))


def _draft(rows: int, context_tokens: int, launch: Launch) -> TimedPass:
    return TimedPass("draft", "draft", rows, DRAFT_TOKENS, context_tokens, launch)


def _launches(kind: str, device: str) -> tuple[Launches, ...]:
    return LAUNCHES[kind] if device == "cuda" else (EAGER,)


def _ends(values: tuple[int, ...]) -> tuple[int, int]:
    return values[0], values[-1]
