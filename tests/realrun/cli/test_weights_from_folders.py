# ruff: noqa: E402
"""`lanesim replay` with weights from folders: the tapes say what the models accepted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

torch = pytest.importorskip("torch")

from click.testing import CliRunner, Result

import lanesim
from realrun.cli.replay import replay_command
from realrun.model.weights import random_model
from realrun.replay.measured_tape import by_class, rounds_alike, tape_of
from sim.acceptance.tape import read_tapes
from sim.cli.main import run
from sim.costs.profile_files import load
from tests.realrun.support import greedy_text, prompts, tied_pair, tiny_model, tiny_shape

EPSILON = 0.15
DRAFTED = 3
ANSWER = 24
CLASSES = ["code", "chat", "code", "chat", "code", "chat"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pair that agrees, its profile, and prompts of two classes."""
    made = tmp_path_factory.mktemp("pair")
    profile = load("cpu/tiny")
    first = msgspec.structs.replace(profile.target, name="tiny-target-first-1", layers=1)
    profile = msgspec.structs.replace(profile, draft=first)
    lanesim.save_profile(profile, made / "p.json")
    target, draft = tied_pair(random_model(profile.target, dtype=torch.float32), 1, EPSILON)
    for model, name in ((target, "target"), (draft, "draft")):
        model.config.eos_token_id = model.generation_config.eos_token_id = None
        model.save_pretrained(made / name)
    rows = [
        {"prompt_tokens": len(tokens), "output_tokens": ANSWER, "class": name, "input_tok_ids": tokens}
        for name, tokens in zip(CLASSES, texts(), strict=True)
    ]
    (made / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return made


def texts() -> list[list[int]]:
    return prompts([20 + i for i in range(len(CLASSES))], vocab=1024)


def replay(folder: Path, out: Path, **changes: Any) -> Result:
    pair = out.with_name(f"{out.name}-pair")
    pair.mkdir()
    for name in ("target", "draft", "prompts.jsonl"):
        (pair / name).symlink_to(changes.pop(name.removesuffix(".jsonl"), folder / name))
    given: dict[str, Any] = {
        "profile": folder / "p.json",
        "policy": "pd",
        "set": [
            f"num_prompts={len(CLASSES)}",
            "request_rate=100",
            f"replay.weights={pair}",
            "workload.dataset_name=jsonl",
            f"workload.dataset_path={folder / 'prompts.jsonl'}#arrival=",
            f"speculation.num_speculative_tokens={changes.pop('num_speculative_tokens', DRAFTED)}",
        ],
        "device": "cpu",
        "out": out,
    } | {name.replace("_", "-"): value for name, value in changes.items()}
    args = [
        str(part)
        for name, value in given.items()
        for each in (value if isinstance(value, list) else [value])
        if each is not None
        for part in (f"--{name}", each)
    ]
    return CliRunner().invoke(replay_command, args)


@pytest.fixture(scope="module")
def replayed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("replayed") / "r"
    done = replay(folder, out)
    assert done.exit_code == 0, (done.output, done.exception)
    return out


def by_hand(folder: Path, prompt: list[int]) -> list[int]:
    """The tape of one request as its definition has it: a draft at every position, one token after the other."""
    from realrun.model.weights import load_model

    target, draft = (load_model(folder / name, dtype=torch.float32) for name in ("target", "draft"))
    text = greedy_text(target, prompt, ANSWER + DRAFTED)
    found = []
    for position in range(ANSWER):
        drafted = greedy_text(draft, [*prompt, *text[:position]], len(text) - position)
        agree = [ours == theirs for ours, theirs in zip(drafted, text[position:], strict=True)]
        found.append(1 + (agree.index(False) if False in agree else len(agree)))
    return found


def test_a_tape_has_what_a_draft_at_every_position_would_yield(folder: Path, replayed: Path) -> None:
    tapes = [tape.tolist() for tape in read_tapes(str(replayed / "tape.jsonl"))]
    assert [len(tape) for tape in tapes] == [ANSWER] * len(CLASSES)
    assert len({value for tape in tapes for value in tape}) > 3
    for index in (0, 3):
        assert tapes[index] == by_hand(folder, texts()[index])


def test_the_replay_accepted_what_the_tapes_say(replayed: Path) -> None:
    accepted = json.loads((replayed / "summary.json").read_text())["replay"]["accepted"]
    assert accepted["rounds_alike"] == accepted["rounds_compared"] > 30


def test_each_content_class_has_a_tape_and_its_acceptance_by_position(replayed: Path) -> None:
    whole = read_tapes(str(replayed / "tape.jsonl"))
    for name in ("code", "chat"):
        own = read_tapes(str(replayed / f"tape-{name}.jsonl"))
        wanted = [tape.tolist() for tape, each in zip(whole, CLASSES, strict=True) if each == name]
        assert [tape.tolist() for tape in own] == wanted
    summary = json.loads((replayed / "summary.json").read_text())["replay"]["accepted"]
    assert [(each["class"], each["requests"]) for each in summary["classes"]] == [("all", 6), ("code", 3), ("chat", 3)]
    for each in summary["classes"]:
        assert len(each["acceptance_rates"]) == DRAFTED
        assert each["acceptance_rates"] == sorted(each["acceptance_rates"], reverse=True)
        assert each["acceptance_length"] == pytest.approx(1 + sum(each["acceptance_rates"]))
    rounds = [each["rounds"] for each in summary["classes"]]
    assert rounds[0] == rounds[1] + rounds[2] > 0


def test_a_simulation_plays_the_tape_and_accepts_as_many(folder: Path, replayed: Path) -> None:
    real = json.loads((replayed / "summary.json").read_text())["runs"][0]
    simulated = lanesim.simulate(
        profile=str(folder / "p.json"),
        policy="pd",
        num_speculative_tokens=DRAFTED,
        acceptance=f"tape:{replayed / 'tape.jsonl'}",
        dataset_name="jsonl",
        dataset_path=f"{folder / 'prompts.jsonl'}#arrival=",
        num_prompts=len(CLASSES),
        request_rate=100,
        **{"workload.trace_arrivals": "poisson"},
    ).metrics
    for key in ("spec_decode_num_drafts", "spec_decode_accepted_tokens"):
        assert simulated[key] == real[key] > 0
    assert run(["check", str(replayed / "tape.jsonl"), str(replayed / "tape-code.jsonl")]) == 0
    assert run(["validate", str(replayed)]) == 0


def test_a_tape_ends_where_the_target_ends_its_answer() -> None:
    target, draft = tied_pair(tiny_model(), 1, 0.2)
    (prompt,) = prompts([8])
    answer = greedy_text(target, prompt, 12)
    whole = tape_of(target, draft, prompt, answer, 4)
    target.config.eos_token_id = answer[5]
    target.generation_config.eos_token_id = [answer[5]]
    assert len(whole) == 12
    end = answer.index(answer[5]) + 1
    assert tape_of(target, draft, prompt, answer, 4) == [min(n, end - p + 1) for p, n in enumerate(whole[:end])]


def test_answers_of_one_token_are_on_no_tape() -> None:
    assert [(each.name, each.tapes) for each in by_class([[1], [2, 3]], ["a", "b"])] == [("all", [[2, 3]])]
    assert by_class([[1]], ["a"]) == []
    assert rounds_alike([], [[1]], 3) == (0, 0)


def changed_prompts(folder: Path, **changes: Any) -> Path:
    rows = [json.loads(line) | changes for line in (folder / "prompts.jsonl").read_text().splitlines()]
    path = folder / f"changed-{len(list(folder.iterdir()))}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def saved(folder: Path, name: str, **changes: Any) -> Path:
    shape = {"vocab": 1024, "hidden": 256, "intermediate": 688, "heads": 4, "kv_heads": 4, "head_dim": 64, "layers": 1}
    random_model(tiny_shape(**shape | {"max_context": 2048} | changes), dtype=torch.float32).save_pretrained(
        folder / name
    )
    return folder / name


def test_vocabularies_of_one_size_and_other_tokens_are_refused(folder: Path, tmp_path: Path) -> None:
    """Mistral and Llama 2 both have 32,000."""
    own = tmp_path / "pair"
    shutil.copytree(folder, own)
    for name, words in (("target", ["<s>", "a\u0000", "b"]), ("draft", ["<s>", "b", "a\u0000"])):
        vocab = {word: place for place, word in enumerate(words)}
        (own / name / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": vocab}}))
    done = replay(own, tmp_path / "r")
    assert isinstance(done.exception, ValueError), (done.output, done.exception)
    assert "tokenizer.json has other tokens than the target's" in str(done.exception)


def test_wrong_input_is_one_line_that_says_what_is_wanted(folder: Path, tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"target": tmp_path / "none"}, r"target' has no model. Give a local directory with config.json"),
        (
            {"draft": saved(tmp_path, "words", vocab=512)},
            "has 512 tokens in its vocabulary, and the target 1024",
        ),
        (
            {"draft": saved(tmp_path, "deep", layers=2)},
            "num_hidden_layers=2, and tiny-target-first-1 of the profile",
        ),
        ({"draft": saved(tmp_path, "short", max_context=48)}, "a draft of 3 exceed the draft's context of 48"),
        ({"num_speculative_tokens": 0}, "nothing is drafted"),
        ({"prompts": tmp_path / "none.jsonl"}, "prompts.jsonl' cannot be read"),
        ({"prompts": changed_prompts(folder, input_tok_ids=[1, 2])}, "line 1 has 2 tokens and its request 20"),
        ({"prompts": changed_prompts(folder, input_tok_ids=[5000] * 20)}, "outside the vocabulary of 1024"),
    ]
    for number, (changes, says) in enumerate(cases):
        done = replay(folder, tmp_path / f"out{number}", **changes)
        assert isinstance(done.exception, ValueError), (changes, done.output, done.exception)
        assert says in str(done.exception), (changes, str(done.exception))
        assert "\n" not in str(done.exception)
        assert not (tmp_path / f"out{number}").exists()
