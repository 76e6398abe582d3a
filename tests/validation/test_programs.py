"""`python -m validation NAME`: every name is a program, and every program that writes a page is in the list."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from validation.__main__ import PROGRAMS, arguments, main

ROOT = Path(__file__).parents[2]


def test_every_name_is_a_module_with_a_main_and_every_one_of_those_has_a_name() -> None:
    modules = {module for module, _ in PROGRAMS.values() if ":" not in module}
    found = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (ROOT / "validation").rglob("*.py")
        if "\ndef main(" in path.read_text() and path.name != "__main__.py"
    }
    assert found == modules


@pytest.mark.parametrize("args", [[], ["accuracies"]])
def test_an_unknown_name_gets_the_list_and_exit_2(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args) == 2
    assert "accuracy_intervals" in capsys.readouterr().err


def program(
    data: Path, kinds: list[str], what: Literal["load", "kinds"], num_draws: int = 3, kept: bool = False
) -> None:
    raise NotImplementedError


def test_a_program_has_what_the_command_line_says_each_of_its_own_type() -> None:
    assert arguments(program, ["folder", "a", "b", "load", "--num-draws", "5", "--kept"]) == {
        "data": Path("folder"),
        "kinds": ["a", "b"],
        "what": "load",
        "num_draws": 5,
        "kept": True,
    }
    assert arguments(program, ["folder", "kinds"]) | {"what": ""} == {
        "data": Path("folder"),
        "kinds": [],
        "what": "",
        "num_draws": 3,
        "kept": False,
    }


def test_a_file_that_is_not_there_is_one_line_and_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "absent.csv"
    assert main(["evidence", str(path)]) == 2
    assert capsys.readouterr().err == f"python -m validation evidence: {path}: no such file\n"


@pytest.mark.parametrize("words", [["folder"], ["folder", "other"], ["folder", "load", "--num-draws", "many"]])
def test_what_a_program_does_not_take_ends_with_exit_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        arguments(program, words)
    assert caught.value.code == 2
