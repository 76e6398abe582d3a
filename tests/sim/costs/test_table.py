"""Table costs: exact at measured points, hand-summed between them, monotone, and honest outside them."""

from __future__ import annotations

import warnings

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.costs.compact_kernels import VerifyAttention
from sim.costs.extrapolation import WORDS, OutsideProfileWarning
from sim.costs.forms.build import build_costs
from sim.costs.profile_files import load
from sim.costs.table_kernels import Curve, DecodeGrid, PrefillGrid
from sim.costs.work_costs import WorkCosts
from sim.interface.work import Chunk, Kind, Model, Work
from tests.sim.costs.table_points import HOLES, KV_TOKEN_S, PAIR_S, POINTS, VERIFY, table
from tests.sim.support import calls_of

EAGER = build_costs(table(), cuda_graph=False)
VERIFIED = build_costs(table(msgspec.structs.replace(POINTS, verify_attention=VERIFY)), cuda_graph=False)
HOLED = build_costs(table(HOLES), cuda_graph=False)


def rows_of(rows: int, context_tokens: int, queries: int = 1, kind: Kind = Kind.STEP) -> Work:
    """`context_tokens` is the sum of KV before the pass."""
    tokens = rows * queries
    return Work(kind=kind, rows=rows, row_tokens=tokens, context_tokens=context_tokens, head_rows=tokens)


def prompt(*chunks: Chunk) -> Work:
    return Work(kind=Kind.PREFILL, chunks=chunks, head_rows=1)


def body_s(tokens: int) -> float:
    return 2 * (1.0 + 0.1 * (tokens - 1))


def head_s(rows: int) -> float:
    return 1.0 + 0.01 * (rows - 1)


def test_measured_points_are_exact() -> None:
    for rows, line in zip((1, 5), POINTS.decode_attention.seconds, strict=True):
        for context, seconds in zip((10, 110), line, strict=True):
            assert seconds is not None
            cost = EAGER.cost(rows_of(rows, rows * (context - 1)))
            assert cost.device_s == pytest.approx(body_s(rows) + head_s(rows) + 2 * seconds)
    for tokens, seconds in ((10, 1.0), (100, 100.0)):
        assert EAGER.cost(prompt(Chunk(tokens, 0))).device_s == pytest.approx(body_s(tokens) + 1.0 + 2 * seconds)


MIXED = Work(kind=Kind.STEP, rows=5, row_tokens=5, context_tokens=5 * 59, chunks=(Chunk(50, 0),), head_rows=6)
SUMS: dict[str, tuple[WorkCosts, Work, float, int]] = {
    # 3 rows that read 60 tokens each: halfway between 1 and 5 rows, and between 10 and 110 tokens.
    "a step between measured rows and contexts": (EAGER, rows_of(3, 3 * 59), (1 + 11 + 3 + 23) / 4, 3),
    "a prompt between measured lengths follows their power": (EAGER, prompt(Chunk(50, 0)), 25.0, 1),
    "history that was not measured adds its pairs and its KV": (
        EAGER, prompt(Chunk(50, 30)), 25.0 + 30 * (50 * PAIR_S + KV_TOKEN_S), 1
    ),
    "history that was measured is interpolated": (HOLED, prompt(Chunk(10, 125)), 3.0, 1),
    "chunks of one pass share the kernel's fixed time": (EAGER, prompt(Chunk(50, 0), Chunk(20, 0)), 25 + 4 - 1, 1),
    # 5 rows of 3 queries that read 60 tokens each: decode takes 13 s, 3 s of them at the least context.
    "verify by rule slows what context adds and computes the further queries": (
        EAGER, rows_of(5, 5 * 57, 3, Kind.VERIFY), 3 + 2 * 10 + 5 * 2 * 60 * PAIR_S, 15
    ),
    # 5 rows that read 60 tokens each beside a chunk of 50: 71 s of them at one query are 3 + 2 x 10.
    "a mixed step slows decode rows and shares the kernel's fixed time": (EAGER, MIXED, 25 + (3 + 2 * 10 - 1), 6),
}  # fmt: skip


@pytest.mark.parametrize(("costs", "work", "attention_s", "head_rows"), SUMS.values(), ids=SUMS)
def test_a_pass_is_the_hand_sum(costs: WorkCosts, work: Work, attention_s: float, head_rows: int) -> None:
    cost, host = costs.cost(work), costs.profile.host
    tokens = work.row_tokens + sum(chunk.new_tokens for chunk in work.chunks)
    assert cost.device_s == pytest.approx(body_s(tokens) + head_s(head_rows) + 2 * attention_s)
    if not work.chunks:
        assert cost.prepare_s == pytest.approx(host.step_s + work.rows * host.row_s)
    assert cost.num_kernels == 2 * host.kernels_per_layer + 6
    assert cost.launch_s == pytest.approx(cost.num_kernels * host.eager_kernel_s)


