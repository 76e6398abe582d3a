"""Sweeps into stores: nothing twice, nothing lost, errors are rows, and the same rows however it went."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

import lanesim
from sim.cli.main import run
from sim.compare.capacity import Saturation
from sim.draws import child_seed
from sim.run.resolve import resolve
from sim.studies.sweeps.grid import Grid
from sim.studies.sweeps.store import MARK, Store
from sim.studies.sweeps.store_rows import files_hash
from sim.studies.sweeps.sweep import SweepPlan, short_first, sweep, together

SCENARIO: dict[str, Any] = {
    "profile": "cpu/tiny",
    "policy": ["continuous", "pd"],
    "workload": {"num_prompts": 8, "output_len": 8},
}
RATES = [2, 4, 8]
GRID = {"scenario": SCENARIO, "grid": {"workload.request_rate": RATES}, "replications": 2}
COMMAND = [sys.executable, "-m", "sim.cli.main", "sweep"]


def rows(store: Path) -> list[dict[str, Any]]:
    """Rows by key, without what they do not say."""
    return [{name: value for name, value in row.items() if value is not None} for row in Store(store).rows()]


def run_into(store: Path, grid: dict[str, Any] = GRID, **options: Any) -> Any:
    return sweep(SweepPlan.of(Grid.of(grid)), Store.open(store), **{"workers": 1} | options)


def test_every_point_is_a_row_with_its_keys_and_metrics_on_the_same_draws(tmp_path: Path) -> None:
    frame = lanesim.sweep(GRID, out=tmp_path / "s", workers=1)
    assert len(frame) == 12
    assert {"scenario_hash", "policy", "seed", "workload.request_rate", "mean_ttft_ms", "duration_s"} <= set(frame)
    assert "workload.num_prompts" not in frame
    assert frame["scenario_hash"].nunique() == 6
    for _, own in frame.groupby("scenario_hash"):
        assert sorted(own["seed"]) == sorted([child_seed(0, 0), child_seed(0, 1)])
    assert set(frame["error"].isna()) == {True}
    assert frame["workload.request_rate"].tolist() == [float(rate) for rate in RATES for _ in range(4)]


def test_a_row_says_where_its_load_is_too_heavy_at_an_end_of_the_bracket(tmp_path: Path) -> None:
    """At what pd serves at most without overlap: 4 % less than at phi 0.07, where means are steady."""
    profile = "a100-sxm/llama-2-7b+tinyllama-1.1b"
    workload = {"input_len": 1024, "output_len": 64, "num_prompts": 100}
    scenario = lanesim.Scenario.of(profile=profile, policy="pd", workload=workload)
    most, _ = Saturation(resolve(scenario, lanesim.load_profile(profile), "pd").at_phi(0.0)).capacity
    grid = {"scenario": {"profile": profile, "policy": ["pd"], "workload": workload}}
    run_into(tmp_path / "s", grid | {"grid": {"workload.request_rate": [1, most]}})
    light, heavy = sorted(rows(tmp_path / "s"), key=lambda row: float(row["mean_e2el_ms"]))
    assert (light["is_steady"], light["is_steady_throughout"]) == (True, True)
    assert (heavy["is_steady"], heavy["is_steady_throughout"]) == (True, False)


def test_points_that_share_a_capacity_go_to_one_worker_unless_they_are_long() -> None:
    many = {"workload.request_rate": RATES, "engine.max_num_seqs": list(range(8, 24))}
    for num_prompts, sizes in ((100, [3] * 4), (9000, [1] * 12), ("auto", [3] * 4)):
        scenario = SCENARIO | {"workload": {"num_prompts": num_prompts}}
        plan = SweepPlan.of(Grid.of(GRID | {"scenario": scenario, "grid": many}))
        assert [len(jobs) for jobs in together(plan.jobs(frozenset()))][-len(sizes) :] == sizes


def test_points_that_differ_in_rate_and_seed_go_to_one_worker_and_share_a_capacity(tmp_path: Path) -> None:
    """A sweep over five seeds once measured each capacity five times, which was more than half of its CPU time."""
    grid = {"seed": [0, 1, 2], "engine.max_num_seqs": list(range(8, 16)), "workload.request_rate": [40, 50]}
    scenario = SCENARIO | {"policy": "pd"}
    batches = list(together(SweepPlan.of(Grid.of({"scenario": scenario, "grid": grid})).jobs(frozenset())))
    assert [len(jobs) for jobs in batches][-4:] == [6] * 4
    run_into(tmp_path / "s", {"scenario": scenario, "grid": {"workload.request_rate": [1000], "seed": [0, 1, 2]}})
    found = rows(tmp_path / "s")
    assert len({row["mean_e2el_ms"] for row in found}) == 3
    assert len({row["capacity_per_s"] for row in found}) == 1


def test_the_first_batches_are_short_so_that_their_rows_are_kept_soon() -> None:
    """A sweep that was killed in its first seconds once had no row."""
    scenario = SCENARIO | {"policy": "pd", "workload": {"num_prompts": 50}}
    plan = SweepPlan.of(Grid.of(GRID | {"scenario": scenario, "grid": {"workload.request_rate": list(range(1, 21))}}))
    assert [len(jobs) for jobs in together(plan.jobs(frozenset()))] == [1, 2, 4, 8, 5]


def test_replications_of_long_runs_go_apart_until_a_worker_is_given_many_requests() -> None:
    """A scenario's first row once waited for all its replications."""
    scenario = SCENARIO | {"policy": "pd", "workload": {"num_prompts": 1000}}
    grid = {"scenario": scenario, "grid": {"workload.request_rate": [1, 2, 4, 8]}, "replications": 3}
    batches = together(SweepPlan.of(Grid.of(grid)).jobs(frozenset()))
    alone = [[(0,)], [(1,)], [(2,)]]
    assert [[job.replications for job in jobs] for jobs in batches] == [*alone, *alone, [(0, 1, 2), (0, 1, 2)]]


