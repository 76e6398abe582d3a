"""Several draft models: which drafts follows from the load, and what a change costs is paid."""

from __future__ import annotations

from typing import Any

import pytest

from sim.acceptance.draws import AcceptanceDraws
from sim.acceptance.models import IidAcceptance
from sim.costs.cost import Demands
from sim.costs.profile_files import load
from sim.engine.draft_choice import DraftChoice
from sim.interface.work import Kind, Model
from sim.policies.registry import PolicyOptions
from sim.run.drafters import DrafterCosts, pair_with
from sim.run.resolve import resolve
from sim.run.scenario import Scenario
from sim.run.simulate import simulate
from tests.sim.constant_costs import ConstantCosts
from tests.sim.hosts.test_contract import outcome, requests
from tests.sim.support import AlwaysAccept, PeriodicDraws, SimRun, request

NOW = PolicyOptions(poll_s=0.0)
PAIR = "h100-sxm/llama-2-7b+tinyllama-1.1b"


def costs(draft_s: float, verify_s: float = 5.0) -> ConstantCosts:
    """No work slows another."""
    return ConstantCosts(
        device_s={Kind.PREFILL: 10.0, Kind.DRAFT: draft_s, Kind.VERIFY: verify_s}, demand=Demands(0.0, 0.0)
    )


def expected_length(rate: float, draft_tokens: int) -> float:
    """Leviathan et al. 2023, eq. 1."""
    return (1.0 - rate ** (draft_tokens + 1)) / (1.0 - rate)


@pytest.mark.parametrize("better", [0, 1])
@pytest.mark.parametrize("policy", ["baseline", "pd", "pdv", "unified"])
def test_where_one_draft_model_dominates_the_run_is_that_of_it_alone(policy: str, better: int) -> None:
    lengths, seconds, draws_by_drafter = (4, 2), (2.0, 1.0), (PeriodicDraws(), AlwaysAccept())
    rate = (1.0, 2.0) if better else (2.0, 1.0)
    both = SimRun(
        policy,
        requests(),
        costs=DrafterCosts([costs(each) for each in seconds]),
        draws_by_drafter=draws_by_drafter,
        controller=DraftChoice(lengths, lambda drafter, rows: rate[drafter]),
        options=NOW,
    )
    alone = SimRun(
        policy,
        requests(),
        costs=costs(seconds[better]),
        draws=draws_by_drafter[better],
        draft_tokens=lengths[better],
        options=NOW,
    )
    assert outcome(both.serving.requests) == outcome(alone.serving.requests)
    assert [work[:4] for work in both.works] == [work[:4] for work in alone.works]


@pytest.mark.parametrize(
    ("rates", "lengths", "seconds", "wanted"),
    [
        ((0.8, 0.5), (4, 4), (4.0, 1.0), 0),
        ((0.8, 0.7), (4, 4), (4.0, 1.0), 1),
        ((0.9, 0.9), (2, 6), (1.0, 3.0), 1),
        ((0.4, 0.4), (2, 6), (1.0, 3.0), 0),
    ],
)
def test_the_choice_is_the_closed_forms_and_gives_its_tokens_per_second(
    rates: tuple[float, float], lengths: tuple[int, int], seconds: tuple[float, float], wanted: int
) -> None:
    """(1 - a^(k+1)) / (1 - a) tokens per round of draft and verify; one request of 20,000 tokens, within 2 %."""

    def tokens_per_s(drafter: int, rows: int) -> float:
        return rows * expected_length(rates[drafter], lengths[drafter]) / (seconds[drafter] + 5.0)

    assert max((0, 1), key=lambda drafter: tokens_per_s(drafter, 1)) == wanted
    asked = request(0, output=20_000)
    run = SimRun(
        "pd",
        [asked],
        costs=DrafterCosts([costs(each) for each in seconds]),
        draws_by_drafter=[AcceptanceDraws(IidAcceptance(rate), 7) for rate in rates],
        controller=DraftChoice(lengths, tokens_per_s),
        options=NOW,
        kv_blocks=100_000,
    )
    assert {ticket.work.drafter for ticket in run.tickets if ticket.work.kind is Kind.DRAFT} == {wanted}
    found = (asked.emitted_tokens - 1) / (asked.last_token_s - asked.first_token_s)
    assert found == pytest.approx(tokens_per_s(wanted, 1), rel=0.02)