def test_padded_tiles_take_their_time_after_that_of_the_least_context() -> None:
    """5 rows of 3 queries that read 60 tokens each: 3 s, and 0.1 s for the tile over each token."""
    profile = table()
    share = 4.0 * 64 / (0.1 * profile.gpu.peak_flops)
    rule = VerifyAttention(kv_slowdown=1.0, query_tile=64, tile_compute_share=share)
    kernels = msgspec.structs.replace(profile.table, verify_rule=rule)
    costs = build_costs(msgspec.structs.replace(profile, kernels=kernels), cuda_graph=False)
    attention_s = 3.0 + 0.1 * 5 * 60
    cost = costs.cost(rows_of(5, 5 * 57, 3, Kind.VERIFY))
    assert cost.device_s == pytest.approx(body_s(15) + head_s(15) + 2 * attention_s)


def test_verify_that_was_measured_is_exact_at_its_points_and_linear_in_queries() -> None:
    for queries, attention_s in ((3, 22.0), (4, 23.0), (5, 24.0), (2, (11.0 + 22.0) / 2)):
        cost = VERIFIED.cost(rows_of(1, 110 - queries, queries, Kind.VERIFY))
        assert cost.device_s == pytest.approx(body_s(queries) + head_s(queries) + 2 * attention_s)


def test_a_draft_is_its_first_pass_and_single_token_passes_with_growing_context() -> None:
    work = Work(
        kind=Kind.DRAFT, model=Model.DRAFT, rows=2, row_tokens=3, context_tokens=40, head_rows=2, draft_tokens=3
    )
    first = Work(kind=Kind.VERIFY, rows=2, row_tokens=3, context_tokens=40, head_rows=2)
    passes = [first, rows_of(2, 43), rows_of(2, 45)]
    for costs in (EAGER, VERIFIED, build_costs(table())):
        cost = costs.cost(work)
        assert cost.device_s == pytest.approx(sum(costs.cost(each).device_s for each in passes))
        assert cost.launch_s == pytest.approx(sum(costs.cost(each).launch_s for each in passes))
        assert cost.num_kernels == 3 * costs.cost(first).num_kernels


@pytest.mark.filterwarnings("ignore::sim.costs.extrapolation.OutsideProfileWarning")
def test_the_fast_path_of_rows_agrees_with_the_general_sum_of_a_pass() -> None:
    for costs in (EAGER, VERIFIED, HOLED, build_costs(table())):
        passes = costs.passes(Model.TARGET)
        for rows, context, queries in ((1, 0, 1), (3, 100, 1), (5, 1000, 1), (7, 90, 2), (2, 150, 5)):
            work = rows_of(rows, context, queries)
            general_s = passes.pass_s(rows, work.row_tokens, context, (), work.head_rows)
            assert costs.cost(work).device_s == pytest.approx(general_s, rel=1e-12)


@pytest.mark.filterwarnings("ignore::sim.costs.extrapolation.OutsideProfileWarning")
@given(rows=st.integers(1, 20), queries=st.integers(1, 7), context=st.integers(0, 600), more=st.integers(1, 300))
def test_more_rows_queries_or_context_never_cost_less(rows: int, queries: int, context: int, more: int) -> None:
    for costs in (EAGER, VERIFIED, HOLED):
        base = costs.cost(rows_of(rows, rows * context, queries)).device_s * (1 - 1e-12)
        assert costs.cost(rows_of(rows, rows * (context + more), queries)).device_s >= base
        assert costs.cost(rows_of(rows + 1, (rows + 1) * context, queries)).device_s >= base
        assert costs.cost(rows_of(rows, rows * context, queries + 1)).device_s >= base


@pytest.mark.filterwarnings("ignore::sim.costs.extrapolation.OutsideProfileWarning")
@given(tokens=st.integers(1, 300), history=st.integers(0, 300), more=st.integers(1, 200))
def test_longer_chunks_and_histories_never_cost_less(tokens: int, history: int, more: int) -> None:
    for costs in (EAGER, HOLED):
        base = costs.cost(prompt(Chunk(tokens, history))).device_s * (1 - 1e-12)
        assert costs.cost(prompt(Chunk(tokens + more, history))).device_s >= base
        assert costs.cost(prompt(Chunk(tokens, history + more))).device_s >= base


