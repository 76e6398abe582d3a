"""`python -m validation NAME`: every name is a program, and every program that writes a page is in the list."""

from __future__ import annotations

from collections.abc import Sequence
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
    assert "real_gpus" in capsys.readouterr().err


def program(
    data: Path,
    kinds: list[str],
    what: Literal["load", "kinds"],
    json: Path,
    num_draws: int = 3,
    kept: bool = False,
    only: Sequence[str] = (),
) -> None:
    raise NotImplementedError


def test_a_program_has_what_the_command_line_says_each_of_its_own_type() -> None:
    words = ["folder", "a", "b", "load", "--json", "-", "--num-draws", "5", "--kept", "--only", "x", "--only", "y"]
    fixed = {"data": Path("folder"), "json": Path("-")}
    given = {"kinds": ["a", "b"], "what": "load", "num_draws": 5, "kept": True, "only": ["x", "y"]}
    assert arguments(program, words) == fixed | given
    defaults = {"kinds": [], "what": "kinds", "num_draws": 3, "kept": False, "only": []}
    assert arguments(program, ["folder", "kinds", "--json", "-"]) == fixed | defaults


def test_an_output_that_is_read_or_is_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cells.csv"
    path.write_text("")
    for words in (
        [str(tmp_path), "load", "--json", str(path)],
        [str(path), "load", "--json", str(path), "--overwrite"],
    ):
        with pytest.raises(ValueError, match="--json"):
            arguments(program, words)


def test_a_file_that_is_not_there_is_one_line_and_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "absent.csv"
    assert main(["evidence", str(path)]) == 2
    assert capsys.readouterr().err == f"python -m validation evidence: {path}: no such file\n"


@pytest.mark.parametrize("words", [["folder"], ["folder", "other"], ["folder", "load"]])
def test_what_a_program_does_not_take_ends_with_exit_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        arguments(program, words)
    assert caught.value.code == 2


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_every_program_says_what_it_takes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([name, "--help"])
    assert caught.value.code == 0
    assert f"usage: python -m validation {name}" in capsys.readouterr().out
