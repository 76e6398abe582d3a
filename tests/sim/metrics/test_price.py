"""Prices as people quote them: whose they are, and what they are refused for."""

from __future__ import annotations

import pytest

from sim.metrics.price import GPU, REPLICA, Price


@pytest.mark.parametrize(
    ("text", "price"),
    [
        ("3.5/gpu-h", Price(3.5, GPU)),
        (" $3.5/replica-h ", Price(3.5, REPLICA)),
        ("3.5/h", Price(3.5, None)),
        ("3.5", Price(3.5, None)),
        ("0/h", Price(0.0, None)),
    ],
)
def test_a_price_is_read_with_whose_it_is(text: str, price: Price) -> None:
    assert Price.of_text(text) == price


@pytest.mark.parametrize(
    ("price", "alone_usd", "four_usd"), [(Price(3.5, GPU), 3.5, 14.0), (Price(3.5, REPLICA), 3.5, 3.5)]
)
def test_a_replica_costs_its_gpus_or_what_a_replica_costs(price: Price, alone_usd: float, four_usd: float) -> None:
    assert (price.of_replica(1), price.of_replica(4)) == (alone_usd, four_usd)


def test_a_price_of_nobody_is_that_of_a_replica_of_one_gpu_alone() -> None:
    assert Price(3.5, None).of_replica(1) == Price(3.5, GPU).of_gpu() == Price(3.5, None).of_gpu() == 3.5
