"""Tuned draft lengths: every choice on grids made by hand, what is printed under vLLM's rules, and real cells."""

from __future__ import annotations

import csv
import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim.cli.main import run
from sim.compare.point_runs import Point
from sim.costs.profile_files import load
from sim.run.resolve import Resolved, resolve
from sim.run.scenario import Scenario
from sim.studies.length_choice import PLAIN, LengthGrid, best_single, best_table, length_in
from sim.studies.tune import answer, concurrencies_of, looped, objective_values, tune
from tests.calibrate.support import published

HEAD = "h100-sxm/llama-3.1-8b+eagle3"


def grid(concurrencies: tuple[int, ...], **speedups: Any) -> LengthGrid:
    """From speed-ups [concurrencies] or [concurrencies, draws] by draft length, k0 and so on; plain serves 1 each."""
    first = np.asarray(next(iter(speedups.values())))
    num_draws = first.shape[1] if first.ndim == 2 else 10
    settings = [PLAIN, *(int(name[1:]) for name in speedups)]
    values = np.ones((len(concurrencies), len(settings), num_draws))
    for place, speedup in enumerate(speedups.values(), start=1):
        given = np.asarray(speedup, dtype=float)
        values[:, place, :] = given if given.ndim == 2 else given[:, None]
    values *= np.asarray(concurrencies, dtype=float)[:, None, None]
    return LengthGrid(concurrencies, tuple(settings), values)


def scenario(**changes: Any) -> Scenario:
    """64 seats: tables are made row by row, up to the seats."""
    given: dict[str, Any] = {"num_speculative_tokens": 4, "acceptance": "iid:0.6", "max_num_seqs": 64} | changes
    return Scenario.of(profile=HEAD, policy="continuous", **given)


def resolved(**changes: Any) -> Resolved:
    one = scenario(**changes)
    return resolve(one, load(HEAD), "continuous")


def test_a_table_changes_where_the_regrets_at_two_loads_balance() -> None:
    """K = 1 loses a quarter of the best at 1 in flight, and K = 4 half of it at 16: a third of the four octaves."""
    table = best_table(grid((1, 16), k1=[1.5, 1.5], k4=[2.0, 0.75]))
    assert table == ((1, 2, 4), (3, 16, 1))


def test_the_length_of_least_expected_regret_wins_and_not_the_likeliest() -> None:
    """K = 4 is best in six of ten draws, by 5 %; in the others it loses half."""
    k4 = [[1.05] * 6 + [0.5] * 4]
    found = grid((1,), k1=[[1.0] * 10], k4=k4)
    assert best_table(found) == ((1, 1, 1),)
    assert best_single(found) in (PLAIN, 1)


def test_a_length_that_no_graph_holds_is_judged_by_its_figures_and_a_note_says_so() -> None:
    """512 x 6 tokens are more than the largest graph, so that these were simulated without one."""
    found = answer(resolved(), grid((1, 512), k0=[0.9, 0.9], k1=[1.5, 1.5], k5=[3.0, 3.0]))
    assert (found.verdict, found.k_table) == ("one length: K = 5", [[1, 512, 5]])
    assert [each.fits_graphs for each in found.points[1].lengths] == [True, False, False]
    assert any("without a CUDA graph, such as K = 5 from 512 in flight" in note for note in found.notes)


def test_a_row_that_saves_next_to_nothing_is_not_made() -> None:
    assert best_table(grid((1, 2, 4), k1=[1.5, 1.5003, 1.5], k2=[1.5003, 1.5, 1.5003])) == ((1, 4, 2),)


def test_a_table_is_the_answer_only_where_its_gain_is_sure() -> None:
    sure = answer(resolved(), grid((1, 64), k0=[0.9, 0.9], k1=[1.2, 1.2], k4=[1.5, 0.9]))
    assert len(sure.k_table) > 1
    assert sure.gain.is_sure
    by_draw = [[1.5] * 6 + [1.0] * 4, [0.9] * 10]
    unsure = answer(resolved(), grid((1, 64), k0=[[0.9] * 10] * 2, k1=[[1.2] * 10] * 2, k4=by_draw))
    assert unsure.gain.interval[0] < 0.0
    assert unsure.verdict.startswith("one length: K = ")
    assert len(unsure.k_table) == 1


def test_one_draw_in_twenty_without_gain_leaves_a_table_sure_and_two_do_not() -> None:
    """K = 4 halves what is served at 64 in flight; not to draft at all would lose a fifth in the mean."""
    for losing, is_table in ((1, True), (2, False)):
        at_1 = [[0.9] * losing + [1.6] * (20 - losing), [0.5] * 20]
        found = answer(resolved(), grid((1, 64), k0=[[1.0] * 20] * 2, k4=at_1))
        assert found.gain.is_sure == is_table
        assert (len(found.k_table) > 1) == is_table


