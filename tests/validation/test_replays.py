# ruff: noqa: E402
"""`make accuracy` in small: a load is replayed, written, read back and judged, policy by policy."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from sim.costs.profile_files import load
from sim.run.scenario import Scenario
from validation.replays import replay_accuracy


def test_a_load_of_the_accuracy_report_is_replayed_and_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_accuracy, "POLICIES", ("pd", "continuous"))
    scenario = Scenario.of(
        profile="cpu/tiny",
        policy=("pd", "continuous"),
        num_prompts=3,
        input_len=16,
        output_len=4,
        request_rate="inf",
        max_concurrency=2,
    )
    rows = replay_accuracy._Load(tmp_path, "closed", scenario, load("cpu/tiny")).replay(1)
    assert [(row["load"], row["repeat"], row["policy"]) for row in rows] == [
        ("closed", 1, "pd"),
        ("closed", 1, "continuous"),
    ]
    for row in rows:
        assert row["decomposition"]["mechanism"]["e2el"]["mean"]["real"] > 0.0
