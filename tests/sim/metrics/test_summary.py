"""One hand-made record, and every figure that is computed from it, summed by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sim.engine.time_series import GapSamples
from sim.interface.request import Request
from sim.interface.request_columns import Requests
from sim.metrics.records import RunRecord, StreamUsage
from sim.metrics.summary import detailed, summarise


def asked(index: int, times_s: tuple[float, float, float, float], tokens: tuple[int, int], **counts: int) -> Request:
    """A request with `times_s` of arrival, admission, first and last token, and prompt and output `tokens`, all of
    them emitted unless `emitted_tokens` says otherwise."""
    arrival_s, scheduled_s, first_s, last_s = times_s
    prompt, output = tokens
    return Request(
        index=index,
        id=f"r{index}",
        arrival_s=arrival_s,
        prompt_tokens=prompt,
        output_tokens=output,
        scheduled_s=scheduled_s,
        first_token_s=first_s,
        last_token_s=last_s,
        **{"emitted_tokens": output, **counts},
    )


def requests() -> list[Request]:
    """Two that warm up, four that are done (TTFT 2, 3, 4, 7 s; TPOT 2, none, 1, 3 s; E2EL 10, 3, 5, 34 s), one that is
    not."""
    return [
        asked(0, (0, 0, 6, 12), (1000, 7), num_rounds=2, drafted_tokens=8, accepted_tokens=5, num_preemptions=1),
        asked(
            1,
            (1, 1, 2, 15),
            (50, 5),
            num_rounds=1,
            drafted_tokens=4,
            accepted_tokens=0,
            emitted_tokens=2,
            cached_tokens=7,
        ),
        asked(2, (10, 11, 12, 20), (100, 5), num_rounds=2, drafted_tokens=8, accepted_tokens=2, num_preemptions=2),
        asked(3, (11, 12, 14, 14), (200, 1), cached_tokens=150),
        asked(4, (12, 15, 16, 17), (300, 2), num_rounds=1, drafted_tokens=4, accepted_tokens=1),
        asked(5, (13, 16, 20, 47), (400, 10), num_rounds=5, drafted_tokens=20, accepted_tokens=5, cached_tokens=300),
        asked(
            6,
            (20, 22, 30, 48),
            (500, 9),
            num_rounds=2,
            drafted_tokens=8,
            accepted_tokens=1,
            num_preemptions=1,
            emitted_tokens=3,
        ),
    ]


def usage(stream: str, kind: str, num_works: int, device_s: float, tokens: int) -> StreamUsage:
    return StreamUsage(stream=stream, device="0", kind=kind, num_works=num_works, device_s=device_s, tokens=tokens)


USAGE = [
    usage("prefill", "prefill", 4, 6.0, 1000),
    usage("decode", "draft", 5, 4.0, 40),
    usage("decode", "verify", 3, 5.0, 30),
    usage("verify", "verify", 2, 5.0, 20),
    usage("spare", "draft", 2, 1.0, 8),
    usage("gpu", "step", 1, 4.0, 30),
]
"""25 s: 5 of drafts, 14 of verifies and steps that compute 80 tokens."""


def record(**changes: Any) -> RunRecord:
    gaps = GapSamples()
    for gap_s in (0.5, 0.5, 0.5, 2.0, 1.0):
        gaps.add(gap_s)
    whole = RunRecord(
        policy="pdv",
        seed=7,
        requests=Requests.of(changes.pop("requests") if "requests" in changes else requests()),
        gaps=gaps,
        end_s=50.0,
        window_s=25.0,
        usage=USAGE,
        device_busy_s=20.0,
        num_polls=5_000_000,
        num_gpus=2,
        queue_mean=1.5,
        queue_peak=6,
        kv_tokens_mean=250.0,
        kv_tokens_peak=750,
        kv_capacity_tokens=1000,
        is_open_loop=True,
        num_rejected=6,
        weight_bytes=15_000_000_000,
        kv_bytes_per_token=2_000_000,
        engine="vllm-0.24",
        is_async=True,
        cache_block_tokens=150,
        caps={"max_num_seqs": 256, "verify_batch": None},
        partition={"prefill": 0.4, "decode": 0.6},
    )
    return replace(whole, **changes)


def flat(result: dict[str, Any]) -> dict[str, Any]:
    """Dictionaries within `result` told as key.key."""
    parts = [
        {f"{key}.{inner}": figure for inner, figure in value.items()} if isinstance(value, dict) else {key: value}
        for key, value in result.items()
    ]
    return {key: figure for part in parts for key, figure in part.items()}


def figures_ms(name: str, values_s: list[float]) -> Iterator[tuple[str, float]]:
    """As numpy computes them."""
    for key, of in (("mean", np.mean), ("median", np.median), ("std", np.std)):
        yield f"{key}_{name}_ms", 1e3 * float(of(values_s))
    for percent in (50, 90, 95, 99):
        yield f"p{percent}_{name}_ms", 1e3 * float(np.percentile(values_s, percent))


def test_every_key_of_a_summary() -> None:
    """Measured from the arrival of request 2 at 10 s to 50 s; from there to the last arrival, at 20 s, requests 0, 2, 3
    and 4 end. Of 40 drafted tokens 9 are accepted, of 52 in the whole run 14. Requests 2 and 3 meet the bound on TTFT,
    3 and 4 that on TPOT."""
    times_s = {"ttft": [2, 3, 4, 7], "tpot": [2, 1, 3], "e2el": [10, 3, 5, 34], "itl": [0.5, 0.5, 0.5, 2, 1]}
    rejected_share = (5.0 * 38 / 52 + 14.0 * 38 / 80) / 25.0
    bounds_ms = {"ttft_ms": 3000.0, "tpot_ms": 1000.0, "e2el_ms": None}
    assert flat(summarise(record(), num_warmups=2, goodput_ms=bounds_ms)) == pytest.approx(
        {
            "policy": "pdv",
            "seed": 7,
            "engine": "vllm-0.24",
            "async_scheduling": True,
            "caps.max_num_seqs": 256,
            "caps.verify_batch": None,
            "partition.prefill": 0.4,
            "partition.decode": 0.6,
            "num_prompts": 5,
            "completed": 4,
            "censored": 1,
            "rejected_requests": 6,
            "preemptions": 3,
            "duration": 40.0,
            "total_input_tokens": 1000,
            "total_output_tokens": 18,
            "request_throughput": 4 / 40,
            "output_throughput": 18 / 40,
            "num_gpus": 2,
            "output_throughput_per_gpu": 18 / 40 / 2,
            "total_token_throughput": 1018 / 40,
            "effective_requests": 4 * 153.5 / (2 * 84.5),
            "slo_attainment.ttft_ms": 2 / 4,
            "slo_attainment.tpot_ms": 2 / 4,
            "slo_attainment.all": 1 / 4,
            "request_goodput": 1 / 40,
            **{key: value for name, values in times_s.items() for key, value in figures_ms(name, values)},
            "steady_output_throughput": (2 + 5 / 13 + 5 + 1 + 2 + 1) / 10,
            "steady_output_throughput_per_gpu": (2 + 5 / 13 + 5 + 1 + 2 + 1) / 10 / 2,
            "throughput_completed_window": 18 / 25,
            "throughput_emitted_window": 21 / 25,
            "prefix_cache_hit_tokens": 450,
            "prefix_cache_hit_rate": 450 / 1500,
            "spec_decode_num_drafts": 10,
            "spec_decode_draft_tokens": 40,
            "spec_decode_accepted_tokens": 9,
            "spec_decode_acceptance_length": 1.9,
            "spec_decode_acceptance_rate": 22.5,
            "rejected_token_share": rejected_share,
            "num_works.prefill": 4,
            "num_works.draft": 7,
            "num_works.verify": 5,
            "num_works.step": 1,
            "device_utilization": 20 / 50,
            "device_idle_share": 30 / 50,
            "stream_utilization.prefill": 6 / 50,
            "stream_utilization.decode": 9 / 50,
            "stream_utilization.verify": 5 / 50,
            "stream_utilization.spare": 1 / 50,
            "stream_utilization.gpu": 4 / 50,
            "kind_utilization.prefill": 6 / 50,
            "kind_utilization.draft": 5 / 50,
            "kind_utilization.verify": 10 / 50,
            "kind_utilization.step": 4 / 50,
            "poll_cpu_share": 5.0 / 50,
            "mean_queue_depth": 1.5,
            "max_queue_depth": 6,
            "mean_kv_usage": 0.25,
            "max_kv_usage": 0.75,
            "weight_gb": 15.0,
            "max_kv_gb": 1.5,
        }
    )


def test_a_run_in_which_nothing_happened_has_every_key_and_nothing_where_there_is_none() -> None:
    idle: dict[str, Any] = dict.fromkeys(("end_s", "device_busy_s", "queue_mean", "kv_tokens_mean"), 0.0)
    idle |= dict.fromkeys(("num_rejected", "num_polls", "queue_peak", "kv_tokens_peak", "kv_capacity_tokens"), 0)
    nothing = record(requests=[], gaps=GapSamples(), window_s=None, usage=[], **idle)
    given: dict[str, Any] = {"goodput_ms": {"ttft_ms": 1.0}, "num_warmups": 1}
    found = summarise(nothing, **given)
    assert found.keys() == summarise(record(), **given).keys()
    assert {key: value for key, value in found.items() if value is not None} == {
        **dict.fromkeys(("num_prompts", "completed", "censored", "rejected_requests", "preemptions", "duration"), 0),
        **dict.fromkeys(("total_input_tokens", "total_output_tokens", "effective_requests"), 0),
        **dict.fromkeys(("prefix_cache_hit_tokens", "mean_queue_depth", "max_queue_depth", "max_kv_gb"), 0),
        **{f"spec_decode_{name}": 0 for name in ("num_drafts", "draft_tokens", "accepted_tokens")},
        **{key: {} for key in ("slo_classes", "num_works", "stream_utilization", "kind_utilization")},
        "policy": "pdv",
        "seed": 7,
        "engine": "vllm-0.24",
        "async_scheduling": True,
        "caps": {"max_num_seqs": 256, "verify_batch": None},
        "partition": {"prefill": 0.4, "decode": 0.6},
        "num_gpus": 2,
        "slo_attainment": {"ttft_ms": None, "all": None},
        "weight_gb": 15.0,
    }


def test_the_cool_down_is_left_out_and_throughput_is_of_what_ends_before_it_begins() -> None:
    """One warms up and two cool down: measured are 1 and 2, which come from 2 to 6 s. In between requests 0 and 1 end,
    and half of the three tokens of 0 behind its first come, and all six of 1. 3 and 4 keep the machine full."""
    times_s = [(0, 0, 1, 3), (2, 2, 3, 5), (6, 6, 7, 8), (7, 7, 8, 9), (7.5, 7.5, 8.5, 10)]
    tokens = (4, 6, 9, 5, 5)
    served = [asked(index, times_s[index], (100, count)) for index, count in enumerate(tokens)]
    result = summarise(record(requests=served, end_s=10.0), num_warmups=1, num_cooldowns=2)
    assert (result["num_prompts"], result["completed"], result["total_output_tokens"]) == (2, 2, 15)
    assert result["mean_e2el_ms"] == pytest.approx((3000 + 2000) / 2)
    assert result["duration"] == pytest.approx(4.0)
    assert result["request_throughput"] == pytest.approx(2 / 4)
    assert result["output_throughput"] == result["steady_output_throughput"] == pytest.approx(7.5 / 4)
    assert result["total_token_throughput"] == pytest.approx(207.5 / 4)


def test_requests_that_outlast_the_last_arrival_have_their_throughput_up_to_their_end() -> None:
    """Three arrive within a second and end at 4, 5 and 6 s; the last one cools down."""
    served = [asked(index, (index / 2, index / 2, 1 + index / 2, 4 + index), (100, 4)) for index in range(3)]
    result = summarise(record(requests=served, end_s=6.0), num_cooldowns=1)
    assert result["completed"] == 2
    assert result["request_throughput"] == pytest.approx(2 / 5)


def test_a_run_without_a_prefix_cache_has_no_hit_rate() -> None:
    found = summarise(record(cache_block_tokens=None))
    assert (found["prefix_cache_hit_tokens"], found["prefix_cache_hit_rate"]) == (None, None)


@pytest.mark.parametrize(
    ("bounds_ms", "num_good"),
    [
        ({"ttft_ms": 4000.0}, 3),
        ({"ttft_ms": 3999.0}, 2),
        ({"ttft_ms": 20_000.0}, 4),
        ({"tpot_ms": 2700.0}, 3),
        ({"tpot_ms": 2000.0}, 3),
        ({"tpot_ms": 1999.0}, 2),
        ({"tpot_ms": 999.0}, 1),
        ({"tpot_ms": 0.0}, 1),
        ({"e2el_ms": 10_000.0}, 3),
        ({"e2el_ms": 9999.0}, 2),
        ({"ttft_ms": 2000.0, "tpot_ms": 1000.0}, 0),
        ({"ttft_ms": 3000.0, "tpot_ms": 1000.0, "e2el_ms": 3000.0}, 1),
    ],
)
def test_goodput_counts_what_meets_each_bound_exactly_or_better(bounds_ms: dict[str, float], num_good: int) -> None:
    """Of TTFT 2, 3, 4, 7 s, TPOT 2, none, 1, 3 s and E2EL 10, 3, 5, 34 s; what is unfinished is never good."""
    result = summarise(record(), num_warmups=2, goodput_ms=bounds_ms)
    assert result["request_goodput"] == pytest.approx(num_good / 40)
    assert result["slo_attainment"]["all"] == num_good / 4


def test_without_bounds_there_is_no_goodput() -> None:
    for bounds_ms in (None, {}, {"ttft_ms": None}):
        result = summarise(record(), goodput_ms=bounds_ms)
        assert (result["request_goodput"], result["slo_attainment"]) == (None, {})


def test_without_warm_ups_the_run_counts_from_its_start() -> None:
    result = summarise(record())
    assert (result["num_prompts"], result["completed"], result["censored"]) == (7, 5, 2)
    assert (result["duration"], result["preemptions"]) == (50.0, 4)
    assert result["spec_decode_draft_tokens"] == 52


LATE = [(0, (0, 0, 2, 6), (10, 10)), (1, (1, 6, 7, 11), (10, 10))]
STEADY: list[tuple[list[Any], float, bool, float | None]] = [
    # All arrive at once.
    ([(0, (3, 3, 4, 5), (10, 4)), (1, (3, 3, 4, 6), (10, 4))], 50.0, True, None),
    ([(0, (3, 3, 4, 5), (10, 4))], 50.0, True, None),
    # From 3 to 7 s come all 4 tokens of one request, and the first of the other with half of the 3 behind it; the last
    # arrival of 12 s comes after the end of the run.
    (
        [(0, (3, 3, 4, 5), (10, 4)), (1, (4, 4, 6, 8), (10, 4)), (2, (12, 12, 13, 14), (10, 4))],
        7.0, True, (4 + 1 + 1.5) / 4,
    ),
    # No request ends between the arrivals at 0 and 10 s; the first tokens of both come there, and 7 of the 14 others of
    # the first.
    ([(0, (0, 0, 3, 17), (10, 15)), (1, (10, 10, 10, 30), (10, 3))], 30.0, True, (1 + 7 + 1) / 10),
    # Overload: arrivals end at 1 s, when nothing has come yet; 20 tokens come until 11 s.
    (LATE, 11.0, True, 20 / 11),
    (LATE, 11.0, False, 0.0),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "end_s", "is_open_loop", "per_s"), STEADY)
def test_steady_output_is_between_the_first_and_the_last_arrival(
    rows: list[Any], end_s: float, is_open_loop: bool, per_s: float | None
) -> None:
    found = summarise(record(requests=[asked(*row) for row in rows], end_s=end_s, is_open_loop=is_open_loop))
    assert found["steady_output_throughput"] == (None if per_s is None else pytest.approx(per_s))


def test_nothing_is_rejected_where_nothing_was_drafted_or_computed() -> None:
    undrafted = [asked(0, (0, 0, 1, 4), (10, 4))]
    assert summarise(record(requests=undrafted))["rejected_token_share"] is None
    assert summarise(record(usage=[]))["rejected_token_share"] is None


def test_rejected_tokens_waste_no_more_than_the_whole_verify() -> None:
    """38 tokens were rejected, more than verify computed after the drafts were cut."""
    result = summarise(record(usage=[usage("a", "prefill", 1, 5.0, 9), usage("a", "verify", 1, 5.0, 10)]))
    assert result["rejected_token_share"] == pytest.approx(5.0 / 10.0)


def test_the_details_of_every_request() -> None:
    assert detailed(record()) == {
        "start_times": [0, 1, 10, 11, 12, 13, 20],
        "input_lens": [1000, 50, 100, 200, 300, 400, 500],
        "output_lens": [7, 2, 5, 1, 2, 10, 3],
        "ttfts": [6, None, 2, 3, 4, 7, None],
        "tpots": [1, None, 2, None, 1, 3, None],
        "e2els": [12, None, 10, 3, 5, 34, None],
    }
