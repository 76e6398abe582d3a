"""Pipelined, event by event: prefill 10 s in each model, a window of 4 drafted in 2 s, a check 5 s."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from sim.costs.cost import Demands
from sim.costs.profile_files import load
from sim.interface.work import Kind
from sim.policies.disaggregated import DevicePools
from sim.policies.options import EngineLimits
from sim.policies.registry import PolicyOptions
from sim.run.resolve import resolve
from sim.run.scenario import Scenario
from sim.run.simulate import simulate
from tests.sim.constant_costs import ConstantCosts
from tests.sim.support import SECONDS, UNCONTENDED, AlwaysAccept, NeverAccept, SimRun, request


def run(
    *outputs: int, draws: object = None, draft_s: float = 2.0, limits: EngineLimits | None = None, **options: object
) -> SimRun:
    return SimRun(
        "pipelined",
        [request(index, output=output) for index, output in enumerate(outputs)],
        draws=draws or AlwaysAccept(),
        costs=ConstantCosts(device_s={**SECONDS, Kind.DRAFT: draft_s}, demand=Demands(0.0, 0.0)),
        options=PolicyOptions(poll_s=0.0, **options),  # type: ignore[arg-type]
        limits=limits,
    )


def test_the_next_window_is_drafted_while_the_last_one_is_checked() -> None:
    """The check from 20 s finds the window's first token guessed, the one from 25 s its other three and the token after
    them."""
    found = run(9)
    assert sorted(found.works) == sorted(
        [
            (0.0, 10.0, "prefill", "prefill", (0,)),
            (10.0, 20.0, "prefill", "prefill", (0,)),
            (20.0, 22.0, "draft", "draft", (0,)),
            (20.0, 25.0, "verify", "verify", (0,)),
            (25.0, 27.0, "draft", "draft", (0,)),
            (25.0, 30.0, "verify", "verify", (0,)),
            (30.0, 32.0, "draft", "draft", (0,)),
            (30.0, 35.0, "verify", "verify", (0,)),
        ]
    )
    checks = [ticket.work.row_tokens for ticket in found.tickets if ticket.work.kind is Kind.VERIFY]
    assert checks == [1, 4, 4]
    assert [ticket.result.accepted[0] for ticket in found.tickets if ticket.work.kind is Kind.VERIFY] == [1, 4, 4]
    only = found.serving.requests[0]
    assert (only.num_rounds, only.drafted_tokens, only.accepted_tokens, only.last_token_s) == (2, 6, 6, 35.0)


def test_a_draft_attends_to_the_window_that_is_being_checked() -> None:
    """10 tokens of prompt; then one more is known, and three of its window are under way; then four more each."""
    drafts = [ticket.work for ticket in run(9).tickets if ticket.work.kind is Kind.DRAFT]
    assert [work.context_tokens for work in drafts] == [10, 11 + 3, 15 + 3]


def test_after_a_rejection_the_target_goes_on_alone_one_token_a_step() -> None:
    found = run(6, draws=NeverAccept())
    checks = [ticket for ticket in found.tickets if ticket.work.kind is Kind.VERIFY]
    assert [ticket.work.row_tokens for ticket in checks] == [1] * 5
    assert all(later.start_s == earlier.end_s for earlier, later in pairwise(checks))


def test_a_rejected_windows_draft_ends_at_its_next_token() -> None:
    """A window of 8 s, 2 s a token, rejected by the check after 5 s: it ends at 6 s, and so after 4 s does the next."""
    found = run(6, draws=NeverAccept(), draft_s=8.0)
    drafts = [ticket for ticket in found.tickets if ticket.work.kind is Kind.DRAFT]
    assert all(ticket.is_cancelled for ticket in drafts)
    assert [(ticket.start_s, ticket.end_s) for ticket in drafts][:2] == [(20.0, 26.0), (26.0, 30.0)]


def test_a_hit_waits_for_its_window() -> None:
    """A window of 8 s: the check of the first ends at 25 s, the next step begins at 28 s."""
    found = run(9, draft_s=8.0)
    checks = [ticket.start_s for ticket in found.tickets if ticket.work.kind is Kind.VERIFY]
    assert checks == [20.0, 28.0, 36.0]


def test_the_draft_model_may_have_a_gpu_of_its_own_and_prefills_there() -> None:
    found = run(9, pools=DevicePools(draft=1))
    places = {(ticket.stream.name, ticket.work.model.value, ticket.stream.device) for ticket in found.tickets}
    assert places == {("prefill", "target", 0), ("draft", "draft", 1), ("verify", "target", 0)}
    assert min(ticket.start_s for ticket in found.tickets if ticket.stream.device == 1) == 0.0
    assert found.serving.requests[0].last_token_s == 25.0


def test_until_the_draft_model_knows_a_prompt_the_target_decodes_it_alone() -> None:
    """The draft GPU is busy with a window of 0 from 20 to 32 s and comes to the prompt of 2 then; the target has
    computed that by 30 s."""
    found = run(40, 40, 9, draft_s=12.0, pools=DevicePools(draft=1))
    known_s = max(work[1] for work in found.works if work[2:] == ("draft", "prefill", (2,)))
    assert known_s == 42.0
    assert min(work[0] for work in found.works if work[3] == "verify" and 2 in work[4]) < known_s
    assert min(work[0] for work in found.works if work[3] == "draft" and 2 in work[4]) >= known_s


def test_rows_go_in_step_and_a_newcomer_joins_at_the_next_step() -> None:
    found = run(30, 30, draws=NeverAccept())
    assert {work[4] for work in found.works if work[3] == "verify"} == {(0,), (0, 1), (1,)}


def test_no_more_rows_than_the_lane_takes_and_the_rest_follow() -> None:
    found = run(30, 30, 30, draws=NeverAccept(), decode_batch=2)
    assert max(len(work[4]) for work in found.works if work[3] == "verify") == 2
    assert found.serving.is_all_finished


class Chance:
    """A fixed probability per token, keyed by request and position."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def run_length(self, index: int, position: int, most: int) -> int:
        draws, count = random.Random(7919 * index + position), 0
        while count < most and draws.random() < self.rate:
            count += 1
        return count


