"""Links: what a report measured comes back, and names are checked."""

from __future__ import annotations

import pytest

from sim.devices.link import LINKS, link_of
from sim.interface.work import Kind, Work

KV_BYTES = 57_344
"""Per token of Qwen2.5-7B: 28 layers, 4 KV heads of 128, keys and values in bf16."""


@pytest.mark.parametrize(("tokens", "megabytes", "seconds"), [(512, 29, 0.099), (2048, 117, 0.350)])
def test_the_seeds_transfers_over_tcp_take_the_time_they_took(tokens: int, megabytes: int, seconds: float) -> None:
    num_bytes = tokens * KV_BYTES
    assert num_bytes / 1e6 == pytest.approx(megabytes, rel=0.02)
    took_s = link_of("tcp").cost(Work(kind=Kind.COPY, num_bytes=num_bytes)).device_s
    assert took_s == pytest.approx(seconds, rel=0.01)


def test_a_handle_takes_a_millisecond_for_much_and_for_little() -> None:
    little, much = (LINKS["cuda-ipc"].cost(Work(kind=Kind.COPY, num_bytes=size)).device_s for size in (1, 10**12))
    assert little == much == 1e-3


def test_a_link_can_be_given_by_its_two_constants() -> None:
    link = link_of("2:10")
    assert (link.latency_s, link.bytes_per_s) == (0.002, 10e9)
