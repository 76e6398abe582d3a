"""Draft lengths by batch size and context: the rows, and what a table that ignores the context loses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sim.cli.main import run
from sim.costs.profile_files import load
from sim.run.scenario import Scenario
from sim.studies.length_choice import best_table, loss_of
from sim.studies.tune import AtContext, rows_by_context, tune_contexts
from tests.sim.studies.test_tune import grid

SHORT = grid((1, 64), k0=[0.9, 0.9], k4=[1.5, 0.5])
"""Drafts of 4 gain at one request and lose at 64."""
LONG = grid((1, 64), k0=[0.9, 0.9], k4=[1.5, 1.5])


def test_one_table_for_two_contexts_loses_where_they_differ() -> None:
    assert best_table(LONG) == ((1, 64, 4),)
    own = best_table(SHORT)
    assert [k for _, _, k in own] == [4, 0]
    both = best_table(SHORT, LONG)
    assert loss_of(SHORT, own) == pytest.approx(0.05), "no drafter is best at 64, and K = 0 has one loaded"
    assert loss_of(LONG, best_table(LONG)) == 0.0
    lost = loss_of(SHORT, both) + loss_of(LONG, both)
    assert lost >= 0.05 + 0.5 * (1.0 - 0.9 / 1.5), "it has one length at 64"


def test_a_context_that_holds_fewer_requests_has_no_say_beyond_them() -> None:
    few = grid((1, 8), k0=[0.9, 0.9], k4=[1.5, 1.5])
    assert [k for _, last, k in best_table(SHORT, few) if last > 32] == [0]


def at(prompt_tokens: int, *table: tuple[int, int, int]) -> AtContext:
    rows = [list(row) for row in table]
    return AtContext(
        prompt_tokens=prompt_tokens,
        verdict="",
        k_table=rows,
        break_even_concurrency=None,
        regret=0.0,
        regret_without=0.0,
    )


def test_rows_change_between_two_prompt_lengths_and_alike_ones_are_one() -> None:
    """512 and 2,048 are alike; the geometric mean of 2,048 and 32,768 is 8,192."""
    found = [at(512, (1, 8, 3), (9, 64, 0)), at(2048, (1, 8, 3), (9, 64, 0)), at(32768, (1, 64, 3))]
    assert rows_by_context(found, 40000) == [[1, 8, 0, 8191, 3], [9, 64, 0, 8191, 0], [1, 64, 8192, 40000, 3]]


FLAGS = (
    *("tune", "--profile", "cpu/tiny", "--acceptance", "iid:0.6", "--set", "num_speculative_tokens=2"),
    *("--output-len", "8", "--draws", "2", "--concurrencies", "1,4"),
)


def test_the_command_writes_a_table_for_each_context(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "t.json"
    assert run([*FLAGS, "--contexts", "32,1k", "--set", "engine.max_num_seqs=2", "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert [each["prompt_tokens"] for each in found["contexts"]] == [32, 1024]
    assert all(len(row) == 5 and row[2] <= row[3] for row in found["table"])
    assert max(last for _, last, *_ in found["table"]) == 4, "more were in flight than the engine has seats"
    assert found["regret"] <= found["regret_without"] + 1e-9
    assert "A table for each prompt length loses" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("engine", ["sglang-0.5", "trtllm-1.1", "ideal", "vllm-0.32"])
def test_prompts_beyond_the_models_context_are_refused_before_anything_is_simulated(engine: str) -> None:
    pair = "h100-sxm/llama-2-7b+tinyllama-1.1b"
    scenario = Scenario.of(profile=pair, policy="continuous", engine=engine, output_len=8, dataset_name="fixed")
    heard: list[str] = []
    with pytest.raises(ValueError, match=r"every request is rejected: .* at most 4096"):
        tune_contexts(
            scenario, load(pair), [1024, 16384], concurrencies=[1], draws=2, workers=1,
            on_done=lambda stage, done, total: heard.append(stage),
        )  # fmt: skip
    assert heard == []
