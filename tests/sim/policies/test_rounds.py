"""What the rounds of the lane policies compute, and in what order: prefill 10 s, draft 2 s, verify 5 s, uncontended.

Not here: sizes and times of drafted rounds with KV, which are those of tests/sim/test_reference.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from sim.interface.work import Work
from sim.policies.options import EngineLimits, KvMode
from sim.policies.registry import PolicyOptions
from tests.sim.support import UNCONTENDED, AlwaysAccept, NeverAccept, NotedController, SimRun, request

Shape = tuple[str, str, int, int, int, tuple[tuple[int, int], ...], int, int]


def shape(work: Work) -> Shape:
    """(kind, model, rows, row tokens, context tokens, chunks as (new, history), head rows, draft tokens)."""
    return (
        work.kind.value,
        work.model.value,
        work.rows,
        work.row_tokens,
        work.context_tokens,
        tuple((chunk.new_tokens, chunk.history_tokens) for chunk in work.chunks),
        work.head_rows,
        work.draft_tokens,
    )


def shapes(run: SimRun) -> list[Shape]:
    return [shape(ticket.work) for ticket in run.tickets]


PROMPT = [("prefill", "target", 0, 0, 0, ((10, 0),), 1, 0), ("prefill", "draft", 0, 0, 0, ((10, 0),), 0, 0)]


def lone(policy: str = "pd", *, kv: KvMode = KvMode.ROLLBACK, draws: object = None, **settings: object) -> SimRun:
    """One prompt of 10, two rounds where drafts of 4 are accepted."""
    return SimRun(
        policy,
        [request(0, output=9)],
        draws=draws or AlwaysAccept(),
        costs=UNCONTENDED,
        options=PolicyOptions(poll_s=0.0, decode_batch=2, kv=kv),
        **settings,  # type: ignore[arg-type]
    )


REFORWARD = {"kv": KvMode.REFORWARD}
ROUNDS: dict[str, tuple[dict[str, Any], list[Shape]]] = {
    "after a prompt of whole pieces has no empty one": (
        {"limits": EngineLimits(max_num_batched_tokens=5), "draft_tokens": 0}, [
        ("prefill", "target", 0, 0, 0, ((5, 0),), 0, 0), ("prefill", "target", 0, 0, 0, ((5, 5),), 1, 0),
        ("verify", "target", 1, 1, 10, (), 1, 0),
    ]),
    "runs accepted tokens again before they are emitted": ({"policy": "unified", **REFORWARD}, [
        *PROMPT,
        ("draft", "draft", 1, 1, 10, (), 1, 4), ("verify", "target", 1, 5, 10, (), 5, 0),
        ("prefill", "target", 1, 5, 10, (), 0, 0),
        ("draft", "draft", 1, 2, 15, (), 1, 4), ("verify", "target", 1, 5, 15, (), 5, 0),
        ("prefill", "target", 1, 5, 15, (), 0, 0),
    ]),
    "that is rejected runs only the target's own token again": ({"draws": NeverAccept(), **REFORWARD}, [
        *PROMPT,
        ("draft", "draft", 1, 1, 10, (), 1, 4), ("verify", "target", 1, 5, 10, (), 5, 0),
        ("prefill", "target", 1, 1, 10, (), 0, 0),
        ("draft", "draft", 1, 1, 11, (), 1, 4), ("verify", "target", 1, 5, 11, (), 5, 0),
        ("prefill", "target", 1, 1, 11, (), 0, 0),
    ]),
}  # fmt: skip


@pytest.mark.parametrize(("settings", "works"), ROUNDS.values(), ids=ROUNDS)
def test_a_round(settings: dict[str, Any], works: list[Shape]) -> None:
    assert shapes(lone(**settings))[: len(works)] == works


@pytest.mark.parametrize("policy", ["pd", "pdv", "baseline", "disaggregated"])
def test_a_controller_hears_how_long_each_round_took(policy: str) -> None:
    """2 s of draft and 5 s of verify, twice, and nobody waits for a verify."""
    controller = NotedController(4, 4)
    lone(policy, controller=controller)
    assert controller.drafts == [(7.0, 0)] * 2


def test_without_kv_every_pass_runs_the_whole_sequence_and_verify_comes_after_the_last() -> None:
    """Sequences of 11 to 14 tokens drafted, of 15 verified, then of 16 to 19 and 20."""
    run = lone("unified", kv=KvMode.NONE)
    drafts = [[("draft", "draft", 0, 0, 0, ((first + i, 0),), 1, 0) for i in range(4)] for first in (11, 16)]
    assert shapes(run) == [
        *PROMPT,
        *drafts[0],
        ("verify", "target", 0, 0, 0, ((15, 0),), 5, 0),
        *drafts[1],
        ("verify", "target", 0, 0, 0, ((20, 0),), 5, 0),
    ]
    assert run.works[2:] == [
        *[(20.0 + 2.0 * i, 22.0 + 2.0 * i, "draft", "draft", (0,)) for i in range(4)],
        (28.0, 33.0, "verify", "verify", (0,)),
        *[(33.0 + 2.0 * i, 35.0 + 2.0 * i, "draft", "draft", (0,)) for i in range(4)],
        (41.0, 46.0, "verify", "verify", (0,)),
    ]


def test_what_runs_again_is_on_verifys_stream() -> None:
    run = lone("unified", kv=KvMode.REFORWARD)
    assert [(work[0], *work[2:4]) for work in run.works[2:]] == [
        (20.0, "draft", "draft"), (22.0, "verify", "verify"), (27.0, "verify", "prefill"),
        (37.0, "draft", "draft"), (39.0, "verify", "verify"), (44.0, "verify", "prefill"),
    ]  # fmt: skip
    assert run.serving.requests[0].last_token_s == 54.0
