"""`lanesim validate URL` against servers that break the rules: one clear line and an exit code other than 0 wherever
nothing can be judged, a verdict where it can, and never a key, a prompt or an address in the file.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from calibrate.server.probe import WORDS
from sim.cli.main import run
from tests.attack.hostile_server import Way, hostile, whole
from tests.attack.test_probe_server import BROKEN, COMPLETIONS, LATER, SOUND, bounded

KEY = "sk-not-to-be-seen"
FLAGS = [
    *("--profile", "cpu/tiny", "--request-rate", "500", "--num-prompts", "6", "--input-len", "4", "--output-len", "8"),
    *("--api-key-env", "KEY_OF_A_TEST", "--levels"),
]
LOOKED = 2
"""Requests that tell how it answers, and how many tokens a word has."""


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_OF_A_TEST", KEY)


def judged(url: str, out: Path, *more: str, levels: str = "none") -> int:
    """The exit code. What is written names nothing that it should not, whatever came of it."""
    with bounded():
        code = run(["validate", url, *FLAGS, levels, "--timeout-s", "0.8", "--out", str(out), *more])
    text = out.read_text() if out.exists() else ""
    assert url.partition("//")[2] not in text
    assert KEY not in text
    assert not any(f"{word} " in text for word in WORDS)
    return code


@pytest.mark.parametrize("name", BROKEN)
def test_a_server_that_breaks_a_rule_is_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, way, _ = BROKEN[name]
    with hostile(path, way) as server:
        assert judged(server.url, tmp_path / "run.json") == 2
    assert_one_line(capsys)


@pytest.mark.parametrize("name", LATER)
@pytest.mark.parametrize("levels", ["none", "1,2"])
def test_a_server_that_breaks_a_rule_once_it_is_sent_to_is_one_line(
    name: str, levels: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with hostile(COMPLETIONS, LATER[name][0], sound=LOOKED) as server:
        assert judged(server.url, tmp_path / "run.json", "--rounds", "1", levels=levels) == 2
    assert_one_line(capsys)


def assert_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1, errors
    assert errors.startswith("lanesim: "), errors
    assert KEY not in errors


@pytest.mark.parametrize("name", SOUND)
def test_a_server_that_is_merely_odd_is_judged(name: str, tmp_path: Path) -> None:
    path, way = SOUND[name]
    out = tmp_path / "run.json"
    with hostile(path, way) as server:
        assert judged(server.url, out) == 0
    assert json.loads(out.read_text())["errors"]["predicted"]["e2el"]["mean"]["real"] > 0.0


@pytest.mark.parametrize(
    "way", [whole("river stone lamp: " + KEY, "500 Oops"), whole("river stone lamp", "429 river stone ")]
)
def test_what_a_server_says_of_failed_requests_is_not_kept(way: Way, tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    with hostile(COMPLETIONS, way, sound=LOOKED, broken=2) as server:
        assert judged(server.url, out) == 0
    assert sum(bool(each["failed"]) for each in json.loads(out.read_text())["sent"]) == 2


@pytest.mark.parametrize("is_second", [False, True])
def test_one_of_a_pair_that_breaks_is_one_line(
    is_second: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was sent to the other one is kept."""
    out = tmp_path / "run.json"
    drafts = ("--set", "speculation.num_speculative_tokens=2", "--set", "speculation.acceptance=iid:0.7")
    with hostile() as sound, hostile(COMPLETIONS, whole("busy", "503 Busy"), sound=LOOKED) as broken:
        one, other = (sound, broken) if is_second else (broken, sound)
        assert judged(one.url, out, "--pair", other.url, *drafts) == 2
        assert other.url.partition("//")[2] not in out.read_text()
    assert_one_line(capsys)
    told = json.loads(out.read_text())
    assert sum(not each["failed"] for each in told["sent"]) == (6 if is_second else 0)
