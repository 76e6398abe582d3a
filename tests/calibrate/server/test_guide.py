"""The guide's commands for a running server, on files of each format and on a server: as they stand there they work.

The server plans ahead, as the default engine does, and its constants are known where the files tell them.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest

from calibrate.served.judge import LoadSetup, simulate_load
from calibrate.served.load import mean_load
from sim.cli.main import run
from sim.costs.engine_costs import engine_of, with_engine
from sim.costs.profile_files import load
from tests.calibrate.served.test_fit import RESULT
from tests.calibrate.served.test_reports import load_line, look
from tests.calibrate.server.test_probe import serving

PROFILE = "h100-sxm/llama-3.1-8b"
GUIDE = (Path(__file__).parents[3] / "docs" / "server.md").read_text()
COMMANDS = re.findall(r"^lanesim (calibrate fit .+)$", GUIDE, re.MULTILINE)
(PROBE,) = re.findall(r"^lanesim (validate http.+--fit-only.+)$", GUIDE, re.MULTILINE)
FRONTEND_S = 8e-3
FORMATS = {"c8.json", "metrics", "server.log"}


def command(flag: str) -> list[str]:
    """The guide's own command with this flag."""
    (found,) = [words for words in map(shlex.split, COMMANDS) if flag in words]
    return found


def write_results(gap_s: float) -> None:
    """c8.json and c32.json, as `vllm bench serve` would write them of a server with `gap_s` between steps."""
    profile = load(PROFILE)
    profile = with_engine(profile, engine_of(None, profile))
    host = msgspec.structs.replace(profile.host, gap_s=gap_s, frontend_s=FRONTEND_S)
    for concurrency in (8, 32):
        asked = mean_load("x", concurrency, 200, 40, tpot_s=1.0)
        found: dict[str, Any] = simulate_load(asked, msgspec.structs.replace(profile, host=host), LoadSetup(engine={}))
        result = {key: found[key] for key in RESULT} | {"max_concurrency": concurrency}
        Path(f"c{concurrency}.json").write_text(json.dumps(result))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_all() -> None:
    """A file of each format under the names that the guide has for them."""
    write_results(1.6e-3)
    Path("before.txt").write_text(look(10, 77))
    Path("after.txt").write_text(look(40, 227))
    Path("server.log").write_text("\n".join(load_line(count, 100.0 * count) for count in (8, 32) for _ in range(4)))


@pytest.mark.parametrize("flag", sorted(FORMATS))
def test_the_guides_command_runs_and_says_what_it_left_out(
    flag: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_all()
    words = command(flag)
    assert run(words) == 0
    told = capsys.readouterr().out
    assert "gap_s = " in told
    assert "step_s unchanged" in told or "step_s, " in told
    assert load(words[words.index("--out") + 1]).host.gap_s > 0.0


def test_the_guides_probe_runs(folder: Path) -> None:
    """On fewer and shorter requests. A token takes far longer than a busy machine delays it. Which constants the fit
    finds is left open: load on the machine decides it."""
    few = ["--set", "server.rounds=1", "--output-len", "8", "--json", "r.json"]
    with serving(piece_s=0.04) as server:
        assert run([*shlex.split(PROBE.replace("http://localhost:8000", server.url)), *few]) == 0
    result = json.loads((folder / "r.json").read_text())
    found = {each["constant"]: each["value_s"] for each in result["constants"]}
    assert set() < set(found) <= {"frontend_s", "gap_s", "step_s", "row_s"}
    host = load(str(folder / "mine.json")).host
    assert {name: getattr(host, name) for name in found} == pytest.approx(found)
