"""Outputs of commands: none replaces what is there without --overwrite, what is shipped, what it reads, or what
somebody else is writing.

The commands and their options are read from the command line itself, so an output option that is new fails here until
it is tried.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from calibrate.measure.campaign.runner import run_campaign
from sim.cli.main import lanesim, run
from sim.costs.profile_files import SHIPPED, load
from sim.files.lock import locked
from sim.studies.sweeps.store import Store
from validation.__main__ import main as validation

PAIR = "h100-sxm/llama-2-7b+tinyllama-1.1b"
SMALL = ["--policy", "pd", "--num-prompts", "3", "--input-len", "8", "--output-len", "2", "--request-rate", "4"]
READ = {
    *("acceptance", "concurrencies", "contexts"),
    *("draft", "engine", "files", "from_", "goodput", "gpu"),
    *("grid", "lengths"),
    *("metrics", "restart", "serve"),
    *("method", "model", "names", "num_prompts", "pair", "paths", "policy", "price", "profile", "prompts"),
    *("scenario", "set", "store", "vary", "speculative_config", "target", "weights"),
    "words",
}
"""Parameters of text that name nothing which is written; every other one is an output."""
SLO = "--goodput ttft:500 tpot:40"
LIMITS = "--set engine.max_num_seqs=8 --set engine.max_num_batched_tokens=512"
VLLM = f"validate vllm x.jsonl --profile {{pair}} {LIMITS}"
OUTPUTS: dict[tuple[str, str], str] = {
    ("compare", "--json"): "compare --profile {pair} --policy pd --json there",
    ("compare", "--out"): "compare --profile {pair} --policy pd --out full",
    ("evidence", "--out"): "evidence --device cpu --out full",
    ("profiles", "--json"): "profiles show {pair} --json there",
    ("sweep", "--out"): "sweep grid.yaml --out full",
    ("sweep", "--json"): "sweep grid.yaml --out new --json there",
    ("report", "--out"): "report s --out there",
    ("tune", "--json"): "tune --profile {pair} --json there",
    ("calibrate measure", "--out"): "calibrate measure --device cpu --target tiny-target --out there.json",
    (
        "calibrate import",
        "--out",
    ): "calibrate import aiconfigurator --gpu h200-sxm --target llama-3.1-8b --out there.json",
    ("calibrate derive", "--out"): "calibrate derive --from {pair} --gpu h200-sxm --out there.json",
    ("calibrate fit", "--out"): "calibrate fit x.jsonl --profile {pair} --out there.json",
    ("calibrate fit", "--json"): "calibrate fit x.jsonl --profile {pair} --json there",
    ("diagnose", "--json"): "diagnose x.jsonl --profile {pair} --json there",
    ("plan", "--json"): f"plan llama-3.1-8b --gpu h200-sxm --input-len 8 --output-len 8 {SLO} --json there",
    ("replay", "--out"): "replay --profile cpu/tiny --policy pd --device cpu --out full",
    ("validate", "--json"): "validate r --json there",
    ("validate", "--out"): "validate http://localhost:1 --fit-only --profile {pair} --out there.json",
}
"""A command line by command and output option, which names a file that is there, or a folder with one."""
UNNAMED = {
    "result of cells": "validate cells x.csv --profile {pair} --json there",
    "result of a run": VLLM + " --json there",
    "result of a fit": "validate http://localhost:1 --fit-only --profile {pair} --json there",
    "levels beside a profile": "validate http://localhost:1 --fit-only --profile {pair} --out new.json",
    "levels of no profile": "validate http://localhost:1 --fit-only --profile {pair}",
}
"""Outputs that a command names by itself, and those of further forms of `validate`."""
SHIPPED_FILE = str(SHIPPED / "cpu" / "tiny.json")
SHIPPED_OUTPUTS = {
    "a profile": f"calibrate derive --from {{pair}} --gpu h200-sxm --overwrite --out {SHIPPED_FILE}",
    "by another name": "calibrate derive --from {pair} --gpu h200-sxm --overwrite --out link.json",
    "a result": f"plan --profile {{pair}} --set policy=pd {SLO} --overwrite --json {SHIPPED_FILE}",
    "an engine": "compare --profile {pair} --policy pd --overwrite --json "
    + str(SHIPPED.parent / "engines/ideal.json"),
    "the folder of all": f"compare --profile {{pair}} --policy pd --overwrite --out {SHIPPED}",
}
OVER_INPUTS = {
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
    "real run": "validate vllm x.jsonl --profile {pair} "
    "--set engine.max_num_seqs=8 --set engine.max_num_batched_tokens=512 "
    "--json x.jsonl",
    "prompts": "validate vllm x.jsonl y.jsonl --profile {pair} "
    "--set engine.max_num_seqs=8 --set engine.max_num_batched_tokens=512 --json y.jsonl",
    "request list": "validate cells x.csv y.csv --profile {pair} --json y.csv",
    "grid": "sweep grid.yaml --out new --json grid.yaml",
    "result of a sweep": "sweep grid.yaml --out new --json new",
    "store": "report s --out s/store.sqlite",
    "bench": "calibrate fit --profile {pair} x.jsonl --json x.jsonl",
    "result of a fit": "calibrate fit --profile {pair} x.jsonl --json new.json --out new.json",
    "log": "calibrate fit --profile {pair} x.jsonl --set workload.input_len=8 --json x.jsonl",
    "profile of a server": "validate http://localhost:1 --fit-only --profile p.json --json p.json",
}
UNWRITABLE = {
    "results": "compare --profile {pair} --policy pd --out /proc/x/r",
    "json": "compare --profile {pair} --policy pd --json /proc/x",
    "store": "sweep grid.yaml --out /proc/x",
    "page": "report s --out /proc/x.html",
}
TYPOS = ("validate typo", "report typo --out t", "check typo", "sweep typo --out t/s")
REFUSED = {
    "add --overwrite|is no store. Choose another": [*OUTPUTS.values(), *UNNAMED.values()],
    "is in the installed package": SHIPPED_OUTPUTS.values(),
    "Choose another": OVER_INPUTS.values(),
    "/proc/x.* cannot be written": UNWRITABLE.values(),
    "typo": TYPOS,
}
"""Lines that are refused before the work, by what the error says."""


def commands(command: click.Command = lanesim, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command that the help names, by its words after `lanesim`."""
    if command.hidden:
        return
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from commands(inner, f"{path} {name}".strip())