def test_a_table_ends_at_the_loads_that_were_simulated_and_its_line_starts_at_one() -> None:
    """vLLM wants a row from batch size 1 on, and goes on with the last one."""
    found = answer(resolved(), grid((8, 32), k1=[1.2, 1.2], k4=[2.0, 0.5]))
    (first, middle, _), (_, last, _) = found.k_table
    assert (first, last) == (8, 32)
    config = found.deployment.speculative_config
    assert config is not None
    assert config["num_speculative_tokens_per_batch_size"] == [[1, middle, 4], [middle + 1, 32, 1]]
    assert found.not_simulated == ["fewer than 8 and more than 32 in flight (the engine takes 64)"]


def test_a_length_that_gains_at_no_load_is_no_answer() -> None:
    """K = 1 has less regret than no speculation, since K = 3 is far better in one draw and far worse in the other."""
    found = answer(resolved(), grid((8,), k1=[[0.7, 1.25]], k3=[[1.9, 0.01]]))
    assert found.verdict == "no speculation"


def test_a_length_that_serves_nothing_at_a_load_has_no_gain_over_one_that_does() -> None:
    found = answer(resolved(), grid((1, 2), k1=[0.0, 3.0]))
    assert (found.verdict, found.gain.mean, found.gain.is_sure) == ("no speculation", -1.0, False)


def test_at_one_load_the_best_length_there_is_the_answer_whatever_a_table_gains() -> None:
    by_hand = grid((1, 8, 64), k1=[1.5, 1.3, 0.9], k3=[2.0, 1.2, 0.5])
    assert answer(resolved(), by_hand).verdict.startswith("a table: K = 3 for 1..")
    found = [answer(resolved(), by_hand, at=load) for load in (1, 8, 64)]
    assert [each.length_decided for each in found] == [3, 1, 0]
    assert found[2].verdict == "no speculation"


def test_break_even_lies_nearer_to_the_smaller_of_two_gains() -> None:
    """A gain of 1 at 4 and a loss of a half at 32 meet two thirds of the way, at 4 x 8^(2/3)."""
    found = answer(resolved(), grid((4, 32), k1=[2.0, 0.5]))
    assert found.break_even_concurrency == pytest.approx(16.0)
    assert found.break_even_interval == pytest.approx((16.0, 16.0))


def test_a_length_of_a_point_says_how_often_it_is_best_and_what_it_loses() -> None:
    found = answer(resolved(), grid((8,), k1=[[1.2] * 10], k4=[[1.5] * 7 + [0.6] * 3]), target_model="t/T")
    one, four = found.points[0].lengths
    assert (one.k, one.chance_best, four.chance_best) == (1, pytest.approx(0.3), pytest.approx(0.7))
    assert one.expected_regret == pytest.approx(0.7 * (1 - 1.2 / 1.5))
    assert four.expected_regret == pytest.approx(0.3 * (1 - 0.6 / 1.2))
    assert found.points[0].k == 1


def test_the_regret_that_is_stated_is_that_of_fresh_draws() -> None:
    """Six lengths as good as each other, 10 % apart by draw: whichever wins twenty draws does no better in others. Mean
    of twelve grids; draws that judged their own choice would state four fifths of it."""
    rng = np.random.default_rng(0)
    stated, lost = [], []
    for _ in range(12):
        values = np.exp(0.1 * rng.standard_normal((6, 1, 20))) * 1.5
        found = answer(resolved(), grid((8,), **{f"k{k + 1}": values[k] for k in range(6)}))
        stated.append(found.expected_regret)
        fresh = np.exp(0.1 * rng.standard_normal((6, 2_000)))
        lost.append(1.0 - (fresh[found.points[0].k - 1] / fresh.max(axis=0)).mean())
    assert np.mean(stated) == pytest.approx(np.mean(lost), rel=0.06)


def test_one_draw_judges_its_own_choice() -> None:
    assert answer(resolved(), grid((8,), k1=[[1.2]], k4=[[1.5]])).expected_regret == 0.0


def test_sglangs_bands_begin_with_the_rows_and_hold_their_lengths() -> None:
    found = answer(resolved(engine="sglang-0.5"), grid((1, 64), k0=[0.9, 0.95], k1=[1.2, 0.9], k4=[1.5, 0.5]))
    bands = found.deployment.sglang_adaptive_config
    assert bands is not None
    assert [int(key) for key in bands] == [start for start, _, _ in found.k_table]
    assert all(k in bands[str(start)]["candidate_steps"] for start, _, k in found.k_table)
    words = shlex.split(found.deployment.sglang_flags)
    steps = int(words[words.index("--speculative-num-steps") + 1])
    assert steps in bands["1"]["candidate_steps"]
    assert words[words.index("--speculative-num-draft-tokens") + 1] == str(steps + 1)


def test_no_more_are_tried_at_once_than_seats_and_most_of_the_memory_hold() -> None:
    """Blocks for 20 requests of 64 + 16 tokens and the drafts' 13 slots, 6 each, and the one that nobody gets: 16 of
    them."""
    few = resolved(input_len=64, output_len=16, max_num_seqs=48)
    assert concurrencies_of(few) == (1, 2, 4, 8, 16, 32, 48)
    assert concurrencies_of(resolved(input_len=64, output_len=16, num_gpu_blocks=121)) == (1, 2, 4, 8, 16)
    assert concurrencies_of(resolved(input_len=64, output_len=16, max_concurrency=5)) == (1, 2, 4, 5)


