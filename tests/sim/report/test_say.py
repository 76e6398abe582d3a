"""Figures that are printed are those of the JSON, worked out anew; the sentence is first, and all fits 80 columns."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

import lanesim
from sim.compare.side_by_side import CostSource
from sim.report.said import MORE
from sim.report.say import nearest_measured
from sim.studies.answer import Answer, Stated
from sim.studies.attainment import Attainment, HighestLoad, Replicas
from sim.studies.evidence import MEASURED, _named, measured
from sim.studies.load_search import Limit
from sim.studies.plan.search import PlannedDeployment, Rental
from sim.studies.tune import AtContext, ContextTuning, answer
from tests.properties import printed
from tests.sim.studies.test_tune import grid, resolved

NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?!\w)")
COSTS = CostSource(
    name="gpu/model",
    source="measured by hand",
    overlap="",
    is_overlap_measured=True,
    errors={"decode": 2.25, "body": 9.0},
)
BASE = {"scenario": {}, "costs": COSTS, "draws": 12, "covers": "draws of costs"}


def said(given: Stated, width: int = 80, *, is_verbose: bool = False) -> list[str]:
    return [line.rstrip() for line in printed(given, width, is_verbose=is_verbose).splitlines()]


def numbers(text: str) -> list[float]:
    return [float(each) for each in NUMBER.findall(text.replace("–", " ").replace("~", " ").replace("..", " "))]


def row_of(lines: list[str], *begins: str) -> str:
    """The first row of a table whose first cells are these."""
    return next(line for line in lines if line.split()[: len(begins)] == list(begins) and "  " in line.strip())


def tuned(**speedups: list[list[float]]) -> Stated:
    return answer(resolved(), grid((1, 64), **speedups))


def test_on_demand_it_says_what_a_table_would_gain_and_what_the_answer_loses() -> None:
    given = tuned(k0=[[0.95] * 10] * 2, k1=[[1.2] * 10] * 2, k4=[[1.6] * 6 + [1.0] * 4, [0.9] * 10])
    plain = given.plain
    assert len(plain["table"]) == 1
    lines = said(given, 300, is_verbose=True)
    (loss,) = [line for line in lines if line.startswith("expected loss")]
    assert numbers(loss) == [round(100.0 * plain["expected_regret"], 1)]
    gains = [line for line in lines if line.startswith("a table by batch size")]
    wanted = [round(100.0 * each, 1) for each in (plain["gain"]["mean"], *plain["gain"]["interval"])]
    assert [numbers(line)[-3:] for line in gains] == ([wanted] if plain["gain"]["mean"] > 0.0 else [])
    assert f"costs: {plain['profile']['source']}" in lines


def contexts() -> ContextTuning:
    rows = [
        AtContext(
            prompt_tokens=tokens, verdict=f"one length: K = {k}", k_table=[[1, 4, k], [5, 9, 0]],
            break_even_concurrency=even, regret=regret, regret_without=2.0 * regret,
        )
        for tokens, k, even, regret in ((128, 3, 6.25, 0.011), (2048, 5, None, 0.037))
    ]  # fmt: skip
    return ContextTuning(
        **BASE, objective="output throughput", contexts=rows, k_table=[[1, 9, 0, 4096, 3]], table_without=[[1, 9, 2]],
        verdict="128 tokens: one length: K = 3; 2048 tokens: one length: K = 5", not_simulated=["prompts above 2048"],
        regret=0.024, regret_without=0.048,
    )  # fmt: skip


def test_a_context_has_its_rows_break_even_and_both_regrets_in_percent() -> None:
    lines = said(contexts(), 300)
    for each in contexts().plain["contexts"]:
        rows = [figure for first, last, k in each["table"] for figure in (k, first, last)]
        even = [] if each["break_even_concurrency"] is None else [each["break_even_concurrency"]]
        regrets = [round(100.0 * each[key], 1) for key in ("regret", "regret_without")]
        assert numbers(row_of(lines, str(each["prompt_tokens"]))) == [each["prompt_tokens"], *rows, *even, *regrets]
    assert numbers(lines[0]) == [round(100.0 * each, 1) for each in (0.024, 0.048)]
    assert any("Not simulated: prompts above 2048." in line for line in lines)
    assert any(line.endswith("[[1, 9, 0, 4096, 3]]") for line in lines)


def held(**changes: object) -> Attainment:
    highest = [
        HighestLoad(
            policy=policy, limit=Limit.SLO, load=load_, ci95=(load_ - 1.5, load_ + 2.5),
            draws_interval=(load_ - 4.0, load_ + 5.0), draw_loads=[load_], replications=7, saturated_per_s=90.5,
            attainment={"ttft_ms": 0.991, "tpot_ms": 0.953, "all": 0.95}, in_flight=3.0, output_tokens_per_s=812.0,
            usd_per_million_tokens=0.25,
        )
        for policy, load_ in (("pd", 41.25), ("continuous", 62.5))
    ]  # fmt: skip
    fleets = [
        Replicas(
            policy="continuous", routing="round-robin", replicas=5, utilisation=0.64, usd_per_million_tokens=0.31,
            confidence=11 / 13, attainment_by_draw=[0.96] * 11 + [0.9],
        )
    ]  # fmt: skip
    given = {"share": 0.95, "of": "request rate", "highest": highest, "target_rate": 200.0, "fleets": fleets}
    return Attainment(**BASE, **given | {"notes": ["first note", "second"], "evidence": []} | changes)


def test_a_highest_load_has_its_intervals_and_a_fleet_its_shares_in_percent() -> None:
    lines = said(held())
    for each in held().plain["highest"]:
        intervals = [round(end, 1) for key in ("ci95", "draws_interval") for end in each[key]]
        figures = [round(each["load"], 1), *intervals, 90.5, 812, 0.25]
        assert numbers(row_of(lines, each["policy"])[12:]) == pytest.approx(figures, abs=0.051)
    assert numbers(row_of(lines, "continuous", "round-robin")) == [5, 64, round(1100 / 13), 0.31]
    sentence = " ".join(" ".join(lines).split()).partition(" highest request rate at which")[0]
    wanted = [5, 200, 0.31, 62.5]
    assert numbers(sentence.replace("$", "")) == pytest.approx(wanted, abs=0.051)
    assert "TPOT is missed first" in sentence


def test_on_demand_it_says_what_its_draws_cover_and_all_notes() -> None:
    lines = said(held(), 400, is_verbose=True)
    assert {"Ranges: 90 % of 12 draws of costs", "note: first note", "note: second"} <= set(lines)


def test_a_few_lines_say_what_an_answer_rests_on_and_one_where_the_rest_is() -> None:
    *_, doubt, last = said(held(), 140)
    ranges = "Ranges: 90 % of 12 variations of GPU times and acceptance."
    assert doubt == f"how sure   Error of GPU times: decode 2.2 %. {ranges} First note."
    assert last.endswith(MORE)


def rented(**changes: object) -> Rental:
    row = PlannedDeployment(
        deployment="TP2", profile="p", gpus=6, tp=2, ep=1, dp=1, num_speculative_tokens=3, rate_per_replica=20.5,
        rate_interval=(18.25, 22.75), output_tokens_per_s_per_gpu=431.0, worlds_met=9, is_first_pass=False, replicas=3,
        usd_per_million_tokens=2.256, joules_per_output_token=0.75, evidence=[], requests_in_memory=504,
    )  # fmt: skip
    estimate = msgspec.structs.replace(row, deployment="TP4", is_first_pass=True, rate_interval=None, worlds_met=None)
    given = {
        "gpu": "g", "target": "t", "draft": None, "rate_per_s": 50.0, "share": 0.95, "price_per_gpu_h": 3.5,
        "deployments": [row, *[estimate] * 3], "tuning": None, "refused": [], "start": "vllm serve t --seed 0",
        "notes": ["one", "two", "three", "four"], "verdict": "rent 6 x g",
        "scenario": {
            "engine": {"name": "vllm-0.24", "max_num_seqs": 64}, "speculation": {"acceptance": "iid:0.7"},
            "workload": {"input_len": 300, "output_len": 40}, "goodput": {"ttft_ms": 800.0, "tpot_ms": None},
        },
    }  # fmt: skip
    return Rental(**{**BASE, "costs": None} | given | changes)


def test_a_deployment_has_its_rate_interval_fleet_price_and_energy() -> None:
    lines = said(rented(), 120)
    assert lines[0] == "rent 6 x g"
    row = row_of(lines, "TP2")
    assert numbers(row) == pytest.approx([3, 20.5, 18.25, 22.75, 3, 6, 2.256, 0.75, 9, 12], abs=0.051)
    assert sum(line.startswith("TP4") and line.count("~") == 4 for line in lines) == 2
    assert "~: estimated, not simulated" in lines
    assert "That costs $2.26 per million output tokens, $21 an hour." in lines
    verbose = said(rented(), 120, is_verbose=True)
    assert [line for line in verbose if line.startswith("note: ")] == [f"note: {each}" for each in rented().notes]


@pytest.mark.parametrize("given", [contexts(), held(), rented()], ids=lambda given: type(given).__name__)
def test_the_sentence_is_first_and_no_line_is_wider_than_the_terminal(given: Stated) -> None:
    lines = [line for line in said(given) if "num_speculative_tokens_per_batch_size" not in line]
    assert max(map(len, lines)) <= 80
    assert not isinstance(given, Rental) or lines[0] == given.verdict
    answer_lines = "".join(lines[: lines.index("")])
    assert answer_lines.endswith(".") or isinstance(given, Rental)


def test_what_a_question_does_not_ask_for_is_not_in_its_json() -> None:
    figures = set(Answer.__struct_fields__)
    assert figures & set(contexts().plain) == set()
    assert figures & set(held().plain) == {"evidence"}
    assert figures & set(held().plain["fleets"][0]) == {
        "attainment_by_draw", "replicas", "usd_per_million_tokens", "utilisation",
    }  # fmt: skip
    assert figures - set(rented().plain["deployments"][0]) == {"evidence"}


def test_a_table_gets_narrower_by_the_lengths_that_matter_least() -> None:
    wide = {f"k{k}": np.full((2, 10), 1.0 + 0.01 * k).tolist() for k in range(9)}
    lines = said(answer(resolved(), grid((1, 64), **wide)))
    assert max(map(len, lines[:8])) <= 80
    assert any("of the lengths that were tried are in the JSON alone" in line for line in lines)


def test_a_batch_says_when_its_last_answer_is_done_and_drafts_that_grow_as_it_shrinks_end_it_sooner() -> None:
    """256 answers of 12 to about 1,000 tokens, all sent at once; one draft throughout, or more for a smaller batch."""
    tables = ([[1, 256, 1]], [[1, 32, 7], [33, 128, 3], [129, 256, 1]])
    done_s = []
    for table in tables:
        drafts = {"speculation.num_speculative_tokens_per_batch_size": table}
        result = lanesim.compare(Path("sim/scenarios/rollouts.yaml"), **drafts)
        assert "all done" in printed(result)
        done_s.append(float(result.runs[0]["duration"]))
    assert done_s[1] < 0.95 * done_s[0]


def test_the_error_of_the_nearest_measured_set_up_has_a_figure_whichever_it_is() -> None:
    for cell in measured().cells:
        said = nearest_measured(f"{MEASURED}: {_named([cell])}")
        assert re.search(r"Error there: [\w -]+ [+-]?[\d.]+ %\.$", said), said