def outputs(command: click.Command) -> Iterator[str]:
    """Flags of what a command writes."""
    if "json" in getattr(command, "common", ()):
        yield "--json"
    for parameter in command.params:
        is_text = isinstance(parameter.type, click.Path | click.File) or parameter.type is click.STRING
        if is_text and parameter.name not in READ:
            yield parameter.opts[0]


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which every output is there, and inputs that nobody looks into."""
    monkeypatch.chdir(tmp_path)
    Store.open(tmp_path / "s")
    for name in ("r", "full", "figures"):
        (tmp_path / name).mkdir()
    names = "there there.json x.csv x.jsonl y.csv y.jsonl new.measured.json probe.measured.json full/x r/summary.json "
    names += "r/trace.json r/work.parquet r/requests.parquet r/scenario.yaml "
    for name in (names + "figures/check.png figures/validation.json").split():
        (tmp_path / name).write_text(f"bytes of {name}")
    for name in ("x.yaml", "r/x.yaml"):
        (tmp_path / name).write_text(f"profile: {PAIR}\npolicy: pd\n")
    (tmp_path / "grid.yaml").write_text(f"scenario: {{profile: {PAIR}, policy: pd}}\ngrid: {{seed: [0, 1]}}\n")
    shutil.copy(SHIPPED / "h100-sxm" / "llama-2-7b.json", tmp_path / "p.json")
    (tmp_path / "link.json").symlink_to(SHIPPED_FILE)
    return tmp_path


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refusal(line: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a command is refused with before it works, all files as they were."""
    before, places = content(folder), sorted(folder.rglob("*"))
    assert run(line.format(pair=PAIR).split()) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert (content(folder), sorted(folder.rglob("*"))) == (before, places)
    return said.err


def test_every_output_option_of_every_command_is_tried_here_and_its_command_has_overwrite() -> None:
    found = {path: (command, list(outputs(command))) for path, command in commands()}
    assert {(path, flag) for path, (_, flags) in found.items() for flag in flags} == OUTPUTS.keys()
    for path, (command, flags) in found.items():
        assert ("overwrite" in getattr(command, "common", ())) is bool(flags), path


@pytest.mark.parametrize(("line", "says"), [(line, says) for says, lines in REFUSED.items() for line in lines])
def test_an_output_that_nobody_may_write_to_is_refused_before_the_work(
    line: str, says: str, there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in SHIPPED.parent.rglob("*.json")}
    assert re.search(says, refusal(line, there, capsys))
    assert {path: path.stat().st_mtime_ns for path in SHIPPED.parent.rglob("*.json")} == before


def test_a_link_to_what_is_there_is_that(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (there / "other.json").symlink_to(there / "there.json")
    line = "calibrate derive --from {pair} --gpu h200-sxm --out other.json"
    assert "'other.json' exists" in refusal(line, there, capsys)
    assert run([*line.format(pair=PAIR).split(), "--overwrite"]) == 0
    assert load(there / "there.json").gpu.name == "h200-sxm"


def test_what_is_written_anew_needs_consent_and_a_stream_none(there: Path) -> None:
    few = ("--num-prompts", "2", "--output-len", "2", "--request-rate", "9")
    line = ["compare", "--profile", "cpu/tiny", "--policy", "pd", *few, "--json"]
    assert run([*line, "new.json"]) == 0
    assert run([*line, "new.json"]) == 2
    assert run([*line, "new.json", "--overwrite"]) == 0
    assert run([*line, "/dev/null"]) == 0


def test_a_file_that_is_no_points_file_is_not_gone_on_with(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An unfinished last line is cut off only of a file of ours."""
    pytest.importorskip("torch")
    (there / "mine.points.jsonl").write_text('{"somebody": 1}\n{"else": 2}')
    line = "calibrate measure --device cpu --target tiny-target --set measure.budget_s=1000 --out mine.json"
    assert "points file" in refusal(line, there, capsys)


def test_a_campaign_leaves_a_folder_of_somebody_elses_alone(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place in ("full", "there"):
        assert run_campaign("cpu", Path(place)) == 2
        assert "of no campaign" in capsys.readouterr().err
    assert [path.name for path in (there / "full").iterdir()] == ["x"]


@pytest.mark.parametrize("program", ["scenario_docs --out there", "atlas --out full", "silicon x.csv --json there"])
def test_a_program_that_judges_asks_for_consent_too(
    program: str, there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (there / "there").read_bytes()
    try:
        code: object = validation(program.split())
    except SystemExit as exit_:
        code = exit_.code
    assert code == 2
    assert "add --overwrite" in capsys.readouterr().err
    assert (there / "there").read_bytes() == before


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
    assert done.stderr == f"lanesim: {flag} {str(place)!r} is being written by another process. Wait for it, or " + (
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


def test_probes_levels_are_not_a_shipped_profile_by_its_name(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(SHIPPED_FILE, there / "mine.measured.json")
    line = "validate http://localhost:1 --fit-only --profile mine.measured.json --overwrite --out ./mine.json"
    assert "is read, too" in refusal(line, there, capsys)
