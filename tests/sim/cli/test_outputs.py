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
    "trace": "compare --profile {pair} --dataset-name csv --dataset-path x.csv --policy pd --json ./x.csv",
    "tape": "compare --profile {pair} --acceptance tape:x.jsonl#a --policy pd --json x.jsonl",
    "own profile": "compare --profile p.json --policy pd --json p.json",
    "two outputs": "compare --profile {pair} --policy pd --out new --json new/summary.json",
    "profile": "calibrate derive --from p.json --gpu h200-sxm --out p.json",
    "check": "check p.json --json p.json",
    "replay": "validate r --json r/summary.json",
    "cells": "validate cells x.csv --profile {pair} --json x.csv",
    "real run": "validate vllm --requests x.jsonl --profile {pair} --max-num-seqs 8 --max-num-batched-tokens 512 "
    "--json x.jsonl",
    "prompts": "validate vllm --requests x.jsonl --prompts y.jsonl --profile {pair} --max-num-seqs 8 "
    "--max-num-batched-tokens 512 --json y.jsonl",
    "request list": "validate cells x.csv --requests y.csv --profile {pair} --json y.csv",
    "grid": "sweep grid.yaml --out new --json grid.yaml",
    "result of a sweep": "sweep grid.yaml --out new --json new",
    "store": "report s --out s/store.sqlite",
    "bench": "calibrate production --profile {pair} --bench-json x.jsonl --json x.jsonl",
    "result of a fit": "calibrate production --profile {pair} --bench-json x.jsonl --json new.json --out new.json",
    "log": "calibrate production --profile {pair} --log x.jsonl --set workload.input_len=8 --json x.jsonl",
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


DIES = """
import os, sys
from pathlib import Path
import filelock
from sim.files import write
EVENTS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "shutil.rmtree"}
def copy_that_dies(allowed, folder):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    count = 0
    def kill(event, args):
        nonlocal count
        is_write = event == "open" and isinstance(args[0], (str, bytes)) and args[2] & (os.O_WRONLY | os.O_RDWR)
        if (is_write or event in EVENTS) and folder in os.fsdecode(args[0]):
            count += 1
            if count > allowed:
                os._exit(9)
    sys.addaudithook(kill)
    code = 1
    try:
        write_into(Path(folder))
        code = 0
    finally:
        os._exit(code)
"""
"""Copies of one process, each of which ends before one of its file operations."""
MAX_OPERATIONS = 40
WRITES = {
    "file": "def write_into(folder): write.write_text(folder / 'x', 'new')",
    "folder": """
def write_into(folder):
    with write.new_folder(folder / 'x', keeps=lambda name: name == 'mine') as scratch:
        (scratch / 'a').write_text('new'); (scratch / 'b').write_text('new')
""",
}


def old_set(folder: Path, kind: str) -> None:
    if kind == "file":
        (folder / "x").write_text("old")
    else:
        (folder / "x").mkdir()
        for name in ("a", "b", "mine"):
            (folder / "x" / name).write_text("old")


def state(folder: Path) -> dict[str, str]:
    """What a reader sees."""
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("x/*")} or {
        "x": (folder / "x").read_text() if (folder / "x").exists() else ""
    }


@pytest.mark.parametrize("kind", WRITES)
def test_a_writer_killed_before_any_of_its_file_operations_leaves_the_old_set_or_the_new_one(
    kind: str, tmp_path: Path
) -> None:
    """The next writer removes what it left, or puts back what it had moved."""
    fine = [{"x": "old"}, {"x": "new"}]
    if kind != "file":
        fine = [{"x/a": age, "x/b": age, "x/mine": "old"} for age in ("old", "new")]
    folders = [tmp_path / f"{allowed:02}" for allowed in range(MAX_OPERATIONS)]
    for folder in folders:
        folder.mkdir()
        old_set(folder, kind)
    died = exit_codes(kind, [(allowed, folder) for allowed, folder in enumerate(folders)])
    for allowed, folder in enumerate(folders):
        found = state(folder)
        if kind == "folder" and found == {"x": ""}:
            moved = everything(folder)
            found = {f"x/{Path(name).name}": text for name, text in moved.items() if "-old/" in name}
        assert found in fine, allowed
    assert set(exit_codes(kind, [(1000, folder) for folder in folders])) == {0}
    assert [everything(folder) for folder in folders] == [fine[1]] * MAX_OPERATIONS
    num_died = died.count(9)
    assert num_died >= 4
    assert died == [9] * num_died + [0] * (MAX_OPERATIONS - num_died)
    assert num_died < MAX_OPERATIONS


def everything(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def exit_codes(kind: str, deaths: list[tuple[int, Path]]) -> list[int]:
    """Of one copy for each number of operations that it is allowed, and folder."""
    told = "\nprint(*(copy_that_dies(int(n), folder) for n, folder in zip(sys.argv[1::2], sys.argv[2::2])))"
    arguments = [str(argument) for death in deaths for argument in death]
    command = [sys.executable, "-c", f"{DIES}\n{WRITES[kind]}{told}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [int(code) for code in done.stdout.split()]


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
