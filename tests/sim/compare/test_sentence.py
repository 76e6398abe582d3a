"""The sentence of a comparison: who is fastest, and nobody whose order can flip."""

from __future__ import annotations

from itertools import combinations

import pytest

from sim.compare.verdict import Pair, Served, verdict
from sim.metrics.load import Load, Verdict

STABLE = Load(verdict=Verdict.STABLE, rate_per_s=2.0)
OVERLOADED = Load(verdict=Verdict.OVERLOADED, rate_per_s=2.0)
MEANS = {"autoregressive": 629.0, "continuous": 531.0, "pd": 545.0, "pdv": 650.0}


def served(name: str, load: Load = STABLE, by_overlap_ms: tuple[float, ...] = ()) -> Served:
    return Served(name, MEANS[name], load, name != "autoregressive", by_overlap_ms)


def pairs(**changed: Pair) -> list[Pair]:
    """By the means, apart from those of `changed`, as a_b."""
    found = []
    for b, a in combinations(MEANS, 2):
        order = "lower" if MEANS[a] < MEANS[b] else "higher"
        found.append(changed.get(f"{a}_{b}", Pair(a, b, order)))
    return found


def test_the_fastest_policy_is_named_with_what_it_gains_over_no_speculation() -> None:
    """545 is 2.6 % above 531; 629 less 531 is 15.6 % of 629."""
    flips = Pair("pdv", "autoregressive", "depends on overlap", (40.0, -40.0), 0.09)
    assert verdict([served(name) for name in MEANS], pairs(pdv_autoregressive=flips)) == (
        "continuous serves fastest: mean E2EL 531 ms, 16 % under no speculation; pd within 3 %; "
        "whether pdv is under no speculation depends on overlap (phi* 0.09)"
    )


@pytest.mark.parametrize(("order", "why"), [("depends on overlap", "overlap (phi* 0.12)"), ("same", "no difference")])
def test_no_winner_is_named_whose_order_against_another_is_open(order: str, why: str) -> None:
    open_pair = Pair("pd", "continuous", order, (7.0, -17.0), 0.12 if order != "same" else None)
    text = verdict([served(name) for name in MEANS], pairs(pd_continuous=open_pair))
    head = text.partition(";")[0]
    assert "continuous serves fastest" not in text
    assert "continuous and pd serve" in head
    assert why in head
    assert text.endswith("against continuous, pdv 22 % slower")


def test_how_far_behind_a_policy_is_spans_the_bracket_of_overlap() -> None:
    """From 119 to 319 ms more than 531."""
    spread = Pair("pdv", "continuous", "higher", (319.0, 119.0))
    text = verdict([served("continuous"), served("pdv")], [spread])
    assert text.endswith("pdv 22 to 60 % slower")


def test_an_overloaded_policy_is_no_winner_however_low_its_mean() -> None:
    text = verdict([served("continuous", OVERLOADED), served("pd"), served("pdv")], pairs())
    assert text == "pd serves fastest: mean E2EL 545 ms; pdv 19 % slower; continuous is overloaded"
    assert verdict([served("pd", OVERLOADED)], []) == "pd is overloaded"


def test_one_run_names_the_lowest_mean_and_no_winner() -> None:
    text = verdict([served("continuous"), served("pd")], [Pair("pd", "continuous", "none")])
    assert text.startswith("continuous has the lowest mean E2EL, 531 ms, in one run")
