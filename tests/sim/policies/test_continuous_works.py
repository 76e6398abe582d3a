"""What every work of the continuous engine carries, by hand: a step takes 5 s, drafting 2 s, blocks hold 16 tokens."""

from __future__ import annotations

from typing import Any

import pytest

from sim.drafters.drafter import Drafter
from sim.drafters.registry import DRAFTERS
from sim.interface.work import Kind
from sim.policies.options import EngineLimits
from tests.sim.support import AlwaysAccept, NotedController, SimRun, request

Shape = tuple[float, str, int, int, int, tuple[tuple[int, int], ...], int, int]


def shapes(run: SimRun) -> list[Shape]:
    """(start, kind, rows, row tokens, context tokens, chunks as (new, history), head rows, draft tokens)."""
    return [
        (
            ticket.start_s,
            ticket.work.kind.value,
            ticket.work.rows,
            ticket.work.row_tokens,
            ticket.work.context_tokens,
            tuple((chunk.new_tokens, chunk.history_tokens) for chunk in ticket.work.chunks),
            ticket.work.head_rows,
            ticket.work.draft_tokens,
        )
        for ticket in run.tickets
    ]


def ahead_s(run: SimRun) -> list[float]:
    """Of every step, how long before its start the host could begin to prepare it."""
    return [ticket.work.ahead_s for ticket in run.tickets if ticket.work.kind is Kind.STEP]


FIRST_STEP = (0.0, "step", 0, 0, 0, ((10, 0),), 1, 0)


def lone(method: Drafter) -> SimRun:
    """A prompt of 10 and two rounds with drafts of 4."""
    limits = EngineLimits(method=method)
    return SimRun("continuous", [request(0, output=9)], draws=AlwaysAccept(), limits=limits, draft_tokens=4)


@pytest.mark.parametrize(("method", "row_tokens"), [(DRAFTERS["draft_model"], (2, 2)), (DRAFTERS["eagle3"], (0, 5))])
def test_a_draft_model_takes_two_tokens_of_each_row_and_an_eagle_head_those_that_were_verified(
    method: Drafter, row_tokens: tuple[int, int]
) -> None:
    """And both what the step prefilled."""
    first, later = row_tokens
    assert shapes(lone(method)) == [
        FIRST_STEP,
        (5.0, "draft", 1, first, 10, ((10, 0),), 1, 4),
        (7.0, "step", 1, 5, 10, (), 5, 0),
        (12.0, "draft", 1, later, 10, (), 1, 4),
        (14.0, "step", 1, 5, 15, (), 5, 0),
        (19.0, "draft", 1, later, 15, (), 1, 4),
    ]


def test_ngrams_are_looked_up_for_rows_and_completed_prompts() -> None:
    asked = [request(0, output=9), request(1, arrival_s=1.0, output=4)]
    limits = EngineLimits(method=DRAFTERS["ngram"])
    run = SimRun("continuous", asked, draws=AlwaysAccept(), limits=limits, draft_tokens=4)
    assert [shape[1:] for shape in shapes(run)] == [
        ("step", 0, 0, 0, ((10, 0),), 1, 0),
        ("host", 1, 0, 0, (), 0, 0),
        ("step", 1, 5, 10, ((10, 0),), 6, 0),
        ("host", 2, 0, 0, (), 0, 0),
        ("step", 2, 10, 25, (), 10, 0),
        ("host", 2, 0, 0, (), 0, 0),
    ]


def test_a_mixed_step_samples_rows_and_completed_prompts_and_drafts_for_these() -> None:
    """Budget 12: beside the 5 tokens of request 0 the whole prompt of 1 and 4 of the 9 tokens of 2."""
    asked = [request(0, prompt=4, output=11), request(1, arrival_s=1.0, prompt=3), request(2, arrival_s=1.0, prompt=9)]
    asked[2].output_tokens = 1
    limits = EngineLimits(max_num_batched_tokens=12)
    run = SimRun("continuous", asked, draws=AlwaysAccept(), limits=limits, draft_tokens=4)
    assert shapes(run) == [
        (0.0, "step", 0, 0, 0, ((4, 0),), 1, 0),
        (5.0, "draft", 1, 2, 4, ((4, 0),), 1, 4),
        (7.0, "step", 1, 5, 4, ((3, 0), (4, 0)), 6, 0),
        (12.0, "draft", 2, 4, 4 + 3, ((3, 0), (4, 0)), 2, 4),
        (14.0, "step", 2, 10, 9 + 3, ((2, 4),), 10, 0),
        (19.0, "draft", 2, 4, 9 + 3, ((2, 4),), 2, 4),
        (21.0, "step", 0, 0, 0, ((3, 6),), 1, 0),
        (26.0, "draft", 1, 2, 9, ((3, 6),), 1, 4),
    ]
    assert [(r.first_token_s, r.last_token_s) for r in asked] == [(7.0, 21.0), (14.0, 21.0), (28.0, 28.0)]


