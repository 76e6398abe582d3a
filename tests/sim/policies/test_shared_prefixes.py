"""Requests that share prefixes: lazy accounting decides as the plain loop does, and content that nobody shares changes
nothing at all."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.interface.request import Request
from sim.interface.work import Kind
from sim.policies.options import EngineLimits
from tests.sim.policies.test_properties import COSTS, KeyedDraws, outcome
from tests.sim.support import SimRun

BLOCK = 4
UNIQUE = 10_000
"""Content ids from here on are of one request alone."""

asked = st.lists(
    st.tuples(
        st.floats(0.0, 30.0).map(lambda value: round(value, 2)),
        st.integers(1, 60),
        st.integers(1, 25),
        st.integers(0, 2),
        st.integers(0, 90),
    ),
    min_size=2,
    max_size=10,
)
"""(arrival, prompt tokens, output tokens, family, leading tokens that are the family's)"""


def build(rows: list[Any], *, block: int = BLOCK) -> list[Request]:
    """Requests with content: whole blocks within the family's text are the family's, the others their own. A family's
    text may reach into the answer."""
    requests = []
    for index, (at_s, prompt, output, family, shared) in enumerate(sorted(rows)):
        num_shared = min(shared, prompt + output) // block
        own = max(0, prompt // block - num_shared)
        ids = [family * 1000 + place for place in range(num_shared)]
        ids += [UNIQUE * (index + 1) + place for place in range(own)]
        requests.append(Request(index, f"r{index}", at_s, prompt, output, tuple(ids)))
    return requests


@given(rows=asked, draft_tokens=st.integers(0, 3), spare_blocks=st.integers(0, 20), is_async=st.booleans())
def test_content_that_nobody_shares_changes_nothing(
    rows: list[Any], draft_tokens: int, spare_blocks: int, is_async: bool
) -> None:
    """Each request a family of its own, named in full, beside requests that say nothing: equal to the last bit."""
    slots = (3 if is_async else 2) * draft_tokens + 1 if draft_tokens else 0
    most = max(prompt + output + slots for _, prompt, output, *_ in rows)
    limits = EngineLimits(max_num_seqs=5, max_num_batched_tokens=60, async_scheduling=is_async)
    own = [(*row[:3], 10 + place, 99) for place, row in enumerate(sorted(rows))]
    silent = [(*row[:3], 0, 0) for row in rows]
    runs = []
    for each in (own, silent):
        requests = build(each)
        if each is silent:
            for request in requests:
                request.content = ()
        runs.append(
            SimRun(
                "continuous",
                requests,
                costs=COSTS,
                draws=KeyedDraws(),
                limits=limits,
                block_size=BLOCK,
                draft_tokens=draft_tokens,
                kv_blocks=-(-most // BLOCK) + spare_blocks,
            )
        )
    assert outcome(runs[0]) == outcome(runs[1])
    assert runs[0].works == runs[1].works
    assert runs[0].serving.kv.held.mean(runs[0].host.now_s) == runs[1].serving.kv.held.mean(runs[1].host.now_s)


FOUND: dict[str, tuple[list[Any], int, list[list[tuple[int, int]]], int]] = {
    # As vLLM, whose blocks have their hash when they are planned: 14 tokens alike are three blocks of 4.
    "of a prompt that is seated in the same step": ([(0, 20, 3, 0, 14)] * 2, 256, [[(20, 0), (8, 12)]], 32),
    # 10 + 9 tokens, the last of them never computed: 18 are four whole blocks; the next prompt goes on with them.
    "of the turn before and its answer": ([(0, 10, 9, 0, 19), (100, 30, 2, 0, 99)], 256, [[(10, 0)], [(14, 16)]], 31),
    # 16 + 4 and a token of each in the end.
    "which are in memory once": ([(0, 16, 2, 0, 16)] * 2, 256, [[(16, 0), (4, 12)]], 16 + 4 + 2),
    "of equal prompts one by one, to the last block": ([(0, 17, 2, 0, 17)] * 5, 1, [[(17, 0)], *[[(1, 16)]] * 4], 18),
}
"""Rows, seats, chunks as (new, found), and the most tokens in memory."""


@pytest.mark.parametrize("name", FOUND)
def test_a_prompt_finds_the_blocks(name: str) -> None:
    rows, seats, chunks, peak = FOUND[name]
    more = {"block_size": BLOCK, "draft_tokens": 0, "draws": KeyedDraws(), "limits": EngineLimits(max_num_seqs=seats)}
    run = SimRun("continuous", build(rows), **more)
    found = [t.work.chunks for t in run.tickets if t.work.kind is Kind.STEP and t.work.chunks]
    assert [list(map(tuple, each)) for each in found] == chunks
    assert sum(r.cached_tokens for r in run.serving.requests) == sum(known for each in chunks for _, known in each)
    assert run.serving.kv.held.peak == peak
    assert run.serving.paged.num_shared == 0
