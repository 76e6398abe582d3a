"""What a command shows first and last: a screen that fits, an answer at its end, progress in logs, its own flags."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from calibrate.cli.plan.command import plan_command
from sim.cli.console import ProgressLines, progress
from sim.cli.main import run
from sim.run.scenario import Scenario

PAIR = "h100-sxm/llama-2-7b+tinyllama-1.1b"
WIDTH = 80


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))


def test_all_that_an_answer_rests_on_is_shown_on_demand(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["compare", "--policy", "pd", "--profile", PAIR, "--num-prompts", "5", "--request-rate", "0.2"]
    flags += ["--workers", "1"]
    assert run(flags) == 0
    brief = capsys.readouterr().out
    assert run([*flags, "--verbose"]) == 0
    verbose = capsys.readouterr().out
    for words in ("caps: max_num_seqs", "Mean errors of GPU times", "acceptance length"):
        assert words not in brief
        assert words in verbose
    assert brief.count("\n") < verbose.count("\n")


def test_a_log_gets_a_line_every_ten_seconds_and_a_short_run_none(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = iter([0.0, 9.0, 10.5, 19.0, 21.0])
    on_step = ProgressLines(lambda: next(now_s))
    for done in range(4):
        on_step("simulating", done, 8)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "lanesim: simulating: 1 of 8, 10 s\nlanesim: simulating: 3 of 8, 21 s\n"


def test_a_bar_on_a_terminal_draws_without_a_thread(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside one, workers could not be forked."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    before = threading.active_count()
    with progress() as on_step:
        on_step("simulating", 1, 8)
        assert threading.active_count() == before
    assert "simulating" in capsys.readouterr().err


def test_the_flags_of_a_command_come_before_those_of_every_scenario() -> None:
    text = CliRunner().invoke(plan_command, ["--help"]).output.partition("Options:")[2]
    assert 0 < text.index("--rate") < text.index("--input-len") < text.index("--json")


def test_default_lengths_belong_to_the_profile_and_not_to_its_name(tmp_path: Path) -> None:
    import lanesim

    mine = lanesim.changed(lanesim.load_profile("cpu/tiny"), name="cpu/mine")
    for profile in ("cpu/tiny", str(lanesim.save_profile(mine, tmp_path / "mine.json"))):
        workload = Scenario.of(profile=profile, policy="pd").workload
        assert (workload.input_len, workload.output_len) == (64, 32)
        assert Scenario.of(profile=profile, policy="pd", dataset_name="azure-conv").workload.input_len is None
    run_of_mine = lanesim.simulate(profile=mine, policy="pd", num_prompts=3, request_rate=10)
    assert run_of_mine.requests_frame()["output_tokens"].tolist() == [32] * 3
