"""A scenario sent to a server on loopback: predicted before anything of it is sent, kept when it ends early, and taken
apart by what was seen. The server answers from a script; nothing here asserts how long anything takes."""

from __future__ import annotations

import json
from math import log
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from calibrate.fit.constants import with_constants
from calibrate.served import line
from calibrate.served.as_sent import closed_loop
from calibrate.served.line import as_now, intake_error_s
from calibrate.served.load import Accepted, ServedRequest
from calibrate.served.readers import ServerLooks, write_looks
from calibrate.server.served_run import Doubt, ServedRun, judge, means, predict, read_run, shown
from sim.cli.main import run
from sim.costs.engine_costs import engine_of
from sim.costs.profile_files import load
from sim.interface.request import Request
from sim.run.experiment import Experiment
from sim.run.resolve import resolve_all
from sim.run.scenario import Goodput, Scenario, parse_scenario
from sim.run.simulate import simulate
from tests.calibrate.server.test_looks import as_seen, seen
from tests.calibrate.server.test_probe import serving
from tests.test_outputs import faults

FEW = ["--set", "server.levels=1,2", "--set", "server.rounds=1"]
FLAGS = [
    *("--profile", "cpu/tiny", "--set", "policy=autoregressive", "--request-rate", "200", "--num-prompts", "12"),
    *("--input-len", "40", "--output-len", "8"),
    *("--set", "server.levels=none"),
]


def validated(url: str, out: Path, *flags: str) -> dict[str, Any]:
    assert run(["validate", url, *FLAGS, "--out", str(out), *flags]) == 0
    return dict(json.loads(out.read_text()))


def test_requests_are_sent_at_their_times_and_judged_beside_what_was_predicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run.json"
    with serving(prompt_tokens=40) as server:
        told = validated(server.url, out, "--set", "workload.random_range_ratio=0.5")
        asked = server.asked
    assert len(told["sent"]) == 12
    assert all(each["sent_s"] >= each["due_s"] > 0.0 or each["index"] == 0 for each in told["sent"])
    lengths = sorted(each["max_tokens"] for each in asked[-12:])
    assert lengths == sorted(each["output_tokens"] for each in told["sent"])
    assert len(set(lengths)) > 1
    for part in ("predicted", "as sent"):
        assert told["errors"][part]["tpot"]["mean"]["error_pct"] is not None
    assert told["errors"]["predicted"]["itl"]["mean"]["real"] > 0.0
    printed = capsys.readouterr().out
    assert faults("validate", printed) == []
    assert "of 12 requests" in printed
    assert " % off this load in mean latency." in printed.splitlines()[0]
    assert "TPOT (ms)" in printed


@pytest.mark.parametrize(("given", "at_once"), [([], 3), (["--set", "engine.max_num_seqs=5"], 5)])
def test_slots_that_the_server_names_bind_unless_the_scenario_says_more(
    given: list[str], at_once: int, tmp_path: Path
) -> None:
    with serving(words_are_tokens=True, props='{"total_slots": 3}') as server:
        told = validated(server.url, tmp_path / "run.json", *FEW, *given)
    assert told["scenario"]["engine"]["max_num_seqs"] == at_once


@pytest.mark.parametrize("given", [FEW, ["--fit-only", *FEW[:2]]])
def test_no_command_sends_the_prompts_of_one_before(given: list[str], tmp_path: Path) -> None:
    """A server may have those in its cache. The first two requests tell how it answers."""
    sent = []
    with serving(words_are_tokens=True) as server:
        for name in ("a", "b"):
            flags = FLAGS if "--fit-only" not in given else ["--profile", "cpu/tiny", "--output-len", "4"]
            assert run(["validate", server.url, *flags, *given, "--out", str(tmp_path / f"{name}.json")]) == 0
            sent.append({each["prompt"] for each in server.asked if len(each["prompt"].split()) not in (1, 256)})
            server.asked.clear()
    assert sent[0]
    assert not sent[0] & sent[1]


