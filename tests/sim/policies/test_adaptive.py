"""Adaptive: a row of its table is the policy itself, and rows change with the load."""

from __future__ import annotations

from pathlib import Path

import pytest

import sim.run.scenario as scenario_module
from sim.costs.profile_files import load
from sim.metrics.summary import summarise
from sim.policies.options import EngineLimits
from sim.policies.registry import PolicyOptions
from sim.run.resolve import resolve
from sim.run.scenario import Scenario
from sim.run.simulate import simulate
from tests.sim.hosts.test_contract import outcome, requests
from tests.sim.support import AlwaysAccept, SimRun, most_in_flight, request


def parts(run: SimRun) -> dict[int, set[str]]:
    """Policies that had a hand in each request."""
    found: dict[int, set[str]] = {}
    for ticket in run.tickets:
        for row in ticket.work.requests:
            found.setdefault(row.index, set()).add(ticket.stream.name.rpartition(".")[2])
    return found


@pytest.mark.parametrize("policy", ["baseline", "pd", "pdv", "unified"])
def test_a_table_of_one_row_is_that_policy(policy: str) -> None:
    own = PolicyOptions(poll_s=0.0)
    ours = PolicyOptions(poll_s=0.0, adaptive_table=((1, policy),))
    assert outcome(SimRun("adaptive", requests(), options=ours).serving.requests) == outcome(
        SimRun(policy, requests(), options=own).serving.requests
    )


def test_a_request_stays_with_the_policy_of_the_load_that_it_met() -> None:
    """Three at once, one after they are through: the third finds three and goes to the other row."""
    asked = [request(i) for i in range(3)] + [request(3, arrival_s=1000.0)]
    options = PolicyOptions(poll_s=0.0, adaptive_table=((1, "pd"), (3, "unified")))
    run = SimRun("adaptive", asked, draws=AlwaysAccept(), options=options)
    assert parts(run) == {0: {"pd"}, 1: {"pd"}, 2: {"unified"}, 3: {"pd"}}
    assert run.serving.is_all_finished


def test_the_seats_are_those_of_all_parts_together() -> None:
    asked = [request(i) for i in range(5)]
    options = PolicyOptions(poll_s=0.0, adaptive_table=((1, "pd"), (2, "unified")))
    run = SimRun("adaptive", asked, draws=AlwaysAccept(), options=options, limits=EngineLimits(max_num_seqs=2))
    assert most_in_flight(asked) == 2
    assert run.serving.is_all_finished
    assert run.serving.queue.peak == 4 - 1


def test_the_target_decides_which_of_the_seeds_tables_it_is() -> None:
    for profile, parts_wanted in [
        ("a100-sxm/codellama-34b+tinyllama-1.1b", {"unified"}),
        ("a100-sxm/llama-2-7b+tinyllama-1.1b", {"pd"}),
    ]:
        given = Scenario.of(
            profile=profile, policy="adaptive", num_prompts=3, request_rate=0.1, input_len=64, output_len=8
        )
        record = simulate(resolve(given, load(profile), "adaptive"), 0, record_works=True)
        assert {work.stream.rpartition(".")[2] for work in record.works} == parts_wanted


SCENARIOS = Path(scenario_module.__file__).parent.parent / "scenarios"


@pytest.mark.parametrize(("concurrency", "wanted"), [(8, "pd"), (40, "pdv")])
def test_the_shipped_calibrated_table_follows_the_better_lane_at_either_end(concurrency: int, wanted: str) -> None:
    """On closed loops below and above its edge `adaptive` is the better fixed policy, but for the few requests that
    come while the loop fills."""
    given = Scenario.of(
        SCENARIOS / "adaptive-calibrated.yaml",
        num_prompts=8 * concurrency,
        num_warmups=concurrency,
        request_rate="inf",
        max_concurrency=concurrency,
    )
    profile = load(given.profile)

    def tokens_per_s(policy: str) -> float:
        run = summarise(simulate(resolve(given, profile, policy), 0), num_warmups=concurrency)
        found = run["steady_output_throughput"]
        assert isinstance(found, float)
        return found

    found = {policy: tokens_per_s(policy) for policy in ("adaptive", "pd", "pdv")}
    assert max(("pd", "pdv"), key=lambda policy: found[policy]) == wanted
    assert found["adaptive"] == pytest.approx(found[wanted], rel=0.03)
