"""A model, the line that starts a server, or a profile: what is asked is answered, or one line says what to change."""

from __future__ import annotations

import json
import shlex

import pytest

from sim.cli.main import run
from tests.sim.studies.server_flags import serving

NEW = "meta-llama/Llama-3.1-8B-Instruct --gpu h100"
TUNED = "--concurrencies 1 --draws 1 --input-len 64 --output-len 8 --json -"
SMALL = "--num-prompts 4 --input-len 64 --output-len 8 --request-rate 1"


def test_a_model_said_twice_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    for line in (
        f"compare cpu/tiny --profile cpu/tiny {SMALL}",
        f"compare {NEW} --serve 'vllm serve meta-llama/Llama-3.1-8B' {SMALL}",
    ):
        assert run(shlex.split(line)) == 0
        assert "profile=" not in capsys.readouterr().out


def test_the_line_to_start_names_the_model_that_was_asked_for() -> None:
    head = "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"
    line = serving(*shlex.split(f"{NEW} --draft {head} {SMALL}"))
    assert line.startswith("vllm serve meta-llama/Llama-3.1-8B-Instruct ")
    assert f'"model": "{head}"' in line
    serve = "vllm serve some/Llama-3.1-8B-Instruct --quantization fp8"
    with pytest.warns(UserWarning, match="simulated as"):
        line = serving("--serve", serve, "--gpu", "h100", *SMALL.split())
    assert "serve some/Llama-3.1-8B-Instruct " in line
    assert "--quantization fp8" in line


def test_a_line_of_sglang_is_said_to_be_priced_by_kernels_of_vllm(capsys: pytest.CaptureFixture[str]) -> None:
    for server, is_said in (("sglang.launch_server --model-path", True), ("vllm serve", False)):
        assert run(["compare", "--serve", f"{server} a/Llama-3.1-8B", "--gpu", "h100", *SMALL.split()]) == 0
        note = next(line for line in capsys.readouterr().err.splitlines() if "simulated as" in line)
        assert ("vLLM's kernel times" in note) == is_said
        assert not note.endswith(",")


def test_no_longer_drafts_are_tried_than_acceptance_was_measured_with(capsys: pytest.CaptureFixture[str]) -> None:
    for more, longest, is_guess in (("", 1, False), ("--set num_speculative_tokens=3", 3, True)):
        assert run(["tune", "cpu/tiny", "--acceptance", "length:1.99@1", *more.split(), *TUNED.split()]) == 0
        answer, notes = capsys.readouterr()
        assert [row["k"] for row in json.loads(answer)["points"][0]["lengths"]] == [*range(longest + 1)]
        assert ("K = 3 is a guess. Acceptance was measured with drafts of 1" in notes) == is_guess


def test_where_no_drafter_is_named_n_grams_are_tried(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tune", *NEW.split(), *TUNED.split()]) == 0
    answer, notes = capsys.readouterr()
    assert json.loads(answer)["scenario"]["speculation"]["method"] == "ngram"
    assert "--draft eagle3" in notes
