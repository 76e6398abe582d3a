"""What users face: commands and flags that went. Commands and options are counted in budget.toml."""

from __future__ import annotations

from sim.cli.main import run


def test_a_command_that_went_forwards_its_words_and_has_no_options(capsys) -> None:  # type: ignore[no-untyped-def]
    assert run(["probe", "localhost", "--levels", "1,4"]) == 2
    went, failed = capsys.readouterr().err.splitlines()
    assert went == "lanesim: `lanesim probe` is now `lanesim validate --fit-only`"
    assert failed == "lanesim: no option --levels here: --set server.levels=VALUE"
    assert run(["calibrate", "production", "x.json"]) == 2
    went, failed = capsys.readouterr().err.splitlines()
    assert went == "lanesim: `lanesim calibrate production` is now `lanesim calibrate fit`"
    assert run(["calibrate", "--help"]) == 0
    assert "production" not in capsys.readouterr().out


def test_every_flag_of_a_struct_sets_its_field_and_an_unknown_one_that_is_a_key_names_it(capsys) -> None:  # type: ignore[no-untyped-def]
    assert run(["plan", "--profile", "cpu/tiny", "--burstiness", "2"]) == 2
    assert capsys.readouterr().err == "lanesim: no option --burstiness here: --set workload.burstiness=VALUE\n"
    assert run(["tune", "--profile", "cpu/tiny", "--workers", "2"]) == 2
    assert "policy_options" not in capsys.readouterr().err
    assert run(["tune", "--profile", "cpu/tiny", "--requests", "2"]) == 2
    assert "hybrid_requests" not in capsys.readouterr().err, "no key of another name that ends so"
