"""Every trouble that hostile launches once found, by its name: what was a traceback, a hang or accepted silently is one
line that names the file, and what was lost stays.

Beside this: outputs over inputs, two writers, a full disk (tests/sim/cli/test_consent.py), reruns of replays that were
interrupted (tests/realrun/cli/test_replay.py), weights (tests/realrun/model/test_weights.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sim.cli.main import run
from sim.costs.profile_files import SHIPPED
from tests.attack.samples import PAIR, TINY_RUN, of_file, replay

COMPARE = ["compare", "--profile", PAIR, "--policy", "pd", "--workers", "1"]
PROFILE = (SHIPPED / "h100-sxm" / "llama-2-7b.json").read_text()


def refusal(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The one line of a refused command."""
    capsys.readouterr()
    assert run(args) == 2, args
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    return errors


def profile_with(path: str, value: Any) -> str:
    raw: Any = json.loads(PROFILE)
    *way, last = path.split(".")
    block = raw
    for key in way:
        block = block[key]
    block[last] = value
    return json.dumps(raw)


KIND = {"mean_error_pct": 1.0, "max_error_pct": 2.0, "points": 3, "held_out": "[/y]"}


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ([], "every request of '{}' is rejected: "),
        (["--set", "engine.max_model_len=1000"], "every request of '{}' is rejected: "),
        (["--engine", "sglang-0.5"], "every request of '{}' is rejected: "),
        (["--set", "engine.max_model_len=1000000"], "request 0 of '{}': prompt 600000 + output 3 tokens need "),
    ],
)
def test_a_prompt_that_nothing_holds_names_its_trace(
    limit: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,600000,3\n")
    args = [*COMPARE, *of_file("csv", str(path)), "--num-prompts", "1", *limit]
    assert said.format(path) in refusal(capsys, *args)


@pytest.mark.parametrize(("path", "value"), [*((path, "a[/x]b") for path in ("name", "source")), ("errors.[/x]", KIND)])
def test_markup_in_a_profile_is_printed_as_it_is(
    path: str, value: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.json"
    file.write_text(profile_with(path, value))
    assert run(["profiles", "show", str(file)]) == 0
    assert "[/x]" in capsys.readouterr().out
    alone = ["--policy", "autoregressive", "--num-speculative-tokens", "0", "--num-prompts", "2"]
    assert run(["compare", "--profile", str(file), *alone, "--input-len", "8", "--output-len", "2"]) == 0


def test_a_formula_in_a_name_is_drawn_as_it_is(tmp_path: Path) -> None:
    """Once a traceback of the plotting library's formula parser."""
    file = tmp_path / "p.json"
    file.write_text(profile_with("name", r"$\frac{a$"))
    alone = ["--policy", "autoregressive", "--num-speculative-tokens", "0", "--num-prompts", "2", "--workers", "1"]
    assert run(["compare", "--profile", str(file), *alone, "--out", str(tmp_path / "r"), "--plots"]) == 0


def test_lists_of_unlike_length_in_a_replay_are_one_line(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, held in replay(tmp_path_factory.mktemp("replayed")).items():
        (tmp_path / name).write_bytes(held)
    works = pq.read_table(tmp_path / "work.parquet")
    emitted = pa.array([[], *works["emitted"].to_pylist()[1:]])
    pq.write_table(works.set_column(works.column_names.index("emitted"), "emitted", emitted), tmp_path / "work.parquet")
    told = refusal(capsys, "validate", str(tmp_path), "--overwrite")
    assert "work.parquet': column 'emitted' has 0 values in row 0" in told


def test_no_column_vanishes_on_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    assert run(["compare", "--profile", PAIR, *TINY_RUN, "--policy", "pdv"]) == 0
    printed = capsys.readouterr().out
    headings = ("first token", "per token", "latency", "tokens/s", "pdv", "…")
    assert [heading in printed for heading in headings] == [True] * 5 + [False]
