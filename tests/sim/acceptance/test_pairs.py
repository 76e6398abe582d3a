"""Acceptance by pair and kind of prompts: the data, what is borrowed, and the range of a comparison."""

from __future__ import annotations

import re
from statistics import fmean

import numpy as np
import pytest

import lanesim
from sim.acceptance.pairs import (
    ANY,
    KINDS,
    AcceptancePair,
    OnPrompts,
    PairAcceptance,
    ends_of,
    measured_of,
    origin_of,
    read_pairs,
)
from sim.compare.side_by_side import Comparison
from sim.compare.verdict import METRIC
from tests.properties import assert_refused

LLAMA, QWEN = ("llama-3.1-8b", 8_000_000_000, "eagle3"), ("qwen3-32b", 32_000_000_000, "eagle3")
LOAD = {"num_prompts": 40, "request_rate": 4.0, "input_len": 512, "output_len": 64, "dataset_name": "fixed"}


def told(acceptance: str, profile: str = "h100-sxm/llama-3.1-8b+eagle3", **load: object) -> Comparison:
    given = {"profile": profile, "policy": "continuous", "acceptance": acceptance, "draws": 0, "workers": 1}
    varied = {"num_speculative_tokens": [0, 3]}
    return lanesim.compare(**given | LOAD | load, vary=varied).loads[0].comparison  # type: ignore[arg-type]


def means(alike: tuple[PairAcceptance, ...]) -> float:
    return fmean(one.length(3) for one in alike)


@pytest.mark.parametrize("pair", read_pairs(), ids=lambda pair: f"{pair.target}+{pair.method}")
def test_every_measured_length_has_a_source_with_a_licence_and_fits_its_draft(pair: AcceptancePair) -> None:
    assert re.fullmatch(r"[^:]+: .*\((MIT|Apache-2.0|CC BY 4.0|no licence, figures quoted)\)", pair.source)
    assert set(pair.lengths) <= set(KINDS)
    lengths = [(k, length) for kind in pair.lengths.values() for each in kind.values() for k, length in each.items()]
    assert all(1.0 < length <= k + 1 for k, length in lengths)


@pytest.mark.parametrize("pair", [LLAMA, QWEN, (*LLAMA[:2], "ngram"), ("tiny", 1_000_000, "draft_model")])
def test_the_range_over_prompts_contains_the_value_of_each_kind_and_the_middle_is_their_mean(
    pair: tuple[str, int, str],
) -> None:
    by_kind = measured_of(ANY, *pair)
    least, most = ends_of(ANY, *pair, 3)
    assert all(least.length(3) <= means(alike) <= most.length(3) for alike in by_kind)
    middle = OnPrompts(by_kind).model(3).expected_length(3)
    assert middle == pytest.approx(fmean(map(means, by_kind)))


def test_a_pair_of_its_own_borrows_nothing_and_another_says_of_whom() -> None:
    assert "borrowed" not in origin_of(ANY, *LLAMA, 3)
    lender = "borrowed from Qwen3-30B-A3B-Instruct-2507 with eagle3"
    assert f"Chat, code, maths and other {lender}" in origin_of(ANY, *QWEN, 3)
    assert lender not in origin_of("chat", "qwen3-8b", 8_000_000_000, "eagle3", 3)
    assert lender in origin_of("code", "qwen3-8b", 8_000_000_000, "eagle3", 3)
    assert "Code borrowed from Llama-3.1-8B with draft_model" in origin_of(ANY, *QWEN[:2], "draft_model", 3)


def test_n_grams_and_drafters_say_nothing_of_each_other() -> None:
    assert_refused(lambda: measured_of("other", *LLAMA[:2], "ngram"), "Give any-prompts, or a number")
    assert {one.pair.method for alike in measured_of(ANY, *LLAMA[:2], "ngram") for one in alike} == {"ngram"}


def test_a_measured_length_is_exact_at_its_draft_lengths_and_on_a_line_between() -> None:
    (chat,) = measured_of("chat", *LLAMA)[0]
    assert [chat.length(k) for k in (3, 5, 7)] == pytest.approx([2.898, (2.898 + 3.856) / 2, 3.856])


def test_draws_of_open_prompts_take_each_set_of_prompts_and_those_of_a_kind_its_own() -> None:
    rng = np.random.default_rng(0)
    for kind, count in (ANY, 7), ("code", 2):
        drawn = {OnPrompts(measured_of(kind, *LLAMA)).draw(rng).by_kind[0][0].prompts for _ in range(200)}
        assert len(drawn) == count


def test_open_prompts_have_a_range_that_sentence_and_data_share_and_stated_ones_have_none() -> None:
    either = told(ANY)
    plain, drafting = either.policies
    assert plain.by_prompts == {}
    late, early = (each[METRIC] for each in drafting.by_prompts.values())
    assert (late or 0.0) > (drafting.mean[METRIC] or 0.0) > (early or 0.0)
    low, high = (f"{(plain.mean[METRIC] or 0.0) / (mean or 1.0):.1f}" for mean in (late, early))
    assert f"{low} to {high} times as fast as no speculation, depending on prompts" in either.verdict
    assert list(drafting.by_prompts) == ["FinanceQA (other)", "MATH-500 (maths)"]
    for stated in "code", "length:2.6@3":
        result = told(stated)
        assert all(row.by_prompts == {} for row in result.policies)
        assert "prompts" not in result.verdict
        assert any("measured by SpecBundle" in note for note in result.notes) == (stated == "code")


def test_prompts_that_a_policy_does_not_keep_up_with_are_named() -> None:
    result = told(ANY, request_rate=42.0, num_prompts=600, output_len=200)
    (late, *_) = result.policies[1].by_prompts.values()
    assert late[METRIC] is None
    assert "does not keep up with prompts like FinanceQA (other)." in result.verdict
