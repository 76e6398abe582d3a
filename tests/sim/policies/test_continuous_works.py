"""What every work of the continuous engine carries, by hand: a step takes 5 s, drafting 2 s, blocks hold 16 tokens."""

from __future__ import annotations

from typing import Any

import pytest

from sim.interface.work import Kind
from sim.policies.options import EngineLimits, Method
from tests.sim.support import AlwaysAccept, NeverAccept, NotedController, SimRun, request

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


def lone(method: Method) -> SimRun:
    """A prompt of 10 and two rounds with drafts of 4."""
    limits = EngineLimits(method=method)
    return SimRun("continuous", [request(0, output=9)], draws=AlwaysAccept(), limits=limits, draft_tokens=4)


@pytest.mark.parametrize(("method", "row_tokens"), [(Method.DRAFT_MODEL, (2, 2)), (Method.EAGLE3, (0, 5))])
def test_a_draft_model_takes_two_tokens_of_each_row_and_an_eagle_head_those_that_were_verified(
    method: Method, row_tokens: tuple[int, int]
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
    limits = EngineLimits(method=Method.NGRAM)
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


@pytest.mark.parametrize(
    ("method", "prompt", "num_blocks"),
    [
        (Method.DRAFT_MODEL, 25, 2),
        (Method.DRAFT_MODEL, 26, 3),
        (Method.EAGLE3, 25, 2),
        (Method.EAGLE3, 26, 3),
        (Method.NGRAM, 28, 2),
        (Method.NGRAM, 29, 3),
    ],
)
def test_a_model_that_drafts_looks_ahead_by_its_longest_draft_and_ngrams_do_not(
    method: Method, prompt: int, num_blocks: int
) -> None:
    """While 4 tokens are verified: the prompt, these, and 3 slots for the next draft in blocks of 16."""
    asked = [request(0, prompt=prompt, output=20)]
    limits = EngineLimits(method=method)
    run = SimRun("continuous", asked, draws=AlwaysAccept(), limits=limits, draft_tokens=3, stop_s=8.0)
    assert run.serving.paged.num_held == num_blocks


def test_the_look_ahead_is_that_of_the_longest_draft_whatever_the_present_one_is() -> None:
    """26 + 3 + 4 slots are three blocks; with 2 to look ahead they would be two."""
    asked = [request(0, prompt=26, output=20)]
    run = SimRun("continuous", asked, draws=AlwaysAccept(), controller=NotedController(2, 4), stop_s=8.0)
    assert run.serving.paged.num_held == 3


def test_a_preempted_request_prefills_its_output_as_well_however_many_steps_that_takes() -> None:
    """Budget 20, four blocks, no caching. At 20 s request 1, with 30 + 1 tokens, gives way to request 0; from 35 s it
    computes 20 and 11 tokens, and the last of these bring its second one."""
    asked = [request(0, prompt=30, output=6), request(1, prompt=30, output=6)]
    run = SimRun(
        "autoregressive",
        asked,
        limits=EngineLimits(max_num_batched_tokens=20),
        draft_tokens=0,
        kv_blocks=4,
        is_caching=False,
    )
    assert shapes(run) == [
        (0.0, "step", 0, 0, 0, ((20, 0),), 0, 0),
        (5.0, "step", 0, 0, 0, ((10, 20), (10, 0)), 1, 0),
        (10.0, "step", 1, 1, 30, ((19, 10),), 1, 0),
        (15.0, "step", 1, 1, 31, ((1, 29),), 2, 0),
        *[(20.0 + 5.0 * done, "step", 1, 1, 32 + done, (), 1, 0) for done in range(3)],
        (35.0, "step", 0, 0, 0, ((20, 0),), 0, 0),
        (40.0, "step", 0, 0, 0, ((11, 20),), 1, 0),
        *[(45.0 + 5.0 * done, "step", 1, 1, 31 + done, (), 1, 0) for done in range(4)],
    ]
    assert [(r.first_token_s, r.last_token_s, r.num_preemptions) for r in asked] == [(10.0, 35.0, 0), (20.0, 65.0, 1)]


def scarce(*, is_async: bool, stop_s: float | None = None) -> SimRun:
    """Prompts of 15 and 16, drafts of 8 that are all rejected, five blocks.

    A round needs 9 slots and 8 to look ahead: 15 + 17 are two blocks and 16 + 17 three. The next round of request 0
    needs a third, which request 1 gives up; the 18 tokens that it has would fit into the two that are left over.
    """
    asked = [request(0, prompt=15, output=4), request(1, prompt=16, output=4)]
    limits = EngineLimits(async_scheduling=is_async)
    return SimRun("continuous", asked, draws=NeverAccept(), limits=limits, draft_tokens=8, kv_blocks=5, stop_s=stop_s)


SCARCE = [
    (0.0, "step", 0, 0, 0, ((15, 0), (16, 0)), 2, 0),
    (5.0, "draft", 2, 4, 31, ((15, 0), (16, 0)), 2, 8),
    (7.0, "step", 2, 18, 31, (), 18, 0),
    (12.0, "draft", 2, 4, 31, (), 2, 8),
    (14.0, "step", 1, 9, 16, (), 9, 0),
    (19.0, "draft", 1, 2, 16, (), 1, 8),
    (21.0, "step", 1, 9, 17, ((2, 16),), 10, 0),
    (26.0, "draft", 2, 4, 17 + 18, ((2, 16),), 2, 8),
]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_request_that_gives_way_comes_back_a_step_later_and_not_in_the_same(is_async: bool) -> None:
    """Of its 18 tokens a block of 16 is found again; the prompt is complete with the other two, its output."""
    assert shapes(scarce(is_async=is_async))[:8] == SCARCE


def test_a_request_preempted_under_way_opens_no_round() -> None:
    """At 20 s request 0 holds 16 tokens and a round of 9, and request 1, planned for 21 s, the block of 16 found."""
    assert scarce(is_async=True, stop_s=20.0).serving.kv.held.value == 16 + 9 + 16


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
    assert ahead_s(lone(Method.DRAFT_MODEL)) == [0.0, 0.0, 0.0]
