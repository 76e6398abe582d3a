"""What commands say beside their answer: every note once, at the end, however many processes and runs met with it."""

from __future__ import annotations

import re
import shlex
from math import inf
from pathlib import Path

import pytest

from sim.cli.main import run

ROOT = Path(__file__).parents[3]
MAX_LINES = 2
PAIR = "a100-sxm/llama-3.1-8b+llama-3.2-1b"
LONG = ["--input-len", "140000", "--output-len", "40", "--num-prompts", "4", "--request-rate", "2"]
LONG += ["--set", "engine.max_model_len=150000"]
"""Requests longer than what was measured and than the model was made for."""


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_note_is_said_once_by_however_many_workers_and_runs(capfd: pytest.CaptureFixture[str], workers: str) -> None:
    flags = ["--policy", "continuous", "--policy", "pd", "--profile", PAIR, "--replications", "3"]
    assert run(["compare", *flags, *LONG, "--workers", workers]) == 0
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == MAX_LINES
    assert sum("context of 131072 tokens" in line for line in lines) == 1
    assert re.search(r"contexts to 140,0\d\d extrapolated, measured to 65,536 at \d+ row", lines[-1])


def test_answers_that_end_early_are_one_note_of_the_run_that_has_most(capfd: pytest.CaptureFixture[str]) -> None:
    """Replications differ in how many of 300 answers the context of 4,096 tokens ends."""
    flags = ["--policy", "autoregressive", "--profile", "h100-sxm/llama-2-7b", "--replications", "6"]
    assert run(["compare", *flags, "--num-prompts", "300", "--request-rate", "2"]) == 0
    (line,) = capfd.readouterr().err.splitlines()
    assert re.fullmatch(
        r"lanesim: note: up to \d of 300 answers end where prompt and answer are 4096 tokens, .* vllm-0.33", line
    )


def test_a_tuned_answer_has_one_line_on_what_it_extrapolates(capfd: pytest.CaptureFixture[str]) -> None:
    """Contexts of 1,500 tokens and more in more rows than were measured with more than 1,024."""
    flags = ["--profile", "h200-sxm/llama-3.1-8b+eagle3", "--acceptance", "length:2.6@3", "--lengths", "1,3"]
    flags += ["--concurrencies", "256", "--set", "engine.max_num_seqs=256", "--set", "workload.num_prompts=300"]
    assert run(["tune", *flags, "--output-len", "150", "--input-len", "1500", "--draws", "2"]) == 0
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    assert re.search(r"contexts to 1,\d\d\d extrapolated, measured to 1,024 at \d+ rows", lines[0])


def documented() -> list[str]:
    """Commands of the pages that simulate from shipped profiles and need neither files nor a server."""
    found = []
    for page in ("README.md", "docs/guide.md", "docs/sweeps.md"):
        text = (ROOT / page).read_text().replace("\\\n", " ")
        text = text.replace("DRAFT", "meta-llama/Llama-3.2-1B-Instruct").replace(
            "MODEL", "meta-llama/Llama-3.1-8B-Instruct"
        )
        found += re.findall(r"^(?:\$ )?(lanesim (?:compare|tune|plan --profile|profiles)\b.*)$", text, re.MULTILINE)
        found += re.findall(r"\| `(lanesim compare [^`]+)` \|", text)
    return sorted({line.partition(" #")[0].strip() for line in found if "http://" not in line})


SHORTER = {
    "compare": ["--num-prompts", "12", "--replications", "2", "--workers", "2"],
    "tune": ["--set", "workload.num_prompts=24", "--concurrencies", "1,24", "--lengths", "1,4", "--draws", "2"],
    "plan": ["--set", "workload.num_prompts=60", "--draws", "2"],
    "profiles": [],
}
"""Fewer runs of what the pages ask for, over two processes."""


@pytest.mark.parametrize("command", documented())
def test_no_command_of_the_pages_says_more_than_two_lines_beside_its_answer(
    command: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("sim.cli.console.LINE_EVERY_S", inf)
    _, name, *args = shlex.split(command)
    drops = {"--draws"} if name == "compare" else {"--target-rate"}
    kept = [word for i, word in enumerate(args) if word not in drops and (i == 0 or args[i - 1] not in drops)]
    assert run([name, *kept, *SHORTER[name]]) == 0
    assert len(capfd.readouterr().err.splitlines()) <= MAX_LINES


def test_a_run_on_a_trace_notes_its_span_rate_and_lengths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, grid = tmp_path / "t.csv", tmp_path / "g.yaml"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,4\n240,30,2\n")
    head = f"{trace}: 2 requests in 4 min, 0.00417/s, 20 in, 3 out"
    workload = f"{{dataset_name: csv, dataset_path: {trace}}}"
    grid.write_text(f"scenario: {{profile: cpu/tiny, policy: pd, workload: {workload}}}\ngrid: {{seed: [0, 1]}}\n")
    assert run(["sweep", str(grid), "--out", str(tmp_path / "store"), "--workers", "1"]) == 0
    assert head in capsys.readouterr().err
    asked = ["--lengths", "0,1", "--concurrencies", "1", "--draws", "2", "--profile", "cpu/tiny"]
    of_trace = ["--set", "workload.dataset_name=csv", "--set", f"workload.dataset_path={trace}"]
    assert run(["tune", *asked, *of_trace]) == 0
    assert head in capsys.readouterr().err
