"""What is made of a store's rows: means and intervals, differences draw by draw, who is best and how clearly."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from sim.compare.side_by_side import MIN_FOR_P99
from sim.metrics.stats import interval_95
from sim.report.store_points import ACCEPTANCE, RATE, StorePoints

METRIC = "mean_e2el_ms"


def row(policy: str, rate: float, seed: int, value: float, **more: Any) -> dict[str, Any]:
    return {
        "scenario_hash": f"{policy} {rate} {more.get(ACCEPTANCE)}",
        "policy": policy,
        "profile": "gpu/model",
        "seed": seed,
        RATE: rate,
        METRIC: value,
        "unstable": False,
        "is_steady": True,
        "error": None,
    } | more


def points(*rows: dict[str, Any]) -> StorePoints:
    return StorePoints(frame=pd.DataFrame(rows))


def test_means_have_the_interval_of_their_replications_unless_the_load_is_not_steady() -> None:
    values = [10.0, 12.0, 17.0]
    rows = [row("pd", 1.0, seed, value) for seed, value in enumerate(values)]
    found = points(*rows, *(each | {"scenario_hash": "x", RATE: 2.0, "is_steady": False} for each in rows)).means(
        [METRIC]
    )
    assert found[METRIC].tolist() == [13.0, 13.0]
    assert (found[f"{METRIC}.low"][0], found[f"{METRIC}.high"][0]) == interval_95(values)
    assert (found[f"{METRIC}.low"][1], found[f"{METRIC}.high"][1]) == (13.0, 13.0)


def test_a_99th_percentile_has_an_interval_only_of_as_many_requests_as_a_comparison_wants() -> None:
    tail = "p99_ttft_ms"
    few, many = ({"effective_requests": count / 2} for count in (MIN_FOR_P99 - 2, MIN_FOR_P99))
    rows = [row("pd", 1.0, seed, 10.0, **{tail: 30.0 + seed}, **few) for seed in range(2)]
    rows += [row("pd", 2.0, seed, 10.0, **{tail: 30.0 + seed}, **many) for seed in range(2)]
    found = points(*rows).means([METRIC, tail])
    assert found[tail].tolist() == [30.5, 30.5]
    assert (found[f"{tail}.low"][0], found[f"{tail}.high"][0]) == (30.5, 30.5)
    assert (found[f"{tail}.low"][1], found[f"{tail}.high"][1]) == interval_95([30.0, 31.0])


def test_differences_are_taken_draw_by_draw() -> None:
    """Both differ widely between draws, and by exactly a tenth in each."""
    rows = [row("a", 1.0, seed, value) for seed, value in ((3, 100.0), (1, 300.0))]
    rows += [row("b", 1.0, seed, value) for seed, value in ((1, 320.0), (3, 120.0))]
    (change,) = points(*rows).paired(METRIC).to_dict("records")
    assert (change["policy"], change["change_pct"]) == ("b", pytest.approx(10.0))
    assert (change["low"], change["high"]) == (pytest.approx(10.0), pytest.approx(10.0))
    assert change["is_clear"]
    assert not change["is_open"]


@pytest.mark.parametrize(
    ("more", "is_open"),
    [
        ([{f"{METRIC}_if_phi_low": 121.0}, {f"{METRIC}_if_phi_low": 122.0}], False),
        ([{f"{METRIC}_if_phi_low": 101.0}, {f"{METRIC}_if_phi_low": 80.0}], True),
        ([{"is_steady_throughout": False}] * 2, True),
    ],
)
def test_a_difference_is_open_where_an_end_of_the_bracket_denies_it_or_is_too_heavy(
    more: list[dict[str, Any]], is_open: bool
) -> None:
    rows = [row("a", 1.0, seed, 100.0) for seed in (1, 2)]
    rows += [row("b", 1.0, seed, 120.0 + seed, **each) for seed, each in zip((1, 2), more, strict=True)]
    (change,) = points(*rows).paired(METRIC).to_dict("records")
    assert (change["is_clear"], change["is_open"], change["is_overloaded"]) == (True, is_open, False)


def test_the_best_is_named_under_each_condition_among_those_that_keep_up() -> None:
    rows = []
    for acceptance, slow in (("iid:.5", 90.0), ("iid:.9", 110.0)):
        for seed in (1, 2):
            rows.append(row("a", 1.0, seed, 100.0 + seed, **{ACCEPTANCE: acceptance}))
            rows.append(row("b", 1.0, seed, slow + seed, **{ACCEPTANCE: acceptance}))
            rows.append(row("c", 1.0, seed, 1.0, **{ACCEPTANCE: acceptance}) | {"is_steady": False})
    low, high = points(*rows).ranked(METRIC)
    assert (low.condition, low.best, low.second) == ({ACCEPTANCE: "iid:.5"}, {"policy": "b"}, {"policy": "a"})
    assert (high.best, high.mean, high.num_settings, high.num_steady) == ({"policy": "a"}, 101.5, 3, 2)
    assert high.change is not None
    assert high.change["change_pct"] == pytest.approx(100.0 * 10.0 / 101.5)


def test_settings_that_are_the_same_run_are_no_second_best() -> None:
    rows = [row("a", 1.0, 1, 5.0), row("b", 1.0, 1, 5.0), row("c", 1.0, 1, 7.0)]
    (rank,) = points(*rows).ranked(METRIC)
    assert rank.second == {"policy": "c"}


def test_a_key_that_follows_from_another_is_none_of_its_own() -> None:
    lengths = {"gpu/a": 64.0, "gpu/b": None}
    rows = [
        row(policy, 1.0, 1, 5.0, profile=profile) | {"workload.input_len": length, "scenario_hash": policy + profile}
        for profile, length in lengths.items()
        for policy in ("a", "b")
    ]
    assert points(*rows).keys == ["policy", "profile"]


def test_points_are_chosen_by_the_value_of_a_key() -> None:
    both = points(row("a", 1.0, 1, 5.0), row("a", 2.0, 1, 5.0))
    assert both.where(RATE, 2.0).rows[RATE].tolist() == [2.0]
