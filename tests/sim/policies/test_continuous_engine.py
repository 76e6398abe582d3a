"""The steps of the continuous engine, by hand: every step takes 5 s, drafting 2 s, blocks hold 16 tokens.

Not here: what vLLM decides at each step of budgets, drafts and memory (tests/validation/test_conformance.py).
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.costs.forms.build import build_costs
from sim.costs.profile_files import load
from sim.drafters.registry import DRAFTERS
from sim.engine.draft_length import ByBatch
from sim.interface.request import Request
from sim.interface.work import Kind
from sim.policies.options import EngineLimits
from sim.run.forecast import StepForecast
from tests.properties import examples
from tests.sim.support import AlwaysAccept, NeverAccept, NotedController, SimRun, request

Shape = tuple[float, int, int, tuple[tuple[int, int], ...]]


def steps(run: SimRun) -> list[Shape]:
    """(start, rows, row tokens, chunks as (new, history)) of every target pass."""
    return [
        (ticket.start_s, ticket.work.rows, ticket.work.row_tokens, tuple(map(tuple, ticket.work.chunks)))
        for ticket in run.tickets
        if ticket.work.kind is Kind.STEP
    ]


def autoregressive(requests: list[Request], limits: EngineLimits, kv_blocks: int = 1000) -> SimRun:
    return SimRun("autoregressive", requests, limits=limits, draft_tokens=0, kv_blocks=kv_blocks)


PLANS: dict[str, tuple[list[tuple[float, int, int]], dict[str, Any], int, list[Shape]]] = {
    # And holds up those behind it; one that no step has room for is cut.
    "a prompt that is not cut waits for a step with room for all of it": (
        [(0, prompt, 2) for prompt in (5, 4, 3, 12)], {"max_num_batched_tokens": 8, "whole_prompts": True}, 1000,
        [(0, 0, 0, ((5, 0),)), (5, 1, 1, ((4, 0), (3, 0))), (10, 2, 2, ((6, 0),)), (15, 0, 0, ((6, 6),)),
         (20, 1, 1, ())],
    ),
}  # fmt: skip
"""Requests as (arrival, prompt, output), rules, blocks, and every target pass."""


@pytest.mark.parametrize(("rows", "rules", "kv_blocks", "wanted"), PLANS.values(), ids=PLANS)
def test_a_step_takes_what_its_rules_allow(
    rows: list[tuple[float, int, int]], rules: dict[str, Any], kv_blocks: int, wanted: list[Shape]
) -> None:
    asked = [request(index, arrival_s=at, prompt=prompt, output=out) for index, (at, prompt, out) in enumerate(rows)]
    assert steps(autoregressive(asked, EngineLimits(**rules), kv_blocks)) == wanted


def drafts(asked: list[Request], limits: EngineLimits, **how: Any) -> list[int]:
    """Passes of each draft, all of which is accepted."""
    run = SimRun("continuous", asked, draws=AlwaysAccept(), limits=limits, **how)
    return [ticket.work.draft_tokens for ticket in run.tickets if ticket.work.kind is Kind.DRAFT]


@pytest.mark.parametrize(("skips", "behind"), [(False, [0, 3, 3]), (True, [0, 3, 0])])
@pytest.mark.parametrize("async_scheduling", [False, True])
def test_nothing_is_drafted_behind_a_step_after_which_all_requests_have_ended(
    skips: bool, behind: list[int], async_scheduling: bool
) -> None:
    """Two chunks of a prompt, and a round that brings at least the second of two tokens."""
    limits = EngineLimits(
        max_num_batched_tokens=8, skips_unused_drafts=skips, async_scheduling=async_scheduling, seats_lookahead=True
    )
    assert drafts([request(0, prompt=12, output=2)], limits, draft_tokens=3) == behind


@pytest.mark.parametrize(("is_counted", "begins_s"), [(True, 20.0), (False, 10.0)])
def test_an_interval_is_counted_from_the_last_step_with_a_prompt_or_from_the_first_plan(
    is_counted: bool, begins_s: float
) -> None:
    """Steps of 5 s, an interval of 3: a prompt comes in the second step, which has the first prompt's last chunk. The
    first plan finds nobody, so that the third step is the fourth plan."""
    limits = EngineLimits(
        max_num_batched_tokens=8, prefill_schedule_interval=3, counts_prompt_steps=is_counted, defers_last_token=False
    )
    asked = [request(0, prompt=12, output=9), request(1, arrival_s=6.0, prompt=4, output=1)]
    begun = [start for start, _, _, chunks in steps(autoregressive(asked, limits)) if (4, 0) in chunks[-1:]]
    assert begun[-1:] == [begins_s]


def test_the_look_ahead_is_that_of_the_longest_draft_whatever_the_present_one_is() -> None:
    """26 + 3 + 4 slots are three blocks; with 2 to look ahead they would be two."""
    asked = [request(0, prompt=26, output=20)]
    run = SimRun("continuous", asked, draws=AlwaysAccept(), controller=NotedController(2, 4), stop_s=8.0)
    assert run.serving.paged.num_held == 3


@pytest.mark.parametrize("is_async", [False, True])
def test_ngrams_are_looked_up_between_the_sampled_tokens_and_the_next_step(is_async: bool) -> None:
    """vLLM proposes after sampling: nothing hides the lookup, and a step with it is as long as the forecast says."""
    limits = EngineLimits(method=DRAFTERS["ngram"], async_scheduling=is_async)
    costs = build_costs(load("h100-sxm/llama-3.1-8b"))
    asked = [request(index, prompt=16, output=200) for index in range(4)]
    run = SimRun("continuous", asked, draws=NeverAccept(), costs=costs, limits=limits, draft_tokens=3)
    works = run.tickets[1:100]
    for step, lookup, later in zip(works[1::2], works[2::2], works[3::2], strict=False):
        assert (step.work.kind, lookup.work.kind, lookup.work.rows) == (Kind.STEP, Kind.HOST, 4)
        assert lookup.issue_start_s == step.ready_s
        assert later.issue_start_s == lookup.ready_s == pytest.approx(step.ready_s + 4 * costs.host.ngram_row_s)
    middle, context_tokens = works[49:52], works[49].work.context_tokens / 4
    assert middle[0].work.kind is Kind.STEP
    forecast = StepForecast(costs, limits, context_tokens, has_draft=True).step_s(4, 3)
    assert middle[2].issue_start_s - middle[0].issue_start_s == pytest.approx(forecast, rel=1e-6)


@examples(4)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40), st.floats(0.0, 60.0)), min_size=1, max_size=12),
    draft_tokens=st.integers(0, 4),
    spare_blocks=st.integers(0, 12),
    budget=st.integers(1, 40),
    max_num_seqs=st.integers(1, 6),
    is_async=st.booleans(),
    is_caching=st.booleans(),
)
def test_scarce_blocks_never_leak_starve_or_break_the_budget(
    sizes: list, draft_tokens: int, spare_blocks: int, budget: int, max_num_seqs: int, is_async: bool, is_caching: bool
) -> None:
    arrivals = sorted(arrival for _, _, arrival in sizes)
    asked = [
        request(index, arrival_s=arrivals[index], prompt=prompt, output=output)
        for index, (prompt, output, _) in enumerate(sizes)
    ]
    slots = 2 * draft_tokens + 1 if draft_tokens else 0
    least = max(-(-(r.prompt_tokens + r.output_tokens + slots) // 16) for r in asked)
    limits = EngineLimits(max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, async_scheduling=is_async)
    memory = {"kv_blocks": least + spare_blocks, "is_caching": is_caching}
    run = SimRun("continuous", asked, limits=limits, draft_tokens=draft_tokens, **memory)
    pool = run.serving.paged
    assert (pool.num_free, pool.num_held, pool.held.value) == (least + spare_blocks, 0, 0)
    assert run.serving.num_active == 0
    for asked_one in asked:
        assert asked_one.emitted_tokens == asked_one.output_tokens
        assert asked_one.arrival_s <= asked_one.queued_s <= asked_one.scheduled_s < asked_one.first_token_s
    for _, rows, row_tokens, chunks in steps(run):
        assert row_tokens + sum(new for new, _ in chunks) <= budget
        assert 0 < rows + len(chunks) <= max_num_seqs
        assert all(new > 0 and history >= 0 for new, history in chunks)
    assert sum(run.serving.gaps.counts) >= sum(r.output_tokens > 1 for r in asked)


def test_arrivals_are_seen_once_in_so_many_steps_of_rows_alone() -> None:
    """One that comes during the first step of rows is seen after the third; after a step with prompts, and where
    nothing runs, every plan looks."""
    limits = EngineLimits(receive_interval=3)
    asked = [
        request(0, output=9),
        *(request(i, arrival_s=at_s, output=1) for i, at_s in enumerate((6.0, 21.0, 99.0), 1)),
    ]
    run = autoregressive(asked, limits)
    chunked = [start_s for start_s, _, _, chunks in steps(run) if chunks]
    assert chunked == [0.0, 20.0, 25.0, 99.0]
    assert [r.queued_s for r in run.serving.requests] == [0.0, 20.0, 25.0, 99.0]


def test_prompts_wait_for_others_for_so_many_steps_while_rows_run() -> None:
    """One that comes during the first step of rows waits three of them, unless prompts come to half of the budget;
    where nothing runs, none waits."""
    limits = EngineLimits(max_num_batched_tokens=64, batch_wait_steps=3, batch_wait_ratio=0.5)
    asked = [request(0, prompt=8, output=9), request(1, arrival_s=6.0, prompt=8, output=1)]
    assert [start_s for start_s, _, _, chunks in steps(autoregressive(asked, limits)) if chunks] == [0.0, 25.0]
    asked = [request(0, prompt=8, output=9), request(1, arrival_s=6.0, prompt=40, output=1)]
    assert [start_s for start_s, _, _, chunks in steps(autoregressive(asked, limits)) if chunks] == [0.0, 10.0]


def test_prompts_of_a_rank_begin_every_so_many_steps_or_where_so_many_wait() -> None:
    """The count begins with the first rows and runs on while nobody waits; where nothing runs, none waits."""
    limits = EngineLimits(balance=(4, 2.5))
    asked = [
        request(0, output=20),
        *(request(i, arrival_s=at_s, output=1) for i, at_s in ((1, 11.0), (2, 41.0), (3, 199.0))),
    ]
    chunked = [start_s for start_s, _, _, chunks in steps(autoregressive(asked, limits)) if chunks]
    assert chunked == [0.0, 20.0, 60.0, 199.0]
    asked = [request(0, output=20), *(request(i, arrival_s=6.0, output=1) for i in (1, 2, 3))]
    chunked = [start_s for start_s, _, _, chunks in steps(autoregressive(asked, limits)) if chunks]
    assert chunked == [0.0, 10.0]


def test_a_draft_length_by_batch_is_that_of_the_plan_in_which_a_request_has_ended_since() -> None:
    """Planned ahead for two, of which one has its three tokens: the other drafts one token once more, then three."""
    table = ByBatch(((1, 1, 3), (2, 9, 1)), 3)
    asked = [request(0, prompt=4, output=3), request(1, prompt=4, output=20)]
    assert drafts(asked, EngineLimits(async_scheduling=True), controller=table)[:5] == [1, 1, 1, 3, 3]


def test_a_controller_hears_of_the_steps_that_drafted_alone() -> None:
    """Half of a prompt drafts nothing. The other half and two rounds take 7 s each."""
    controller = NotedController(4, 4)
    limits = EngineLimits(max_num_batched_tokens=5)
    SimRun("continuous", [request(0, output=7)], draws=AlwaysAccept(), limits=limits, controller=controller)
    assert controller.drafts == [(7.0, 0)] * 3
