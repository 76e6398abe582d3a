"""The feedback controller's decisions, one rule at a time."""

from __future__ import annotations

import pytest

from sim.costs.profile_files import load
from sim.engine.draft_length import Feedback
from sim.run.resolve import resolve
from sim.run.scenario import parse_scenario
from sim.run.simulate import simulate


def decided(controller: Feedback, *rounds: tuple[int, int]) -> int:
    """The draft length after `rounds` of (drafted, accepted)."""
    for drafted, accepted in rounds:
        controller.saw_round(drafted, accepted)
    return controller.draft_tokens


def test_a_window_holds_a_hundred_rounds() -> None:
    """The 11th round drafts 170 tokens in vain: with 99 rounds of 4 of 4 beside it 69.96 % are accepted. It is the
    oldest of the window at the decision of the 110th round and out of it at the next."""
    controller = Feedback(4)
    lengths = [decided(controller, *[(4, 4)] * 10), decided(controller, (170, 0), *[(4, 4)] * 9)]
    lengths += [decided(controller, *[(4, 4)] * 10) for _ in range(10)]
    assert lengths == [5, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 5]


def test_acceptance_is_of_tokens_and_not_of_rounds() -> None:
    """Nine rounds accept their only token, one none of 8: 9 of 17, and 90 % of the rounds."""
    assert decided(Feedback(4), *[(1, 1)] * 9, (8, 0)) == 4


@pytest.mark.parametrize(
    ("latencies_s", "length"),
    [
        ([0.1] * 5 + [0.01] * 95, 5),
        ([0.1] * 6 + [0.01] * 94, 3),
        ([0.01] * 94 + [0.1] * 6, 3),
        ([0.1] * 100 + [0.01] * 95, 5),
        ([0.1] * 100 + [0.01] * 94, 3),
        ([0.1], 3),
        ([], 5),
    ],
)
def test_the_draft_latency_is_the_95th_of_the_last_hundred(latencies_s: list[float], length: int) -> None:
    controller = Feedback(4)
    for latency_s in latencies_s:
        controller.saw_draft(latency_s, 0)
    assert decided(controller, *[(4, 4)] * 10) == length


def test_the_queue_is_the_one_at_the_last_draft() -> None:
    controller = Feedback(4)
    controller.saw_draft(0.01, 0)
    controller.saw_draft(0.01, 11)
    assert decided(controller, *[(4, 4)] * 10) == 3


def test_it_shrinks_to_two_and_grows_to_eight_from_a_start_within() -> None:
    assert decided(Feedback(4), *[(4, 0)] * 50) == 2
    assert decided(Feedback(4), *[(4, 4)] * 80) == 8
    assert [(Feedback(start).draft_tokens, Feedback(start).draft_tokens_max) for start in (1, 5, 12)] == [
        (2, 8),
        (5, 8),
        (8, 8),
    ]


def test_a_continuous_engine_tells_it_how_long_its_steps_take(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    monkeypatch.setattr(Feedback, "saw_draft", lambda self, latency_s, queue: seen.append(latency_s))
    raw = {
        "profile": "cpu/tiny",
        "policy": "continuous",
        "speculation": {"controller": "feedback"},
        "workload": {"num_prompts": 5, "request_rate": "inf"},
    }
    scenario = parse_scenario(raw)
    record = simulate(resolve(scenario, load(scenario.profile), "continuous"), 0, record_works=True)
    steps = [work for work in record.works if work.kind == "step"]
    assert len(seen) == sum(work.kind == "draft" and work.draft_tokens > 0 for work in record.works)
    assert min(seen) >= min(work.end_s - work.start_s for work in steps) > 0.0
