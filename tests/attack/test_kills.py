"""A replay and a measurement killed at random moments: after the same command again, results are those of a run that
nobody disturbed. Not here: writers before each of their file operations (test_dying.py)."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

KILLS = int(os.environ.get("LANESIM_KILLS", "30"))
"""Of each command, while it is under way."""
MAX_TRIES = 4
REPLAYED = ["--policy", "pd", "--profile", "cpu/tiny", "--num-prompts", "8", "--request-rate", "20", "--device", "cpu"]
MEASURED = ["--device", "cpu", "--target", "tiny-target", "--draft", "tiny-draft", "--no-serving"]
MEASURED += ["--rows", "1", "--context", "256"]
MEASURED += ["--budget", os.environ.get("LANESIM_BUDGET_S", "5")]
"""A busy machine needs more seconds for one pass of each kind."""


def replayed(out: Path) -> Any:
    """What does not depend on the clock: complete, every request once."""
    from sim.report.results import read_columns

    summary = json.loads((out / "summary.json").read_text())
    columns = read_columns(out / "requests.parquet")
    return summary["replay"]["partial"], summary["scenario_hash"], columns["index"], columns["emitted_tokens"]


def measured(out: Path) -> Any:
    """Which passes there are, once each, in the profile and in its points."""
    from calibrate.fit import points_file
    from sim.costs.profile_files import load

    points = points_file.read(out.with_suffix(".points.jsonl"))
    visits = [len(visits) == points.num_visits for visits in points.visits.values()]
    return len(load(out).points) == len(points.passes), points.left, all(visits)


COMMANDS: dict[str, tuple[list[str], str, Callable[[Path], Any]]] = {
    "replay": (["replay", *REPLAYED], "r", replayed),
    "measure": (["calibrate", "measure", *MEASURED], "p.json", measured),
}


def started(name: str, folder: Path) -> subprocess.Popen[bytes]:
    command, out, _ = COMMANDS[name]
    folder.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "sim.cli.entry", *command, "--out", str(folder / out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def finished(name: str, folder: Path) -> Any:
    process = started(name, folder)
    errors = process.communicate()[1].decode()
    assert process.returncode == 0, errors
    return COMMANDS[name][2](folder / COMMANDS[name][1])


@pytest.mark.nightly
@pytest.mark.parametrize("name", COMMANDS)
def test_killed_at_a_random_moment_and_run_again_it_is_as_if_nothing_had_been(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    began = time.monotonic()
    undisturbed = finished(name, tmp_path / "undisturbed")
    took_s = time.monotonic() - began
    rng = random.Random(name)
    num_killed = number = 0
    while num_killed < KILLS:
        # Half of them have a complete set of results in place already.
        folder = tmp_path / f"{number // 2}"
        process = started(name, folder)
        time.sleep(rng.uniform(0.1, 0.9) * took_s)
        process.kill()
        process.communicate()
        num_killed += process.returncode != 0
        out = folder / COMMANDS[name][1]
        if number % 2 and name != "measure":
            assert COMMANDS[name][2](out) == undisturbed, "the old complete set stands, or the new one"
        assert finished(name, folder) == undisturbed
        assert [path.name for path in folder.iterdir() if ".part-" in path.name] == []
        number += 1
        assert number < MAX_TRIES * KILLS, "it ends before it is killed"
    print(f"{name}: {num_killed} killed under way in {number} runs")
