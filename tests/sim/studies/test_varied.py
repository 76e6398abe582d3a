"""Values of keys side by side: short keys, settings and loads, the answer first, and what cannot be varied."""

from __future__ import annotations

import json

import msgspec
import pytest

import lanesim
from sim.cli.main import run
from sim.compare.verdict import Order
from sim.report import comparisons
from sim.studies.comparison.in_draws import compared
from sim.studies.comparison.variants import Variants, tokens_of
from sim.studies.comparison.varied import Varied, varied
from tests.properties import assert_refused, printed

PAIR = "h100-sxm/llama-3.1-8b"
LOAD = {"request_rate": 8.0, "num_prompts": 40, "input_len": 512, "output_len": 32, "dataset_name": "fixed"}


def variants(**grid: list[object]) -> Variants:
    return Variants({"profile": PAIR, "workload": dict(LOAD)}, {key.replace("__", "."): v for key, v in grid.items()})  # type: ignore[misc]


def answer(**grid: list[object]) -> Varied:
    return varied(variants(**grid), lambda settings: compared(settings, draws=0, workers=1))


def shown(result: Varied, *, is_verbose: bool = False) -> list[str]:
    return [line.rstrip() for line in printed(result, is_verbose=is_verbose).splitlines()]


@pytest.mark.parametrize("value", ["inf", "nan", "1.5", "x", "-k"])
def test_a_context_that_is_no_count_is_refused_with_what_one_is(value: str) -> None:
    assert_refused(lambda: tokens_of(value), f"{value} must be a whole number of tokens, such as 1500 or 1.5k")


def test_power_is_said_of_the_settings_that_have_it() -> None:
    rows = [line.split() for line in shown(answer(energy=[True, False])) if line.startswith(("True", "False"))]
    assert [row[8] == "–" for row in rows] == [False, True]


def test_the_head_says_the_lengths_that_were_served_where_none_is_given() -> None:
    load = {"request_rate": 8.0, "num_prompts": 4, "output_len": 8, "dataset_name": "fixed"}
    given = Variants({"profile": PAIR, "workload": load}, {"max_num_seqs": [4, 8]})
    found = varied(given, lambda settings: compared(settings, draws=0, workers=1))
    head = " ".join(shown(found, is_verbose=True))
    assert "1024 tokens in, 8 out" in " ".join(head.split())


def test_loads_of_all_requests_at_once_are_not_called_overloaded() -> None:
    given = Variants({"profile": PAIR, "workload": LOAD | {"request_rate": "inf"}}, {"context": [32, 64]})
    found = varied(given, lambda settings: compared(settings, draws=0, workers=1))
    assert found.verdict.count("all requests at once") == 2


def test_each_method_has_its_profile_its_acceptance_and_a_draft_length() -> None:
    given = variants(speculation=["off", "ngram@iid:0.4", "eagle3", "draft_model@iid:0.6"][:3])
    (_, settings), *more = given.by_load
    assert not more
    assert [one.label for one in settings] == ["speculation=off", "speculation=ngram", "speculation=eagle3"]
    assert [one.lengths.given for one in settings] == [0, 3, 3]
    assert {one.profile.name for one in settings} == {f"{PAIR}+eagle3"}, (
        "one profile, so that draws of costs are common"
    )
    assert [one.scenario.speculation.acceptance for one in settings[1:]] == ["iid:0.4", "any-prompts"]
    assert [len(one.assumed) for one in settings] == [0, 0, 1]


def test_prefix_cache_context_gpu_and_dotted_keys_set_what_they_stand_for() -> None:
    ((_, cached),) = variants(prefix_cache=["on", "off"]).by_load
    assert [one.scenario.engine.rules["enable_prefix_caching"] for one in cached] == [True, False]
    ((_, gpus),) = variants(gpu=["h200", "h100-sxm"]).by_load
    assert [one.profile.name for one in gpus] == ["h200-sxm/llama-3.1-8b", PAIR]
    ((_, seats),) = variants(engine__max_num_seqs=[4, 64]).by_load
    assert [one.limits.max_num_seqs for one in seats] == [4, 64]
    loads = variants(context=["1.5k", 3000], max_num_seqs=[4, 64]).by_load
    assert [keys for keys, _ in loads] == [{"context": "1.5k"}, {"context": 3000}]
    assert [one.scenario.workload.input_len for _, settings in loads for one in settings] == [1536, 1536, 3000, 3000]


