"""Hostile launches that once hung, ended in a traceback or were taken for something else: each is one line now."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sim.cli.main import run
from sim.costs.profile_files import SHIPPED

PAIR = "h100-sxm/llama-2-7b+tinyllama-1.1b"
LAUNCHES: dict[str, tuple[str, str]] = {
    "a device": ("compare /dev/zero", "'/dev/zero' is a device or a pipe"),
    "a seed of 65 bits": (
        f"compare --profile {PAIR} --policy pd --seed 9223372036854775808",
        "seed=9223372036854775808",
    ),
    "a seed below 0": (f"compare --profile {PAIR} --policy pd --seed -1", "seed=-1 must be at least 0"),
    "an SLO of no metric": (
        f"compare --profile {PAIR} --policy pd --goodput ttft:5 itl:3",
        "unknown goodput metric 'itl'",
    ),
    "base sixty": (f"compare --profile {PAIR} --policy pd --set workload.request_rate=1:30", "workload.request_rate"),
    "a tag": (f"compare --profile {PAIR} --policy pd --set seed='!!int\t1'", "want plain values without tags"),
}


@pytest.mark.parametrize(("launch", "says"), LAUNCHES.values(), ids=LAUNCHES)
def test_a_hostile_launch_is_one_line(launch: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([part.replace("'", "") for part in launch.split(" ")]) == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert says in errors


def changed(name: str, change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads((SHIPPED / "h100-sxm" / name).read_text())
    change(raw)
    return raw


PROFILES: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "a negative error": (
        lambda raw: raw["errors"]["body"].update(mean_error_pct=-1.0),
        ": mean_error_pct=-1.0 must be",
    ),
    "a mean above the largest": (lambda raw: raw["errors"]["body"].update(mean_error_pct=1e6), "must not be above"),
    "a step of ages": (lambda raw: raw["host"].update(step_s=1e300), ": host: step_s=1e+300 must be"),
    "an escape": (lambda raw: raw.update(name="\x1b[31mred"), "'name' holds the control character"),
}


@pytest.mark.parametrize(("change", "says"), PROFILES.values(), ids=PROFILES)
def test_an_impossible_profile_is_one_line_with_file_and_key(
    change: Callable[[dict[str, Any]], None], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(changed("llama-2-7b.json", change)))
    for command in (["check", str(path)], ["profiles", "show", str(path)]):
        assert run(command) == 2
        errors = capsys.readouterr().err
        assert errors.count("\n") == 1
        assert str(path) in errors
        assert says in errors


def test_markup_in_a_name_is_printed_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(changed("llama-2-7b.json", lambda raw: raw.update(name="a[/x]b", source="[/y]"))))
    command = ["compare", "--profile", str(path), "--policy", "autoregressive", "--num-speculative-tokens", "0"]
    assert run([*command, "--num-prompts", "2", "--input-len", "8", "--output-len", "2"]) == 0
    assert "a[/x]b" in capsys.readouterr().out