def test_files_of_the_scenario_are_in_it_by_name_alone(tmp_path: Path) -> None:
    out, trace = tmp_path / "run.json", tmp_path / "mine.jsonl"
    rows = [{"timestamp": 10 * index, "input_length": 40, "output_length": 8, "hash_ids": [1]} for index in range(6)]
    trace.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    flags = ["--profile", "cpu/tiny", "--set", "server.levels=none", "--num-prompts", "6"]
    flags += ["--set", "workload.dataset_name=mooncake", "--set", f"workload.dataset_path={trace}#turns=new"]
    with serving(prompt_tokens=40) as server:
        assert run(["validate", server.url, *flags, "--out", str(out)]) == 0
    assert str(tmp_path) not in out.read_text()
    assert read_run(out).scenario["workload"]["dataset_path"] == "mine.jsonl#turns=new"
    speculation = {"acceptance": f"tape:{tmp_path}/mine.tape"}
    tape = parse_scenario({"profile": "cpu/tiny", "policy": "continuous", "speculation": speculation})
    assert shown(tape, load("cpu/tiny"))["speculation"]["acceptance"] == "tape:mine.tape"


def test_the_file_suffices_to_say_the_errors_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the profile in it: with another one the requests as they were sent come out otherwise."""
    out = tmp_path / "run.json"
    sharing = ("--set", "workload.sharing.prefix_len=32", "--set", "workload.sharing.num_prefixes=1")
    with serving(prompt_tokens=72) as server:
        validated(server.url, out, *sharing)
    told = read_run(out)
    kept = told.errors
    assert told.judged_again() == kept
    told.errors = {"predicted": {}}
    assert told.judged_again() == kept
    assert told.fitted is not None
    told.fitted = with_constants(told.fitted, {"step_s": 0.1})
    assert told.judged_again()["as sent"] != kept["as sent"]
    capsys.readouterr()
    assert run(["check", str(out)]) == 0
    assert f"Errors as sent: {means(kept['as sent'])}" in " ".join(capsys.readouterr().out.split())
    text = out.read_text()
    for good, bad, said in (
        ('"preemptions"', '"preemption"', "Did you mean 'preemptions'?"),
        ('"profile":{"name"', '"profile":{"nome"', "profile has no name"),
    ):
        out.write_text(text.replace(good, bad, 1))
        assert run(["check", str(out)]) == 2
        assert said in capsys.readouterr().err


def test_what_was_predicted_and_sent_is_kept_when_the_server_dies(tmp_path: Path) -> None:
    """The prediction is in the file before the first request of the scenario: two are sent to see how it answers."""
    out = tmp_path / "run.json"
    with serving(stop_at=6) as server:
        code = run(["validate", server.url, *FLAGS, "--out", str(out)])
    told = json.loads(out.read_text())
    assert code == 130
    assert told["predicted"]["mean_e2el_ms"] > 0.0
    assert len(told["sent"]) < 12
    assert not told["errors"]


def test_looks_that_are_kept_are_fitted_and_not_sent_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The server of the file takes 50 ms a token, and 1 ms more for every request beside; the scenario's own requests
    go to another."""
    out = tmp_path / "run.json"

    def sent(index: int, prompt_tokens: int, at_once: int) -> ServedRequest:
        begun_s, token_s = float(index // at_once), 0.05 + 0.001 * at_once
        first_s = begun_s + 0.1 + 0.001 * prompt_tokens
        return seen(index, (begun_s, first_s, first_s + 7 * token_s), prompt_tokens, 8)

    kept = ServerLooks(
        url="http://elsewhere",
        lone=[sent(index, 10 * index, 1) for index in range(1, 12)],
        rounds=[closed_loop(n, 0, [sent(index, 40, n) for index in range(4 * n)]) for n in (1, 8)],
    )
    flags = ("--set", "server.levels=1,8", "--set", "server.rounds=1")
    with serving(prompt_tokens=40) as server:
        write_looks(out.with_suffix(".measured.json"), kept)
        assert run(["validate", server.url, *FLAGS, "--out", str(out), *flags]) == 2
        (out.with_suffix(".measured.json")).write_text('{"schema": 1, "url": "x", "rounds": [{"at_once": 1}]}')
        assert run(["validate", server.url, *FLAGS, "--out", str(out), *flags]) == 2
        assert "schema 1 is not 2" in capsys.readouterr().err
        kept.url = server.url
        write_looks(out.with_suffix(".measured.json"), kept)
        server.asked.clear()
        told = validated(server.url, out, *flags)
        num_asked = len(server.asked)
    assert num_asked < 12 + 20 + 6
    assert told["predicted"]["mean_tpot_ms"] == pytest.approx(50.0 + 12.0, rel=0.1)


def test_a_server_without_a_profile_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And first tokens are as unsure as the requests about one at a time say."""
    monkeypatch.setattr(line, "intake_error_s", lambda *_: 5.0)
    out = tmp_path / "run.json"
    flags = [flag for flag in FLAGS[:-2] if flag not in ("--profile", "cpu/tiny")]
    # So slow that a client that has to wait for its core still sees the pieces one by one.
    with serving(prompt_tokens=40, words_are_tokens=True, piece_s=0.02) as server:
        code = run(["validate", server.url, *flags, *FEW, "--out", str(out)])
    told = json.loads(out.read_text())
    assert code == 0
    assert told["profile"]["name"] == "this server"
    assert told["intervals"]["mean_ttft_ms"][1] > 3.0 * told["predicted"]["mean_ttft_ms"]
    assert told["scenario"]["speculation"]["num_speculative_tokens"] == 0
    assert {each["concurrency"] for each in json.loads(out.with_suffix(".measured.json").read_text())["rounds"]} == {
        1,
        2,
    }


def test_a_prediction_alone_sends_nothing_of_the_scenario(tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    with serving(prompt_tokens=40) as server:
        told = validated(server.url, out, "--set", "server.predict_only=true")
        num_asked = len(server.asked)
        again = validated(server.url, out, "--overwrite")
    assert num_asked == 2  # How it answers, and tokens per word.
    assert told["sent"] == []
    assert again["predicted"] == told["predicted"]
    assert len(again["sent"]) == 12


def test_no_more_is_sent_than_allowed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as server:
        assert run(["validate", server.url, *FLAGS, "--num-prompts", "10001", "--out", str(tmp_path / "x.json")]) == 2
        assert not server.asked
    assert "would be sent, 10,001 of them the scenario's. At most 10,000" in capsys.readouterr().err


def scenario(k: int = 0, acceptance: str = "iid:0.8") -> Scenario:
    return parse_scenario(
        {
            "profile": "cpu/tiny",
            "policy": "continuous" if k else "autoregressive",
            "workload": {"num_prompts": 20, "request_rate": 20.0, "input_len": 48, "output_len": 16},
            "speculation": {"num_speculative_tokens": k, "acceptance": acceptance},
        }
    )


def served_by_the_simulator(given: Scenario, seconds_more: float = 0.0) -> tuple[list[Request], list[ServedRequest]]:
    """Requests of a scenario and what a server whose law is the simulator's would be seen to do with them."""
    resolved = resolve_all(given, load(given.profile))[0]
    sent = [as_seen(each, seconds_more) for each in simulate(resolved, 0).requests]
    return Experiment(resolved, 0).requests(), sent


def judged(
    given: Scenario, sent: list[ServedRequest], planned: list[Request], accepted: Accepted | None = None
) -> ServedRun:
    profile = load(given.profile)
    told = predict(given, profile, planned)
    told.sent, told.accepted = sent, accepted
    judge(told, given, profile, planned)
    return told


def test_a_server_that_is_the_simulator_is_predicted_to_the_last_bit() -> None:
    planned, sent = served_by_the_simulator(scenario())
    told = judged(scenario(), sent, planned)
    for part in ("predicted", "as sent"):
        for name in ("ttft", "tpot", "e2el"):
            assert told.errors[part][name]["p95"]["error_pct"] == pytest.approx(0.0, abs=1e-6)


def test_time_before_the_engine_is_told_by_requests_one_at_a_time() -> None:
    _, sent = served_by_the_simulator(scenario(), seconds_more=0.05)
    profile = load("cpu/tiny")
    found = as_now(scenario(), profile, sent)
    before_s = engine_of(None, profile).frontend_s
    assert engine_of(None, found).frontend_s == pytest.approx(before_s + 0.05, rel=0.05)


def test_first_tokens_are_as_unsure_as_few_requests_leave_the_time_before_the_engine() -> None:
    """Some of 20 requests meet a step that others began: their times differ, and by so much less their mean."""
    planned, sent = served_by_the_simulator(scenario())
    profile = load("cpu/tiny")
    assert intake_error_s(scenario(), profile, sent) < 1e-9
    sent[::2] = [structs.replace(each, first_s=each.first_s + 4e-3, last_s=each.last_s + 4e-3) for each in sent[::2]]
    error_s = intake_error_s(scenario(), profile, sent)
    assert error_s == pytest.approx(4e-3 * 0.5 * (20 / 19) ** 0.5 / 20**0.5 * 2.093 / 1.96, rel=0.01)
    sure, unsure = (predict(scenario(), profile, planned, Doubt(intake_s=each_s)) for each_s in (0.0, error_s))
    low_ms, high_ms = unsure.intervals["mean_ttft_ms"]
    assert sure.intervals["mean_ttft_ms"] == pytest.approx([sure.predicted["mean_ttft_ms"]] * 2)
    assert high_ms - low_ms == pytest.approx(2 * 2.1 * 1e3 * error_s, rel=0.2)
    assert unsure.intervals["mean_tpot_ms"] == pytest.approx([sure.predicted["mean_tpot_ms"]] * 2)


def test_acceptance_that_the_server_counted_is_a_part_of_its_own() -> None:
    """Predicted with 0.8, served with none accepted: once that is known, most of the error is gone."""
    planned, _ = served_by_the_simulator(scenario(4))
    _, sent = served_by_the_simulator(scenario(4, "iid:0.0"))
    told = judged(scenario(4), sent, planned, Accepted(drafts=100.0, draft_tokens=4, rates=(0.0, 0.0, 0.0, 0.0)))
    errors = {part: abs(told.errors[part]["tpot"]["mean"]["error_pct"]) for part in told.errors}
    assert [*errors] == ["predicted", "as sent", "as accepted"]
    assert errors["as accepted"] < 1e-6 < 10.0 < errors["as sent"]
    low_ms, high_ms = told.intervals["mean_tpot_ms"]
    assert low_ms < (told.predicted["mean_tpot_ms"] or 0.0) < high_ms


def test_intervals_are_as_wide_as_the_machine_drifts() -> None:
    """Nothing waits, so that times go as the pace does; 95 % of draws lie within 2.1 of its deviations."""
    given = structs.replace(scenario(), workload=structs.replace(scenario().workload, request_rate=0.1))
    planned, _ = served_by_the_simulator(given)
    profile = load("cpu/tiny")
    low_ms, high_ms = predict(given, profile, planned, Doubt(pace=0.1)).intervals["mean_tpot_ms"]
    assert 0.5 * log(high_ms / low_ms) == pytest.approx(0.2, rel=0.1)
    sure = predict(given, profile, planned)
    assert sure.intervals["mean_tpot_ms"] == pytest.approx([sure.predicted["mean_tpot_ms"]] * 2)


def test_goodput_is_predicted_and_judged_where_bounds_are_given() -> None:
    given = structs.replace(scenario(), goodput=Goodput(e2el_ms=1e6))
    planned, sent = served_by_the_simulator(given)
    told = judged(given, sent, planned)
    span_s = max(each.last_s for each in sent) - min(each.sent_s for each in sent)
    assert told.errors["predicted"]["request_goodput"]["real"] == pytest.approx(20 / span_s)
    assert told.errors["predicted"]["request_goodput"]["error_pct"] == pytest.approx(0.0, abs=1e-6)
    assert "request_goodput" not in judged(scenario(), sent, planned).errors["predicted"]
