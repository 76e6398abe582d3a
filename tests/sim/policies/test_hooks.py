"""Hooks of `continuous` by hand: a target pass takes 5 s, a draft 2 s. And what is refused.

Not here: what every policy keeps to, which holds for one with hooks as well (test_properties, tests/sim/hosts).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import lanesim
from sim.costs.engine_costs import TokenRatio
from sim.drafters.registry import DRAFTERS
from sim.interface.work import Kind
from sim.policies.options import EngineLimits
from tests.properties import assert_refused, examples
from tests.sim.policies.test_continuous_engine import steps
from tests.sim.policies.test_properties import COSTS, METHODS, KeyedDraws, asked, build, outcome
from tests.sim.support import NeverAccept, SimRun, request


def hooked(name: str = "mine", **hooks: Any) -> str:
    return lanesim.register(lanesim.continuous(name=name, **hooks)).name


RATIO = TokenRatio(initial=0.7, min_ratio=0.3, decay_steps=4, max_answer_tokens=4096, retract_steps=2)
ENGINES: dict[str, dict[str, Any]] = {
    "chunks and memory of few blocks": {"long_prefill_token_threshold": 7},
    "priorities that give way": {"preempts_by_priority": True},
    "slots for drafts and padded first chunks": {"slots_per_request": 2, "padded_tokens": 4, "seats_lookahead": True},
    "whole prompts": {"whole_prompts": True, "no_evict": True},
    "prompts apart": {"mixes_prompts": False},
    "retraction": {"mixes_prompts": False, "token_ratio": RATIO, "drafts_before_verify": True},
}


@pytest.mark.parametrize("rules", ENGINES.values(), ids=ENGINES)
@examples(0.5)
@example(
    rows=[(0.0, 5, 9), (0.5, 1, 3)],
    draft_tokens=3,
    spare_blocks=8,
    budget=12,
    is_async=False,
    method=DRAFTERS["draft_model"],
)
@given(
    rows=asked,
    draft_tokens=st.integers(0, 3),
    spare_blocks=st.integers(0, 8),
    budget=st.integers(12, 40),
    is_async=st.booleans(),
    method=METHODS,
)
def test_hooks_that_state_the_rules_of_continuous_leave_its_schedule(
    rules: dict[str, Any], rows: list, draft_tokens: int, spare_blocks: int, budget: int, is_async: bool, method: Any
) -> None:
    stated = hooked(
        admit=lambda waiting: waiting[0],
        split=lambda request, tokens, step: tokens,
        draft_length=lambda request, tokens, step: tokens,
    )
    limits = EngineLimits(
        max_num_seqs=4, max_num_batched_tokens=budget, async_scheduling=is_async, method=method, **rules
    )
    most = max(prompt + output for _, prompt, output in rows) + 3 * draft_tokens + 4
    given_to = {"costs": COSTS, "draws": KeyedDraws(), "limits": limits, "draft_tokens": draft_tokens, "block_size": 4}
    runs = [
        SimRun(policy, build(rows, has_priorities=True), kv_blocks=-(-most // 4) + spare_blocks, **given_to)
        for policy in ("continuous", stated)
    ]
    assert runs[0].log == runs[1].log
    assert outcome(runs[0]) == outcome(runs[1])


@pytest.mark.parametrize("rules", [{}, {"mixes_prompts": False, "token_ratio": RATIO}])
def test_the_hook_decides_who_is_admitted_next(rules: dict[str, Any]) -> None:
    """One seat. The first request comes alone, the others while it runs."""
    shortest = hooked(admit=lambda waiting: min(waiting, key=lambda request: request.prompt_tokens))
    requests = [
        request(index, arrival_s=float(index), prompt=prompt, output=2) for index, prompt in enumerate((9, 8, 4, 6))
    ]
    run = SimRun(shortest, requests, draft_tokens=0, limits=EngineLimits(max_num_seqs=1, **rules))
    assert sorted(range(4), key=lambda index: run.serving.requests[index].scheduled_s) == [0, 2, 3, 1]


def test_the_hook_sees_no_request_that_the_engine_has_not_seen() -> None:
    """Two run at once. The engine takes requests in after a step with prompts, or after three steps without."""
    newest = hooked(admit=lambda waiting: waiting[-1])
    sent = [(0.0, 9), (1.0, 2), (1.0, 5), (26.0, 2)]
    requests = [request(index, arrival_s=at, prompt=4, output=output) for index, (at, output) in enumerate(sent)]
    run = SimRun(newest, requests, draft_tokens=0, limits=EngineLimits(max_num_seqs=2, receive_interval=3))
    assert [one.scheduled_s for one in run.serving.requests] == [0.0, 30.0, 5.0, 40.0]


def test_nobody_is_admitted_while_the_hook_names_nobody() -> None:
    pairs = hooked(admit=lambda waiting: waiting[0] if len(waiting) > 1 or waiting[0].waited_s == 0.0 else None)
    requests = [request(index, arrival_s=at, prompt=4, output=1) for index, at in enumerate((0.0, 1.0, 7.0))]
    run = SimRun(pairs, requests, draft_tokens=0, limits=EngineLimits(max_num_seqs=1))
    assert steps(run) == [(0.0, 0, 0, ((4, 0),)), (7.0, 0, 0, ((4, 0),))]
    assert not run.serving.is_all_finished


def test_the_hook_splits_the_budget_of_a_step() -> None:
    """At most 3 tokens of prompts beside rows, and no request is admitted in a step that has so many."""
    seen = []

    def gentle(request: Any, tokens: int, step: Any) -> int:
        seen.append((request.index, tokens))
        return max(0, min(tokens, 3 - step.prompt_tokens)) if step.num_rows else tokens

    sent = [(0.0, 4, 4), (1.0, 5, 1), (1.0, 1, 1)]
    requests = [request(index, arrival_s=at, prompt=prompt, output=out) for index, (at, prompt, out) in enumerate(sent)]
    run = SimRun(hooked(split=gentle), requests, draft_tokens=0, limits=EngineLimits(max_num_batched_tokens=8))
    assert steps(run) == [
        (0.0, 0, 0, ((4, 0),)),
        (5.0, 1, 1, ((3, 0),)),
        (10.0, 1, 1, ((2, 3), (1, 0))),
        (15.0, 1, 1, ()),
    ]
    assert seen == [(0, 4), (0, 1), (1, 5), (2, 1), (0, 1), (1, 2), (2, 1), (0, 1)]


def test_the_hook_splits_prompts_where_they_go_apart() -> None:
    threes = hooked(split=lambda request, tokens, step: min(tokens, 3))
    limits = EngineLimits(max_num_batched_tokens=4, mixes_prompts=False, token_ratio=RATIO)
    run = SimRun(threes, [request(0, prompt=8, output=1)], draft_tokens=0, limits=limits)
    assert [chunks for _, _, _, chunks in steps(run)] == [((3, 0),), ((3, 3),), ((2, 6),)]


def test_a_draft_is_as_long_as_the_hook_says_and_a_pass_as_long_as_the_longest_draft() -> None:
    """Request 0 drafts nothing, and the prompt of request 1 drafts nothing before its end. Nothing is accepted."""
    short = hooked(draft_length=lambda request, tokens, step: tokens if request.prompt_tokens < 6 else 0)
    requests = [request(0, prompt=8, output=3), request(1, arrival_s=1.0, prompt=5, output=2)]
    limits = EngineLimits(max_num_batched_tokens=4)
    run = SimRun(short, requests, draws=NeverAccept(), draft_tokens=3, limits=limits)
    assert [shape[1:] for shape in steps(run)] == [
        (0, 0, ((4, 0),)),
        (0, 0, ((4, 4),)),
        (1, 1, ((3, 0),)),
        (1, 1, ((2, 3),)),
        (1, 4, ()),
    ]
    drafts = [ticket.work.draft_tokens for ticket in run.tickets if ticket.work.kind is Kind.DRAFT]
    assert drafts == [0, 0, 0, 3, 3]


BAD: dict[str, tuple[str, Any]] = {
    "somebody who does not wait": ("admit", lambda waiting: request(7)),
    "a copy of a request": ("admit", lambda waiting: "first"),
    "more tokens than there are": ("split", lambda request, tokens, step: tokens + 1),
    "tokens below 0": ("split", lambda request, tokens, step: -1),
    "a draft that is too long": ("draft_length", lambda request, tokens, step: tokens + 1),
    "half a token": ("draft_length", lambda request, tokens, step: 0.5),
    "an exception": ("split", lambda request, tokens, step: 1 // 0),
    "a change of a request": ("admit", lambda waiting: setattr(waiting[0], "prompt_tokens", 1)),
}


@pytest.mark.parametrize(("hook", "function"), BAD.values(), ids=BAD)
def test_an_answer_that_no_step_can_carry_is_refused_and_the_hook_is_named(hook: str, function: Any) -> None:
    mine = hooked("bad-one", **{hook: function})
    given = {"profile": "cpu/tiny", "policy": mine, "num_prompts": 3, "num_speculative_tokens": 2}
    assert_refused(lambda: lanesim.simulate(**given), "policy 'bad-one'", hook)


def test_a_hook_that_is_no_function_and_an_engine_that_plans_itself_are_refused() -> None:
    assert_refused(lambda: lanesim.continuous(name="mine", admit="fcfs"), "policy 'mine'", "admit", "'fcfs'")
    limits = EngineLimits(scheduler="installed")
    assert_refused(lambda: SimRun(hooked("mine"), [request(0)], limits=limits), "policy 'mine'", "'installed'")


def test_an_answer_says_that_python_ran_the_hooks() -> None:
    mine = hooked("mine", draft_length=lambda request, tokens, step: np.int64(tokens))
    given = {"profile": "cpu/tiny", "num_prompts": 20, "request_rate": 10, "num_speculative_tokens": 2, "draws": 0}
    result = lanesim.compare(policy=["continuous", mine], **given)
    assert [row.ran_in for row in result.policies][1] == ["python"]
    assert "Python ran mine" in str(result)
    assert result.policies[0].mean == result.policies[1].mean
    assert "Python ran policy=mine" in str(lanesim.compare(vary={"policy": ["continuous", mine]}, **given))
