"""Requests that share prefixes: lazy accounting decides as the plain loop does, and content that nobody shares changes
nothing at all."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sim.costs.cost import Cost
from sim.engine.paged import PagedPool
from sim.interface.request import Request
from sim.interface.work import Kind, Work
from sim.policies.options import EngineLimits
from tests.properties import examples
from tests.sim.policies.test_properties import COSTS, KeyedDraws, SizedCosts, _assert_same_decisions, outcome
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


newest: list[PagedPool] = []
"""The pool that was made last."""
free: list[int] = []
"""Its free blocks as works set off."""


def noted(*sizes: int, is_caching: bool = True) -> PagedPool:
    """A pool whose free blocks are noted."""
    newest[:] = [PagedPool(*sizes, is_caching=is_caching)]
    free.clear()
    return newest[0]


class NotedCosts(SizedCosts):
    """Notes how many blocks are free as each work sets off."""

    def cost(self, work: Work) -> Cost:
        free.append(newest[0].num_free)
        return SizedCosts.cost(self, work)


NOTED = NotedCosts(device_s={}, prepare_s=0.01, launch_s=0.02, result_s=0.005, inflation_per_issuer=0.7)


def pair(rows: list[Any], limits: EngineLimits, *, block: int = BLOCK, **more: Any) -> tuple[SimRun, SimRun]:
    """The plain loop and the lazy account, which have as many blocks free whenever a work sets off."""
    runs, notes = [], []
    more |= {"costs": NOTED, "draws": KeyedDraws(), "limits": limits, "block_size": block}
    with patch("tests.sim.support.PagedPool", noted):
        for is_totals in (False, True):
            runs.append(SimRun("continuous", build(rows, block=block), is_totals=is_totals, **more))
            notes.append(list(free))
    if runs[0].serving.paged.is_sharing:
        assert notes[0] == notes[1]
    return runs[0], runs[1]


def assert_alike(plain: SimRun, lazy: SimRun) -> None:
    _assert_same_decisions(lazy, plain)
    for field in ("cached_tokens", "num_preemptions"):
        ours, theirs = ([getattr(r, field) for r in run.serving.requests] for run in (lazy, plain))
        assert ours == theirs
    for run in (plain, lazy):
        pool = run.serving.paged
        assert (pool.num_held, pool.num_shared, pool.free_blocks) == (0, 0, pool.num_blocks)
        assert run.serving.kv.held.value == 0


@examples(5)
@example(
    rows=[(0.0, 1, 1, 0, 0), (0.0, 1, 2, 0, 0), (0.0, 1, 4, 0, 1), *[(0.0, 2, 1, 0, 0)] * 2, (0.0, 2, 1, 0, 1)],
    draft_tokens=0,
    max_num_seqs=2,
    spare_tokens=0,
    spare_blocks=0,
    max_concurrency=2,
    is_async=True,
    block=1,
)  # a table that is handed over with all that it will have in the end is too long
@given(
    rows=asked,
    draft_tokens=st.integers(0, 4),
    max_num_seqs=st.integers(1, 6),
    spare_tokens=st.integers(0, 60),
    spare_blocks=st.integers(0, 90),
    max_concurrency=st.none() | st.integers(1, 4),
    is_async=st.booleans(),
    block=st.sampled_from([1, 4, 16]),
)
def test_lazy_accounting_finds_and_loses_what_the_plain_loop_does(
    rows: list[Any],
    draft_tokens: int,
    max_num_seqs: int,
    spare_tokens: int,
    spare_blocks: int,
    max_concurrency: int | None,
    is_async: bool,
    block: int,
) -> None:
    slots = (3 if is_async else 2) * draft_tokens + 1 if draft_tokens else 0
    most = max(prompt + output + slots for _, prompt, output, *_ in rows)
    limits = EngineLimits(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs * (draft_tokens + 1) + spare_tokens,
        async_scheduling=is_async,
    )
    kv_blocks = -(-most // block) + spare_blocks * 16 // block
    memory = {"kv_blocks": kv_blocks, "max_concurrency": max_concurrency}
    assert_alike(*pair(rows, limits, block=block, draft_tokens=draft_tokens, **memory))


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
    more = {"costs": COSTS, "draws": KeyedDraws(), "block_size": BLOCK, "draft_tokens": draft_tokens}
    more["kv_blocks"] = -(-most // BLOCK) + spare_blocks
    for is_totals in (False, True):
        runs = []
        for each in (own, silent):
            requests = build(each)
            if each is silent:
                for request in requests:
                    request.content = ()
            runs.append(SimRun("continuous", requests, limits=limits, is_totals=is_totals, **more))
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


@pytest.mark.parametrize("is_totals", [False, True])
@pytest.mark.parametrize("name", FOUND)
def test_a_prompt_finds_the_blocks(name: str, is_totals: bool) -> None:
    rows, seats, chunks, peak = FOUND[name]
    more = {"block_size": BLOCK, "draft_tokens": 0, "draws": KeyedDraws(), "limits": EngineLimits(max_num_seqs=seats)}
    run = SimRun("continuous", build(rows), is_totals=is_totals, **more)
    found = [t.work.chunks for t in run.tickets if t.work.kind is Kind.STEP and t.work.chunks]
    assert [list(map(tuple, each)) for each in found] == chunks
    assert sum(r.cached_tokens for r in run.serving.requests) == sum(known for each in chunks for _, known in each)
    assert run.serving.kv.held.peak == peak
    assert run.serving.paged.num_shared == 0
