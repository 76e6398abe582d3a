"""No command writes over what it reads, over another's results, or where somebody else is writing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sim.cli.main import run
from sim.costs.profile_files import SHIPPED
from sim.files.lock import locked

PAIR = "h100-sxm/llama-2-7b+tinyllama-1.1b"
SMALL = ["--policy", "pd", "--num-prompts", "3", "--input-len", "8", "--output-len", "2", "--request-rate", "4"]
ARGUMENTS: dict[str, str] = {
    "scenario": "compare x.yaml --json x.yaml",
    "scenario in its folder": "compare r/x.yaml --out r --overwrite",
    "trace": "compare --profile {pair} --set workload.dataset_name=csv --set workload.dataset_path=x.csv --policy pd "
    "--json ./x.csv",
    "tape": "compare --profile {pair} --acceptance tape:x.jsonl#a --policy pd --json x.jsonl",
    "own profile": "compare --profile p.json --policy pd --json p.json",
    "two outputs": "compare --profile {pair} --policy pd --out new --json new/summary.json",
    "profile": "calibrate derive --from p.json --gpu h200-sxm --out p.json",
    "replay": "validate r --json r/summary.json",
    "cells": "validate cells x.csv --profile {pair} --json x.csv",
    "real run": "validate vllm --requests x.jsonl --profile {pair} "
    "--set engine.max_num_seqs=8 --set engine.max_num_batched_tokens=512 --json x.jsonl",
    "prompts": "validate vllm --requests x.jsonl --prompts y.jsonl --profile {pair} "
    "--set engine.max_num_seqs=8 --set engine.max_num_batched_tokens=512 --json y.jsonl",
    "request list": "validate cells x.csv --requests y.csv --profile {pair} --json y.csv",
    "grid": "sweep grid.yaml --out new --json grid.yaml",
    "result of a sweep": "sweep grid.yaml --out new --json new",
    "store": "report s --out s/store.sqlite",
    "bench": "calibrate production --profile {pair} x.jsonl --json x.jsonl",
    "result of a fit": "calibrate production --profile {pair} x.jsonl --json new.json --out new.json",
    "log": "calibrate production --profile {pair} x.jsonl --set workload.input_len=8 --json x.jsonl",
    "profile of a server": "validate http://localhost:1 --fit-only --profile p.json --json p.json",
    "levels of a server": "validate http://localhost:1 --fit-only --profile p.json --measured p.json",
    "levels to fit again": "validate x.jsonl --fit-only --profile p.json --json x.jsonl",
}


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one file of each kind, none of which is ever looked into."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r").mkdir()
    (tmp_path / "s").mkdir()
    for name in (
        "x.csv",
        "x.jsonl",
        "y.csv",
        "y.jsonl",
        "s/store.sqlite",
        "r/summary.json",
        "r/work.parquet",
        "r/requests.parquet",
        "r/scenario.yaml",
    ):
        (tmp_path / name).write_text(f"bytes of {name}")
    for name in ("x.yaml", "r/x.yaml"):
        (tmp_path / name).write_text(f"profile: {PAIR}\npolicy: pd\n")
    (tmp_path / "grid.yaml").write_text(f"scenario: {{profile: {PAIR}, policy: pd}}\ngrid: {{seed: [0, 1]}}\n")
    shutil.copy(SHIPPED / "h100-sxm" / "llama-2-7b.json", tmp_path / "p.json")
    return tmp_path


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refusal_before_the_work(arguments: str, inputs: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a command is refused with, exit 2 and every file as it was."""
    before = content(inputs)
    assert run(arguments.format(pair=PAIR).split()) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert content(inputs) == before
    return message


@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
def test_output_over_input_is_refused_before_the_work(
    arguments: str, inputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "choose another" in refusal_before_the_work(arguments, inputs, capsys)


@pytest.mark.parametrize("flag", ["--out", "--json"])
def test_a_second_process_is_refused_before_the_work(flag: str, tmp_path: Path) -> None:
    place = tmp_path / "place"
    with locked(place):
        done = subprocess.run(
            [sys.executable, "-m", "sim.cli.main", "compare", "--profile", PAIR, *SMALL, flag, str(place)],
            capture_output=True,
            text=True,
        )
    assert done.returncode == 2
    assert done.stderr == f"lanesim: {flag} {str(place)!r} is being written by another process; wait for it, or " + (
        "choose another\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_names_the_file_and_leaves_the_old_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r"
    command = ["compare", "--profile", PAIR, *SMALL, "--out", str(out)]
    assert run(command) == 0
    before = content(tmp_path)
    real: Callable[..., int] = Path.write_text

    def full(path: Path, text: str, *more: object) -> int:
        if path.name == "summary.json":
            raise OSError(28, "No space left on device")
        return real(path, text)

    monkeypatch.setattr(Path, "write_text", full)
    capsys.readouterr()
    assert run([*command, "--overwrite"]) == 2
    assert capsys.readouterr().err == f"lanesim: {str(out)!r} cannot be written: No space left on device\n"
    assert content(tmp_path) == before


UNWRITABLE = {
    "results": "compare --profile {pair} --policy pd --out /proc/x/r",
    "json": "compare --profile {pair} --policy pd --json /proc/x",
    "store": "sweep grid.yaml --out /proc/x",
    "pictures": "report s --figures /proc/x",
    "page": "report s --out /proc/x.html",
}


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs Linux")
@pytest.mark.parametrize("arguments", UNWRITABLE.values(), ids=UNWRITABLE)
def test_a_place_that_cannot_be_written_is_refused_before_the_work(
    arguments: str, inputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refusal_before_the_work(arguments, inputs, capsys)
    assert "/proc/x" in message
    assert "cannot be written" in message


@pytest.mark.parametrize(
    "arguments", ["validate typo", "report typo --figures t", "check typo", "sweep typo --out t/s"]
)
def test_a_typo_leaves_no_folder(arguments: str, inputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(inputs.rglob("*"))
    assert run(arguments.split()) == 2
    assert "typo" in capsys.readouterr().err
    assert sorted(inputs.rglob("*")) == before
