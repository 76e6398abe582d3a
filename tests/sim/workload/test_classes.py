"""Classes of requests: drawn by seed and index, admitted by priority, judged each by its own bounds."""

from __future__ import annotations

from typing import Any

import pytest

from sim.costs.profile_files import load
from sim.metrics.summary import summarise
from sim.policies.registry import POLICIES, PolicyOptions
from sim.run.resolve import resolve
from sim.run.scenario import Scenario
from sim.run.simulate import simulate
from sim.workload.classes import SloClass, assign_classes
from tests.sim.support import SimRun, request

CHAT = {"name": "chat", "share": 0.25, "priority": 1, "ttft_ms": 400.0}
BATCH = {"name": "batch", "share": 0.75, "e2el_ms": 60_000.0}


def scenario(policy: Any, **changes: Any) -> Scenario:
    given = {
        "profile": "cpu/tiny",
        "policy": policy,
        "num_prompts": 60,
        "request_rate": 60,
        "slo_classes": [CHAT, BATCH],
    }
    return Scenario.of(**(given | changes))


def test_a_class_is_a_matter_of_seed_and_index_alone() -> None:
    classes = [SloClass(**CHAT), SloClass(**BATCH)]  # type: ignore[arg-type]
    all_of_them, later = [request(i) for i in range(2000)], [request(i) for i in range(1000, 2000)]
    assign_classes(all_of_them, classes, 7)
    assign_classes(later, classes, 7)
    named = [each.slo_class for each in all_of_them]
    assert named[1000:] == [each.slo_class for each in later]
    assert named.count("chat") / 2000 == pytest.approx(0.25, abs=0.03)
    assert {(each.slo_class, each.priority) for each in later} == {("chat", 1), ("batch", 0)}


def test_the_higher_priority_is_admitted_first_and_equals_in_order() -> None:
    """One seat: while 0 is served 1 to 4 arrive, of which 2 and 4 go first."""
    asked = [request(i, arrival_s=float(i), output=1) for i in range(5)]
    for index in (2, 4):
        asked[index].priority = 1
    SimRun("baseline", asked, options=PolicyOptions(workers=1))
    order = sorted(asked, key=lambda each: each.scheduled_s)
    assert [each.index for each in order] == [0, 2, 4, 1, 3]


@pytest.mark.parametrize("policy", POLICIES)
def test_under_every_policy_the_class_of_priority_waits_less_when_seats_are_few(policy: str) -> None:
    given = scenario(policy, **{"engine.max_num_seqs": 4})
    record = simulate(resolve(given, load("cpu/tiny"), policy), 0)
    found: Any = summarise(record)["slo_classes"]
    assert found["chat.mean_ttft_ms"] < found["batch.mean_ttft_ms"]
    assert found["chat.num_prompts"] + found["batch.num_prompts"] == 60


def test_each_class_is_judged_by_its_own_bounds() -> None:
    record = simulate(resolve(scenario("pd"), load("cpu/tiny"), "pd"), 0)
    found: Any = summarise(record)["slo_classes"]
    own = [each for each in record.requests if each.slo_class == "chat"]
    good = sum((each.first_token_s - each.arrival_s) * 1e3 <= 400.0 for each in own)
    assert found["chat.slo_attainment"] == pytest.approx(good / len(own))
    assert found["chat.request_goodput"] == pytest.approx(good / record.end_s)


@pytest.mark.parametrize("num_cooldowns", [0, 20])
def test_goodput_of_all_requests_is_that_of_a_class_of_all(num_cooldowns: int) -> None:
    """Requests come much faster than they are served, so few end before the last one that is measured comes."""
    bounds = {"ttft_ms": 1e6}
    asked = scenario("continuous", request_rate=300, slo_classes=[{"name": "all", "share": 1.0} | bounds])
    record = simulate(resolve(asked, load("cpu/tiny"), "continuous"), 0)
    found: Any = summarise(record, goodput_ms={**bounds}, num_warmups=10, num_cooldowns=num_cooldowns)
    assert found["slo_classes"]["all.request_goodput"] == found["request_goodput"]
