"""`lanesim tune --metrics`: whether to change the draft length, from what a server counts; no request is sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from calibrate.cli import tune
from sim.cli.main import run
from tests.calibrate.served.test_reports import look, sglang_look
from tests.calibrate.server.test_probe import serving

FLAGS = ["--profile", "gh200/apertus-8b+eagle3", "--engine", "vllm-0.23", "--json", "-"]


def told(source: str, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    assert run(["tune", *FLAGS, "--metrics", source, *more]) == 0
    return dict(json.loads(capsys.readouterr().out))


def counted(path: Path, *rates: float, drafts: int = 36_000) -> str:
    """2,000 requests whose steps have 12 of them."""
    path.write_text(look(2000, drafts // 12, drafts=drafts, accepted=tuple(round(drafts * rate) for rate in rates)))
    return str(path)


def test_drafts_that_are_hardly_accepted_are_to_be_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = told(counted(tmp_path / "now.txt", 0.2, 0.04, 0.01, 0.002, drafts=64_000), capsys)
    change = answer["change"]
    assert (change["over"], change["is_sure"]) == ("K = 4", True)
    assert change["of"] in ("no speculation", "K = 1")
    assert 0.0 < change["interval"][0] < change["mean"] < change["interval"][1]
    assert [point["concurrency"] for point in answer["points"]] == [12]
    assert "2,000 requests of 100 and 41 tokens, 12.0 decoding at once, accepted 0.2,0.04," in answer["notes"][0]
    assert run(["tune", *FLAGS[:-2], "--metrics", str(tmp_path / "now.txt")]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert words.startswith(f"Change K = 4: {change['of']} has +")
    assert "Assumed: load and acceptance stay so" in words


def test_a_length_that_is_the_best_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a flag says stands before what the server counted; the length in use is tried whatever --lengths says."""
    source = counted(tmp_path / "now.txt", 0.518, 0.31, 0.194, 0.126)
    answer = told(source, capsys, "--lengths", "1,2", "--input-len", "700")
    assert (answer["change"]["of"], answer["change"]["over"], answer["change"]["is_sure"]) == ("K = 4", "K = 4", False)
    assert answer["scenario"]["workload"]["input_len"] == 700
    assert [length["k"] for length in answer["points"][0]["lengths"]] == [1, 2, 4]
    answer = told(source, capsys, "--set", "num_speculative_tokens=2")
    assert [length["k"] for length in answer["points"][0]["lengths"]] == [0, 1, 2, 4]


def test_a_server_is_read_twice_and_asked_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has served 30 requests before the looks, and 90 between them."""
    with serving(has_metrics=True) as server:
        server.streams = 30
        seconds: list[float] = []

        def serve(second: float) -> None:
            seconds.append(second)
            server.streams += 45

        monkeypatch.setattr(tune, "sleep", serve)
        answer = told(server.url, capsys, "--set", "metrics.over_s=2")
        assert not server.asked
        assert "120 requests of" in told(server.url, capsys)["notes"][0]
    assert seconds == [1.0, 1.0]
    assert "90 requests of 100 and 41 tokens" in answer["notes"][0]


def test_acceptance_is_assumed_only_where_the_server_counts_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = told(counted(tmp_path / "now.txt", 0.25, 0.125, drafts=60_000), capsys, "--method", "ngram")
    assert answer["scenario"]["speculation"]["method"] == "ngram"
    assert answer["scenario"]["speculation"]["acceptance"].startswith("vllm:0.25,0.125")
    path = tmp_path / "plain.txt"
    path.write_text(look(2000, 6000))
    answer = told(str(path), capsys, "--method", "ngram")
    assert answer["scenario"]["speculation"]["acceptance"] == "any-prompts"
    assert any(note.startswith("Acceptance of ngram: ") for note in answer["notes"])


def test_a_length_in_use_that_no_graph_holds_is_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, tiny = counted(tmp_path / "now.txt", 0.5, 0.25), ("--profile", "cpu/tiny", "--engine", "ideal")
    for more, has_note in ((), True), (("--set", "engine.cuda_graph=false"), False):
        notes = told(path, capsys, *tiny, *more)["notes"]
        assert any("K = 2 from 18 in flight" in note for note in notes) == has_note


def test_the_flags_that_a_file_of_sglang_asks_for_are_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It counts no steps and no drafts: 1,000 s of requests in 100 s are 10 in flight."""
    path = tmp_path / "now.txt"
    path.write_text(sglang_look(1000, 1.7))
    source = ["--metrics", str(path), "--engine", "sglang-0.5", "--draws", "2", "--lengths", "0,3"]
    for given, flag in (
        (["--set", "metrics.over_s=100"], "--set num_speculative_tokens=K"),
        (["--set", "num_speculative_tokens=3"], "--set metrics.over_s"),
    ):
        assert run(["tune", *FLAGS, *source, *given]) == 2
        assert flag in capsys.readouterr().err
    answer = told(str(path), capsys, *source, "--set", "num_speculative_tokens=3", "--set", "metrics.over_s=100")
    assert answer["change"]["over"] == "K = 3"
    assert [point["concurrency"] for point in answer["points"]] == [10]
    assert "accepted length:1.7@3" in answer["notes"][0]
    assert "One load" in answer["notes"][0]


def test_what_has_no_metrics_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as server:
        assert run(["tune", *FLAGS, "--metrics", server.url]) == 2
    assert "/metrics is none of vLLM's or SGLang's" in capsys.readouterr().err
    assert run(["tune", *FLAGS, "--metrics", "nowhere"]) == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--set", "metrics.over_s=600"], "needs --metrics"),
        (["--metrics", "{}", "--contexts", "1k,8k"], "Leave out --contexts or --metrics"),
    ],
)
def test_flags_without_an_answer_are_one_line(
    given: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = counted(tmp_path / "now.txt", 0.5)
    assert run(["tune", *FLAGS, *(word.format(source) for word in given)]) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert (told.out, told.err.count("\n")) == ("", 1)