def test_settings_get_the_same_requests_and_four_runs_and_a_base_that_differences_are_to() -> None:
    result = answer(max_num_seqs=[1, 64])
    comparison = result.loads[0].comparison
    assert {run["seed"] for run in comparison.runs if run["policy"] == "max_num_seqs=1"} == {
        run["seed"] for run in comparison.runs if run["policy"] == "max_num_seqs=64"
    }
    assert len(comparison.runs) == 8
    lines = shown(result)
    assert lines[0] == " ".join(result.verdict.split())[: len(lines[0])]
    assert "max_num_seqs=64" in result.verdict
    assert list(result.start) == ["max_num_seqs=64"]
    assert any(line.startswith("max_num_seqs") and line.endswith("against 1") for line in lines)
    assert any(line.startswith("start it") and "--max-num-seqs 64" in line for line in lines)
    assert max(map(len, lines)) <= 80
    assert len(lines) < 25


def test_a_setting_whose_order_is_open_is_unsure() -> None:
    comparison = answer(max_num_seqs=[32, 64]).loads[0].comparison
    _, row = comparison.policies
    texts = {}
    for order in (Order.LOWER, Order.DRAWS, Order.SAME):
        paired = [msgspec.structs.replace(each, order=order, difference=-0.1) for each in comparison.paired]
        texts[order] = comparisons._against(msgspec.structs.replace(comparison, paired=paired), row)
    assert [texts[Order.LOWER] in texts[Order.DRAWS], "unsure" in texts[Order.LOWER]] == [True, False]
    assert texts[Order.DRAWS].endswith(" (unsure)")
    assert texts[Order.SAME] == "the same"


def test_a_key_that_is_varied_in_python_has_no_value_beside_it() -> None:
    given = {"profile": "cpu/tiny", "max_num_seqs": 4, "vary": {"engine.max_num_seqs": [4, 8]}}
    assert_refused(lambda: lanesim.compare(**given), "is given as well")


def test_acceptance_that_is_given_holds_for_all_methods_and_that_is_said() -> None:
    raw = {"profile": f"{PAIR}+eagle3", "workload": dict(LOAD), "speculation": {"acceptance": "iid:0.5"}}
    given = Variants(raw, {"speculation": ["ngram", "eagle3"]})
    assert {one.scenario.speculation.acceptance for one in given.by_load[0][1]} == {"iid:0.5"}
    assert list(given.notes) == ["acceptance iid:0.5 of ngram and eagle3 alike. Give each its own: ngram@FORM"]


def test_two_acceptances_of_one_method_are_two_settings() -> None:
    ((_, settings),) = variants(speculation=["ngram@iid:0.2", "ngram@iid:0.5"]).by_load
    assert [one.label for one in settings] == ["speculation=ngram@iid:0.2", "speculation=ngram@iid:0.5"]


def test_a_method_without_an_acceptance_has_an_assumed_one_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["compare", "--profile", PAIR, "--policy", "continuous", "--request-rate", "4", "--num-prompts", "20"]
    assert run([*flags, "--method", "ngram", "--json", "-"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["scenario"]["speculation"]["acceptance"] == "any-prompts"
    assert told["notes"][0].startswith("Acceptance of ngram: 1.16 on GSM8K to 2.03 on InstructCoder tokens a verify")


def test_a_window_that_cuts_says_how_many_each_policy_finished(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", "sim/scenarios/report-002-window.yaml", "--replications", "2", "--workers", "1"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Before the window closed pd finished 1.5 of 185 requests and unified finished 34.5 of 185 requests" in said
    assert " ended " in said
