"""SGLang's admission, retraction and draft passes by hand: a target pass takes 5 s, a draft 2 s, a block is a token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sim.costs.engine_costs import TokenRatio, load_engine
from sim.costs.profile_files import load
from sim.drafters.drafter import Drafter
from sim.drafters.registry import DRAFTERS
from sim.interface.request import Request
from sim.interface.work import Kind
from sim.policies.options import EngineLimits
from sim.run.limits import limits_of
from sim.run.resolve import resolve
from sim.run.scenario import Scenario
from sim.run.simulate import simulate
from tests.properties import examples
from tests.sim.policies.test_properties import KeyedDraws
from tests.sim.support import AlwaysAccept, NeverAccept, SimRun, request

EAGLE = "h200-sxm/llama-3.1-8b+eagle3"
RATIO = TokenRatio(initial=0.5, min_ratio=0.5, decay_steps=1, max_answer_tokens=4096, retract_steps=0)
"""Half of what the running answers lack stays free."""
NEWEST = msgspec.structs.replace(RATIO, leaves_at_once=True, spare_blocks=1, kept_rounds=2)
"""As SGLang 0.5.23 has it."""
LIMITS = EngineLimits(max_num_batched_tokens=1000, mixes_prompts=False, token_ratio=RATIO, drafts_before_verify=True)
Shape = tuple[float, tuple[int, ...], tuple[tuple[int, int, int], ...]]


def limited(**changes: Any) -> EngineLimits:
    return msgspec.structs.replace(LIMITS, **changes)


def served(requests: list[Request], tokens: int, limits: EngineLimits = LIMITS, drafts: int = 0, **more: Any) -> SimRun:
    policy = "continuous" if drafts else "autoregressive"
    return SimRun(policy, requests, limits=limits, draft_tokens=drafts, kv_blocks=tokens, block_size=1, **more)


def steps(run: SimRun) -> list[Shape]:
    """(start, rows, (prompt, new, history)) of every target pass."""
    found = []
    for ticket in run.tickets:
        work = ticket.work
        if work.kind is Kind.STEP:
            rows, prompts = work.requests[: work.rows], work.requests[work.rows :]
            chunks = tuple((prompt.index, *chunk) for prompt, chunk in zip(prompts, work.chunks, strict=True))
            found.append((ticket.start_s, tuple(row.index for row in rows), chunks))
    return found


def test_48_are_seated_where_something_is_drafted_and_nobody_gives_seats() -> None:
    def made(engine: str, **changes: Any) -> Scenario:
        return Scenario.of(profile=EAGLE, policy="continuous", engine=engine, **changes)

    def seats(engine: str, **changes: Any) -> int:
        return limits_of(made(engine, **changes), load(EAGLE)).max_num_seqs

    assert seats("sglang-0.5") == 48
    assert seats("sglang-0.5", num_speculative_tokens=0) == 2048
    assert seats("sglang-0.5", max_num_seqs=64) == 64
    assert seats("sglang-0.5.23") == 48
    assert limits_of(made("sglang-0.5.23", **{"speculation.method": "dflash"}), load(EAGLE)).min_free_seats == 4
    assert seats("vllm-0.24") == seats("vllm-0.24", num_speculative_tokens=0)
    plain = Scenario.of(profile=EAGLE, policy="autoregressive", engine="sglang-0.5")
    assert resolve(plain, load(EAGLE), "autoregressive").limits.max_num_seqs == 2048


def test_ranks_that_share_their_experts_divide_the_seats() -> None:
    profile = load("h200-sxm/gpt-oss-120b+eagle3")
    four = msgspec.structs.replace(profile, data_parallel=4)
    engine = load_engine("sglang-0.5", "h200-sxm")
    assert engine.seats(profile, is_drafting=True) == 48
    assert engine.seats(four, is_drafting=True) == 12
    assert engine.seats(four, is_drafting=False) == 2048


@pytest.mark.parametrize("method", [DRAFTERS["draft_model"], DRAFTERS["eagle3"], DRAFTERS["mtp"]])
def test_behind_a_prompt_one_draft_pass_runs_and_the_others_before_the_verify(method: Drafter) -> None:
    """Prompt, one pass, first token at 7 s; then two passes, verify and one pass for each further round."""
    run = served([request(0, output=9)], 1000, limited(method=method), 3, draws=AlwaysAccept())
    works = [(ticket.start_s, ticket.work.kind.value, ticket.work.draft_tokens) for ticket in run.tickets]
    assert works == [
        (0.0, "step", 0),
        (5.0, "draft", 1),
        (7.0, "draft", 2),
        (9.0, "step", 0),
        (14.0, "draft", 1),
        (16.0, "draft", 2),
        (18.0, "step", 0),
        (23.0, "draft", 1),
    ]
    assert run.serving.requests[0].first_token_s == 7.0
    assert [ticket.work.goes_on for ticket in run.tickets[1:3]] == [False, True]


def test_a_drafter_of_one_pass_drafts_where_it_did() -> None:
    run = served([request(0, output=5)], 1000, limited(method=DRAFTERS["parallel"]), 3, draws=AlwaysAccept())
    assert [ticket.work.kind.value for ticket in run.tickets] == ["step", "draft"] * 2


def test_a_round_takes_what_it_did_when_all_its_passes_followed_the_verify() -> None:
    """With the costs of an EAGLE head: only what comes before the first token is less, by a pass."""
    made = Scenario.of(
        profile=EAGLE, policy="continuous", engine="sglang-0.5", num_prompts=1, output_len=400, num_speculative_tokens=2
    )
    resolved = resolve(made, load(EAGLE), "continuous")
    behind = msgspec.structs.replace(resolved.limits, drafts_before_verify=False)
    split, whole = (simulate(one, 0).requests[0] for one in (resolved, replace(resolved, limits=behind)))
    assert 2e-4 < whole.first_token_s - split.first_token_s < 6e-4
    assert split.last_token_s - split.first_token_s == pytest.approx(whole.last_token_s - whole.first_token_s, rel=2e-3)


def test_a_prompt_waits_until_it_and_its_answer_fit_beside_half_of_what_others_lack() -> None:
    """100 tokens: at 5 s 90 are free, and half of the 39 that the first lacks are kept: 70.5. A prompt of 30 with an
    answer of 40 is less; one with 41 waits until the first has ended."""
    first = request(0, prompt=10, output=40)
    fits, waits = request(1, arrival_s=1.0, prompt=30, output=40), request(1, arrival_s=1.0, prompt=30, output=41)
    assert steps(served([first, fits], 100))[1] == (5.0, (), ((1, 30, 0),))
    first = request(0, prompt=10, output=40)
    assert [step for step in steps(served([first, waits], 100)) if step[2]][1] == (200.0, (), ((1, 30, 0),))


def test_after_a_refusal_nobody_is_admitted_before_a_row_has_left() -> None:
    """The third would fit, the second is refused ahead of it; when the first ends at 30 s one more step of rows goes by
    only where rows are left."""
    asked = [
        request(0, prompt=10, output=6),
        request(1, arrival_s=1.0, prompt=60, output=40),
        request(2, arrival_s=1.0, prompt=5, output=5),
    ]
    assert [step for step in steps(served(asked, 110)) if step[2]] == [
        (0.0, (), ((0, 10, 0),)),
        (30.0, (), ((1, 60, 0),)),
        (35.0, (), ((2, 5, 0),)),
    ]


def test_who_has_finished_keeps_the_seat_until_the_next_step_of_rows() -> None:
    """Two seats: the third waits for the seat of the first, which ends at 10 s, through one more step of rows."""
    asked = [request(0, output=2), request(1, output=9), request(2, output=2)]
    run = served(asked, 1000, limited(max_num_seqs=2))
    assert steps(run)[:4] == [
        (0.0, (), ((0, 10, 0), (1, 10, 0))),
        (5.0, (0, 1), ()),
        (10.0, (1,), ()),
        (15.0, (), ((2, 10, 0),)),
    ]
    asked = [request(0, output=2), request(1, output=9), request(2, output=2)]
    newest = served(asked, 1000, limited(max_num_seqs=2, token_ratio=NEWEST))
    assert steps(newest)[2] == (10.0, (), ((2, 10, 0),))


def test_a_block_stays_free_beside_each_prompt_that_is_admitted() -> None:
    """At 5 s 70.5 tokens are to be had, as above: 29 and 40 and the block are less, 30 and 40 and the block are not."""
    for prompt, at in ((29, 1), (30, 40)):
        asked = [request(0, prompt=10, output=40), request(1, arrival_s=1.0, prompt=prompt, output=40)]
        found = steps(served(asked, 100, limited(token_ratio=NEWEST)))
        assert next(i for i, step in enumerate(found) if step[2] and step[2][0][0] == 1) == at


def test_rows_keep_slots_for_two_rounds_and_the_longest_prompt_gives_way_with_drafts_too() -> None:
    """Contexts of 30 and 10, a token a round, and 4 slots each: 60 tokens are too few once 7 of each are out."""
    for kept_rounds, victim in ((2, 0), (0, 1)):
        ratio = msgspec.structs.replace(NEWEST, kept_rounds=kept_rounds, max_answer_tokens=1)
        asked = [request(0, prompt=30, output=20), request(1, prompt=10, output=20)]
        run = served(asked, 60, limited(token_ratio=ratio), 1, draws=NeverAccept())
        assert [one.num_preemptions > 0 for one in run.serving.requests] == [victim == 0, victim == 1]


def test_prompts_wait_for_steps_of_rows_behind_others_and_for_several_seats() -> None:
    asked = [request(0, output=9), request(1, arrival_s=1.0, output=9), request(2, arrival_s=1.0, output=9)]
    waits = served(asked, 1000, limited(prefill_decode_interval=3))
    assert [step[0] for step in steps(waits) if step[2]] == [0.0, 20.0]
    asked = [request(0, output=3), request(1, output=9), request(2, arrival_s=1.0, output=2)]
    seats = served(asked, 1000, limited(max_num_seqs=3, min_free_seats=2, token_ratio=NEWEST))
    assert [step[0] for step in steps(seats) if step[2]] == [0.0, 15.0]


NOTHING_KEPT = msgspec.structs.replace(RATIO, initial=0.0, min_ratio=0.0)
"""Everybody is admitted whose answer fits now, so that memory ends while they decode."""


def test_who_gives_way_where_memory_runs_out_waits_behind_all_others() -> None:
    """Of three that decode the last two have the same tokens, and the newest goes; the fourth has waited and comes
    before it. With the fourth's prompt memory is short again, and another one gives way."""
    asked = [
        *(request(i, arrival_s=5.5 * i, prompt=10, output=40) for i in range(3)),
        request(3, arrival_s=20.0, prompt=60, output=5),
    ]
    run = served(asked, 90, limited(token_ratio=NOTHING_KEPT))
    assert [r.num_preemptions for r in run.serving.requests] == [0, 1, 1, 0]
    assert [step[2][0][0] for step in steps(run) if step[2]] == [0, 1, 2, 3, 2, 1]
    assert all(r.is_finished for r in run.serving.requests)


