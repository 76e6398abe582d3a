"""`python -m validation NAME`: every name is a program, and every program that writes a page is in the list."""

from __future__ import annotations

from pathlib import Path

import pytest

from validation.__main__ import PROGRAMS, main

ROOT = Path(__file__).parents[2]


def test_every_name_is_a_module_with_a_main_and_every_one_of_those_has_a_name() -> None:
    modules = {module for module, _ in PROGRAMS.values()}
    found = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (ROOT / "validation").glob("*/*.py")
        if "\ndef main(" in path.read_text()
    }
    assert found == modules


@pytest.mark.parametrize("args", [[], ["accuracies"]])
def test_an_unknown_name_gets_the_list_and_exit_2(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args) == 2
    assert "accuracy_intervals" in capsys.readouterr().err
