"""The feedback controller's decisions, one rule at a time."""

from __future__ import annotations

import pytest

from sim.costs.profile_files import load
from sim.engine.draft_length import Feedback, build_controller, choose_change
from sim.experiment.run import simulate
from sim.experiment.scenario import resolve


@pytest.mark.parametrize(
    ("acceptance", "verify_queue", "draft_p95_s", "change"),
    [
        (0.8, 1, 0.040, 1),
        (0.8, 2, 0.040, 0),
        (0.8, 1, 0.046, 0),
        (0.7, 1, 0.040, 0),
        (0.39, 0, 0.010, -1),
        (0.9, 11, 0.010, -1),
        (0.9, 0, 0.051, -1),
    ],
)
def test_change_follows_the_seeds_thresholds(
    acceptance: float, verify_queue: int, draft_p95_s: float, change: int
) -> None:
    assert choose_change(acceptance, verify_queue, draft_p95_s) == change


def test_it_decides_after_every_tenth_round_and_stays_in_range() -> None:
    controller = Feedback(4)
    lengths = []
    for _ in range(80):
        controller.saw_draft(0.001, 0)
        controller.saw_round(4, 4)
        lengths.append(controller.draft_tokens)
    assert lengths[8:11] == [4, 5, 5]
    assert lengths[-1] == 8


def test_it_forgets_what_lies_behind_its_window() -> None:
    controller = Feedback(4)
    for _ in range(100):
        controller.saw_round(4, 0)
    for _ in range(70):
        controller.saw_round(4, 4)
    assert controller.draft_tokens == 2
    for _ in range(30):
        controller.saw_round(4, 4)
    assert controller.draft_tokens == 5


def test_an_unknown_controller_is_refused() -> None:
    with pytest.raises(ValueError, match="fedback"):
        build_controller("fedback", 4)


def test_a_continuous_engine_tells_it_how_long_its_steps_take(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    monkeypatch.setattr(Feedback, "saw_draft", lambda self, latency_s, queue: seen.append(latency_s))
    raw = {
        "profile": "cpu/tiny",
        "policy": "continuous",
        "speculation": {"controller": "feedback"},
        "workload": {"num_prompts": 5, "request_rate": "inf"},
    }
    scenario = resolve(raw)
    record = simulate(scenario, "continuous", 0, load(scenario.profile), record_works=True)
    steps = [work for work in record.works if work.kind == "step"]
    assert len(seen) == sum(work.kind == "draft" and work.draft_tokens > 0 for work in record.works)
    assert min(seen) >= min(work.end_s - work.start_s for work in steps) > 0.0
