"""Rows as totals where random cases seldom look: when it may stand in, what a plan made ahead counts on, growth.

That it decides as the plain loop does is a property (test_properties).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sim.engine.serving import Serving
from sim.interface.host import Stream
from sim.interface.work import Kind
from sim.policies import rounds
from sim.policies.continuous import loop, totals
from sim.policies.continuous.loop import can_be_totals
from sim.policies.options import EngineLimits, Method
from sim.policies.registry import Policy, PolicyOptions, register
from sim.report.notebook import simulate
from tests.sim.support import SimRun, request, serve


class NeverAccept:
    """No drafted token is accepted, told round by round or all at once."""

    def run_length(self, index: int, position: int, most: int) -> int:
        return 0

    def rounds(self, index: int, emitted_tokens: int, output_tokens: int, draft_tokens: int) -> Any:
        return np.zeros(output_tokens - emitted_tokens, dtype=np.int8)


def can_stand_in(
    num_requests: int = 9,
    *,
    draft_tokens: int = 3,
    max_concurrency: int | None = None,
    kv_blocks: int | None = None,
    **limits: Any,
) -> bool:
    told = EngineLimits(**({"max_num_seqs": 4, "max_num_batched_tokens": 16} | limits))
    requests = [request(index) for index in range(num_requests)]
    memory = {} if kv_blocks is None else {"kv_blocks": kv_blocks}
    serving = serve(None, "continuous", requests, draft_tokens, max_concurrency=max_concurrency, limits=told, **memory)
    return can_be_totals(serving, told)


def lazily(rows: list[tuple[int, int]], **more: Any) -> SimRun:
    """Requests of these prompt and output tokens, all at 0 s."""
    requests = [request(index, prompt=prompt, output=output) for index, (prompt, output) in enumerate(rows)]
    return SimRun("continuous", requests, draws=NeverAccept(), is_totals=True, **more)


def test_a_continuous_policy_of_ones_own_is_the_one_that_runs() -> None:
    """It says itself whether rows are totals; this one serves request after request."""

    async def one_by_one(serving: Serving, options: PolicyOptions, stream: Stream) -> None:
        while True:
            asked = await serving.admit()
            await rounds.submit_prefill(serving, asked, stream)
            serving.commit_prefill(asked)
            while not asked.is_finished:
                await rounds.run_round(serving, [asked], options, stream, stream)

    def build(serving: Serving, options: PolicyOptions, limits: EngineLimits) -> list[Any]:
        return [one_by_one(serving, options, serving.host.stream("mine"))]

    name = register(Policy(name="my-continuous", summary="", source="test", build=build, is_continuous=True)).name
    record = simulate(policy=name, profile="cpu/tiny", num_prompts=5).record
    assert {usage.stream for usage in record.usage} == {"mine"}


def test_prompts_that_go_first_are_totals_where_everybody_who_may_be_seated_fits() -> None:
    """A table holds look-ahead blocks that no reservation knows of, and the next prompt would find them free."""
    serving = serve(None, "continuous", [request(0)], 3, limits=EngineLimits(max_num_seqs=4, max_num_batched_tokens=16))
    life = serving.kv.blocks_for(request(0))
    assert can_stand_in(mixes_prompts=False, kv_blocks=4 * life)
    assert not can_stand_in(mixes_prompts=False, kv_blocks=4 * life - 1)
    assert can_stand_in(mixes_prompts=False, kv_blocks=2 * life, max_concurrency=2)
    assert can_stand_in(kv_blocks=life)


def test_the_budget_must_have_room_for_every_seat_with_its_draft() -> None:
    assert can_stand_in(max_num_batched_tokens=16)
    assert can_stand_in(max_num_batched_tokens=4)
    assert not can_stand_in(max_num_batched_tokens=3)
    assert not can_stand_in(max_num_batched_tokens=15, no_evict=True)
    assert can_stand_in(max_num_batched_tokens=4, draft_tokens=0, no_evict=True)
    assert not can_stand_in(max_num_batched_tokens=3, draft_tokens=0, no_evict=True)


def test_seats_that_nobody_can_take_need_no_room() -> None:
    assert can_stand_in(2, max_num_batched_tokens=8)
    assert not can_stand_in(2, max_num_batched_tokens=7, no_evict=True)
    assert can_stand_in(max_concurrency=1, max_num_batched_tokens=4)
    assert not can_stand_in(max_concurrency=1, max_num_batched_tokens=3)


def test_limited_chunks_take_the_plain_loop() -> None:
    assert can_stand_in(async_scheduling=True, method=Method.EAGLE3)
    assert not can_stand_in(long_prefill_token_threshold=2048)
    assert can_stand_in(method=Method.NGRAM)


@pytest.mark.parametrize("first_steps", [2, 3, 4096])
def test_the_account_grows_with_the_run(first_steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(totals, "_GROWTH_STEPS", first_steps)
    run = lazily([(10, 9), (10, 30)], draft_tokens=1)
    works = [work.work for work in run.tickets if work.work.kind is Kind.STEP]
    assert len(works) == 30
    assert [work.context_tokens for work in works[1:10]] == [20, 22, 24, 26, 28, 30, 32, 34, 18]
    assert [r.last_token_s for r in run.serving.requests] == [63.0, 210.0]


def test_requests_are_queued_at_the_next_step_boundary() -> None:
    requests = [request(index, arrival_s=arrival_s, output=3) for index, arrival_s in enumerate((0.0, 2.0, 7.0))]
    run = SimRun("continuous", requests, draws=NeverAccept(), is_totals=True, draft_tokens=0)
    assert [r.queued_s for r in run.serving.requests] == [0.0, 5.0, 10.0]


def test_full_seats_do_not_end_the_account(monkeypatch: pytest.MonkeyPatch) -> None:
    def plain_loop(*_: Any) -> None:
        raise AssertionError("memory has not run out")

    monkeypatch.setattr(loop, "by_rows", plain_loop)
    limits = EngineLimits(max_num_seqs=2, max_num_batched_tokens=100)
    run = lazily([(10, 4)] * 5, limits=limits, draft_tokens=0)
    assert run.serving.is_all_finished


@pytest.mark.parametrize("is_async", [False, True])
def test_the_account_goes_on_once_memory_is_at_ease(monkeypatch: pytest.MonkeyPatch, is_async: bool) -> None:
    """Two of 41 tokens do not fit into 64 for their whole lives: the plain loop serves the first two, and nobody else
    but the one that is there when both are through, 200 s before two more."""
    submitted: list[float] = []
    start_step = loop.start_step

    def counted(serving: Any, *more: Any, **named: Any) -> Any:
        submitted.append(serving.host.now_s)
        return start_step(serving, *more, **named)

    monkeypatch.setattr(loop, "start_step", counted)
    limits = EngineLimits(max_num_seqs=4, max_num_batched_tokens=64, async_scheduling=is_async)
    requests = [
        request(index, arrival_s=at_s, prompt=11, output=30)
        for index, at_s in enumerate((0.0, 0.0, 60.0, 400.0, 600.0))
    ]
    more = {"draws": NeverAccept(), "limits": limits, "draft_tokens": 0, "kv_blocks": 64, "block_size": 1}
    lazy = SimRun("continuous", requests, is_totals=True, **more)
    assert lazy.serving.is_all_finished
    assert submitted
    assert max(submitted) < 400.0