@pytest.mark.parametrize(
    ("work", "bound"),
    [
        (rows_of(6, 0), "rows"),
        (rows_of(1, 1000), "row_context_tokens"),
        (prompt(Chunk(101, 0)), "chunk_tokens"),
        (prompt(Chunk(1, 111)), "history_tokens"),
        (prompt(Chunk(90, 0), Chunk(90, 0)), "tokens"),
        (rows_of(5, 50, 6), "queries"),
        (Work(kind=Kind.STEP, rows=1, row_tokens=1, head_rows=102), "head_rows"),
    ],
)
def test_outside_the_measured_range_it_warns_once(work: Work, bound: str) -> None:
    profile = VERIFIED.profile
    costs = build_costs(profile)
    with pytest.warns(OutsideProfileWarning, match=f"{WORDS[bound]} beyond the largest measured"):
        costs.cost(work)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        costs.cost(work)


def test_the_longest_context_is_that_of_as_many_rows() -> None:
    passes = HOLED.passes(Model.TARGET)
    assert [passes.max_row_context_tokens(rows) for rows in (1, 2, 3, 8, 9)] == [400, 100, 100, 100, 100]


def test_inside_the_measured_range_nothing_is_warned_of() -> None:
    costs = build_costs(VERIFIED.profile)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for work in (rows_of(5, 500), rows_of(5, 500, 5), prompt(Chunk(90, 100)), rows_of(1, 0)):
            costs.cost(work)


def test_the_bandwidth_of_a_sparse_model_is_that_at_which_one_token_reads_its_own_experts() -> None:
    """Two bytes for each parameter of the layers that a token is multiplied with."""
    profile = load("h100-sxm/qwen3-30b-a3b")
    shape, passes = profile.target, build_costs(profile).passes(Model.TARGET)
    read_bytes = 2.0 * shape.layers * shape.active_layer_weights
    assert passes.bandwidth_roof * shape.layers * passes.layer_s(1) == pytest.approx(read_bytes)


def test_a_decode_step_is_priced_in_few_calls() -> None:
    """Steps of a known shape are asked for by the million."""
    assert calls_of(EAGER.cost, rows_of(4, 200)) <= 7


def test_a_served_gpus_ratio_acts_on_the_layers_of_a_table() -> None:
    profile = load("a100-sxm/llama-3.1-8b")
    kernels = msgspec.structs.replace(profile.table, body_ratios=((8, 1.0), (128, 1.5)))
    plain, served = (
        build_costs(msgspec.structs.replace(profile, kernels=each)).passes(Model.TARGET)
        for each in (msgspec.structs.replace(profile.table, body_ratios=()), kernels)
    )
    assert [served.body_s(n) / plain.body_s(n) for n in (1, 8, 32, 128, 4096)] == pytest.approx([1, 1, 1.25, 1.5, 1.5])
    assert served.head_s(8) == plain.head_s(8)


STAIRS = msgspec.structs.replace(
    POINTS,
    body=Curve(tokens=(1, 100, 200, 300, 310, 320), seconds=(1.0, 10.0, 20.0, 32.0, 32.0, 32.0)),
    decode_attention=DecodeGrid(
        rows=(1, 8, 14, 16),
        context_tokens=(10, 50, 99, 100),
        seconds=tuple((t, t + 4, t + 9, t + 9) for t in (1.0, 4.0, 8.0, 8.0)),
    ),
    prefill_attention=PrefillGrid(
        chunk_tokens=(10, 160, 310, 320), history_tokens=(0,), seconds=((1.0,), (4.0,), (16.0,), (16.0,))
    ),
)
"""The last points of each axis lie on one step of a staircase: flat between them, and rising over the upper half."""
STEPPED = build_costs(table(STAIRS), cuda_graph=False)


def test_beyond_the_last_point_a_staircase_goes_on_as_its_upper_half_rises() -> None:
    passes = STEPPED.passes(Model.TARGET)
    assert passes.layer_s(320 + 160) == pytest.approx(32.0 + (32.0 - 10.0) / 220 * 160)
    assert passes.chunks_attention_s([Chunk(640, 0)]) == pytest.approx(16.0 * 4.0)
    assert passes.rows_s(1, 1, 150, beside_chunks=False) == pytest.approx(10.0 + 5.0)
    assert passes.rows_s(24, 24, 24 * 10, beside_chunks=False) == pytest.approx(8.0 + 4.0)


@pytest.mark.parametrize("rows", [1, 9, 16, 40])
def test_rows_beyond_the_longest_context_cost_as_much_alone_as_by_the_sum_of_their_parts(rows: int) -> None:
    for context in (60, 100, 101, 1000):
        kv_tokens = rows * context
        work = rows_of(rows, kv_tokens - rows)
        by_parts = STEPPED.passes(Model.TARGET).pass_s(rows, rows, work.context_tokens, (), rows)
        assert STEPPED.cost(work).device_s == pytest.approx(by_parts)
