"""What must hold for every policy whatever arrives: tokens conserved, causality, order on streams, equivalences."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sim.costs.cost import Cost
from sim.engine.draft_length import ByBatch
from sim.interface.request import Request
from sim.interface.work import Work
from sim.policies.options import Batching, EngineLimits, KvMode, Method
from sim.policies.registry import POLICIES, PolicyOptions
from tests.properties import examples
from tests.sim.constant_costs import ConstantCosts
from tests.sim.support import PeriodicDraws, SimRun

arrival_s = st.floats(0.0, 40.0).map(lambda value: round(value, 2))
asked = st.lists(st.tuples(arrival_s, st.integers(1, 60), st.integers(1, 25)), min_size=1, max_size=9)
METHODS = st.sampled_from([Method.DRAFT_MODEL, Method.NGRAM])


class SizedCosts(ConstantCosts):
    """Works take longer the more tokens and context they carry, with host time and launches."""

    def cost(self, work: Work) -> Cost:
        tokens = work.row_tokens + work.rows * max(0, work.draft_tokens - 1) + sum(c.new_tokens for c in work.chunks)
        device_s = 0.05 + 0.01 * tokens + 0.0005 * work.context_tokens
        return Cost(self.prepare_s, self.launch_s, device_s, 1 + work.draft_tokens)


COSTS = SizedCosts(device_s={}, prepare_s=0.01, launch_s=0.02, result_s=0.005, inflation_per_issuer=0.7)


class KeyedDraws:
    """Acceptance as in PeriodicDraws, with all rounds of a request at once."""

    def run_length(self, index: int, position: int, most: int) -> int:
        return min(most, (7 * index + 3 * position) % 5)

    def rounds(self, index: int, emitted_tokens: int, output_tokens: int, draft_tokens: int) -> Any:
        accepted = []
        while emitted_tokens < output_tokens:
            accepted.append(self.run_length(index, emitted_tokens, draft_tokens))
            emitted_tokens += accepted[-1] + 1
        return np.array(accepted, dtype=np.int8)


def build(rows: list, *, prefix: str = "r", has_priorities: bool = False) -> list[Request]:
    return [
        Request(
            index=i,
            id=f"{prefix}{i}",
            arrival_s=at_s,
            prompt_tokens=prompt,
            output_tokens=output,
            priority=7 * i % 3 if has_priorities else 0,
        )
        for i, (at_s, prompt, output) in enumerate(sorted(rows))
    ]


def assert_lazy_is_plain(rows: list, limits: EngineLimits, *, has_priorities: bool = False, **more: Any) -> SimRun:
    """The run whose rows are totals, which decides as the plain loop does."""
    plain, lazy = (
        SimRun(
            "continuous",
            build(rows, has_priorities=has_priorities),
            costs=COSTS,
            draws=KeyedDraws(),
            limits=limits,
            is_totals=is_totals,
            **more,
        )
        for is_totals in (False, True)
    )
    _assert_same_decisions(lazy, plain)
    return lazy


def outcome(run: SimRun) -> list:
    return [
        (
            *(r.index, r.scheduled_s, r.first_token_s, r.last_token_s),
            *(r.emitted_tokens, r.num_rounds, r.drafted_tokens, r.accepted_tokens),
        )
        for r in run.serving.requests
    ]


options = st.builds(
    PolicyOptions,
    workers=st.integers(1, 3),
    decode_batch=st.integers(1, 4),
    verify_batch=st.integers(1, 5),
    batching=st.sampled_from(Batching),
    kv=st.sampled_from(KvMode),
    poll_s=st.sampled_from([0.0, 0.1]),
)


@pytest.mark.parametrize("policy", POLICIES)
@given(rows=asked, options=options, draft_tokens=st.integers(1, 5), kv_blocks=st.integers(12, 40))
def test_every_request_gets_its_tokens_in_causal_order(
    policy: str, rows: list, options: PolicyOptions, draft_tokens: int, kv_blocks: int
) -> None:
    run = SimRun(policy, build(rows), costs=COSTS, options=options, draft_tokens=draft_tokens, kv_blocks=kv_blocks)
    serving = run.serving
    assert serving.num_finished == len(rows)
    for request in serving.requests:
        assert request.emitted_tokens == request.output_tokens
        assert request.arrival_s <= request.scheduled_s < request.first_token_s <= request.last_token_s
    assert (serving.kv.free_blocks, serving.kv.held.value) == (kv_blocks, 0)
    assert sum(serving.gaps.counts) >= sum(r.output_tokens > 1 for r in serving.requests)
    by_stream: dict[str, list] = {}
    for ticket in run.tickets:
        assert ticket.submitted_s <= ticket.issue_start_s <= ticket.prepared_s <= ticket.issued_s
        assert ticket.prepared_s <= ticket.start_s <= ticket.end_s <= ticket.ready_s
        assert ticket.issued_s <= ticket.end_s
        by_stream.setdefault(ticket.stream.name, []).append(ticket)
    for tickets in by_stream.values():
        tickets.sort(key=lambda ticket: (ticket.start_s, ticket.end_s))
        for before, after in pairwise(tickets):
            assert before.end_s <= after.start_s


@given(rows=asked, max_num_seqs=st.integers(1, 6), budget=st.integers(1, 40))
def test_continuous_without_drafts_is_autoregressive_event_for_event(
    rows: list, max_num_seqs: int, budget: int
) -> None:
    limits = EngineLimits(max_num_seqs=max_num_seqs, max_num_batched_tokens=budget)
    runs = [
        SimRun(policy, build(rows), costs=COSTS, limits=limits, draft_tokens=0)
        for policy in ("continuous", "autoregressive")
    ]
    assert runs[0].log == runs[1].log
    assert outcome(runs[0]) == outcome(runs[1])


@examples(4)
@example(
    rows=[(0.0, 1, 21), (0.0, 29, 25), (1.0, 29, 25)],
    draft_tokens=5,
    max_num_seqs=4,
    spare_tokens=6,
    kv_blocks=12,
    max_concurrency=None,
    async_scheduling=False,
    mixes_prompts=True,
    receive_interval=2,
    batch_wait_steps=0,
    batch_wait_ratio=0.5,
    balance=(0, 0.0),
    method=Method.DRAFT_MODEL,
)  # memory ends between two looks at arrivals
@given(
    rows=asked,
    draft_tokens=st.integers(0, 5),
    max_num_seqs=st.integers(1, 6),
    spare_tokens=st.integers(0, 30),
    kv_blocks=st.integers(12, 40),
    max_concurrency=st.none() | st.integers(1, 4),
    async_scheduling=st.booleans(),
    mixes_prompts=st.booleans(),
    receive_interval=st.sampled_from([1, 1, 2, 5]),
    batch_wait_steps=st.sampled_from([0, 0, 1, 4]),
    batch_wait_ratio=st.sampled_from([0.5, 1.0]),
    balance=st.sampled_from([(0, 0.0), (0, 0.0), (7, 2.5)]),
    method=METHODS,
)
def test_lazy_accounting_makes_the_decisions_of_the_plain_loop(
    rows: list,
    draft_tokens: int,
    max_num_seqs: int,
    spare_tokens: int,
    kv_blocks: int,
    max_concurrency: int | None,
    mixes_prompts: bool,
    **rules: Any,
) -> None:
    budget = max_num_seqs * (draft_tokens + 1) + spare_tokens
    limits = EngineLimits(
        max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, mixes_prompts=mixes_prompts, **rules
    )
    memory = {"kv_blocks": kv_blocks if mixes_prompts else kv_blocks + 9 * 6, "max_concurrency": max_concurrency}
    assert_lazy_is_plain(rows, limits, draft_tokens=draft_tokens, **memory)


@examples(5)
@given(
    rows=st.lists(
        st.tuples(st.floats(0.0, 9.0) | st.floats(0.0, 200.0), st.integers(1, 60), st.integers(1, 60)),
        min_size=2,
        max_size=12,
    ),
    draft_tokens=st.integers(0, 3),
    spare_blocks=st.integers(0, 8),
    num_warmups=st.integers(0, 4),
    block_size=st.sampled_from([1, 4, 16]),
    spare_tokens=st.integers(-12, 40),
    async_scheduling=st.booleans(),
    has_priorities=st.booleans(),
    no_evict=st.booleans(),
    whole_prompts=st.booleans(),
    method=METHODS,
)
def test_lazy_accounting_hands_over_while_memory_or_the_budget_is_short(
    rows: list,
    draft_tokens: int,
    spare_blocks: int,
    num_warmups: int,
    block_size: int,
    spare_tokens: int,
    has_priorities: bool,
    **rules: Any,
) -> None:
    """And goes on where it is short no longer, perhaps several times, with rows that gave way in between; where whole
    answers are reserved, none gives way."""
    slots = (3 if rules["async_scheduling"] else 2) * draft_tokens + 1 if draft_tokens else 0
    most = max(prompt + output + slots for _, prompt, output in rows)
    kv_blocks = -(-most // block_size) + spare_blocks * 16 // block_size
    budget = max(draft_tokens + 1, 5 * (draft_tokens + 1) + (0 if rules["no_evict"] else spare_tokens))
    limits = EngineLimits(max_num_seqs=5, max_num_batched_tokens=budget, **rules)
    memory = {"kv_blocks": kv_blocks, "block_size": block_size, "num_warmups": num_warmups}
    lazy = assert_lazy_is_plain(rows, limits, has_priorities=has_priorities, draft_tokens=draft_tokens, **memory)
    assert not (rules["no_evict"] and any(r.num_preemptions for r in lazy.serving.requests))
    assert lazy.serving.paged.num_held == 0


@pytest.mark.parametrize(
    ("rows", "draft_tokens", "block_size", "kv_blocks", "max_num_seqs", "budget"),
    [
        ([(1.1, 29, 3), (0.09, 18, 7), (1.18, 14, 11), (1.95, 17, 8), (2.91, 24, 11), (2.15, 5, 11)], 1, 2, 28, 2, 14),
        ([(0.55, 6, 4), (0.51, 22, 2), (2.12, 5, 12), (0.85, 30, 1), (1.32, 28, 12), (2.96, 4, 1)], 4, 2, 29, 5, 36),
        ([(2.35, 15, 2), (1.51, 27, 1), (1.51, 11, 7), (1.56, 19, 2)], 1, 1, 62, 5, 22),
        ([(0.32, 3, 2), (0.34, 22, 1), (1.65, 10, 5), (0.58, 20, 2)], 1, 2, 21, 5, 34),
        ([(0.24, 10, 10), (1.74, 24, 9), (1.64, 19, 2)], 3, 2, 26, 3, 41),
    ],
)
def test_lazy_accounting_hands_a_step_under_way_over_with_its_tables_as_they_were_planned(
    rows: list, draft_tokens: int, block_size: int, kv_blocks: int, max_num_seqs: int, budget: int
) -> None:
    """Rows that must end hold their blocks while the next step is planned, first chunks have no look-ahead slots, rows
    in their first round hold what they began with: of thousands of random cases, these show it."""
    limits = EngineLimits(max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, async_scheduling=True)
    assert_lazy_is_plain(rows, limits, draft_tokens=draft_tokens, kv_blocks=kv_blocks, block_size=block_size)


@given(rows=asked, length=st.integers(0, 3), spare_blocks=st.integers(0, 8), is_async=st.booleans())
def test_lazy_accounting_of_a_table_of_one_length_makes_the_decisions_of_the_plain_loop(
    rows: list, length: int, spare_blocks: int, is_async: bool
) -> None:
    """Slots are held for drafts of 3 whatever the table says, and with 0 the drafter idles along."""
    slots = (3 if is_async else 2) * 3 + 1
    kv_blocks = -(-max(prompt + output + slots for _, prompt, output in rows) // 4) + 4 * spare_blocks
    limits = EngineLimits(max_num_seqs=5, max_num_batched_tokens=40, async_scheduling=is_async)
    table = ByBatch(((1, 9, length),), 3)
    assert_lazy_is_plain(rows, limits, controller=table, kv_blocks=kv_blocks, block_size=4)


def _assert_same_decisions(lazy: SimRun, plain: SimRun) -> None:
    for ours, theirs in zip(outcome(lazy), outcome(plain), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-9)
    assert [r.num_preemptions for r in lazy.serving.requests] == [r.num_preemptions for r in plain.serving.requests]
    shapes = [
        [
            (t.work.kind, t.work.rows, t.work.row_tokens, t.work.context_tokens, t.work.chunks, t.work.head_rows)
            for t in r.tickets
        ]
        for r in (plain, lazy)
    ]
    ahead_s = [[t.work.ahead_s for t in r.tickets] for r in (plain, lazy)]
    assert ahead_s[0] == pytest.approx(ahead_s[1], abs=1e-9)
    assert shapes[0] == shapes[1]
    assert [work[2:] for work in lazy.works] == [work[2:] for work in plain.works]
    end_s = plain.host.now_s
    assert lazy.serving.queue.mean(end_s) == pytest.approx(plain.serving.queue.mean(end_s))
    assert lazy.serving.kv.held.mean(end_s) == pytest.approx(plain.serving.kv.held.mean(end_s))
    assert lazy.serving.kv.held.peak == plain.serving.kv.held.peak
    assert _expanded(lazy) == pytest.approx(_expanded(plain), abs=1e-9)


def _expanded(run: SimRun) -> list[float]:
    gaps = run.serving.gaps
    return sorted(gap for gap, count in zip(gaps.gaps_s, gaps.counts, strict=True) for _ in range(count))


@pytest.mark.parametrize("policy", POLICIES)
@examples(0.5)
@given(rows=asked)
def test_labels_change_nothing(policy: str, rows: list) -> None:
    runs = [SimRun(policy, build(rows, prefix=prefix), costs=COSTS) for prefix in ("a", "zz-")]
    assert runs[0].log == runs[1].log
    assert outcome(runs[0]) == outcome(runs[1])


@pytest.mark.parametrize("policy", POLICIES)
@examples(0.5)
@given(rows=asked, max_concurrency=st.integers(1, 3))
def test_a_closed_loop_never_has_more_in_flight_than_its_limit(policy: str, rows: list, max_concurrency: int) -> None:
    run = SimRun(policy, build(rows), costs=COSTS, max_concurrency=max_concurrency)
    events = [(r.arrival_s, 1) for r in run.serving.requests] + [(r.last_token_s, -1) for r in run.serving.requests]
    in_flight = 0
    for _, change in sorted(events):
        in_flight += change
        assert in_flight <= max_concurrency


def test_every_policy_faces_the_same_luck() -> None:
    rows = [(float(i), 20, 25) for i in range(5)]
    accepted = {
        policy: [
            (r.num_rounds, r.accepted_tokens)
            for r in SimRun(policy, build(rows), draws=PeriodicDraws()).serving.requests
        ]
        for policy in POLICIES
        if policy != "autoregressive" and not POLICIES[policy].drafts_ahead
    }
    assert len({tuple(value) for value in accepted.values()}) == 1
