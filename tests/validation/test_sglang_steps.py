"""SGLang's own scheduler, as it was recorded, plans each step of a drawn case as `continuous` does with its rules."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from validation.conformance.sglang import KINDS, PlannedStep, draw, first_difference, packed, simulated, unpacked

LOGS = Path(__file__).parent / "sglang_steps.json.gz"
"""Steps of SGLang 0.5.6: its `Scheduler.get_next_batch_to_run` and its results were driven without a GPU."""
OTHER_VICTIMS = {
    ("no drafts, prefix in common, memory short", 4),
    ("no drafts, prefix in common, memory short", 12),
    ("3 drafts, memory short", 7),
}
"""Where memory is short SGLang loses other cached tokens: leaves of its tree, whole, by their last use."""


def logs(kind: str) -> list[dict[str, Any]]:
    return [log for log in json.loads(gzip.decompress(LOGS.read_bytes())) if log["kind"] == kind]


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_is_the_one_that_sglangs_scheduler_planned(kind: str) -> None:
    recorded = logs(kind)
    assert recorded
    for log in recorded:
        case = draw(log["seed"], **KINDS[kind])
        is_equal = first_difference(unpacked(log["steps"]), simulated(case)) is None
        assert is_equal == ((kind, log["seed"]) not in OTHER_VICTIMS), log["seed"]


def test_a_log_that_ends_early_differs_there() -> None:
    step = PlannedStep(0.0, (1,), ())
    assert first_difference([step, step], [step]) == 1
    assert first_difference([step], [step._replace(at_s=1.0)]) == 0
    assert first_difference([step], [step]) is None


def test_a_packed_log_is_the_log() -> None:
    prompt = PlannedStep(2.5, (), ((0, 9, 1),))
    steps = [
        PlannedStep(0.5, (1,), ()),
        PlannedStep(1.5, (1,), ()),
        prompt,
        prompt._replace(at_s=3.5),
        PlannedStep(9.0, (1,), ()),
    ]
    assert len(packed(steps)) == 4
    assert unpacked(packed(steps)) == steps
