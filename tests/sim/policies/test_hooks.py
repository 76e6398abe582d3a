"""Hooks of `continuous` by hand: a target pass takes 5 s, a draft 2 s. And what is refused.

Not here: what every policy keeps to, which holds for one with hooks as well (test_properties, tests/sim/hosts).
"""

from __future__ import annotations

from operator import attrgetter
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
    "retraction": {"mixes_prompts": False, "token_ratio": RATIO, "drafts_before_verify": True},
}


PADDED = {"draft_tokens": 3, "spare_blocks": 8, "max_num_batched_tokens": 12, "async_scheduling": False}


@pytest.mark.parametrize("rules", ENGINES.values(), ids=ENGINES)
@examples(0.5)
@example(rows=[(0.0, 5, 9), (0.5, 1, 3)], method=DRAFTERS["draft_model"], **PADDED)
@given(
    rows=asked,
    draft_tokens=st.integers(0, 3),
    spare_blocks=st.integers(0, 8),
    max_num_batched_tokens=st.integers(12, 40),
    async_scheduling=st.booleans(),
    method=METHODS,
)
def test_hooks_that_state_the_rules_of_continuous_leave_its_schedule(
    rules: dict[str, Any], rows: list, draft_tokens: int, spare_blocks: int, **more: Any
) -> None:
    def most(request: Any, tokens: int, step: Any) -> int:
        return tokens

    stated = hooked(admit=lambda waiting: waiting[0], split=most, draft_length=most)
    limits = EngineLimits(max_num_seqs=4, **rules, **more)
    longest = max(prompt + output for _, prompt, output in rows) + 3 * draft_tokens + 4
    memory = {"block_size": 4, "kv_blocks": -(-longest // 4) + spare_blocks}
    given_to = {"costs": COSTS, "draws": KeyedDraws(), "limits": limits, "draft_tokens": draft_tokens, **memory}
    runs = [SimRun(policy, build(rows, has_priorities=True), **given_to) for policy in ("continuous", stated)]
    assert runs[0].log == runs[1].log
    assert outcome(runs[0]) == outcome(runs[1])


def served(sent: list[tuple[float, int, int]], draft_tokens: int = 0, rules: Any = None, **hooks: Any) -> SimRun:
    """Requests as (arrival, prompt, output), of whose drafts nothing is accepted."""
    asked = [request(index, arrival_s=at, prompt=prompt, output=out) for index, (at, prompt, out) in enumerate(sent)]
    limits = EngineLimits(**rules or {})
    return SimRun(hooked(**hooks), asked, draws=NeverAccept(), draft_tokens=draft_tokens, limits=limits)


@pytest.mark.parametrize("rules", [{}, {"mixes_prompts": False, "token_ratio": RATIO}])
def test_the_hook_decides_who_is_admitted_next(rules: dict[str, Any]) -> None:
    """One runs at a time. The first request comes alone, the others while it runs."""
    sent = [(0.0, 9, 2), (1.0, 8, 2), (2.0, 4, 2), (3.0, 6, 2)]
    run = served(
        sent, rules={"max_num_seqs": 1, **rules}, admit=lambda waiting: min(waiting, key=attrgetter("prompt_tokens"))
    )
    assert sorted(range(4), key=lambda index: run.serving.requests[index].scheduled_s) == [0, 2, 3, 1]


def test_the_hook_sees_no_request_that_the_engine_has_not_seen() -> None:
    """Two run at once. The engine takes requests in after a step with prompts, or after three steps without."""
    sent, rules = [(0.0, 4, 9), (1.0, 4, 2), (1.0, 4, 5), (26.0, 4, 2)], {"max_num_seqs": 2, "receive_interval": 3}
    run = served(sent, rules=rules, admit=lambda waiting: waiting[-1])
    assert [one.scheduled_s for one in run.serving.requests] == [0.0, 30.0, 5.0, 40.0]


def pairs(waiting: Any) -> Any:
    return waiting[0] if len(waiting) > 1 or waiting[0].waited_s == 0.0 else None


def test_no_request_is_admitted_while_the_hook_names_none() -> None:
    run = served([(0.0, 4, 1), (1.0, 4, 1), (7.0, 4, 1)], rules={"max_num_seqs": 1}, admit=pairs)
    assert steps(run) == [(0.0, 0, 0, ((4, 0),)), (7.0, 0, 0, ((4, 0),))]
    assert not run.serving.is_all_finished


def test_the_hook_splits_the_budget_of_a_step() -> None:
    """At most 3 tokens of prompts beside rows, and no request is admitted in a step that has so many."""
    seen = []

    def gentle(request: Any, tokens: int, step: Any) -> int:
        seen.append((request.index, tokens))
        return max(0, min(tokens, 3 - step.prompt_tokens)) if step.num_rows else tokens

    run = served([(0.0, 4, 4), (1.0, 5, 1), (1.0, 1, 1)], rules={"max_num_batched_tokens": 8}, split=gentle)
    chunks = [((4, 0),), ((3, 0),), ((2, 3), (1, 0)), ()]
    assert [(rows, of) for _, rows, _, of in steps(run)] == list(zip((0, 1, 1, 1), chunks, strict=True))
    assert seen == [(0, 4), (0, 1), (1, 5), (2, 1), (0, 1), (1, 2), (2, 1), (0, 1)]


def test_the_hook_splits_prompts_where_they_go_apart() -> None:
    rules = {"max_num_batched_tokens": 4, "mixes_prompts": False, "token_ratio": RATIO}
    run = served([(0.0, 8, 1)], rules=rules, split=lambda request, tokens, step: min(tokens, 3))
    assert [chunks for _, _, _, chunks in steps(run)] == [((3, 0),), ((3, 3),), ((2, 6),)]


def test_a_draft_is_as_long_as_the_hook_says_and_a_pass_as_long_as_the_longest_draft() -> None:
    """Request 0 drafts nothing, and the prompt of request 1 drafts nothing before its end, in the fourth step."""

    def short(request: Any, tokens: int, step: Any) -> int:
        return tokens if request.prompt_tokens < 6 else 0

    run = served([(0.0, 8, 3), (1.0, 5, 2)], 3, rules={"max_num_batched_tokens": 4}, draft_length=short)
    assert [(rows, tokens) for _, rows, tokens, _ in steps(run)] == [(0, 0), (0, 0), (1, 1), (1, 1), (1, 4)]
    drafts = [ticket.work.draft_tokens for ticket in run.tickets if ticket.work.kind is Kind.DRAFT]
    assert drafts == [0, 0, 0, 3, 3]


BAD: dict[str, tuple[str, Any]] = {
    "a request that does not wait": ("admit", lambda waiting: request(7)),
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
    assert "Python ran mine" in " ".join(str(result).split())
    assert result.policies[0].mean == result.policies[1].mean
    assert "Python ran policy=mine" in " ".join(
        str(lanesim.compare(vary={"policy": ["continuous", mine]}, **given)).split()
    )
