"""What must hold for every policy whatever arrives: tokens conserved, causality, order on streams, equivalences."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.costs.cost import Cost
from sim.drafters.registry import DRAFTERS
from sim.interface.request import Request
from sim.interface.work import Work
from sim.policies.options import Batching, EngineLimits, KvMode
from sim.policies.registry import POLICIES, PolicyOptions
from tests.properties import examples
from tests.sim.constant_costs import ConstantCosts
from tests.sim.support import EVERY, PeriodicDraws, SimRun, most_in_flight

arrival_s = st.floats(0.0, 40.0).map(lambda value: round(value, 2))
asked = st.lists(st.tuples(arrival_s, st.integers(1, 60), st.integers(1, 25)), min_size=1, max_size=9)
METHODS = st.sampled_from([DRAFTERS["draft_model"], DRAFTERS["ngram"]])


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


@pytest.mark.parametrize("policy", EVERY)
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
def test_nobody_gives_way_where_whole_answers_are_reserved_however_short_memory_is(
    rows: list,
    draft_tokens: int,
    spare_blocks: int,
    num_warmups: int,
    block_size: int,
    spare_tokens: int,
    has_priorities: bool,
    **rules: Any,
) -> None:
    slots = (3 if rules["async_scheduling"] else 2) * draft_tokens + 1 if draft_tokens else 0
    most = max(prompt + output + slots for _, prompt, output in rows)
    kv_blocks = -(-most // block_size) + spare_blocks * 16 // block_size
    budget = max(draft_tokens + 1, 5 * (draft_tokens + 1) + (0 if rules["no_evict"] else spare_tokens))
    limits = EngineLimits(max_num_seqs=5, max_num_batched_tokens=budget, **rules)
    memory = {"kv_blocks": kv_blocks, "block_size": block_size, "num_warmups": num_warmups}
    asked_for = build(rows, has_priorities=has_priorities)
    given_limits = {"costs": COSTS, "draws": KeyedDraws(), "limits": limits, "draft_tokens": draft_tokens}
    run = SimRun("continuous", asked_for, **given_limits, **memory)
    assert all(one.is_finished for one in run.serving.requests)
    assert not (rules["no_evict"] and any(one.num_preemptions for one in run.serving.requests))
    assert run.serving.paged.num_held == 0


@pytest.mark.parametrize("policy", EVERY)
@examples(0.5)
@given(rows=asked, max_concurrency=st.integers(1, 3))
def test_a_closed_loop_never_has_more_in_flight_than_its_limit(policy: str, rows: list, max_concurrency: int) -> None:
    run = SimRun(policy, build(rows), costs=COSTS, max_concurrency=max_concurrency)
    assert most_in_flight(run.serving.requests, since="arrival_s") <= max_concurrency


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
