"""Metrics of a hand-made record, and of runs whose numbers can be summed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from sim.engine.time_series import GapSamples
from sim.interface.request import Request
from sim.metrics.records import RunRecord, StreamUsage
from sim.metrics.stats import weighted_percentiles
from sim.metrics.summary import summarise


def finished(index: int, arrival_s: float, first_s: float, last_s: float, tokens: int, **counts: int) -> Request:
    return Request(
        index=index,
        id=str(index),
        arrival_s=arrival_s,
        prompt_tokens=100,
        output_tokens=tokens,
        emitted_tokens=tokens,
        first_token_s=first_s,
        last_token_s=last_s,
        **counts,
    )


def record(requests: list[Request], **changes: Any) -> RunRecord:
    gaps = GapSamples()
    gaps.add(0.5, 3)
    gaps.add(1.0)
    parts: dict[str, Any] = {
        "policy": "pd",
        "seed": 3,
        "requests": requests,
        "gaps": gaps,
        "end_s": 10.0,
        "window_s": None,
        "usage": [],
        "device_busy_s": 5.0,
        "num_polls": 0,
        "queue_mean": 0.0,
        "queue_peak": 0,
        "kv_tokens_mean": 50.0,
        "kv_tokens_peak": 100,
        "kv_capacity_tokens": 1000,
        "is_open_loop": True,
    }
    return RunRecord(**(parts | changes))


def test_latencies_are_vllms() -> None:
    result = summarise(record([finished(0, 1.0, 3.0, 7.0, 5), finished(1, 2.0, 3.0, 3.0, 1)]))
    assert result["mean_ttft_ms"] == pytest.approx((2000 + 1000) / 2)
    assert result["mean_tpot_ms"] == pytest.approx(1000.0)
    assert result["mean_e2el_ms"] == pytest.approx((6000 + 1000) / 2)
    assert result["mean_itl_ms"] == pytest.approx(2500 / 4)
    assert result["p99_itl_ms"] == pytest.approx(985.0)
    assert result["request_throughput"] == pytest.approx(0.2)
    assert result["output_throughput"] == pytest.approx(0.6)
    assert result["total_token_throughput"] == pytest.approx(20.6)


def test_goodput_counts_requests_that_meet_every_bound() -> None:
    requests = [finished(0, 0.0, 1.0, 5.0, 5), finished(1, 0.0, 1.0, 9.0, 5), finished(2, 0.0, 3.0, 4.0, 5)]
    result = summarise(record(requests), goodput_ms={"ttft_ms": 1500.0, "tpot_ms": 1500.0, "e2el_ms": None})
    assert result["request_goodput"] == pytest.approx(0.1)
    assert summarise(record(requests))["request_goodput"] is None


def test_acceptance_length_is_one_plus_accepted_per_draft() -> None:
    requests = [finished(0, 0.0, 1.0, 5.0, 5, num_rounds=4, drafted_tokens=16, accepted_tokens=7)]
    usage = [
        StreamUsage(stream="gpu", device="0", kind="draft", num_works=4, device_s=2.0, tokens=16),
        StreamUsage(stream="gpu", device="0", kind="verify", num_works=4, device_s=5.0, tokens=20),
        StreamUsage(stream="gpu", device="0", kind="prefill", num_works=1, device_s=3.0, tokens=100),
    ]
    result = summarise(record(requests, usage=usage))
    assert result["spec_decode_acceptance_length"] == pytest.approx(1 + 7 / 4)
    assert result["spec_decode_acceptance_rate"] == pytest.approx(100 * 7 / 16)
    assert result["rejected_token_share"] == pytest.approx((2.0 * 9 / 16 + 5.0 * 9 / 20) / 10.0)


def test_unfinished_requests_are_censored_and_the_window_is_told_both_ways() -> None:
    open_request = finished(1, 0.0, 1.0, 2.0, 3)
    open_request.output_tokens = 10
    result = summarise(record([finished(0, 0.0, 1.0, 5.0, 5), open_request], window_s=10.0))
    assert (result["completed"], result["censored"]) == (1, 1)
    assert result["throughput_completed_window"] == pytest.approx(0.5)
    assert result["throughput_emitted_window"] == pytest.approx(0.8)
    assert result["mean_e2el_ms"] == pytest.approx(5000.0)


def test_what_is_undefined_is_none_and_every_key_is_there() -> None:
    one_token = summarise(record([finished(0, 0.0, 1.0, 1.0, 1)], gaps=GapSamples()))
    full = summarise(record([finished(0, 1.0, 3.0, 7.0, 5)]))
    assert one_token["mean_tpot_ms"] is None
    assert one_token["mean_itl_ms"] is None
    assert one_token["spec_decode_acceptance_length"] is None
    assert set(one_token) == set(full)


def test_the_warm_up_is_left_out() -> None:
    requests = [finished(0, 0.0, 5.0, 9.0, 5), finished(1, 4.0, 5.0, 9.0, 5)]
    result = summarise(record(requests), num_warmups=1)
    assert result["completed"] == 1
    assert result["mean_ttft_ms"] == pytest.approx(1000.0)
    assert result["duration"] == pytest.approx(6.0)


def test_the_cool_down_is_left_out_and_throughput_is_of_what_ends_before_it_begins() -> None:
    """One warms up and two cool down: measured are 1 and 2, which come from 2 to 6 s. In between requests 0 and 1 end,
    and half of the three tokens of 0 behind its first come, and all six of 1. 3 and 4 keep the machine full."""
    requests = [finished(0, 0.0, 1.0, 3.0, 4), finished(1, 2.0, 3.0, 5.0, 6), finished(2, 6.0, 7.0, 8.0, 9)]
    requests += [finished(3, 7.0, 8.0, 9.0, 5), finished(4, 7.5, 8.5, 10.0, 5)]
    result = summarise(record(requests), num_warmups=1, num_cooldowns=2)
    assert (result["num_prompts"], result["completed"], result["total_output_tokens"]) == (2, 2, 15)
    assert result["mean_e2el_ms"] == pytest.approx((3000 + 2000) / 2)
    assert result["duration"] == pytest.approx(4.0)
    assert result["request_throughput"] == pytest.approx(2 / 4)
    assert result["output_throughput"] == result["steady_output_throughput"] == pytest.approx(7.5 / 4)
    assert result["total_token_throughput"] == pytest.approx(207.5 / 4)


def test_equal_gaps_in_a_row_are_stored_once() -> None:
    gaps = GapSamples()
    for gap_s in (0.25, 0.25, 0.5, 0.25):
        gaps.add(gap_s)
    assert (list(gaps.gaps_s), list(gaps.counts)) == ([0.25, 0.5, 0.25], [2, 1, 1])
    import numpy as np

    assert weighted_percentiles(np.array(gaps.gaps_s), np.array(gaps.counts, float), [50.0]) == [0.25]
