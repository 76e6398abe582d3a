"""Constants of a server by what was sent to it: a law that is known is found again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from msgspec import structs

from calibrate.fit.constants import with_constants
from calibrate.served.as_sent import closed_loop, quote_of
from calibrate.served.fit import fit_served
from calibrate.served.judge import setup_of
from calibrate.served.line import (
    Fit,
    SeenStep,
    as_now,
    fit_line,
    line_of_server,
    lone_requests,
    of_a_round,
    one_at_a_time,
    pace_of,
    price_of,
    round_requests,
    steps_of,
    with_pace,
    with_price_of,
)
from calibrate.served.load import Accepted, ServedLoad, ServedRequest
from calibrate.server.served_run import judge, predict
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.interface.request import Request
from sim.run.resolve import resolve_all
from sim.run.scenario import Scenario, parse_scenario
from sim.run.simulate import simulate

TOKEN_S, STEP_S, ROW_S, FRONTEND_S, DRAFT_PASS_S = 1e-3, 0.02, 2e-4, 5e-3, 4e-3
STEPS_S = {0: 0.015, 1: 0.020, 2: 0.024, 3: 0.021, 4: 0.022}
"""By rows; 0: of prompts alone."""


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


def seen(
    index: int, times_s: Sequence[float], prompt_tokens: int, output_tokens: int, due_s: float = 0.0, **more: Any
) -> ServedRequest:
    """A request that was sent, began and ended at these times."""
    sent_s, first_s, last_s = times_s
    more |= {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
    return ServedRequest(index=index, due_s=due_s, sent_s=sent_s, first_s=first_s, last_s=last_s, **more)


def as_seen(request: Request, seconds_more: float = 0.0) -> ServedRequest:
    """A request as whoever sent it sees it, so much later than its engine."""
    times_s = (request.arrival_s, request.first_token_s + seconds_more, request.last_token_s + seconds_more)
    return seen(request.index, times_s, request.prompt_tokens, request.output_tokens, request.arrival_s)


def served(given: Scenario, law: Profile, requests: list[Request], at_once: int) -> list[ServedRequest]:
    """`requests` by a server whose law is the simulator's, at most so many in flight."""
    workload = structs.replace(given.workload, request_rate=float("inf"), max_concurrency=at_once)
    loop = structs.replace(given, workload=workload)
    record = simulate(resolve_all(loop, law)[0], 0, requests=requests)
    return list(map(as_seen, record.requests))


def rounds_of(given: Scenario, law: Profile, accepted: Accepted | None = None) -> list[ServedLoad]:
    return [closed_loop(n, 0, served(given, law, round_requests(given, law, n, 0), n), accepted) for n in (1, 2, 4, 8)]


def in_steps(requests: list[Request], at_once: int) -> list[ServedRequest]:
    """`requests` by a server of its own law: a step takes what its rows take by STEPS_S and TOKEN_S per token of a
    prompt, and whoever is there when it begins takes part."""
    waiting, running, now_s = list(requests), {}, 0.0
    sent: list[ServedRequest] = []
    while waiting or running:
        new = [waiting.pop(0) for _ in range(min(at_once - len(running), len(waiting)))]
        begun_s = now_s
        now_s += STEPS_S[len(running)] + TOKEN_S * sum(each.prompt_tokens for each in new)
        for times_s in running.values():
            times_s.append(now_s)
        running |= {each: [begun_s - FRONTEND_S, now_s] for each in new}
        for each, times_s in [*running.items()]:
            if len(times_s) > each.output_tokens:
                del running[each]
                gaps_s = tuple(later_s - earlier_s for earlier_s, later_s in pairwise(times_s[1:]))
                ends_s = (*times_s[:2], times_s[-1])
                sent.append(seen(each.index, ends_s, each.prompt_tokens, each.output_tokens, gaps_s=gaps_s))
    return sent


def looked_at(given: Scenario, line: Profile) -> list[ServedLoad]:
    """Two rounds of 1, 2 and 4 at once on such a server."""
    return [
        closed_loop(n, number, in_steps(round_requests(given, line, n, number), n))
        for number in (0, 1)
        for n in (1, 2, 4)
    ]


LINE = line_of_server()
GIVEN = scenario(LINE.name, async_scheduling=False)
LONE = in_steps(lone_requests([50, 100, 150]), 1)


@pytest.fixture(scope="module")
def found() -> Fit:
    return fit_line(GIVEN, LINE, looked_at(GIVEN, LINE), LONE)


def test_a_line_is_the_steps_that_clients_saw(found: Fit) -> None:
    """Two rows take longer than three, which no straight line does; left-out rounds are met, as all obey one law."""
    target = found.profile.linear.target
    assert dict(target.by_rows) == pytest.approx({rows: STEPS_S[rows] for rows in (1, 2, 3, 4)}, rel=0.01)
    assert target.token_s == pytest.approx(TOKEN_S, rel=0.01)
    assert found.off == pytest.approx([0.0] * 6, abs=0.01)
    assert not found.doubt


