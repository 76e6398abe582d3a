"""What each way of drafting runs and costs, against sums made by hand."""

from __future__ import annotations

import msgspec
import pytest

from sim.costs.forms.build import build_costs
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.costs.shapes import draft_model
from sim.interface.work import Chunk, Kind, Work
from sim.policies.continuous.plan import draft_of
from sim.policies.options import Method

PAIR = load("h100-sxm/llama-3.1-8b+eagle3")
CHUNKS = (Chunk(100, 0),)


def with_drafter(name: str) -> Profile:
    return msgspec.structs.replace(PAIR, draft=draft_model(name, PAIR.target))


def sizes(method: Method, draft_tokens: int) -> tuple[int, ...]:
    """Of the draft after 4 rows verified 16 tokens: rows, row tokens, tokens of chunks, LM head, passes, projected."""
    work = draft_of(method, 4, 16, 4000, CHUNKS, draft_tokens)
    chunk_tokens = sum(chunk.new_tokens for chunk in work.chunks)
    return (work.rows, work.row_tokens, chunk_tokens, work.head_rows, work.draft_tokens, work.projected_tokens)


@pytest.mark.parametrize(
    ("method", "draft_tokens", "expected"),
    [
        (Method.DRAFT_MODEL, 3, (4, 8, 100, 4, 3, 0)),
        (Method.EAGLE3, 3, (4, 16, 100, 4, 3, 0)),
        (Method.MTP, 3, (4, 16, 100, 4, 3, 0)),
        (Method.PARALLEL, 3, (4, 16 + 4 * 2, 100, 4 * 3, 1, 0)),
        (Method.DSPARK, 3, (4, 4 * 3, 0, 4 * 3, 1, 16 + 100)),
        # A round without drafts brings the drafter's KV up to date.
        (Method.EAGLE3, 0, (4, 16, 100, 0, 0, 0)),
        (Method.PARALLEL, 0, (4, 16, 100, 0, 0, 0)),
        (Method.DSPARK, 0, (0, 0, 0, 0, 0, 116)),
    ],
)
def test_what_a_draft_runs(method: Method, draft_tokens: int, expected: tuple[int, ...]) -> None:
    assert sizes(method, draft_tokens) == expected


def seconds(profile: Profile, method: Method, draft_tokens: int, verified: int = 1) -> float:
    return build_costs(profile).cost(draft_of(method, 1, verified, 1000, (), draft_tokens)).device_s


def test_every_further_token_of_an_mtp_layer_is_one_pass_of_it() -> None:
    mtp = with_drafter("mtp")
    passes = build_costs(mtp)
    one = Work(kind=Kind.DRAFT, model="draft", rows=1, row_tokens=1, context_tokens=1001, head_rows=1, draft_tokens=1)
    further_s = seconds(mtp, Method.MTP, 2) - seconds(mtp, Method.MTP, 1)
    assert further_s == pytest.approx(passes.cost(one).device_s, rel=1e-6)


def test_a_parallel_drafter_takes_one_pass_whatever_the_draft_length() -> None:
    pair = load("h100-sxm/llama-3.1-8b+llama-3.2-1b")
    one_s, many_s = (seconds(pair, Method.PARALLEL, draft_tokens) for draft_tokens in (1, 7))
    serial_s = seconds(pair, Method.DRAFT_MODEL, 7)
    assert many_s < 1.3 * one_s
    assert serial_s > 5 * many_s


def test_dspark_is_its_block_the_projection_of_context_and_a_serial_head() -> None:
    """From 3 to 7 slots only rows and slots grow: within one tile and one bucket, 4 x 40 us and the head's rows."""
    pair = with_drafter("dspark")
    costs = build_costs(pair, cuda_graph=False)
    assert pair.draft is not None
    passes = costs.passes(draft_of(Method.DSPARK, 1, 4, 1000, (), 3).model)
    work = draft_of(Method.DSPARK, 1, 4, 1000, (), 3)
    block = msgspec.structs.replace(work, projected_tokens=0)
    projected_s = costs.cost(work).device_s - costs.cost(block).device_s
    assert projected_s == pytest.approx(passes.fused_s(4) + passes.keys_s(4))
    pass_s = passes.pass_s(1, 3, 1000, (), 3) + passes.extra_s
    assert costs.cost(block).device_s == pytest.approx(pass_s + 3 * pair.draft.serial_slot_s)


def test_the_context_of_a_drafter_with_windows_ends_to_cost_more_at_its_window() -> None:
    pair = with_drafter("dspark")
    costs = build_costs(pair)

    def at(context: int) -> float:
        return costs.cost(draft_of(Method.DSPARK, 8, 8, 8 * context, (), 3)).device_s

    assert at(1000) < at(2048) == at(9000)