def test_a_long_run_that_has_ended_is_kept_before_the_next_one_ends(tmp_path: Path) -> None:
    scenario = SCENARIO | {"policy": "pd", "workload": {"num_prompts": 1000, "output_len": 2}}
    kept: list[int] = []
    run_into(
        tmp_path,
        {"scenario": scenario, "grid": {"workload.request_rate": [2, 4]}, "replications": 2},
        on_done=lambda stage, done, total: kept.append(len(Store(tmp_path).keys())),
    )
    assert kept == [0, 0, 1, 2, 3]


def test_short_runs_go_first() -> None:
    grid = {"workload.num_prompts": [300, "auto", 20], "workload.request_rate": [1, 2]}
    jobs = short_first(SweepPlan.of(Grid.of({"scenario": SCENARIO | {"policy": "pd"}, "grid": grid})).jobs(frozenset()))
    ran = [(job.scenario.workload.num_prompts, job.scenario.workload.request_rate) for job in jobs]
    assert ran == [(count, rate) for count in (20, 300, "auto") for rate in (1.0, 2.0)]


def test_a_rerun_adds_nothing_and_grids_merge(tmp_path: Path) -> None:
    first = run_into(tmp_path)
    assert (first.num_runs, first.num_known, first.num_failed) == (12, 0, 0)
    before = rows(tmp_path)
    assert run_into(tmp_path).num_known == 12
    assert rows(tmp_path) == before
    wider = GRID | {"grid": {"workload.request_rate": [4, 16]}, "replications": 3}
    assert run_into(tmp_path, wider).num_known == 4
    assert len(rows(tmp_path)) == 12 + 8


def test_rows_do_not_depend_on_processes_or_on_who_else_writes(tmp_path: Path) -> None:
    run_into(tmp_path / "one")
    other = GRID | {"grid": {"workload.request_rate": [4, 8, 16]}}
    run_into(tmp_path / "one", other)
    both = [
        subprocess.Popen(
            [*COMMAND, str(file), "--out", str(tmp_path / "two"), "--workers", "2"], stdout=subprocess.PIPE
        )
        for file in (written(tmp_path / "a.yaml", GRID), written(tmp_path / "b.yaml", other))
    ]
    assert [process.wait() for process in both] == [0, 0]
    assert rows(tmp_path / "two") == rows(tmp_path / "one")
    assert len(rows(tmp_path / "two")) == 16


def written(file: Path, grid: dict[str, Any]) -> Path:
    import json

    file.write_text(json.dumps(grid))
    return file


def test_a_point_that_fails_is_a_row_with_its_error_and_the_next_sweep_tries_it_again(tmp_path: Path) -> None:
    grid = {"scenario": SCENARIO | {"policy": "pdv"}, "grid": {"speculation.num_speculative_tokens": [0, 2]}}
    done = run_into(tmp_path, grid)
    assert (done.num_runs, done.num_failed) == (2, 1)
    frame = lanesim.load(tmp_path)
    assert frame["error"].isna().tolist() == [False, True]
    assert "needs a draft" in frame["error"][0]
    assert run_into(tmp_path, grid).num_known == 1
    assert len(rows(tmp_path)) == 2


def deadly(*_: Any) -> list[Coroutine[Any, None, None]]:
    assert multiprocessing.parent_process() is not None
    os.kill(os.getpid(), signal.SIGKILL)
    return []


def test_a_point_that_kills_its_worker_is_a_row_and_the_others_are_run(tmp_path: Path) -> None:
    lanesim.register(lanesim.Policy(name="deadly", summary="", source="test", build=deadly))
    grid = {"scenario": SCENARIO | {"policy": ["deadly", "pd"]}, "grid": {"seed": [1, 2]}}
    done = run_into(tmp_path, grid, workers=2)
    assert (done.num_runs, done.num_failed) == (4, 2)
    assert {row["policy"] for row in rows(tmp_path) if "worker process died" in row.get("error", "")} == {"deadly"}
    assert [row["completed"] for row in rows(tmp_path) if row["policy"] == "pd"] == [8, 8]