def test_a_server_that_does_not_batch_is_doubted() -> None:
    """Its steps all have one row, and who waits is not seen in them."""
    one, two = (in_steps(round_requests(GIVEN, LINE, n, 0), 1) for n in (1, 2))
    waiting = [structs.replace(each, sent_s=0.0) for each in two]
    assert "does not batch" in fit_line(GIVEN, LINE, [closed_loop(1, 0, one), closed_loop(2, 0, waiting)], LONE).doubt


def test_the_pace_of_the_minute_is_told_by_a_light_loop(found: Fit) -> None:
    """All steps a fifth longer. Alone, 15 ms of a pass of prompts and 5 ms before the engine are 20 ms of either."""
    given, fitted = GIVEN, found.profile
    light = in_steps(one_at_a_time(given, fitted, 10, 1), 1)
    slower = [structs.replace(each, gaps_s=tuple(1.2 * gap_s for gap_s in each.gaps_s)) for each in light]
    assert pace_of(fitted, [step for each in slower for step in steps_of([each])]) == pytest.approx(1.2, rel=0.01)
    cached = [SeenStep(0.001, 1, 100)] * 50
    assert pace_of(fitted, [*steps_of(slower[:1]), *cached]) == pytest.approx(1.2, rel=0.01)
    target = as_now(given, fitted, light).linear.target
    assert target.pass_s == pytest.approx(0.02)
    assert target.by_rows[0][1] == pytest.approx(STEPS_S[1])
    assert with_pace(fitted, 1.2).linear.target.by_rows[0][1] == pytest.approx(1.2 * STEPS_S[1], rel=0.01)


def test_a_load_whose_steps_all_took_longer_is_met_at_its_pace(found: Fit) -> None:
    given, fitted = GIVEN, found.profile
    planned = one_at_a_time(given, fitted, 10, 1)
    heard: list[int] = []
    run = predict(given, fitted, planned, on_step=lambda stage, done, total: heard.append(total - done))
    assert heard == sorted(heard, reverse=True)
    assert heard[-1] == 0
    for number, each in enumerate(in_steps(planned, 1)):
        times = {name: number + 1.2 * getattr(each, name) for name in ("sent_s", "first_s", "last_s")}
        run.sent.append(structs.replace(each, gaps_s=tuple(1.2 * gap_s for gap_s in each.gaps_s), **times))
    judge(run, given, fitted, planned)
    off = {part: errors["tpot"]["mean"]["error_pct"] for part, errors in run.errors.items()}
    assert off["as sent"] == pytest.approx(100.0 / 1.2 - 100.0, abs=1.5)
    assert off["at its pace"] == pytest.approx(0.0, abs=1.5)


def test_steps_without_drafts_and_requests_that_differ_are_in_the_acceptance() -> None:
    """Half of the steps had a draft of which all tokens were accepted: by some requests always, by others never."""
    lucky, unlucky = (
        [
            ServedRequest(index=index, due_s=0.0, sent_s=0.0, output_tokens=tokens, gaps_s=(0.02,) * 8)
            for index in range(8)
        ]
        for tokens in (25, 9)
    )
    accepted = Accepted(drafts=64.0, draft_tokens=2, rates=(1.0, 1.0))
    rates, _, spread = quote_of(accepted, [*lucky, *unlucky]).removeprefix("vllm:").partition("~")
    assert rates == "0.5,0.5"
    assert float(spread) >= 2.0
    alike = [
        ServedRequest(index=index, due_s=0.0, sent_s=0.0, output_tokens=17, gaps_s=(0.02,) * 8) for index in range(16)
    ]
    assert quote_of(accepted, alike) == "vllm:0.5,0.5"


def test_a_pair_of_servers_tells_what_a_draft_pass_takes() -> None:
    """One drafts and the other does not: one profile is of both."""
    profile = load("cpu/tiny")
    law = with_constants(profile, {"step_s": STEP_S, "row_s": ROW_S, "draft_pass_s": DRAFT_PASS_S})
    plain = scenario(law.name, async_scheduling=False)
    accepted = Accepted(drafts=100.0, draft_tokens=3, rates=(0.7, 0.5, 0.3))
    speculation = structs.replace(plain.speculation, num_speculative_tokens=3, acceptance=accepted.quote)
    drafting = structs.replace(plain, speculation=speculation)
    drafted = rounds_of(drafting, law, accepted)
    found = fit_served(profile, [*rounds_of(plain, law), *drafted], setup_of(drafting))
    assert found.profile.host.draft_pass_s == pytest.approx(DRAFT_PASS_S, rel=0.15)
    for level in found.levels:
        assert level.errors_pct["tpot_ms"] == pytest.approx(0.0, abs=5.0)


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


def test_prompts_of_one_length_tell_no_price() -> None:
    with pytest.raises(ValueError, match="no two prompts of different length"):
        price_of([(20, 0.1), (20, 0.2)])


def test_requests_of_a_round_are_none_of_the_scenarios_own() -> None:
    given = scenario("cpu/tiny")
    first, second = (round_requests(given, load("cpu/tiny"), 4, number) for number in (0, 1))
    assert len(first) == of_a_round(4)
    assert [each.output_tokens for each in first] != [each.output_tokens for each in second]
    assert {each.arrival_s for each in first} == {0.0}
