"""Lengths drawn around fixed ones: `--random-range-ratio` as vLLM means it, and a range of shares."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.compare.run_length import lockstep_note
from sim.costs.profile_files import load
from sim.run.resolve import resolve_all
from sim.run.scenario import Scenario
from sim.workload.generate import Workload, build_requests
from sim.workload.served import Served
from sim.workload.sessions import Sharing

LOOP: dict[str, Any] = {"profile": "h100-sxm/llama-3.1-8b+eagle3", "policy": ["continuous"], "request_rate": "inf"}


def lengths(**given_: Any) -> tuple[list[int], list[int]]:
    requests = build_requests(Workload(dataset_name="fixed", num_prompts=4000, **given_), 0)
    return [request.prompt_tokens for request in requests], [request.output_tokens for request in requests]


def test_a_range_ratio_draws_every_length_around_the_mean_as_vllm_does() -> None:
    """0.2 of 1,000 and of 10: 800 to 1,200, and 8 to 12, every whole number as likely."""
    prompts, outputs = lengths(input_len=1000, output_len=10, random_range_ratio=0.2)
    assert (min(prompts), max(prompts)) == (800, 1200)
    assert set(outputs) == set(range(8, 13))
    assert all(outputs.count(tokens) == pytest.approx(800, rel=0.1) for tokens in range(8, 13))
    workload = Workload(input_len=1000, output_len=10, random_range_ratio=0.2)
    assert Served(workload).mean_tokens(0)[:2] == pytest.approx((1000.0, 10.0), rel=0.01)


def test_a_length_range_draws_from_one_share_to_another() -> None:
    prompts, outputs = lengths(input_len=1000, output_len=10, random_range_ratio=(0.8, 1.0))
    assert (min(prompts), max(prompts)) == (800, 1000)
    assert set(outputs) == {8, 9, 10}


@given(st.integers(1, 5000), st.floats(0.0, 0.999))
def test_the_bounds_are_those_of_vllms_random_dataset(length: int, ratio: float) -> None:
    low, high = Workload(input_len=length, output_len=1, random_range_ratio=ratio).bounds(length)
    assert low == max(1, math.floor(length * (1 - ratio)))
    assert high == math.ceil(length * (1 + ratio))


def test_lengths_are_all_alike_unless_a_range_is_given() -> None:
    assert lengths(input_len=30, output_len=7) == ([30] * 4000, [7] * 4000)
    assert lengths(input_len=30, output_len=7, random_range_ratio=0.0) == ([30] * 4000, [7] * 4000)


def test_arrivals_and_sessions_draw_from_the_same_streams() -> None:
    """Two turns: the second prompt has the first one and its answer before what is asked."""
    workload = Workload(
        dataset_name="fixed",
        num_prompts=400,
        input_len=100,
        output_len=50,
        sharing=Sharing(num_turns=2),
        random_range_ratio=(0.5, 1.0),
    )
    firsts = [request for request in build_requests(workload, 0) if request.prompt_tokens <= 100]
    assert min(request.prompt_tokens for request in firsts) < 60
    assert all(25 <= request.output_tokens <= 50 for request in build_requests(workload, 0))


@pytest.mark.parametrize(
    ("changes", "is_in_step"),
    [
        ({"max_concurrency": 16, "num_speculative_tokens": 0}, True),
        ({"max_concurrency": 16, "num_speculative_tokens": 3}, False),
        ({"max_concurrency": 1, "num_speculative_tokens": 0}, False),
        ({"num_speculative_tokens": 0}, False),
        ({"max_concurrency": 16, "num_speculative_tokens": 0, "random_range_ratio": 0.1}, False),
        ({"max_concurrency": 16, "num_speculative_tokens": 0, "workload.dataset_name": "azure-code"}, False),
    ],
)
def test_a_closed_loop_of_one_length_without_drafts_is_said_to_march_in_step(
    changes: dict[str, Any], is_in_step: bool
) -> None:
    fixed: dict[str, Any] = {} if "workload.dataset_name" in changes else {"input_len": 1024, "output_len": 128}
    given = Scenario.of({}, **LOOP, **fixed | changes)
    note = lockstep_note(resolve_all(given, load(given.profile)))
    assert (note is not None) == is_in_step
    assert note is None or "16 requests at a time begin and end together under continuous" in note
