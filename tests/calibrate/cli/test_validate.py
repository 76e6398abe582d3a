"""`lanesim validate` takes a directory or a sub-command, and imports none of them to list them. No torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from calibrate.cli.validate import SUB_COMMANDS, ValidateGroup

HERE = "tests.calibrate.cli.test_validate"


@click.command("directory")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--profile", default=None, help="A profile.")
def directory_form(directory: Path, profile: str | None) -> None:
    click.echo(f"directory {directory}, profile {profile}")


@click.command("cells")
@click.argument("table")
def cells_form(table: str) -> None:
    click.echo(f"cells of {table}")


def group(**sub_commands: tuple[str, str]) -> click.Command:
    known = {"cells": (f"{HERE}:cells_form", "Cells of a table."), **sub_commands}
    return ValidateGroup("validate", directory=f"{HERE}:directory_form", commands=known)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["results/a"], "directory results/a, profile None"),
        (["results/a", "--profile", "p.json"], "directory results/a, profile p.json"),
        (["--profile", "p.json", "results/a"], "directory results/a, profile p.json"),
        (["cells", "t.csv"], "cells of t.csv"),
        (["./cells"], "directory cells, profile None"),
        (["DIRECTORY"], "directory DIRECTORY, profile None"),
    ],
)
def test_a_line_that_begins_with_no_sub_command_names_a_directory(line: list[str], says: str) -> None:
    done = CliRunner().invoke(group(), line)
    assert (done.exit_code, done.output.strip()) == (0, says)


def test_help_lists_the_flags_of_the_directory_form_and_the_sub_commands_that_are_there() -> None:
    text = CliRunner().invoke(group(absent=("realrun.no_such_module:command", "Never.")), ["--help"]).output
    assert "--profile TEXT" in text
    assert "cells  Cells of a table." in text
    assert "absent" not in text


def test_a_name_whose_module_is_missing_is_a_directory() -> None:
    done = CliRunner().invoke(group(absent=("realrun.no_such_module:command", "Never.")), ["absent"])
    assert done.output.strip() == "directory absent, profile None"


def test_an_unknown_flag_is_refused_as_before() -> None:
    done = CliRunner().invoke(group(), ["results/a", "--profil", "p.json"])
    assert done.exit_code == 2
    assert "No such option" in done.output


def test_help_of_the_real_command_imports_no_torch() -> None:
    code = (
        "import sys; from sim.cli.main import run; from calibrate.cli.validate import validate_command; "
        "validate_command.main(['--help'], standalone_mode=False); "
        "assert not {'torch', 'numpy', 'pandas'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "DIRECTORY" in done.stdout
    assert set(SUB_COMMANDS) == {"cells", "vllm"}
