"""The same load on a server that drafts and on one that does not, both on loopback and answering from a script."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from calibrate.server.served_run import InFlight, ServedRun, read_run
from sim.cli.main import run
from tests.calibrate.server.test_probe import Server, serving
from tests.properties import some
from tests.test_outputs import faults

LOAD = [
    *("--profile", "cpu/tiny", "--request-rate", "200", "--num-prompts", "8", "--input-len", "40", "--output-len", "8"),
    *("--set", "server.rounds=1"),
]
SOUND: dict[str, Any] = {"prompt_tokens": 40, "words_are_tokens": True}
DRAFTS = ("--set", "speculation.num_speculative_tokens=2", "--set", "speculation.acceptance=iid:0.7")


def paired(drafting: Server, plain: Server, out: Path, *levels: str) -> int:
    words = ["validate", drafting.url, "--pair", plain.url, *LOAD, "--out", str(out), "--set"]
    return run([*words, f"server.levels={levels[0]}", *levels[1:]])


@pytest.mark.parametrize(("drafting_s", "plain_s", "said"), [(0.0, 0.2, "shorter"), (0.2, 0.0, "longer")])
def test_what_speculation_does_is_said_first_and_both_sides_are_in_the_file(
    drafting_s: float, plain_s: float, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run.json"
    with serving(prompt_tokens=40, first_s=drafting_s) as one, serving(prompt_tokens=40, first_s=plain_s) as other:
        assert paired(one, other, out, "none", *DRAFTS) == 0
        assert sorted(each["prompt"] for each in one.asked) == sorted(each["prompt"] for each in other.asked)
    printed = capsys.readouterr().out
    assert faults("validate", printed) == []
    assert re.match(rf"Speculation makes E2EL \d+ % {said} \(predicted: ", printed)
    told = read_run(out)
    assert told.plain is not None
    assert [each.scenario["speculation"]["num_speculative_tokens"] for each in (told, told.plain)] == [2, 0]
    assert [len(each.sent) for each in (told, told.plain)] == [8, 8]
    assert told.shorter["e2el"].measured * (1.0 if said == "shorter" else -1.0) > 10.0
    assert told.shorter["e2el"].predicted == pytest.approx(
        100.0 * (1.0 - mean_e2el_ms(told) / mean_e2el_ms(told.plain)), rel=1e-9
    )


def test_closed_loops_that_contradict_the_load_or_each_other_settle_nothing(tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    with serving(prompt_tokens=40) as one, serving(prompt_tokens=40, first_s=0.2) as other:
        assert paired(one, other, out, "none", *DRAFTS) == 0
    told = read_run(out)
    assert len(told.verdict) == 2

    def looked(low: float, high: float) -> str:
        told.in_flight = [InFlight(at_once=1, measured=(low + high) / 2.0, predicted=5.0, low=low, high=high)]
        return told.verdict[2]

    assert looked(5.0, 9.0).startswith("Turn speculation on up to 1 request in flight")
    assert looked(-9.0, -5.0).startswith("Leave speculation off. ")
    assert looked(-9.0, -5.0).endswith("another program used the machine. Measure again.")
    assert looked(-5.0, 9.0).startswith("Speculation may help or harm. ")


def mean_e2el_ms(told: ServedRun) -> float:
    return some(told.predicted["mean_e2el_ms"])


def test_both_are_predicted_before_either_load_is_sent(tmp_path: Path) -> None:
    """Each is asked twice to see how it answers; the first of the load stops the command."""
    out = tmp_path / "run.json"
    with serving(prompt_tokens=40, stop_at=3) as one, serving(prompt_tokens=40) as other:
        assert paired(one, other, out, "none", *DRAFTS) == 130
        assert len(other.asked) == 2
    told = read_run(out)
    assert told.plain is not None
    assert mean_e2el_ms(told) != mean_e2el_ms(told.plain)
    assert not told.shorter


def test_one_profile_is_fitted_to_looks_at_both(tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    with serving(**SOUND, has_metrics=True) as one, serving(**SOUND) as other:
        assert paired(one, other, out, "1,2") == 0
    told = read_run(out)
    assert told.plain is not None
    assert told.scenario["speculation"]["acceptance"] == "vllm:0.6667,0.3333"  # Two of three steps drafted.
    fitted = [each.fitted for each in (told, told.plain) if each.fitted is not None]
    assert len({(each.host.source, each.host.step_s) for each in fitted}) == 1
    looks: list[dict[str, Any]] = [
        json.loads((tmp_path / name).read_text()) for name in ("run.measured.json", "run.pair.measured.json")
    ]
    assert [each["url"] for each in looks] == [one.url, other.url]
    assert [len(each["rounds"]) for each in looks] == [2, 2]
    assert [bool(each["lone"]) for each in looks] == [True, True]


@pytest.mark.parametrize(("one_drafts", "message"), [(False, "URL counts no drafts"), (True, "drafts, too")])
def test_a_pair_of_the_same_kind_is_refused(
    one_drafts: bool, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(**SOUND, has_metrics=one_drafts) as one, serving(**SOUND, has_metrics=True) as other:
        assert paired(one, other, tmp_path / "run.json", "1,2") == 2
        assert paired(one, one, tmp_path / "run.json", "1,2") == 2
        assert paired(one, other, tmp_path / "run.json", "none") == 2
    told = capsys.readouterr().err
    assert message in told
    assert "address of a server that does not speculate" in told
    assert "needs the server's draft length" in told
