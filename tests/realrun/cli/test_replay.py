# ruff: noqa: E402
"""`lanesim replay` and `lanesim validate` from end to end on the CPU with the tiny pair. Structure, never seconds."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

torch = pytest.importorskip("torch")

from click.testing import Result

from calibrate.cli.validate import validate_command
from realrun.cli.replay import replay_command
from realrun.host.gpuhost import GpuHost
from realrun.replay import replays
from realrun.replay.machine_speed import probe
from sim.compare.side_by_side import RESULT_SCHEMA
from sim.costs.profile_files import load, save_profile
from sim.report.results import read_columns
from tests.attack.mutations import damaged
from tests.attack.samples import Sample
from tests.attack.test_mutations import attack
from tests.realrun.recorded_runs import invoke, result_of
from tests.sim.support import ON_ONE_GPU as REPLAYED

SMALL = ["--profile", "cpu/tiny", "--device", "cpu", "--set", "num_prompts=6", "--set", "request_rate=inf"]
SMALL += ["--set", "input_len=28", "--set", "output_len=8"]
METRICS = {"ttft", "tpot", "itl", "e2el", "output_throughput"}


def replay_into(out: Path, *args: str) -> Result:
    return invoke(replay_command, *SMALL, "--out", str(out), *args)


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A replay of every policy."""
    out = tmp_path_factory.mktemp("replays") / "all"
    done = replay_into(out, *(part for name in REPLAYED for part in ("--policy", name)))
    assert done.exit_code == 0, done.output
    return out


def test_a_replay_leaves_the_simulators_records_and_says_what_it_was(replayed: Path) -> None:
    names = {path.name for path in replayed.iterdir()}
    assert {"scenario.yaml", "summary.json", "requests.parquet", "work.parquet", "profile.json"} <= names
    summary = json.loads((replayed / "summary.json").read_text())
    about = summary["replay"]
    assert (about["acceptance"], about["device"], about["partial"]) == ("tape", "cpu", False)
    assert about["num_device_allocations"] == 0
    assert {"device", "cpu", "torch"} <= set(about["fingerprint"])
    assert [run["policy"] for run in summary["runs"]] == REPLAYED
    assert all(run["completed"] == 6 for run in summary["runs"])
    # The machine's own speed, before and after each run.
    assert all(len(run["probed_s"]) == 2 and min(map(min, run["probed_s"])) > 0.0 for run in about["runs"])


def test_works_have_host_and_device_times(replayed: Path) -> None:
    works = read_columns(replayed / "work.parquet")
    count = len(works["kind"])
    assert all(len(column) == count for column in works.values())
    for number in range(count):
        order = [works[name][number] for name in ("submitted_s", "eligible_s", "issue_start_s", "start_s", "end_s")]
        assert order == sorted(order)
        assert works["end_s"][number] <= works["ready_s"][number]


def test_validation_says_per_metric_how_far_off_and_why(replayed: Path) -> None:
    result = result_of(validate_command, str(replayed))
    assert set(result["metrics"]) == METRICS
    assert set(result["metrics"]["e2el"]) == {"mean", "p50", "p95", "p99"}
    assert set(result["metrics"]["e2el"]["mean"]) == {"real", "simulated", "error_pct"}
    assert set(result["decomposition"]) == {"mechanism", "cost", "contention"}
    assert [run["policy"] for run in result["runs"]] == REPLAYED
    summary = json.loads((replayed / "summary.json").read_text())
    for run, real in zip(result["runs"], summary["runs"], strict=True):
        assert run["metrics"]["e2el"]["mean"]["real"] == real["mean_e2el_ms"]


def test_another_profile_is_judged_by_the_replay_as_it_was(replayed: Path, tmp_path: Path) -> None:
    """A copy of the replay's own changes nothing; one whose GEMMs take three times as long is slower."""
    own = load(str(replayed / "profile.json"))
    assert own.compact is not None
    factor = 3.0
    gemm = msgspec.structs.replace(
        own.compact.gemm,
        fixed_s=factor * own.compact.gemm.fixed_s,
        compute_share=own.compact.gemm.compute_share / factor,
        bandwidth_share=own.compact.gemm.bandwidth_share / factor,
    )
    slower = msgspec.structs.replace(own, kernels=msgspec.structs.replace(own.compact, gemm=gemm))
    errors = []
    for name, profile in (("copy", own), ("slower", slower)):
        save_profile(profile, tmp_path / f"{name}.json")
        result = result_of(validate_command, str(replayed), "--profile", str(tmp_path / f"{name}.json"))
        errors.append(result["metrics"]["e2el"]["mean"])
    usual = result_of(validate_command, str(replayed))
    assert errors[0] == usual["metrics"]["e2el"]["mean"]
    assert errors[1]["real"] == errors[0]["real"]
    assert errors[1]["simulated"] > 1.5 * errors[0]["simulated"]


def test_one_request_at_a_time_is_scheduled_alike_on_both_sides(tmp_path: Path) -> None:
    """Without any race the simulator on measured times takes the very same decisions."""
    out = tmp_path / "serial"
    done = replay_into(out, "--policy", "baseline", "--set", "policy_options.workers=1")
    assert done.exit_code == 0, done.output
    result = result_of(validate_command, str(out))
    assert result["runs"][0]["divergence"] is None
    assert result["runs"][0]["lookups"]["missed"] == 0


