"""What users face: the help of compare, and flags that are keys. Commands and options are counted in budget.toml."""

from __future__ import annotations

import click

from sim.cli.compare import CompareFlags, compare_command
from sim.cli.main import run

SHOWN = 16


def test_help_of_compare_shows_few_options_and_help_all_the_rest() -> None:
    context = click.Context(compare_command)
    assert sum(line.startswith("  --") for line in compare_command.get_help(context).splitlines()) == SHOWN
    context.meta["lanesim.help_all"] = True
    text = compare_command.get_help(context)
    flags = [f"--{name.rstrip('_').replace('_', '-')}" for name in CompareFlags.__struct_fields__ if name != "scenario"]
    assert [flag for flag in flags if flag not in text] == []


def test_a_command_that_went_forwards_its_words_and_has_no_options(capsys) -> None:  # type: ignore[no-untyped-def]
    assert run(["probe", "localhost", "--levels", "1,4"]) == 2
    went, failed = capsys.readouterr().err.splitlines()
    assert went == "lanesim: `lanesim probe` is `lanesim validate --fit-only` now"
    assert failed == "lanesim: Missing option '--profile'."


def test_every_flag_of_a_struct_sets_its_field_and_an_unknown_one_that_is_a_key_names_it(capsys) -> None:  # type: ignore[no-untyped-def]
    assert run(["capacity", "--profile", "cpu/tiny", "--burstiness", "2"]) == 2
    assert capsys.readouterr().err == "lanesim: no option --burstiness here: --set workload.burstiness=VALUE\n"
    assert run(["tune", "--profile", "cpu/tiny", "--workers", "2"]) == 2
    assert "policy_options" not in capsys.readouterr().err
    assert run(["tune", "--profile", "cpu/tiny", "--requests", "2"]) == 2
    assert "hybrid_requests" not in capsys.readouterr().err, "no key of another name that ends so"