def test_keys_change_with_the_profile_and_with_what_a_scenario_reads(tmp_path: Path) -> None:
    profile = lanesim.load_profile("cpu/tiny")
    path = lanesim.save_profile(profile, tmp_path / "mine.json")
    lengths = tmp_path / "lengths.csv"
    lengths.write_text("arrival_time,input_len,output_len\n0,8,4\n1,8,4\n")
    scenario = {"policy": "pd", "workload": {"dataset_name": "csv", "dataset_path": str(lengths)}, "profile": str(path)}
    keys = set()
    for longer, slower in ((False, False), (True, False), (True, True)):
        if longer:
            lengths.write_text("arrival_time,input_len,output_len\n0,8,4\n1,8,5\n")
        if slower:
            host = msgspec.structs.replace(profile.host, eager_kernel_s=1.0)
            lanesim.save_profile(lanesim.changed(profile, host=host), path)
        keys |= SweepPlan.of(Grid.of({"scenario": scenario})).keys()
    assert len(keys) == 3


@pytest.mark.parametrize(
    "quoted",
    [
        {"acceptance": "tape:{}"},
        {"acceptance": "tape:{}#eagle"},
        {"acceptance": " Tape: {}#eagle"},
        {"stale_acceptance": "tape:{}#eagle"},
    ],
)
def test_a_tape_is_part_of_what_a_row_is_kept_under(quoted: dict[str, str], tmp_path: Path) -> None:
    tape = tmp_path / "tape.jsonl"
    plain = lanesim.Scenario.of(profile="cpu/tiny", policy="pd")
    given = {f"speculation.{key}": text.format(tape) for key, text in quoted.items()}
    scenario = lanesim.Scenario.of(profile="cpu/tiny", policy="pd", **given)
    hashes = set()
    for accepted in ("[1, 2]", "[1, 2, 3]"):
        tape.write_text(f'{{"eagle": {accepted}}}\n')
        hashes.add(files_hash(scenario))
    assert len(hashes) == 2
    assert "" not in hashes
    assert files_hash(plain) == ""


def test_rows_of_another_version_are_left_out_with_a_note(tmp_path: Path) -> None:
    run_into(tmp_path)
    store = Store(tmp_path)
    old = [
        row | {"key": "0" * 31 + str(place), "model_version": "0.0.1+old"} for place, row in enumerate(rows(tmp_path))
    ]
    store.add(old[:2])
    with pytest.warns(UserWarning, match=r"2 rows are of other versions of the model \(0\.0\.1\+old\)"):
        assert len(lanesim.load(tmp_path)) == 12
    assert len(lanesim.load(tmp_path, version="0.0.1+old")) == 2


def test_no_flipped_byte_of_a_store_loads_as_another_figure(tmp_path: Path) -> None:
    run_into(tmp_path / "s")
    file, before, drawn = tmp_path / "s" / MARK, rows(tmp_path / "s"), random.Random(41)
    content = file.read_bytes()
    for _ in range(400):
        flipped = bytearray(content)
        flipped[drawn.randrange(len(content))] ^= 1 << drawn.randrange(8)
        file.write_bytes(flipped)
        with suppress(ValueError):
            assert [row for row in rows(tmp_path / "s") if row not in before] == []


def test_a_row_that_ran_takes_the_place_of_one_that_failed_and_no_row_is_twice(tmp_path: Path) -> None:
    run_into(tmp_path / "other")
    store, ran = Store.open(tmp_path / "s"), Store(tmp_path / "other").rows()[0] | {"key": "k"}
    failed = ran | {"error": "no"}
    store.add([failed, failed])
    assert (store.rows(), store.keys()) == ([failed], set())
    store.add([ran])
    store.add([failed, ran | {"key": "a"}])
    assert [row["error"] for row in store.rows()] == [None, None]
    assert [row["key"] for row in store.rows()] == ["a", "k"]


BAD = {
    "no grid file": (["absent.yaml"], "absent.yaml"),
    "unknown profile": ([{"grid": {"profile": ["cpu/tinny"]}}], "Did you mean 'cpu/tiny'"),
    "unknown policy": ([{"grid": {"policy": ["pd", "pvd"]}}], "unknown policy 'pvd'"),
    "ten million": (
        [{"grid": {"workload.request_rate": list(range(1, 2001)), "seed": list(range(5000))}}],
        "20,000,000",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_leaves_nothing(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (what,), told = BAD[case]
    file = what if isinstance(what, str) else str(written(tmp_path / "g.yaml", {"scenario": SCENARIO} | what))
    assert run(["sweep", file, "--out", str(tmp_path / "store")]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert not (tmp_path / "store").exists()


def test_ray_gives_the_rows_of_the_pool(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    file = written(tmp_path / "g.yaml", GRID)
    run_into(tmp_path / "pool")
    done = subprocess.run(
        [*COMMAND, str(file), "--out", str(tmp_path / "ray"), "--pool", "ray", "--workers", "2"], check=False
    )
    assert done.returncode == 0
    assert rows(tmp_path / "ray") == rows(tmp_path / "pool")