def test_of_a_run_that_is_interrupted_nothing_is_kept_and_those_before_it_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_until: Callable[..., None] = GpuHost.run_until
    runs: list[GpuHost] = []

    def interrupted(host: GpuHost, stop_s: float | None = None) -> None:
        runs.append(host)
        # Rehearsed and run, then the same of the second policy.
        if len(runs) == 4:
            host.at(0.05, lambda _: signal.raise_signal(signal.SIGINT))
        run_until(host, stop_s)

    monkeypatch.setattr(GpuHost, "run_until", interrupted)
    out = tmp_path / "cut"
    args = ["--policy", "pd", "--policy", "pdv", "--set", "request_rate=inf", "--set", "num_prompts=30"]
    done = replay_into(out, *args)
    assert done.exit_code == 130
    summary = json.loads((out / "summary.json").read_text())
    assert summary["replay"]["partial"]
    assert [(run["policy"], run["completed"]) for run in summary["runs"]] == [("pd", 30)]
    told = invoke(validate_command, str(out))
    assert told.exit_code == 0, told.output


def test_an_interrupted_rerun_lies_beside_the_complete_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = ["--policy", "baseline", "--policy", "pd", "--set", "num_prompts=2"]
    assert replay_into(tmp_path / "full", *args).exit_code == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "full").iterdir()}
    probed: list[tuple[float, ...]] = []

    def interrupted(*given: Any) -> tuple[float, ...]:
        probed.append(probe(*given))
        # Two belong to each run: between the two of the second.
        if len(probed) == 3:
            raise KeyboardInterrupt
        return probed[-1]

    monkeypatch.setattr(replays, "probe", interrupted)
    assert replay_into(tmp_path / "full", *args, "--overwrite").exit_code == 130
    assert {path.name: path.read_bytes() for path in (tmp_path / "full").iterdir()} == before
    assert json.loads((tmp_path / "full.partial" / "summary.json").read_text())["replay"]["partial"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "full.partial"]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--device", "cuda"], "finds no CUDA device"),
        (["--profile", "a100-sxm/codellama-34b+tinyllama-1.1b"], "choose a smaller pair"),
        (["--set", "policy_options.kv=none"], "kv=none can be simulated only"),
        (["--set", "speculation.num_speculative_tokens=0", "--policy", "pdv"], "needs a draft"),
    ],
)
def test_what_cannot_be_replayed_is_one_clear_line(tmp_path: Path, args: list[str], says: str) -> None:
    if says == "finds no CUDA device" and torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(ValueError, match=says):
        raise _error(replay_into(tmp_path / "out", "--policy", "pd", *args))
    assert not (tmp_path / "out").exists()


def changed_copy(replayed: Path, to: Path, change: Callable[[dict[str, Any]], object]) -> str:
    """The replay with another summary."""
    shutil.copytree(replayed, to)
    summary = json.loads((to / "summary.json").read_text())
    change(summary)
    (to / "summary.json").write_text(json.dumps(summary))
    return str(to)


def test_a_directory_without_a_replay_is_refused(tmp_path: Path, replayed: Path) -> None:
    newer = changed_copy(replayed, tmp_path / "newer", lambda summary: summary.update(schema=99))
    for place, named in (
        (str(tmp_path), "Give a directory of `lanesim replay`"),
        (newer, f"=99 must be {RESULT_SCHEMA}"),
    ):
        assert named in str(_error(invoke(validate_command, place, "--overwrite")))


def test_a_replay_from_before_a_key_existed_is_validated(tmp_path: Path, replayed: Path) -> None:
    """Its hash is of the keys that there were; what it does not say is at its default, as it was."""

    def older(summary: dict[str, Any]) -> None:
        del summary["scenario"]["slo_classes"], summary["scenario"]["engine"]["rules"]
        summary["scenario_hash"] = "0123456789abcdef"

    result = result_of(validate_command, changed_copy(replayed, tmp_path / "older", older))
    assert [run["policy"] for run in result["runs"]] == REPLAYED


def _error(done: Result) -> Any:
    """What the command raised; `lanesim` turns a ValueError into one line and exit code 2."""
    assert done.exception is not None, done.output
    return done.exception


@pytest.mark.parametrize("name", ["summary.json", "requests.parquet", "work.parquet", "profile.json"])
def test_a_damaged_replay_is_one_line(replayed: Path, name: str) -> None:
    files = {path.name: path.read_bytes() for path in replayed.iterdir() if path.suffix != ".png"}
    beside = tuple((other, content) for other, content in files.items() if other != name)
    sample = Sample(name, files[name], beside=beside, is_folder=True)
    assert attack(sample, sample.content) == 0
    for seed in range(6):
        attack(sample, damaged(sample.content, name, random.Random(seed)))


def test_a_torch_that_does_not_load_is_told_by_what_it_lacks(tmp_path: Path) -> None:
    """Installed, for another CUDA than this machine's."""
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.12: cannot open shared object file')")
    command = [
        sys.executable,
        "-m",
        "sim.cli.entry",
        "replay",
        *SMALL,
        "--policy",
        "pd",
        "--out",
        str(tmp_path / "out"),
    ]
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[3]}"}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 2
    assert "libcudart.so.12: cannot open shared object file" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