def test_a_model_that_takes_over_computes_what_it_has_missed_and_no_more() -> None:
    """One row: the second model; two: the first. Two requests of 10 prompt tokens, the later one at 47 s, and all that
    is drafted is accepted. Alone, r0 has rounds of 2 + 5 s and 3 tokens; prefilled at 10 s, the draft model at 20, it
    is decoded from 20 on."""
    asked = [request(0, prompt=10, output=40), request(1, prompt=10, output=4, arrival_s=47.0)]
    choice = DraftChoice((2, 2), lambda drafter, rows: 1.0 + (drafter == (rows == 1)))
    run = SimRun(
        "pd",
        asked,
        costs=DrafterCosts([costs(2.0), costs(2.0)]),
        draws_by_drafter=(AlwaysAccept(), AlwaysAccept()),
        controller=choice,
        options=NOW,
    )
    catching_up = [
        (ticket.work.requests[0].index, ticket.work.drafter, ticket.work.chunks)
        for ticket in run.tickets
        if ticket.work.kind is Kind.PREFILL and ticket.work.model is Model.DRAFT
    ]
    first, second, *later = catching_up
    assert first == (0, 1, ((10, 0),)), "alone in the engine: the second model"
    assert second == (1, 0, ((10, 0),)), "two are active: the first one"
    (index, drafter, ((new, history),)), *rest = later
    assert (index, drafter, history) == (0, 0, 0), "the first model has nothing of r0"
    assert new == 10 + 3 * (new - 10) // 3, "prompt, and three tokens a round"
    (index, drafter, ((again, known),)), *nothing = rest
    assert (index, drafter) == (0, 1), "r1 is through: the second model takes r0 over again"
    assert known == new - 1, "it had all but the token that its last full acceptance left out"
    assert again > 0
    assert nothing == []


def test_a_reason_to_stay_is_the_hysteresis() -> None:
    by_rows = {1: (1.0, 1.04), 2: (1.0, 1.06), 3: (1.04, 1.0), 4: (1.06, 1.0)}
    choice = DraftChoice((1, 1), lambda drafter, rows: by_rows[rows][drafter], hysteresis=0.05)
    assert [choice.drafter_for(rows) for rows in (3, 1, 2, 3, 1, 4, 1)] == [0, 0, 1, 1, 1, 0, 0]


def given(**changes: Any) -> Scenario:
    drafts = [{"draft": "llama-68m", "acceptance": "iid:0.35", "num_speculative_tokens": 2}]
    raw = {
        "profile": PAIR,
        "policy": "pd",
        "input_len": 200,
        "output_len": 64,
        "request_rate": "inf",
        "acceptance": "iid:0.7",
        "speculation.drafts": drafts,
        "engine.name": "vllm-0.24",
    }
    return Scenario.of(**(raw | changes))


def test_weights_and_kv_of_all_draft_models_are_in_memory() -> None:
    profile = load(PAIR)
    both = resolve(given(), profile, "pd")
    assert [shape.name for shape in both.models] == ["llama-2-7b", "tinyllama-1.1b", "llama-68m"]
    left = 0.9 * profile.gpu.memory_bytes - sum(shape.weight_bytes for shape in both.models)
    per_block = 16 * sum(shape.kv_bytes_per_token for shape in both.models)
    assert both.num_blocks == int(left / (per_block / 16)) // 16


@pytest.mark.parametrize("concurrency", [1, 128])
def test_the_choice_serves_as_the_better_fixed_model_at_either_end_of_the_load(concurrency: int) -> None:
    """TinyLlama pays where the GPU has room, the model of 68 M where rows fill it; the same memory for all three, so
    that they differ in what drafts alone. Within 3 % of the better one."""
    size = {"max_concurrency": concurrency, "num_prompts": 2 * max(4, concurrency), "engine.num_gpu_blocks": 4000}
    size |= {"engine.max_num_seqs": 128}

    def tokens_per_s(scenario: Scenario, profile: Any) -> float:
        record = simulate(resolve(scenario, profile, "pd"), 0)
        return sum(each.emitted_tokens for each in record.requests) / record.end_s

    profile = load(PAIR)
    first = tokens_per_s(given(**size, **{"speculation.drafts": []}), profile)
    small = {"speculation.drafts": [], "acceptance": "iid:0.35", "num_speculative_tokens": 2}
    second = tokens_per_s(given(**size, **small), pair_with(profile, "llama-68m"))
    both = tokens_per_s(given(**size), profile)
    assert (first > second) == (concurrency == 1)
    assert both == pytest.approx(max(first, second), rel=0.03)
