"""The sentence of a comparison: who is fastest, and nobody whose order can flip."""

from __future__ import annotations

from itertools import combinations

import pytest

from sim.compare.verdict import HANGS_ON, METRIC, Order, Paired, PolicySummary, judged
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
    """545 is 2.6 % above 531, 650 is 22 %, and 629 less 531 is 15.6 % of 629."""
    flips = pair("pdv", "autoregressive", "depends on overlap", (40.0, -40.0), 0.09)
    assert verdict([served(name) for name in MEANS], pairs(pdv_autoregressive=flips)) == (
        "Continuous is fastest: latency 0.531 s, 16 % below no speculation (0.629 s).\n"
        "pd is 3 % slower and pdv is 22 % slower.\n"
        "Whether pdv beats no speculation depends on how well two streams overlap."
    )


@pytest.mark.parametrize(
    ("order", "says"),
    [
        ("the same", "Continuous and pd are the same"),
        ("too close to call", "Continuous and pd are too close to call"),
        ("not enough runs", "Not enough runs to order continuous and pd"),
        ("depends on overlap", "Continuous and pd are too close to call"),
        ("depends on draws", "Continuous and pd are too close to call"),
        ("depends on replays", "Continuous and pd are too close to call"),
        ("none", "Continuous and pd are too close to call"),
    ],
)
def test_no_winner_is_named_whose_order_against_another_is_open(order: str, says: str) -> None:
    """pd is beside the lowest mean, and pdv behind it."""
    open_pair = pair("pd", "continuous", order, (7.0, -17.0), 0.12 if order == "depends on overlap" else None)
    text = verdict([served(name) for name in MEANS], pairs(pd_continuous=open_pair))
    assert "fastest" not in text
    first, second, *last = text.splitlines()
    assert first.startswith(f"{says}: latency 0.531")
    assert second == "Against continuous, no speculation is 18 % slower and pdv is 22 % slower."
    why = HANGS_ON.get(Order(order))
    is_open = order.startswith("depends") or order == "none"
    assert last == ([f"The order of continuous and pd depends on {why}."] if is_open else [])


def test_an_overloaded_policy_is_no_winner_however_low_its_mean() -> None:
    text = verdict([served("continuous", OVERLOADED), served("pd"), served("pdv")], pairs())
    assert text == "pd is fastest: latency 0.545 s.\npdv is 19 % slower.\nContinuous is overloaded."
    assert verdict([served("pd", OVERLOADED)], []) == "pd is overloaded."


def test_where_none_keeps_up_a_rate_is_named_that_all_can_serve() -> None:
    """0.8 of the lowest end."""
    served_per_s = {"continuous": (0.9, (0.86, 0.94)), "pd": (1.1, (1.0, 1.2))}
    loads = {
        name: Load(verdict=Verdict.OVERLOADED, rate_per_s=2.0, capacity_per_s=per_s, ci95=ends)
        for name, (per_s, ends) in served_per_s.items()
    }
    assert verdict([served(name, load) for name, load in loads.items()], pairs()) == (
        "Continuous and pd are overloaded: 2 requests/s arrive, 0.9 to 1.1 can be served.\n"
        "Try --request-rate 0.69. Both can serve that."
    )
    one = verdict([served("continuous", loads["continuous"]), served("pdv")], pairs())
    assert "Try" not in one
    fast = Load(verdict=Verdict.OVERLOADED, rate_per_s=400.0, capacity_per_s=180.0, ci95=(172.0, 188.0))
    assert "Try --request-rate 140. It" in verdict([served("pd", fast)], [])


def test_of_many_slower_policies_the_nearest_and_the_last_are_named() -> None:
    rows = [row("continuous", 100.0), row("pd", 104.0), row("unified", 130.0), row("baseline", 500.0)]
    orders = [pair(a.policy, b.policy, "higher") for b, a in combinations(rows, 2)]
    assert verdict(rows, orders).splitlines()[1] == (
        "The nearest of 3 others is pd (4 % slower) and the last baseline (5.0 times as long)."
    )


def test_no_speculation_may_be_fastest() -> None:
    fast = row("autoregressive", 80.25)
    text = verdict([fast, served("continuous")], [pair("continuous", "autoregressive", "higher")])
    assert text == "No speculation is fastest: latency 80.2 ms.\nContinuous takes 6.6 times as long."


def test_policies_without_a_steady_mean_are_listed_by_why() -> None:
    undecided = Load(verdict=Verdict.UNDECIDED, rate_per_s=2.0)
    burst = Load(verdict=Verdict.BURST, rate_per_s=None)
    nothing = row("unified", None)
    rows = [served("continuous", OVERLOADED), served("pd", OVERLOADED), served("pdv", undecided), nothing]
    assert verdict(rows, []) == (
        "Continuous and pd are overloaded.\npdv is too near capacity for a mean.\nUnified: no request is served."
    )
    assert verdict([served("pd", burst)], []) == "pd is given all requests at once, so means depend on their number."
