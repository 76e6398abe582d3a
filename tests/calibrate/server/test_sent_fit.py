"""Constants of a server by what was sent to it: a law that is known is found again."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from calibrate.judge.fit_cells import with_constants
from calibrate.server.levels import Accepted
from calibrate.server.open_loop import Sent
from calibrate.server.sent_fit import Round, fit_rounds, of_a_round, round_requests, with_price_of
from calibrate.server.server_line import line_of_server, lone_requests, price_of
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.interface.request import Request
from sim.run.resolve import resolve_all
from sim.run.scenario import Scenario, parse_scenario
from sim.run.simulate import simulate

TOKEN_S, STEP_S, ROW_S, FRONTEND_S, DRAFT_PASS_S = 1e-3, 0.02, 2e-4, 5e-3, 4e-3


def scenario(name: str, **engine: Any) -> Scenario:
    return parse_scenario(
        {
            "profile": name,
            "policy": "continuous",
            "engine": engine,
            "workload": {"num_prompts": 20, "request_rate": 2.0, "input_len": 100, "output_len": 24}
            | {"random_range_ratio": 0.5},
            "speculation": {"num_speculative_tokens": 0},
        }
    )


def served(given: Scenario, law: Profile, requests: list[Request], at_once: int) -> list[Sent]:
    """`requests` by a server whose law is the simulator's, at most so many in flight."""
    loop = structs.replace(given, workload=structs.replace(given.workload, request_rate=float("inf")))
    loop = structs.replace(loop, workload=structs.replace(loop.workload, max_concurrency=at_once))
    record = simulate(resolve_all(loop, law)[0], 0, requests=requests)
    return [
        Sent(
            index=each.index,
            due_s=0.0,
            sent_s=each.arrival_s,
            first_s=each.first_token_s,
            last_s=each.last_token_s,
            prompt_tokens=each.prompt_tokens,
            output_tokens=each.output_tokens,
        )
        for each in record.requests
    ]


def rounds_of(given: Scenario, law: Profile) -> list[Round]:
    return [
        Round(at_once=n, number=0, sent=served(given, law, round_requests(given, law, n, 0), n)) for n in (1, 2, 4, 8)
    ]


@pytest.mark.parametrize("plans_ahead", [False, True])
def test_a_line_is_found_again(plans_ahead: bool) -> None:
    """Not told whether it plans ahead: newcomers show it."""
    line = line_of_server()
    kernels = structs.replace(line.linear, target=structs.replace(line.linear.target, token_s=TOKEN_S))
    law = with_constants(structs.replace(line, kernels=kernels), {"gap_s": STEP_S, "frontend_s": FRONTEND_S})
    real = scenario(law.name, async_scheduling=plans_ahead)
    lone = served(real, law, lone_requests([50, 100, 150]), 1)
    given = scenario(law.name)
    priced = with_price_of(given, line, lone)
    assert priced.linear.target.token_s == pytest.approx(TOKEN_S, rel=1e-6)
    found = fit_rounds(given, priced, rounds_of(real, law))
    assert found.scenario.engine.async_scheduling is plans_ahead
    assert found.late_s < STEP_S  # Who comes in at the end of a step may miss the next one.
    for level in found.production.levels:
        assert level.errors_pct["tpot_ms"] == pytest.approx(0.0, abs=5.0)
        assert level.errors_pct["ttft_ms"] == pytest.approx(0.0, abs=10.0)


def test_a_pair_of_servers_tells_what_a_draft_pass_takes() -> None:
    """One drafts and the other does not: one profile is of both."""
    line = line_of_server()
    kernels = structs.replace(line.linear, target=structs.replace(line.linear.target, token_s=TOKEN_S))
    priced = structs.replace(line, kernels=kernels)
    law = with_constants(priced, {"step_s": STEP_S, "row_s": ROW_S, "draft_pass_s": DRAFT_PASS_S})
    plain = scenario(law.name, async_scheduling=False)
    accepted = Accepted(drafts=100.0, draft_tokens=3, rates=(0.7, 0.5, 0.3))
    speculation = structs.replace(plain.speculation, num_speculative_tokens=3, acceptance=accepted.quote)
    drafting = structs.replace(plain, speculation=speculation)
    drafted = [structs.replace(each, accepted=accepted) for each in rounds_of(drafting, law)]
    found = fit_rounds(drafting, priced, [*rounds_of(plain, law), *drafted])
    assert found.production.profile.host.draft_pass_s == pytest.approx(DRAFT_PASS_S, rel=0.15)
    for level in found.production.levels:
        assert level.errors_pct["tpot_ms"] == pytest.approx(0.0, abs=5.0)
    assert found.late_s < STEP_S


def test_layers_of_a_profile_are_corrected_where_prompts_cost_more() -> None:
    profile = load("cpu/tiny")
    law = with_constants(profile, {"ratio@25": 3.0})
    given = scenario(profile.name)
    lone = served(given, law, lone_requests([50, 100, 150]), 1)
    found = with_price_of(given, profile, lone).compact.body_ratios
    assert found[-1] == (25, pytest.approx(3.0, rel=0.02))


def test_layers_stay_where_the_profile_is_right_within_what_was_seen() -> None:
    profile = load("cpu/tiny")
    given = scenario(profile.name)
    lone = served(given, profile, lone_requests([50, 100, 150]), 1)
    noisy = [structs.replace(each, first_s=each.first_s + 1e-3 * (index % 3)) for index, each in enumerate(lone)]
    assert with_price_of(given, profile, noisy) == profile


def test_one_stall_does_not_bend_the_price() -> None:
    points = [(length, 0.02 + 1e-3 * length) for length in range(20, 140, 10)]
    points[3] = (points[3][0], 0.9)
    assert price_of(points).token_s == pytest.approx(1e-3, rel=0.02)


def test_prompts_of_one_length_tell_no_price() -> None:
    with pytest.raises(ValueError, match="no two prompts of different length"):
        price_of([(20, 0.1), (20, 0.2)])


def test_requests_of_a_round_are_none_of_the_scenarios_own() -> None:
    given = scenario("cpu/tiny")
    first, second = (round_requests(given, load("cpu/tiny"), 4, number) for number in (0, 1))
    assert len(first) == of_a_round(4)
    assert [each.output_tokens for each in first] != [each.output_tokens for each in second]
    assert {each.arrival_s for each in first} == {0.0}
