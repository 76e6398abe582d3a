"""Requests from a description and a seed: arrivals, lengths, and what is refused."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.interface.request import Request
from sim.workload.generate import MIN_AUTO_PROMPTS, Workload, arrival_times, build_requests
from sim.workload.lengths import LENGTH_TABLES

seeds = st.integers(0, 2**40)


def lengths(requests: list[Request]) -> list[tuple[int, int]]:
    return [(request.prompt_tokens, request.output_tokens) for request in requests]


def arrivals(requests: list[Request]) -> list[float]:
    return [request.arrival_s for request in requests]


def test_requests_come_in_order_with_their_index_as_label() -> None:
    requests = build_requests(Workload(num_prompts=50), 0)
    assert [request.index for request in requests] == list(range(50))
    assert [request.id for request in requests] == [str(index) for index in range(50)]
    assert arrivals(requests) == sorted(arrivals(requests))
    assert arrivals(requests)[0] > 0.0


@given(seeds, st.floats(0.01, 1000.0), st.floats(0.1, 10.0), st.sampled_from(sorted(LENGTH_TABLES)))
def test_another_rate_rescales_the_same_arrivals_and_keeps_the_lengths(
    seed: int, rate: float, burstiness: float, dataset: str
) -> None:
    def build(request_rate: float) -> list[Request]:
        return build_requests(
            Workload(dataset_name=dataset, num_prompts=40, request_rate=request_rate, burstiness=burstiness), seed
        )

    assert lengths(build(rate)) == lengths(build(1.0))
    assert arrivals(build(rate)) == pytest.approx([arrival / rate for arrival in arrivals(build(1.0))])


@given(seeds, st.integers(1, 60), st.integers(1, 60), st.floats(0.1, 10.0))
def test_a_longer_run_begins_with_the_same_requests(seed: int, few: int, more: int, burstiness: float) -> None:
    short = build_requests(Workload(num_prompts=few, burstiness=burstiness), seed)
    long = build_requests(Workload(num_prompts=few + more, burstiness=burstiness), seed)
    assert lengths(long)[:few] == lengths(short)
    assert arrivals(long)[:few] == arrivals(short)


def test_seeds_differ_in_lengths_and_arrivals() -> None:
    first, second = (build_requests(Workload(), seed) for seed in (0, 1))
    assert lengths(first) != lengths(second)
    assert arrivals(first) != arrivals(second)


def test_an_infinite_rate_puts_all_at_zero_and_concurrency_changes_nothing() -> None:
    requests = build_requests(Workload(request_rate=inf, max_concurrency=8), 0)
    assert arrivals(requests) == [0.0] * MIN_AUTO_PROMPTS
    assert lengths(requests) == lengths(build_requests(Workload(), 0))


@pytest.mark.slow
@pytest.mark.parametrize("burstiness", [0.3, 1.0, 4.0])
def test_gaps_are_gamma_with_the_stated_rate_and_shape(burstiness: float) -> None:
    """Seed 0, 200,000 gaps at 5/s: mean within 1.5 %, coefficient of variation 1/sqrt(shape) within 2 %."""
    gaps = np.diff(arrival_times(200_000, 5.0, burstiness, 0), prepend=0.0)
    assert gaps.mean() == pytest.approx(0.2, rel=0.015)
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.02)


def test_fixed_lengths_default_to_those_of_vllm_bench_serve() -> None:
    assert set(lengths(build_requests(Workload(dataset_name="fixed"), 0))) == {(1024, 128)}
    spec = Workload(dataset_name="fixed", input_len=64, output_len=32)
    assert set(lengths(build_requests(spec, 0))) == {(64, 32)}


def test_a_given_length_replaces_one_column_of_a_dataset() -> None:
    plain = build_requests(Workload(dataset_name="azure-conv"), 0)
    changed = build_requests(Workload(dataset_name="azure-conv", output_len=99), 0)
    assert lengths(changed) == [(request.prompt_tokens, 99) for request in plain]


@pytest.mark.slow
@pytest.mark.parametrize("dataset", sorted(LENGTH_TABLES))
def test_mean_lengths_match_the_recording_within_two_percent(dataset: str) -> None:
    """Seed 0, 100,000 requests; their sampling error is below 1 %, the table's own below 0.3 %."""
    drawn = np.array(lengths(build_requests(Workload(dataset_name=dataset, num_prompts=100_000), 0)))
    assert drawn.mean(axis=0) == pytest.approx(LENGTH_TABLES[dataset].recorded_means, rel=0.02)
    assert drawn.min() >= 1


def test_long_answers_of_the_conversation_trace_belong_to_middling_prompts() -> None:
    """Seed 0: the dependence that a correlation would lose."""
    drawn = np.array(lengths(build_requests(Workload(dataset_name="azure-conv", num_prompts=20_000), 0)))
    is_middling = (drawn[:, 0] > 1000) & (drawn[:, 0] < 1200)
    assert drawn[is_middling, 1].mean() > 2.5 * drawn[~is_middling, 1].mean()


def test_length_tables_rise() -> None:
    for table in LENGTH_TABLES.values():
        for row in (table.prompt_tokens, *table.output_tokens):
            assert list(row) == sorted(row)
            assert row[0] >= 1
