"""What every command prints for the example in its help: short sentences, few numbers, one bracket, 80 columns.

And messages of errors, which are sentences. They have no semicolon.

Not here: helps and pages (tests.test_words), whether figures are right (tests/twins), what a page shows
(tests.test_page_commands).
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sim.cli.main import run
from sim.costs.profile_files import SHIPPED
from tests.sim.cli.test_consent import commands
from tests.test_words import breaks_the_rule, sentences

WIDTH, MOST_LINES = 80, {"plan": 4}
LABELS = (
    "how sure",
    "results",
    "assumed",
    "disputed",
    "start it",
    "check",
    "try",
    "fitted",
    "next",
    "source",
    "machine",
    "more",
)
TYPED = ("results", "start it", "check", "next", "source", "machine")
"""Labels of lines to type, and of texts that a file brings."""
LEFT_OUT = {
    "evidence": "half an hour of a machine",
    "calibrate measure": "needs torch and minutes",
    "replay": "needs torch and runs in real time",
    "calibrate cases": "prints commands alone",
}
SLOW = ("plan", "report")
SERVED = {"without": (16, 120, 9.0), "with": (16, 130, 5.2), "c8": (8, 80, 8.2), "c32": (32, 200, 9.8)}
"""Results of a benchmark by their names: requests in flight, TTFT and TPOT in ms."""
EXAMPLES = {path: (command.epilog or "").partition("Example:")[2].strip() for path, command in commands()}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that examples name and do not make."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    for name, (in_flight, ttft_ms, tpot_ms) in SERVED.items():
        mean_ms = {
            "mean_ttft_ms": ttft_ms,
            "median_ttft_ms": ttft_ms,
            "mean_tpot_ms": tpot_ms,
            "median_tpot_ms": tpot_ms,
        }
        seconds = 100 * (ttft_ms + 200 * tpot_ms) / 1e3 / in_flight
        counts = {"num_prompts": 100, "completed": 100, "duration": seconds, "max_concurrency": in_flight}
        tokens = {"total_input_tokens": 100_000, "total_output_tokens": 20_000, "output_throughput": 2e4 / seconds}
        accepted = {"spec_decode_acceptance_length": 2.6} if name == "with" else {}
        text = json.dumps({"backend": "vllm", "request_rate": "inf", **counts, **tokens, **mean_ms, **accepted})
        (tmp_path / f"{name}.json").write_text(text)
    (tmp_path / "profile.json").write_bytes((SHIPPED / "cpu" / "tiny.json").read_bytes())
    (tmp_path / "scenario.yaml").write_text("profile: cpu/tiny\npolicy: pd\nworkload: {num_prompts: 20}\n")
    return tmp_path


def printed(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a line of an example prints; lines before `lanesim` make its files."""
    before, _, words = line.replace("\\\n", "").rpartition("lanesim ")
    subprocess.run(["bash", "-c", before], check=True)
    capsys.readouterr()
    assert run(shlex.split(words)) == 0
    return capsys.readouterr().out


def parts(output: str) -> Iterator[tuple[str, str]]:
    """(label, text) of an answer; the answer itself has no label, and tables are left out."""
    for block in re.split(r"\n\s*\n", output):
        lines = block.strip("\n").splitlines() or [""]
        if any(lines[0].startswith(f"{label:<11}") for label in LABELS):
            yield from ((line[:11].strip(), line[11:]) for line in re.split(r"\n(?! )", "\n".join(lines)))
        elif "─" not in block and not any(re.search(r"\S  .*\S  ", line) for line in lines):
            yield "", block


def faults(path: str, output: str) -> list[str]:
    wide = [line for line in output.splitlines() if len(line) > WIDTH and " --profile " not in line]
    trailing = [line for line in output.splitlines() if line != line.rstrip()]
    answer, *_ = (text for label, text in parts(output) if not label)
    long = [answer] if len(answer.splitlines()) > MOST_LINES.get(path, 3) else []
    said = [each for label, text in parts(output) if label not in TYPED for each in sentences(" ".join(text.split()))]
    return [*wide, *trailing, *long, *(each for each in said if breaks_the_rule(each))]


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.nightly] * (path in SLOW)) for path in EXAMPLES if path not in LEFT_OUT],
)
def test_the_example_of_a_command_prints_an_answer_that_a_stranger_can_read(
    path: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if path == "check":
        assert run(["compare", "scenario.yaml", "--draws", "0", "--out", "results/demo"]) == 0
    if path == "report":
        printed(EXAMPLES["sweep"], capsys)
    if path in ("calibrate import", "plan"):
        pytest.importorskip("aiconfigurator_core")
    assert faults(path, printed(EXAMPLES[path], capsys)) == []


@pytest.mark.parametrize(
    "line",
    [
        "lanesim compare h100-sxm/llama-2-7b+tinyllama-1.1b --policy pd --policy pdv --num-prompts 20 --request-rate 4",
        "lanesim tune h100-sxm/llama-3.1-8b+eagle3 --lengths 2,3 --concurrencies 1,8 --input-len 64 --output-len 16",
    ],
)
def test_what_verbose_adds_keeps_the_rule(
    line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """But sources, which files bring. Each line is whole on a console that is as wide."""
    monkeypatch.setenv("COLUMNS", "9999")
    added = printed(f"{line} --verbose", capsys).rpartition("\n\n")[2].splitlines()
    added = [each for each in added if not re.search(r"^source of phi:|^costs:|\S  |─|^ ", each)]
    assert len(added) > 3
    assert [each for one in added for each in sentences(one.partition(" Source: ")[0]) if breaks_the_rule(each)] == []


def says(node: ast.AST) -> ast.AST | None:
    """The error that a statement raises, or the call that warns."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("warnings.warn", "click.echo", "error.add_note"):
        return node
    return node.exc if isinstance(node, ast.Raise) else None


def test_no_message_of_an_error_or_a_warning_has_a_semicolon() -> None:
    """Such as `request_rate is -1. It must be above 0.`"""
    found = []
    for folder in ("sim", "calibrate", "realrun", "validation", "lanesim"):
        for file in sorted((Path(__file__).parent.parent / folder).rglob("*.py")):
            said = filter(None, map(says, ast.walk(ast.parse(file.read_text()))))
            texts = (text for each in said for text in ast.walk(each))
            found += [
                f"{file}:{text.lineno}"
                for text in texts
                if isinstance(text, ast.Constant) and isinstance(text.value, str) and ";" in text.value
            ]
    assert found == []
