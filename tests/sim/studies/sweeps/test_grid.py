"""Grids: what is gone through, and what is refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sim.studies.sweeps import store_rows
from sim.studies.sweeps.grid import Grid
from tests.properties import assert_refused

SCENARIO: dict[str, Any] = {"profile": "cpu/tiny", "policy": ["continuous", "pd"], "workload": {"num_prompts": 5}}


def grid(**parts: Any) -> Grid:
    return Grid.of({"scenario": SCENARIO, **parts})


def test_all_combinations_are_gone_through_each_policy_a_point_of_its_own_and_the_rate_fastest() -> None:
    found = grid(grid={"workload.request_rate": [1, 2], "speculation.num_speculative_tokens": [0, 4]})
    assert found.num_scenarios == 8
    assert [(s.speculation.num_speculative_tokens, *s.policy, s.workload.request_rate) for s in found.scenarios()] == [
        (k, policy, rate) for k in (0, 4) for policy in ("continuous", "pd") for rate in (1.0, 2.0)
    ]


def test_lists_of_one_group_are_gone_through_side_by_side() -> None:
    pairs = [{"engine.max_num_seqs": [8, 16], "engine.max_num_batched_tokens": [256, 512]}]
    found = grid(zip=pairs, grid={"policy": ["pd"]})
    assert [(s.engine.max_num_seqs, s.engine.max_num_batched_tokens) for s in found.scenarios()] == [
        (8, 256),
        (16, 512),
    ]


def test_a_list_of_policies_in_place_of_one_is_a_point_for_each() -> None:
    """Once a TypeError: lists cannot be told apart by their hash."""
    assert grid(grid={"policy": [["pd"], ["pdv", "unified"]]}).values_of("policy") == ["pd", "pdv", "unified"]
    found = grid(zip=[{"policy": [["pd", "pdv"], "unified"], "engine.max_num_seqs": [8, 16]}])
    assert [(*s.policy, s.engine.max_num_seqs) for s in found.scenarios()] == [("pd", 8), ("pdv", 8), ("unified", 16)]


def test_replications_are_counted_and_may_be_gone_through() -> None:
    assert grid(replications=3).num_runs == 6
    assert grid(grid={"replications": [1, 3]}).num_runs == 8


def test_names_of_flags_stand_for_their_keys_and_an_engine_is_a_name() -> None:
    found = grid(grid={"request_rate": [1], "engine": ["vllm-0.24", "ideal"], "profile": ["cpu/tiny"]})
    assert found.keys[:2] == ["engine.name", "profile"]
    assert {scenario.engine.name for scenario in found.scenarios()} == {"vllm-0.24", "ideal"}


def test_a_file_may_name_its_scenario_by_path(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("{profile: cpu/tiny, policy: pd, workload: {num_prompts: 5}}")
    (tmp_path / "g.yaml").write_text("{scenario: s.yaml, grid: {workload.request_rate: [2, inf]}}")
    assert [scenario.workload.request_rate for scenario in Grid.of(tmp_path / "g.yaml").scenarios()] == [
        2.0,
        float("inf"),
    ]


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"grid": {"workload.request_rat": [1]}}, "Did you mean 'workload.request_rate'"),
        ({"grid": {"workload.request_rate.x": [1]}}, "workload.request_rate: expected `float`"),
        ({"grid": {"policy": [[]]}}, "policy: the list is empty"),
        ({"gird": {}}, "Did you mean 'grid'"),
        ({"grid": {"workload.request_rate": []}}, "the list is empty"),
        ({"grid": {"workload.request_rate": 3}}, "must be a list of values, got 3"),
        ({"grid": {"workload.request_rate": [1, 1.0]}}, "1.0 stands twice"),
        ({"grid": {"speculation.num_speculative_tokens": [2, -1]}}, "num_speculative_tokens=-1 must be at least 0"),
        ({"zip": [{"seed": [1, 2], "profile": ["cpu/tiny"]}]}, "equally long, got seed: 2, profile: 1"),
        ({"zip": [{"seed": [1]}], "grid": {"seed": [2]}}, "seed: is gone through twice"),
        ({"grid": [1]}, "must be a block"),
        ({"scenario": 3}, "must be a block of keys, or the path"),
        ({"grid": {"policy": [["pd"], ["pd", "pdv"]]}}, "policy: 'pd' stands twice"),
        ({"grid": {"devices.overlap": [None, "serial"], "devices.phi": [None, 0.3]}}, "phi=0.3, policy=continuous: "),
    ],
)
def test_bad_grids_are_refused_in_one_line(parts: dict[str, Any], told: str) -> None:
    assert_refused(lambda: Grid.of({"scenario": SCENARIO} | parts), told)


def test_rooms_that_make_the_numbers_are_in_the_version_that_keys_rows() -> None:
    """All rooms below `studies`, but the one that opens files: a change in any of them makes new rows."""
    rooms = {path.parent.name for path in Path(store_rows.__file__).parents[2].glob("*/__init__.py")}
    assert set(store_rows.MODEL_ROOMS) == rooms - {"cli", "files", "report", "studies"}


def test_a_change_of_the_c_core_makes_new_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sim = Path(store_rows.__file__).parents[2]
    for part in ("engines", "acceptance/pairs.json", "draws.py", "run/core.c"):
        (tmp_path / part).parent.mkdir(exist_ok=True)
        (tmp_path / part).symlink_to(sim / part)
    monkeypatch.setattr(store_rows, "__file__", str(tmp_path / "studies" / "sweeps" / "store_rows.py"))
    before = store_rows.model_version.__wrapped__()
    (tmp_path / "run" / "core_lanes.h").write_text("/* new */")
    assert store_rows.model_version.__wrapped__() != before
