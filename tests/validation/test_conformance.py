"""`continuous` decides as the schedulers of several vLLM versions, at every step of the logs beside this file.

The drawn logs are what vLLM's own Scheduler did, driven alone (`python -m validation conformance --vllm FOLDER --keep
4`); the others are a real engine's, vLLM 0.32 on a CPU.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from validation.conformance.logs import Log, read_logs, write_logs
from validation.conformance.replayed import differences, main

LOGS = Path(__file__).parent / "scheduler_logs"
DRAWN = sorted(LOGS.glob("vllm-*.jsonl.gz"))
REAL = sorted(LOGS.glob("*.json"))


@pytest.mark.parametrize("path", DRAWN, ids=[path.name for path in DRAWN])
def test_every_step_of_every_drawn_schedule_is_the_scheduler_s(path: Path) -> None:
    logs = read_logs(path)
    assert len(logs) > 40
    assert [log.name for log in logs if differences(log)] == []


@pytest.mark.parametrize("path", REAL, ids=[path.name for path in REAL])
def test_every_step_of_a_real_engine_is_equal(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([path]) == 0
    assert "0 differ" in capsys.readouterr().out


def test_the_drawn_schedules_show_what_they_are_drawn_for() -> None:
    logs = [log for path in DRAWN for log in read_logs(path)]
    assert sum(len(step.preempted) for log in logs for step in log.steps) > 300
    assert sum(any(step.cached and any(step.cached.values()) for step in log.steps) for log in logs) > 50
    assert {log.settings.method for log in logs} >= {None, "ngram", "draft_model", "eagle3", "mtp", "dspark"}
    assert {log.settings.async_scheduling for log in logs} == {True, False}


def test_a_step_that_differs_in_anything_is_seen(tmp_path: Path) -> None:
    """One token more, a draft less, a preemption, a block of the cache: the exit code counts the logs."""
    log = next(each for each in read_logs(LOGS / "vllm-0.32.jsonl.gz") if any(step.drafts for step in each.steps))
    place = next(number for number, step in enumerate(log.steps) if step.drafts)
    step = log.steps[place]
    index = next(iter(step.drafts))
    changed: list[Log] = []
    for change in (
        {"tokens": step.tokens | {index: step.tokens[index] + 1}},
        {"drafts": step.drafts | {index: step.drafts[index] - 1}},
        {"preempted": (0,)},
        {"cached": {index: 16}},
    ):
        steps = list(log.steps)
        steps[place] = msgspec.structs.replace(step, **change)
        changed.append(msgspec.structs.replace(log, steps=tuple(steps)))
    for each in changed:
        assert [difference.step for difference in differences(each)] == [place]
    write_logs(tmp_path / "changed.jsonl.gz", [log, *changed])
    assert main([tmp_path / "changed.jsonl.gz"]) == len(changed)


def test_another_version_decides_otherwise() -> None:
    """Slots of the budget by scheduled request (0.32) and by seat (0.24)."""
    logs = read_logs(LOGS / "vllm-0.32.jsonl.gz")
    assert any(differences(log, "vllm-0.24") for log in logs if log.settings.method == "draft_model")
    assert not any(differences(log, "vllm-0.24") for log in logs if log.name.startswith("plain"))