def test_of_equally_decoded_the_longest_prompt_gives_way_and_with_drafts_the_newest() -> None:
    def retracted(drafts: int) -> list[int]:
        asked = [
            request(i, arrival_s=5.5 * i, prompt=prompt, output=output)
            for i, (prompt, output) in enumerate([(12, 20), (30, 20), (9, 40)])
        ]
        run = served(asked, 100, limited(token_ratio=NOTHING_KEPT), drafts, draws=NeverAccept())
        return [r.index for r in run.serving.requests if r.num_preemptions]

    assert retracted(0) == [1]
    assert retracted(1) == [2]


def test_a_prefix_is_found_once_it_is_computed() -> None:
    """Two that come together both compute it; the third finds it."""
    shared = tuple(range(8))
    asked = [request(index, arrival_s=at_s, prompt=10, output=2) for index, at_s in enumerate((0.0, 0.0, 1.0))]
    for one in asked:
        one.content = (*shared, 100 + one.index)
    run = served(asked, 1000)
    assert steps(run)[:2] == [(0.0, (), ((0, 10, 0), (1, 10, 0))), (5.0, (), ((2, 2, 8),))]


@examples(4)
@given(
    rows=st.lists(st.tuples(st.integers(1, 90), st.integers(1, 40), st.floats(0.0, 200.0)), min_size=1, max_size=9),
    draft_tokens=st.integers(0, 3),
    max_num_seqs=st.integers(1, 12),
    async_scheduling=st.booleans(),
    long_prefill_token_threshold=st.sampled_from([0, 0, 16]),
    block_size=st.sampled_from([1, 16, 64]),
    spare_blocks=st.integers(0, 40),
    ratio=st.sampled_from([RATIO, NOTHING_KEPT, NEWEST]),
    prefill_decode_interval=st.sampled_from([0, 0, 3]),
)
@example(
    rows=[(90, 2, 0.0)],
    draft_tokens=0,
    max_num_seqs=1,
    async_scheduling=False,
    long_prefill_token_threshold=16,
    block_size=64,
    spare_blocks=0,
    ratio=NOTHING_KEPT,
    prefill_decode_interval=0,
)
@example(
    rows=[(35, 8, 11.0), (60, 6, 5.5), (39, 36, 5.5), (41, 18, 11.0)], draft_tokens=1, max_num_seqs=8,
    async_scheduling=True, long_prefill_token_threshold=0, block_size=1, spare_blocks=11, ratio=NOTHING_KEPT,
    prefill_decode_interval=0,
)  # fmt: skip
@example(
    # The last row has finished where the rest of a cut prompt is held back for three steps of rows.
    rows=[(1, 4, 0.0), (17, 1, 0.0)], draft_tokens=0, max_num_seqs=2, async_scheduling=False,
    long_prefill_token_threshold=16, block_size=1, spare_blocks=0, ratio=RATIO, prefill_decode_interval=3,
)  # fmt: skip
@example(
    # A prompt longer than a step's tokens is cut, and no row is left by then.
    rows=[(1, 26, 0.0), (1, 24, 0.0), (49, 1, 0.0)], draft_tokens=0, max_num_seqs=2, async_scheduling=False,
    long_prefill_token_threshold=0, block_size=1, spare_blocks=0, ratio=RATIO, prefill_decode_interval=3,
)  # fmt: skip
def test_everybody_is_served_however_short_memory_is(
    rows: list[tuple[int, int, float]],
    draft_tokens: int,
    block_size: int,
    spare_blocks: int,
    ratio: TokenRatio,
    **rules: Any,
) -> None:
    limits = limited(max_num_batched_tokens=48, token_ratio=ratio, **rules)
    asked = [
        request(i, arrival_s=at_s, prompt=prompt, output=output)
        for i, (prompt, output, at_s) in enumerate(sorted(rows, key=lambda row: row[2]))
    ]
    longest = max(prompt + output for prompt, output, _ in rows) + 3 * draft_tokens + 1
    kv_blocks = -(-longest // block_size) + spare_blocks
    memory = {"kv_blocks": kv_blocks, "block_size": block_size}
    run = SimRun("continuous", asked, draws=KeyedDraws(), limits=limits, draft_tokens=draft_tokens, **memory)
    assert all(one.is_finished for one in run.serving.requests)
    assert run.serving.radix.num_held == 0