def test_a_prompt_that_is_not_complete_is_prefilled_in_the_draft_model_and_drafts_nothing() -> None:
    """Nor does the controller hear of it: only of the three steps that drafted, 7 s each."""
    controller = NotedController(4, 4)
    limits = EngineLimits(max_num_batched_tokens=5)
    run = SimRun("continuous", [request(0, output=7)], draws=AlwaysAccept(), limits=limits, controller=controller)
    assert shapes(run) == [
        (0.0, "step", 0, 0, 0, ((5, 0),), 0, 0),
        (5.0, "draft", 0, 0, 0, ((5, 0),), 0, 0),
        (7.0, "step", 0, 0, 0, ((5, 5),), 1, 0),
        (12.0, "draft", 1, 2, 10, ((5, 5),), 1, 4),
        (14.0, "step", 1, 5, 10, (), 5, 0),
        (19.0, "draft", 1, 2, 10, (), 1, 4),
        (21.0, "step", 1, 5, 15, (), 5, 0),
        (26.0, "draft", 1, 2, 15, (), 1, 4),
    ]
    assert controller.drafts == [(7.0, 0)] * 3


def test_a_draft_has_the_controllers_present_length() -> None:
    controller = NotedController(2, 4)
    run = SimRun("continuous", [request(0, output=7)], draws=AlwaysAccept(), controller=controller)
    assert shapes(run)[1:] == [
        (5.0, "draft", 1, 2, 10, ((10, 0),), 1, 2),
        (7.0, "step", 1, 3, 10, (), 3, 0),
        (12.0, "draft", 1, 2, 10, (), 1, 2),
        (14.0, "step", 1, 3, 13, (), 3, 0),
        (19.0, "draft", 1, 2, 13, (), 1, 2),
    ]
    assert controller.rounds == [(2, 2)] * 2


def test_the_look_ahead_is_that_of_the_longest_draft_whatever_the_present_one_is() -> None:
    """26 + 3 + 4 slots are three blocks; with 2 to look ahead they would be two."""
    asked = [request(0, prompt=26, output=20)]
    run = SimRun("continuous", asked, draws=AlwaysAccept(), controller=NotedController(2, 4), stop_s=8.0)
    assert run.serving.paged.num_held == 3


AHEAD: dict[str, tuple[list[tuple[float, int, int]], int, list[tuple[Any, ...]], list[float]]] = {
    # Request 1 arrives when nothing is planned any more.
    "a planned step is prepared while the one before it runs": (
        [(0, 4, 3), (16, 4, 2)], 2048,
        [(0, 0, 0, 0, ((4, 0),)), (5, 1, 1, 4, ()), (10, 1, 1, 5, ()), (16, 0, 0, 0, ((4, 0),)), (21, 1, 1, 4, ())],
        [0, 5, 5, 0, 5],
    ),
    "a prompt planned ahead goes on behind the chunk under way": (
        [(0, 10, 2)], 4,
        [(0, 0, 0, 0, ((4, 0),)), (5, 0, 0, 0, ((4, 4),)), (10, 0, 0, 0, ((2, 8),)), (15, 1, 1, 10, ())], [0, 5, 5, 5],
    ),
    # The step of 10 s is planned at 5 s, when request 0's second and last token is under way: beside the row of request
    # 1 it has room for all 3 tokens of request 2.
    "a row whose last token is under way takes no budget of the next step": (
        [(0, 1, 2), (0, 4, 3), (1, 3, 1)], 4,
        [(0, 0, 0, 0, ((1, 0), (3, 0))), (5, 1, 1, 1, ((1, 3),)), (10, 1, 1, 4, ((3, 0),)), (15, 1, 1, 5, ())],
        [0, 5, 5, 5],
    ),
}  # fmt: skip
"""Requests as (arrival, prompt, output), the budget, steps, and how long before each the host could prepare it."""


@pytest.mark.parametrize(("rows", "budget", "steps", "ahead"), AHEAD.values(), ids=AHEAD)
def test_a_step_is_planned_ahead(
    rows: list[tuple[float, int, int]], budget: int, steps: list[tuple[Any, ...]], ahead: list[float]
) -> None:
    asked = [request(index, arrival_s=at, prompt=prompt, output=out) for index, (at, prompt, out) in enumerate(rows)]
    limits = EngineLimits(max_num_batched_tokens=budget, async_scheduling=True)
    run = SimRun("autoregressive", asked, limits=limits, draft_tokens=0)
    assert [(shape[0], *shape[2:6]) for shape in shapes(run)] == steps
    assert ahead_s(run) == ahead


def test_a_step_planned_ahead_counts_on_the_draft_under_way() -> None:
    asked = [request(0, prompt=4, output=9)]
    limits = EngineLimits(async_scheduling=True)
    run = SimRun("continuous", asked, draws=AlwaysAccept(), limits=limits, draft_tokens=3)
    assert shapes(run) == [
        (0.0, "step", 0, 0, 0, ((4, 0),), 1, 0),
        (5.0, "draft", 1, 2, 4, ((4, 0),), 1, 3),
        (7.0, "step", 1, 4, 4, (), 4, 0),
        (12.0, "draft", 1, 2, 4, (), 1, 3),
        (14.0, "step", 1, 4, 8, (), 4, 0),
        (19.0, "draft", 1, 2, 8, (), 1, 3),
    ]
    assert ahead_s(run) == [0.0, 7.0, 7.0]


def test_without_asynchronous_scheduling_nothing_is_prepared_ahead() -> None:
    assert ahead_s(lone(DRAFTERS["draft_model"])) == [0.0, 0.0, 0.0]
