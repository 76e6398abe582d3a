"""Every trouble that hostile launches once found, by its name: what was a traceback, a hang or accepted silently is one
line that names the file, and what was lost stays.

Beside this: outputs over inputs, two writers, a full disk (tests/sim/cli/test_outputs.py), reruns of replays that were
interrupted (tests/realrun/cli/test_replay.py), weights (tests/realrun/model/test_weights.py).
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sim.cli.main import run
from sim.costs.profile_files import SHIPPED
from tests.attack.mutations import parquet_of
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


def profile_with(path: str, value: Any, content: str | bytes = PROFILE) -> str:
    raw: Any = json.loads(content)
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


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return replay(tmp_path_factory.mktemp("replayed"))


def with_first(content: bytes, name: str, first: Any) -> bytes:
    """A Parquet file whose column of this name begins with another value."""
    table = pq.read_table(io.BytesIO(content))
    values = [first, *table[name].to_pylist()[1:]]
    return parquet_of(table.set_column(table.column_names.index(name), name, pa.array(values)))


def without(content: bytes, name: str) -> bytes:
    return parquet_of(pq.read_table(io.BytesIO(content)).drop_columns([name]))


def shrunk(content: bytes) -> bytes:
    return profile_with("gpu.memory_bytes", 1000, content).encode()


IS_NONE = "column 'start_s': [0]: expected `float`"
SPOILT: dict[str, tuple[str, Callable[..., bytes], tuple[Any, ...], str]] = {
    "null": ("work.parquet", with_first, ("start_s", None), IS_NONE),
    "NaN": ("work.parquet", with_first, ("start_s", float("nan")), IS_NONE),
    "a dropped column": ("work.parquet", without, ("kind",), "no column 'kind'"),
    "lists of unlike length": ("work.parquet", with_first, ("emitted", []), "'emitted'"),
    "a profile without room": ("profile.json", shrunk, (), "the weights leave no room for KV"),
}


@pytest.mark.parametrize("case", SPOILT)
def test_a_spoilt_replay_is_one_line(
    case: str, tmp_path: Path, replayed: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    name, change, given, says = SPOILT[case]
    for other, held in (replayed | {name: change(replayed[name], *given)}).items():
        (tmp_path / other).write_bytes(held)
    errors = refusal(capsys, "validate", str(tmp_path), "--overwrite")
    assert str(tmp_path) in errors
    assert says in errors
    assert name in errors or name == "profile.json"


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")


TABLES: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "compare": (
        ["compare", "--profile", PAIR, *TINY_RUN, "--policy", "pdv"],
        ("first token", "per token", "latency", "tokens/s", "pdv"),
    ),
    "profiles": (["profiles", "list", "h200"], ("decode", "prefill", "draft", "verify")),
    "plan": (
        [
            *("plan", "--profile", "h100-sxm/llama-3.1-8b", "--set", "policy=autoregressive", "--goodput", "ttft:5000"),
            *("--input-len", "8", "--output-len", "2", "--set", "workload.num_prompts=100", "--draws", "2"),
        ],
        ("autoregressive", "req/s", "95 % of runs", "saturated", "tok/s"),
    ),
}


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("command", TABLES)
def test_no_column_vanishes_on_a_narrow_terminal(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    args, headings = TABLES[command]
    assert run(args) == 0
    printed = capsys.readouterr().out
    for heading in headings:
        assert heading in printed
    assert "…" not in printed
