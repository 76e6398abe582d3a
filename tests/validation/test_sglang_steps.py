"""SGLang's own scheduler, as it was recorded, plans each step of a drawn case as `continuous` does with its rules."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from sim.costs.engine_costs import load_engine
from tests.properties import assert_refused
from validation.conformance.logs import read_logs
from validation.conformance.replayed import differences
from validation.conformance.sglang import GPU
from validation.conformance.sglang_scheduler import OWN, SglangDriver

LOGS = [log for path in (Path(__file__).parent / "scheduler_logs").glob("sglang-*.gz") for log in read_logs(path)]
"""Of SGLang 0.5.6 and 0.5.23: `Scheduler.get_next_batch_to_run` and its results were driven without a GPU."""
NEWEST = "sglang-0.5.23"
OTHER_VICTIMS = {
    ("no drafts, prefix in common, memory short", 4),
    ("no drafts, prefix in common, memory short", 12),
    ("3 drafts, memory short", 7),
}
"""Where memory is short SGLang loses other cached tokens: leaves of its tree, whole, by their last use."""


@pytest.mark.parametrize("kind", list(dict.fromkeys(log.kind for log in LOGS)))
def test_every_step_is_the_one_that_sglangs_scheduler_planned(kind: str) -> None:
    for log in LOGS:
        if log.kind == kind:
            assert bool(differences(log)) == ((kind, log.case.seed) in OTHER_VICTIMS), log.name


@pytest.mark.parametrize("rule", ["leaves_at_once", "kept_rounds"])
def test_without_a_rule_of_the_newest_some_of_its_logs_differ(tmp_path: Path, rule: str) -> None:
    ratio = load_engine(NEWEST, GPU).rules.token_ratio
    assert ratio is not None
    without = msgspec.to_builtins(msgspec.structs.replace(ratio, **{rule: 0 if rule != "leaves_at_once" else False}))
    path = tmp_path / "without.json"
    changed = {"schema": 1, "name": "without", "inherits": NEWEST, "rules": {"token_ratio": without}}
    path.write_bytes(msgspec.json.encode(changed))
    assert any(differences(log, str(path)) for log in LOGS if log.engine == NEWEST)


@pytest.mark.parametrize("lacks", ["managers/scheduler.py", "mem_cache/prefill_budget.py"])
def test_a_wheel_of_another_version_is_refused_in_a_sentence(tmp_path: Path, lacks: str) -> None:
    for name in OWN:
        path = tmp_path / "sglang/srt" / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "sglang/srt" / lacks).unlink()
    assert_refused(lambda: SglangDriver(tmp_path), "0.5.23", lacks.removesuffix(".py").replace("/", "."))
