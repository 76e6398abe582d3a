"""`continuous` decides as the schedulers of several vLLM versions, at every step of the logs beside this file.

The drawn logs are what vLLM's own Scheduler did, driven alone (`python -m validation conformance --vllm FOLDER --keep
4`), and SGLang's (0.5.6 and 0.5.23); the others are a real engine's, vLLM 0.32 on a CPU.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from sim.costs.engine_costs import load_engine
from tests.properties import assert_refused
from validation.conformance.logs import Log, read_logs, write_logs
from validation.conformance.replayed import differences, main
from validation.conformance.sglang import GPU
from validation.conformance.sglang_scheduler import OWN, SglangDriver

LOGS = Path(__file__).parent / "scheduler_logs"
NEWEST = "sglang-0.5.23"
DRAWN = sorted(LOGS.glob("*.jsonl.gz"))
OTHER_VICTIMS = {
    "no drafts, prefix in common, memory short, seed 4", "no drafts, prefix in common, memory short, seed 12",
    "3 drafts, memory short, seed 7",
}  # fmt: skip
"""Where memory is short SGLang loses other cached tokens: leaves of its tree, whole, by their last use."""
REAL = sorted(LOGS.glob("*.json"))


@pytest.mark.parametrize("path", DRAWN, ids=[path.name for path in DRAWN])
def test_every_step_of_every_drawn_schedule_is_the_scheduler_s(path: Path) -> None:
    logs = read_logs(path)
    differing = {log.name: steps[0] for log in logs if (steps := differences(log))}
    assert len(logs) > 40
    assert differing.keys() == OTHER_VICTIMS & {log.name for log in logs}
    assert all(step.finds_other_tokens for step in differing.values())


@pytest.mark.parametrize("path", REAL, ids=[path.name for path in REAL])
def test_every_step_of_a_real_engine_is_equal(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([path]) == 0
    assert "0 differ" in capsys.readouterr().out


def test_the_drawn_schedules_show_what_they_are_drawn_for() -> None:
    logs = [log for path in DRAWN if path.name.startswith("vllm") for log in read_logs(path)]
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


@pytest.mark.parametrize("rule", ["leaves_at_once", "kept_rounds"])
def test_without_a_rule_of_the_newest_some_of_its_logs_differ(tmp_path: Path, rule: str) -> None:
    ratio = load_engine(NEWEST, GPU).rules.token_ratio
    assert ratio is not None
    without = msgspec.to_builtins(msgspec.structs.replace(ratio, **{rule: 0 if rule != "leaves_at_once" else False}))
    path = tmp_path / "without.json"
    changed = {"schema": 1, "name": "without", "inherits": NEWEST, "rules": {"token_ratio": without}}
    path.write_bytes(msgspec.json.encode(changed))
    assert any(differences(log, str(path)) for log in read_logs(LOGS / f"{NEWEST}.jsonl.gz"))


@pytest.mark.parametrize("lacks", ["managers/scheduler.py", "mem_cache/prefill_budget.py"])
def test_a_wheel_of_another_version_is_refused_in_a_sentence(tmp_path: Path, lacks: str) -> None:
    for name in OWN:
        path = tmp_path / "sglang/srt" / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "sglang/srt" / lacks).unlink()
    assert_refused(lambda: SglangDriver(tmp_path), "0.5.23", lacks.removesuffix(".py").replace("/", "."))
