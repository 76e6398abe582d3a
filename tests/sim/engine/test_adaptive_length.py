"""Controllers that read a table, estimate acceptance, or climb SGLang's steps: every choice by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sim.costs.profile_files import load
from sim.engine.adaptive_length import (
    PROBE_EVERY,
    AdaptiveVerification,
    Band,
    GoodputLength,
    SglangAdaptive,
)
from sim.engine.controllers import CONTROLLERS, VERIFYING
from sim.engine.draft_length import Controller
from sim.interface.request import Request
from sim.interface.work import Kind
from sim.policies.options import EngineLimits
from sim.run.resolve import resolve
from sim.run.scenario import Scenario, parse_scenario, to_plain
from sim.run.simulate import simulate
from tests.sim.support import AlwaysAccept, NotedController, SimRun, request

HEAD = "h100-sxm/llama-3.1-8b+eagle3"
PAIR = "h100-sxm/llama-2-7b+tinyllama-1.1b"


def test_goodput_drafts_long_where_rounds_are_flat_and_not_at_all_where_they_grow() -> None:
    """At one row a round takes 1 s whatever is drafted; at 64 each drafted token costs as much as a round."""
    controller = GoodputLength(4, lambda rows, k: 1.0 if rows == 1 else 1.0 + k)
    for _ in range(50):
        controller.saw_round(4, 2)
    assert controller.length_for(1) == 4
    assert controller.length_for(64) == 0


def test_goodput_follows_the_acceptance_it_sees() -> None:
    """A drafted token costs 40 % of a round: worth it at 90 % accepted, not at 20 %."""
    controller = GoodputLength(3, lambda rows, k: 1.0 + 0.4 * k)
    for _ in range(600):
        controller.saw_round(3, 3)
    lucky = controller.length_for(8)
    for _ in range(3000):
        controller.saw_round(3, 0)
    assert (lucky, controller.length_for(8)) == (3, 0)


def test_goodput_looks_again_after_many_decisions_for_nothing() -> None:
    controller = GoodputLength(3, lambda rows, k: 1.0 + 10.0 * k)
    chosen = [controller.length_for(1) for _ in range(2 * PROBE_EVERY)]
    assert [place for place, k in enumerate(chosen) if k] == [PROBE_EVERY - 1, 2 * PROBE_EVERY - 1]


def batches(controller: SglangAdaptive, accepted: int, count: int, size: int = 1) -> list[int]:
    """What it chooses after each of `count` batches of `size` requests that accept as many each."""
    chosen = []
    for _ in range(count):
        for _ in range(size):
            controller.saw_round(8, accepted)
        chosen.append(controller.length_for(size))
    return chosen


FROM_0 = Band(candidate_steps=(0, 1), ema_alpha=1.0, warmup_batches=0, update_interval=1, down_hysteresis=0.0)


@pytest.mark.parametrize(
    ("controller", "accepted", "chosen"),
    [
        # Ten batches of warm-up, then a look every five. From 3 (average 2) with 3 accepted each: 2.5, half way to the
        # next step, is passed at once, and 4.5 never, so 5 it is.
        (SglangAdaptive(3), 3, [3] * 14 + [5] * 26),
        # Average 2 towards 0: 0.8^15 x 2 = 0.07 at the first look, below 1 - 0.5 - 0.25.
        (SglangAdaptive(3), 0, [3] * 14 + [1]),
        # A band that begins at 0 goes down to it below half a token.
        (SglangAdaptive(1, {"1": FROM_0}), 0, [0]),
        (SglangAdaptive(1, {"1": FROM_0}), 1, [1]),
    ],
)
def test_sglang_goes_up_and_down_at_its_marks(controller: SglangAdaptive, accepted: int, chosen: list[int]) -> None:
    assert batches(controller, accepted, len(chosen)) == chosen


def test_sglangs_hysteresis_keeps_a_step_that_lies_just_below_the_mark() -> None:
    """0.3 accepted: above 0.25, below 0.5."""
    kept = SglangAdaptive(3, {"1": Band(candidate_steps=(1, 3), ema_alpha=1.0)})
    down = SglangAdaptive(3, {"1": Band(candidate_steps=(1, 3), ema_alpha=1.0, down_hysteresis=0.0)})
    for controller in (kept, down):
        for _ in range(15):
            for accepted in (1, 0, 0, 0, 1, 0, 0, 1, 0, 0):
                controller.saw_round(3, accepted)
            controller.length_for(10)
    assert (kept.length_for(10), down.length_for(10)) == (3, 1)


def test_sglangs_bands_take_what_stands_at_the_largest_key_within_the_batch() -> None:
    controller = SglangAdaptive(3)
    assert [controller.length_for(batch) for batch in (1, 7, 8, 31, 32, 63, 64, 500)] == [
        3, 3, 3, 3, 1, 1, 0, 0,
    ]  # fmt: skip


def test_a_band_of_sglang_at_0_tries_its_next_step_at_the_next_look() -> None:
    controller = SglangAdaptive(0, {"1": Band(candidate_steps=(0, 2), warmup_batches=0, update_interval=3)})
    assert [controller.length_for(4) for _ in range(5)] == [0, 0, 0, 2, 2]


def test_a_continuous_step_asks_with_all_its_requests() -> None:
    """Two prompts fit into the first step, and the third waits for a seat."""
    controller = NotedController(2, 2)
    asked = [request(index, output=4) for index in range(3)]
    SimRun("continuous", asked, draws=AlwaysAccept(), limits=EngineLimits(max_num_seqs=2), controller=controller)
    assert controller.asked[:2] == [2, 2]


class OwnLength(Controller):
    """Every request drafts one token more than its index."""

    draft_tokens_min, draft_tokens_max, constant_length = 1, 3, None

    def lengths_for(self, batch: Sequence[Request]) -> list[int]:
        return [1 + request.index for request in batch]


@pytest.mark.parametrize("async_scheduling", [True, False])
@pytest.mark.parametrize("policy", ["continuous", "pd", "pdv", "unified", "disaggregated"])
def test_requests_of_a_batch_may_draft_lengths_of_their_own(policy: str, async_scheduling: bool) -> None:
    """Everything is accepted, so a round of request i brings i + 2 tokens; a batch drafts as long as its longest."""
    asked = [request(index, prompt=8, output=13) for index in range(3)]
    limits = EngineLimits(async_scheduling=async_scheduling)
    run = SimRun(policy, asked, draws=AlwaysAccept(), limits=limits, controller=OwnLength())
    rounds = [(r.num_rounds, r.drafted_tokens, r.accepted_tokens) for r in run.serving.requests]
    assert rounds == [(6, 6, 6), (4, 8, 8), (3, 9, 9)]
    assert run.serving.kv.held.value == 0
    drafts = [ticket.work for ticket in run.tickets if ticket.work.kind is Kind.DRAFT and ticket.work.rows]
    assert max(work.draft_tokens for work in drafts) == 3


def test_a_step_without_drafts_keeps_the_drafter_up_to_date() -> None:
    """Two tokens of the row through the draft model, nothing sampled there, and a plain decode next."""
    run = SimRun("continuous", [request(0, output=3)], draws=AlwaysAccept(), controller=NotedController(0, 4))
    works = [(t.work.kind.value, t.work.row_tokens, t.work.head_rows, t.work.draft_tokens) for t in run.tickets]
    assert works == [
        ("step", 0, 1, 0), ("draft", 2, 0, 0),
        ("step", 1, 1, 0), ("draft", 2, 0, 0),
        ("step", 1, 1, 0), ("draft", 2, 0, 0),
    ]  # fmt: skip


def test_a_lane_without_drafts_keeps_the_drafter_up_to_date_before_it_decodes() -> None:
    run = SimRun("pd", [request(0, output=2)], draws=AlwaysAccept(), controller=NotedController(0, 4))
    works = [(t.work.kind.value, t.work.head_rows) for t in run.tickets if t.stream.name == "decode"]
    assert works == [("draft", 0), ("verify", 1)]


def scenario(controller: str, **changes: object) -> Scenario:
    raw = {
        "profile": HEAD,
        "policy": "continuous",
        "workload": {
            "input_len": 256,
            "output_len": 32,
            "num_prompts": 40,
            "max_concurrency": 4,
            "request_rate": "inf",
        },
        "speculation": {"num_speculative_tokens": 4, "acceptance": "iid:0.6", "controller": controller, **changes},
    }
    return parse_scenario(raw)


def test_goodput_serves_within_a_per_cent_of_the_best_fixed_length() -> None:
    """It has to find out first; 40 requests, one seed."""
    profile = load(HEAD)
    fixed = []
    for k in range(1, 5):
        one = scenario("fixed", num_speculative_tokens=k)
        fixed.append(simulate(resolve(one, profile, "continuous"), 1).end_s)
    assert simulate(resolve(scenario("goodput"), profile, "continuous"), 1).end_s < 1.01 * min(fixed)


@pytest.mark.parametrize("controller", [name for name in CONTROLLERS if name != VERIFYING])
@pytest.mark.parametrize("policy", ["continuous", "pd", "pdv", "unified", "baseline"])
def test_every_controller_serves_every_policy(controller: str, policy: str) -> None:
    changes = {"num_speculative_tokens_per_batch_size": [[1, 1, 4], [2, 8, 0]]} if controller == "by_batch" else {}
    given = to_plain(scenario(controller, **changes))
    one = Scenario.of(given, profile=PAIR, policy=policy, input_len=64, output_len=12, num_prompts=12)
    record = simulate(resolve(one, load(PAIR), policy), 1)
    assert all(request.is_finished for request in record.requests)


def drafted(count: int, *, num_rounds: int = 0, accepted: int = 0) -> Request:
    made = request(0)
    made.drafted, made.num_rounds, made.accepted_tokens = count, num_rounds, accepted
    return made


def test_adaptive_verification_stops_where_the_next_token_no_longer_pays() -> None:
    """Untold, a token survives with 0.7, 0.49, 0.34. A place of both rows adds half of a round: (2 + 1.4) / 1.5 beats
    2 / 1 and (2 + 1.4 + 0.98) / 2."""
    controller = AdaptiveVerification(3, lambda rows, k: 1.0 + 0.5 * k)
    assert controller.verify([drafted(3), drafted(3)]) == [1, 1]


def test_adaptive_verification_prefers_the_request_that_has_accepted_more() -> None:
    """Everybody accepts 1 of 3; one row has had 3 each time, the other nothing. Of four tokens the lucky row gets all
    its three."""
    controller = AdaptiveVerification(3, lambda rows, k: 1.0 + 0.55 * k)
    for _ in range(200):
        controller.saw_round(3, 1)
    lucky, unlucky = drafted(3, num_rounds=40, accepted=120), drafted(3, num_rounds=40, accepted=0)
    taken = controller.verify([unlucky, lucky])
    assert taken[1] > taken[0]


def test_what_is_not_verified_is_paid_for_as_a_draft_and_never_accepted() -> None:
    """Drafts of 4 where verifying costs a round a token: each round emits one token, and the drafter ran all along."""
    controller = AdaptiveVerification(4, lambda rows, k: 1.0 + 10.0 * k)
    run = SimRun("continuous", [request(0, output=4)], draws=AlwaysAccept(), controller=controller)
    works = [(t.work.kind.value, t.work.row_tokens, t.work.draft_tokens) for t in run.tickets]
    assert works == [("step", 0, 0), ("draft", 2, 4), *[("step", 1, 0), ("draft", 2, 4)] * 3]
    assert run.serving.requests[0].accepted_tokens == 0


@pytest.mark.parametrize("async_scheduling", [True, False])
def test_adaptive_verification_serves_and_gives_all_memory_back(async_scheduling: bool) -> None:
    profile = load(HEAD)
    one = Scenario.of(to_plain(scenario(VERIFYING)), **{"engine.async_scheduling": async_scheduling})
    record = simulate(resolve(one, profile, "continuous"), 1)
    assert all(request.is_finished for request in record.requests)
    assert all(request.kv_tokens == 0 for request in record.requests)