def test_no_more_are_tried_at_once_than_a_run_has_requests() -> None:
    """Beyond them a load is not simulated; those that are given are refused, with a way out."""
    assert concurrencies_of(resolved(num_prompts=20)) == (1, 2, 4, 8, 16, 20)
    with pytest.raises(ValueError, match=r"a run has 20 requests.*--set workload\.num_prompts=256"):
        tune(scenario(num_prompts=20), load(HEAD), concurrencies=[1, 32], draws=1)


TUNE = [
    "tune", "--profile", HEAD, "--acceptance", "length:2.6@3", "--lengths", "1,3", "--concurrencies", "1,16",
    "--set", "engine.max_num_seqs=16", "--input-len", "64", "--output-len", "16",
    "--set", "workload.num_prompts=24", "--draws", "2",
]  # fmt: skip


def test_tune_goes_on_while_its_longest_draft_is_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """At acceptance 0.95 more than one drafted token pays; lengths that were given are obeyed, which is said."""
    flags = [flag for flag in TUNE if flag not in ("--lengths", "1,3")]
    flags[flags.index("length:2.6@3")] = "iid:0.95"
    flags += ["--set", "num_speculative_tokens=1", "--concurrencies", "1", "--draws", "1", "--json", "-"]
    assert run(flags) == 0
    found = json.loads(capsys.readouterr().out)
    tried = [length["k"] for length in found["points"][0]["lengths"]]
    assert tried[0] == 0
    assert found["points"][0]["k"] in tried[:-1] or tried[-1] == 16
    assert found["scenario"]["speculation"]["num_speculative_tokens"] == tried[-1] > 1
    assert run([*flags, "--lengths", "0,1"]) == 0
    given = json.loads(capsys.readouterr().out)
    assert [length["k"] for length in given["points"][0]["lengths"]] == [0, 1]
    assert any("the answer is the longest draft that was tried, K = 1" in note for note in given["notes"])
    [idle] = [note for note in given["notes"] if note.startswith("K = 0 keeps the drafter loaded")]
    assert "22 % at 189 in flight" in idle, "what an engine was measured to lose"


def test_with_slos_it_maximises_goodput(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*TUNE, "--goodput", "tpot:0.001", "--json", "-"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["objective"] == "request goodput"
    assert result["points"][0]["speedup"] is None


CHAT_LENGTHS, CHAT_CELLS = "lengths_chat.csv", "cells.csv"
RATES_AT_7 = "vllm:.518,.310,.194,.1255,.082,.0563,.0378"
"""As vLLM logged them at K = 7, over all concurrencies."""


@pytest.mark.slow
def test_the_table_for_gh200_loses_little_against_the_best_measured_length(tmp_path: Path) -> None:
    """EAGLE-3, chat, lengths 0, 1, 3, 7: at most 1 % on average and 3 % at worst, of measured tokens per second."""
    folder = published("unlicensed_local_only/apertus_gh200")
    measured: dict[tuple[int, int], float] = {}
    for row in csv.DictReader((folder / CHAT_CELLS).open()):
        if row["workload"] == "chat" and row["method"] in ("none", "eagle31") and row["arm"] != "plain-b":
            measured[int(row["concurrency"]), int(row["k"])] = float(row["output_tok_per_s"])
    trace = tmp_path / "chat.csv"
    lengths = list(csv.DictReader((folder / CHAT_LENGTHS).open()))
    lines = [f"{i},{row['prompt_tokens']},{row['output_tokens']}" for i, row in enumerate(lengths * 8)]
    trace.write_text("\n".join(["arrival_time,input_len,output_len", *lines]) + "\n")
    one = Scenario.of(
        profile="gh200/apertus-8b+eagle3", policy="continuous", engine="vllm-0.23", acceptance=RATES_AT_7,
        num_speculative_tokens=7, max_num_seqs=256, max_num_batched_tokens=16384,
        dataset_name="csv", dataset_path=str(trace), **{"engine.gpu_memory_utilization": 0.8},
    )  # fmt: skip
    found = tune(one, load(one.profile), lengths=[0, 1, 3, 7], concurrencies=[1, 8, 64], draws=10, workers=1)
    assert len(found.k_table) > 1
    regrets = []
    for concurrency in (1, 8, 32, 64):
        best = max(measured[concurrency, k] for k in (0, 1, 3, 7))
        regrets.append(1.0 - measured[concurrency, length_in(found.k_table, concurrency)] / best)
    assert sum(regrets) / len(regrets) <= 0.01
    assert max(regrets) <= 0.03


def test_the_objective_of_a_short_closed_loop_is_that_of_a_long_one() -> None:
    """64 requests of equal lengths, 8 at once, come and go in waves: counted by requests that end it was 11 % more."""
    values = []
    for num_prompts in ("auto", 1600):
        loop = looped(resolved(input_len=1000, output_len=200, num_prompts=num_prompts), 8)
        values += objective_values([Point(resolved=loop, seed=1)])
    short, long = values
    assert short == pytest.approx(long, rel=0.02)