NUM_TOKENS = 20_000


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.5, 0.8, 0.95])
def test_tokens_per_step_are_those_of_its_two_state_chain(rate: float) -> None:
    """A row has a window with probability w: w = w a^4 + (1 - w) a. With one it gets 1 + a + a^2 + a^3 tokens."""
    found = SimRun("pipelined", [request(0, output=NUM_TOKENS)], draws=Chance(rate), costs=UNCONTENDED, kv_blocks=10**6)
    steps = sum(ticket.work.kind is Kind.VERIFY for ticket in found.tickets)
    share = rate / (1.0 + rate - rate**4)
    expected = (1.0 - share) + share * (1.0 + rate + rate**2 + rate**3)
    assert NUM_TOKENS / steps == pytest.approx(expected, rel=0.02)


EAGLE = "h100-sxm/llama-3.1-8b+eagle3"


def eagle(**changes: object) -> Scenario:
    given = {"profile": EAGLE, "policy": "pipelined", "input_len": 64, "output_len": 64, "num_prompts": 20}
    return Scenario.of(**(given | {"num_speculative_tokens": 7, "acceptance": "length:4.35@7"} | changes))


def test_stale_features_take_acceptance_from_the_pipelined_policy_alone() -> None:
    """DFlash: 4.35 tokens per round with fresh features, 2.59 with features a round late."""
    lengths = {}
    for policy, changes in (("pipelined", {}), ("continuous", {})):
        given = eagle(policy=policy, output_len=2000, **{"speculation.stale_acceptance": "length:2.59@7"}, **changes)
        record = simulate(resolve(given, load(EAGLE), policy), 0)
        rounds = sum(r.num_rounds for r in record.requests)
        lengths[policy] = 1.0 + sum(r.accepted_tokens for r in record.requests) / rounds
    assert lengths["continuous"] == pytest.approx(4.35, rel=0.04)
    assert lengths["pipelined"] < 2.9
