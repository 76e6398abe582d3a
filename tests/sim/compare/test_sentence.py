"""The sentence of a comparison: who is fastest, and nobody whose order can flip."""

from __future__ import annotations

from itertools import combinations

import pytest

from sim.compare.verdict import METRIC, Order, Paired, PolicySummary, judged
from sim.compare.verdict import verdict as sentence
from sim.metrics.load import Load, Verdict

STABLE = Load(verdict=Verdict.STABLE, rate_per_s=2.0)
OVERLOADED = Load(verdict=Verdict.OVERLOADED, rate_per_s=2.0)
MEANS = {"autoregressive": 629.0, "continuous": 531.0, "pd": 545.0, "pdv": 650.0}


def row(name: str, mean_ms: float | None, load: Load = STABLE, by_overlap_ms: tuple[float, ...] = ()) -> PolicySummary:
    """A policy with that mean E2EL, inside a bracket of overlap where that is given."""
    return PolicySummary(
        policy=name,
        load=load,
        unstable=False,
        mean={METRIC: mean_ms},
        ci95={},
        by_overlap={str(place): {METRIC: value} for place, value in enumerate(by_overlap_ms)},
    )


def served(name: str, load: Load = STABLE, by_overlap_ms: tuple[float, ...] = ()) -> PolicySummary:
    return row(name, MEANS[name], load, by_overlap_ms)


def pair(a: str, b: str, order: str, by_overlap_ms: tuple[float, ...] = (), phi: float | None = None) -> Paired:
    return Paired(
        a=a,
        b=b,
        metric=METRIC,
        difference=None,
        ci95=None,
        unstable=False,
        order=Order(order),
        by_overlap={str(place): value for place, value in enumerate(by_overlap_ms)},
        break_even_phi=phi,
    )


def verdict(rows: list[PolicySummary], pairs: list[Paired]) -> str:
    """All but `autoregressive` draft."""
    return sentence(judged(rows, pairs), pairs, [each.policy for each in rows if each.policy != "autoregressive"])


def pairs(**changed: Paired) -> list[Paired]:
    """By the means, apart from those of `changed`, as a_b."""
    found = []
    for b, a in combinations(MEANS, 2):
        order = "lower" if MEANS[a] < MEANS[b] else "higher"
        found.append(changed.get(f"{a}_{b}", pair(a, b, order)))
    return found


def test_the_fastest_policy_is_named_with_what_it_gains_over_no_speculation() -> None:
    """545 is 2.6 % above 531; 629 less 531 is 15.6 % of 629."""
    flips = pair("pdv", "autoregressive", "depends on overlap", (40.0, -40.0), 0.09)
    assert verdict([served(name) for name in MEANS], pairs(pdv_autoregressive=flips)) == (
        "continuous is fastest: mean E2EL 531 ms, 16 % shorter than without speculation. pd is 3 % slower. "
        "Whether pdv is faster than no speculation depends on overlap (phi* 0.09)"
    )


@pytest.mark.parametrize(
    ("order", "says"),
    [
        ("the same", "continuous and pd are the same"),
        ("too close to call", "continuous and pd are too close to call"),
        ("not enough runs", "Not enough runs to order continuous and pd"),
        ("depends on overlap", "continuous and pd are too close to call"),
        ("depends on draws", "continuous and pd are too close to call"),
        ("none", "continuous and pd are too close to call"),
    ],
)
def test_no_winner_is_named_whose_order_against_another_is_open(order: str, says: str) -> None:
    """pd is beside the lowest mean, and pdv behind it."""
    open_pair = pair("pd", "continuous", order, (7.0, -17.0), 0.12 if order == "depends on overlap" else None)
    text = verdict([served(name) for name in MEANS], pairs(pd_continuous=open_pair))
    assert "fastest" not in text
    assert text.startswith(f"{says}: mean E2EL 531")
    assert ("depends on overlap (phi* 0.12)" in text) is (order == "depends on overlap")
    assert ("depends on errors of costs and acceptance" in text) is (order == "depends on draws")
    assert text.endswith(". Against continuous, autoregressive (no speculation) is 18 % slower and pdv is 22 % slower")


def test_an_overloaded_policy_is_no_winner_however_low_its_mean() -> None:
    text = verdict([served("continuous", OVERLOADED), served("pd"), served("pdv")], pairs())
    assert text == "pd is fastest: mean E2EL 545 ms. pdv is 19 % slower. continuous is overloaded"
    assert verdict([served("pd", OVERLOADED)], []) == "pd is overloaded"


def test_no_speculation_may_be_fastest() -> None:
    fast = row("autoregressive", 80.25)
    text = verdict([fast, served("continuous")], [pair("continuous", "autoregressive", "higher")])
    assert text == "autoregressive (no speculation) is fastest: mean E2EL 80.2 ms. continuous takes 6.6 times as long"


def test_policies_without_a_steady_mean_are_listed_by_why() -> None:
    undecided = Load(verdict=Verdict.UNDECIDED, rate_per_s=2.0)
    burst = Load(verdict=Verdict.BURST, rate_per_s=None)
    nothing = row("unified", None)
    rows = [served("continuous", OVERLOADED), served("pd", OVERLOADED), served("pdv", undecided), nothing]
    assert verdict(rows, []) == (
        "continuous and pd are overloaded. pdv is so near capacity that no mean is stated. "
        "unified is without one request served"
    )
    assert verdict([served("pd", burst)], []) == "pd is given all requests at once: means depend on their number"
