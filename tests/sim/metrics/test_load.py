"""The load verdict: the nominal rate beside the saturated throughput, and when a saturated run is needed at all."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from sim.interface.request import Request
from sim.metrics.load import SHORT_RUN_ERROR, needs_capacity, saturated_throughput
from sim.metrics.records import RunRecord, StreamUsage
from tests.sim.metrics.test_summary import asked
from tests.sim.metrics.test_summary import record as of_summary

ONE_TOKEN = (1.0, 1.0)


def served(
    index: int, arrival_s: float, scheduled_s: float, last_s: float, first_s: float | None = None,
    tokens: tuple[int, int] = (1, 1),
) -> Request:  # fmt: skip
    return asked(index, (arrival_s, scheduled_s, last_s if first_s is None else first_s, last_s), tokens)


def used(stream: str, device: str, device_s: float) -> StreamUsage:
    return StreamUsage(stream=stream, device=device, kind="step", num_works=1, device_s=device_s, tokens=1)


def record(requests: list[Request], *, busy_s: float, end_s: float) -> RunRecord:
    return of_summary(requests=requests, usage=[], device_busy_s=busy_s, end_s=end_s)


def test_a_server_of_one_second_serves_one_request_a_second() -> None:
    """Two at once, each in service for 2 s, in two phases: 1 request/s in every stretch."""
    requests = [served(i, 0.0, i * 1.0, i * 1.0 + 2.0) for i in range(40)]
    rate, (low, high) = saturated_throughput(requests, 2, ONE_TOKEN)
    assert rate == pytest.approx(1.0)
    assert (low, high) == (pytest.approx(1.0 - SHORT_RUN_ERROR), pytest.approx(1.0 + SHORT_RUN_ERROR))


def test_waves_of_completions_do_not_widen_the_interval() -> None:
    """Ten at once for 5 s, again and again: 2 requests/s, whatever part of a wave a stretch ends in."""
    requests = [served(i, 0.0, i // 10 * 5.0, i // 10 * 5.0 + 5.0) for i in range(60)]
    rate, (low, high) = saturated_throughput(requests, 10, ONE_TOKEN)
    assert rate == pytest.approx(2.0)
    assert (high - low) / 2.0 == pytest.approx(SHORT_RUN_ERROR * rate)


def test_requests_that_happen_to_be_short_tell_the_throughput_of_those_as_long_as_the_workload() -> None:
    """One at a time, 1 s per 100 prompt tokens and 0.1 s per output token after the first."""
    requests, now_s = [], 0.0
    for i in range(60):
        prompt_tokens, output_tokens = 100 + 20 * (i % 7), 11 + 3 * (i % 5)
        first_s = now_s + prompt_tokens / 100.0
        last_s = first_s + 0.1 * (output_tokens - 1)
        requests.append(served(i, 0.0, now_s, last_s, first_s, (prompt_tokens, output_tokens)))
        now_s = last_s
    rate, _ = saturated_throughput(requests, 1, (400.0, 61.0))
    assert rate == pytest.approx(1.0 / (4.0 + 6.0))


def test_a_run_that_never_saturates_gives_no_upper_bound() -> None:
    requests = [served(i, 0.0, 0.0, 5.0) for i in range(3)]
    assert saturated_throughput(requests, 3, ONE_TOKEN) == (3 / 5.0, (0.0, inf))


def test_a_busy_device_or_a_growing_queue_puts_stability_in_doubt() -> None:
    calm = [served(i, i * 1.0, i * 1.0, i + 0.5) for i in range(40)]
    growing = [served(i, i * 1.0, i * 2.0, i * 2.0 + 2.0) for i in range(80)]
    assert not needs_capacity(record(calm, busy_s=24.0, end_s=40.0))
    assert needs_capacity(record(calm, busy_s=24.1, end_s=40.0))
    assert needs_capacity(record(growing, busy_s=10.0, end_s=160.0))
    assert not needs_capacity(record([], busy_s=0.0, end_s=0.0))


@pytest.mark.parametrize("busy_s", [24.0, 24.1])
def test_the_busiest_of_several_devices_puts_stability_in_doubt(busy_s: float) -> None:
    """A pool of six that prefill and one that decodes: 24 of 40 s."""
    calm = record([served(i, i * 1.0, i * 1.0, i + 0.5) for i in range(40)], busy_s=4.0, end_s=40.0)
    usage = [used("prefill0", "0", 2.0), used("decode0", "1", 12.0), used("decode0", "1", busy_s - 12.0)]
    assert needs_capacity(replace(calm, usage=usage)) == (busy_s > 24.0)
