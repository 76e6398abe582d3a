"""Plug-ins that exit as they are imported: each is one line, and everything else goes on."""

from __future__ import annotations

from importlib import invalidate_caches
from pathlib import Path

import pytest

from sim.cli.main import run

ENTRIES = """[lanesim.commands]
leaver = leaving_package:COMMAND
[lanesim.policies]
leaver = leaving_package:POLICY
[lanesim.acceptances]
leaver = leaving_package:FORM
"""
LOAD = ["--profile", "cpu/tiny", "--request-rate", "2", "--num-prompts", "5"]


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "leaving_package-1.dist-info").mkdir(parents=True)
    (tmp_path / "leaving_package.py").write_text("raise SystemExit(0)\n")
    (tmp_path / "leaving_package-1.dist-info" / "entry_points.txt").write_text(ENTRIES)
    (tmp_path / "leaving_package-1.dist-info" / "METADATA").write_text("Name: leaving-package\nVersion: 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    invalidate_caches()


@pytest.mark.parametrize(
    ("command", "what"),
    [
        (["leaver"], "command 'leaver' of leaving_package:COMMAND"),
        (["compare", "--policy", "leaver", *LOAD], "policy 'leaver' of leaving_package:POLICY"),
        (
            ["compare", "--policy", "pd", "--acceptance", "leaver:.5", *LOAD],
            "acceptance 'leaver' of leaving_package:FORM",
        ),
    ],
)
def test_a_plugin_that_exits_is_one_line_and_no_empty_answer(
    capsys: pytest.CaptureFixture[str], command: list[str], what: str
) -> None:
    assert run(command) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"lanesim: {what}: SystemExit: 0\n"


def test_the_help_names_it_and_all_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "leaver (broken: command 'leaver' of leaving_package:COMMAND: SystemExit: 0)" in text
    assert "tune" in text
