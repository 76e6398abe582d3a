"""Compact costs: hand-summed passes on round constants, monotonicity, regimes, CUDA graphs, range and speed."""

from __future__ import annotations

import warnings

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.costs.compact_kernels import (
    BLOCK_QUERIES,
    REFERENCE_DEPTH,
    DecodeAttention,
    Elementwise,
    Gemm,
    Head,
    Measured,
    PrefillAttention,
    VerifyAttention,
)
from sim.costs.extrapolation import OutsideProfileWarning
from sim.costs.forms.build import build_costs
from sim.costs.forms.compact import CompactPasses, gemm_s
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.costs.work_costs import WorkCosts, captured_sizes
from sim.interface.work import TARGET, Chunk, Kind, Model, Work
from tests.sim.costs.table_points import SHAPE

TINY_SHAPE = msgspec.structs.replace(SHAPE, layers=1)
"""QKV 3x1, output 1x1, gate and up 2x1, down 1x1: 7 weights; 1 weight in the head; 4 bytes of KV per token."""


def plain(profile: Profile) -> Profile:
    """`profile` with a one-weight model and constants that make every sum easy: 1 byte/s, compute free, 10 s per GEMM,
    100 s per attention."""
    decode = DecodeAttention(fixed_s=100.0, row_head_s=0.0, bandwidth_share=1.0, sharpness=1.0)
    gemm = Gemm(
        compute_share=1.0, bandwidth_share=1.0, fixed_s=10.0, depth_s=0.0, sharpness=1.0, extra_depth=0.0,
        tile_share=0.0, wave_share=0.0, long_kernel_change=0.0, long_kernel_s=1.0, tile_tokens=128,
        small_tile_tokens=64, tile_columns=128, multiprocessors=1,
    )  # fmt: skip
    prefill = PrefillAttention(
        fixed_s=200.0, compute_share=1.0, extra_keys=0.0, tile_share=0.0, block_s=0.0, kv_bandwidth_share=1.0,
        small_head_change=0.0,
    )  # fmt: skip
    kernels = msgspec.structs.replace(
        profile.kernels, gemm=gemm, decode_attention=decode, multi_head_decode_attention=decode,
        prefill_attention=prefill, verify_attention=VerifyAttention(kv_slowdown=2.0),
        elementwise=Elementwise(bandwidth_share=1.0, kernel_s=0.25, kernels_per_layer=4),
        head=Head(sampler_s=5.0, sampler_passes=1.0),
        measured=Measured(tokens=1000, rows=1000, row_context_tokens=1000, chunk_tokens=1000),
    )  # fmt: skip
    gpu = msgspec.structs.replace(profile.gpu, peak_flops=1e30, bandwidth_bytes_per_s=1.0)
    return msgspec.structs.replace(profile, gpu=gpu, target=TINY_SHAPE, draft=TINY_SHAPE, kernels=kernels)


PLAIN = plain(load("h100-sxm/llama-2-7b+tinyllama-1.1b"))
REAL = build_costs(load("h100-sxm/llama-2-7b+tinyllama-1.1b"))
A100 = build_costs(load("a100-sxm/codellama-34b+tinyllama-1.1b"))


def body_s(tokens: int) -> float:
    """4 GEMMs of 10 s; 2 bytes each for 7 weights and 4 + 2 + 3 + 2 activations per token; elementwise: 4 kernels of
    0.25 s and 8 + 4 + 3 values per token."""
    return 40.0 + 2 * 7 + 2 * 11 * tokens + 1.0 + 2 * (8 + 4 + 3) * tokens


def head_s(rows: int) -> float:
    """One GEMM of 1 weight, 2 activations per row; sampler 5 s and 4 bytes of logits per row."""
    return 10.0 + 2 * (1 + 2 * rows) + 5.0 + 4 * rows


def decode(rows: int, context_tokens: int, kind: Kind = Kind.STEP) -> Work:
    return Work(kind=kind, rows=rows, row_tokens=rows, context_tokens=context_tokens, head_rows=rows)


def verify(rows: int, draft_tokens: int, context_tokens: int) -> Work:
    tokens = rows * (draft_tokens + 1)
    return Work(kind=Kind.VERIFY, rows=rows, row_tokens=tokens, context_tokens=context_tokens, head_rows=tokens)


FIVE = (Chunk(5, 0),)
MIXED = Work(kind=Kind.STEP, rows=2, row_tokens=2, context_tokens=50, chunks=FIVE, head_rows=3)
SUMS: dict[str, tuple[Work, float, int]] = {
    "a decode step is body and attention and head": (decode(3, 57), body_s(3) + 100 + 4 * (57 + 3) + head_s(3), 3),
    "a prompt is body and prefill attention and one head row": (
        Work(kind=Kind.PREFILL, chunks=FIVE, head_rows=1), body_s(5) + 200 + 4 * 5 + head_s(1), 1
    ),
    "a chunk reads its history": (
        Work(kind=Kind.PREFILL, chunks=(Chunk(5, 30),), head_rows=1), body_s(5) + 200 + 4 * (5 + 30) + head_s(1), 1
    ),
    "verify streams KV once at its own slowdown": (
        verify(2, 4, 50), body_s(10) + 100 + 2 * 4 * (50 + 10) + head_s(10), 2
    ),
    "a mixed step puts all tokens through the body together": (
        MIXED, body_s(7) + 200 + 4 * 5 + 2 * 4 * (50 + 2) + head_s(3), 3
    ),
    "a draft of no tokens is the draft model's prefill alone": (
        Work(kind=Kind.DRAFT, model=Model.DRAFT, chunks=FIVE), body_s(5) + 200 + 4 * 5, 1
    ),
}  # fmt: skip


@pytest.mark.parametrize(("work", "device_s", "rows"), SUMS.values(), ids=SUMS)
def test_a_pass_is_the_hand_sum(work: Work, device_s: float, rows: int) -> None:
    cost, host = build_costs(PLAIN, cuda_graph=False).cost(work), PLAIN.host
    assert cost.device_s == pytest.approx(device_s)
    assert cost.prepare_s == pytest.approx(host.step_s + rows * host.row_s)
    assert cost.num_kernels == host.kernels_per_layer + 6
    assert cost.launch_s == pytest.approx(cost.num_kernels * host.eager_kernel_s)


def test_the_fast_path_of_rows_agrees_with_the_general_sum_of_a_pass() -> None:
    for costs in (REAL, A100, build_costs(PLAIN)):
        passes = costs.passes(Model.TARGET)
        for work in (decode(1, 0), decode(7, 900), decode(64, 30_000), verify(1, 4, 700), verify(8, 5, 7000)):
            general_s = passes.pass_s(work.rows, work.row_tokens, work.context_tokens, (), work.head_rows)
            assert costs.cost(work).device_s == pytest.approx(general_s, rel=1e-12)


def test_the_fast_path_of_a_draft_agrees_with_the_general_sum_of_its_passes() -> None:
    work = Work(
        kind=Kind.DRAFT, model=Model.DRAFT, rows=3, row_tokens=5, context_tokens=900, head_rows=3, draft_tokens=4
    )
    passes = REAL.passes(Model.DRAFT)
    general_s = passes.pass_s(3, 5, 900, (), 3) + sum(passes.pass_s(3, 3, 905 + 3 * i, (), 3) for i in range(3))
    assert REAL.cost(work).device_s == pytest.approx(general_s, rel=1e-12)


def test_keys_of_small_heads_take_at_least_a_time_of_their_own() -> None:
    """Eight keys of one head: 4 bytes each at a byte a second are faster than 5 s each, and slower than 3 s each."""
    for least_s, key_s in ((5.0, 5.0), (3.0, 4.0)):
        attention = msgspec.structs.replace(PLAIN.compact.decode_attention, key_head_s=least_s)
        kernels = msgspec.structs.replace(PLAIN.compact, multi_head_decode_attention=attention)
        costs = build_costs(msgspec.structs.replace(PLAIN, kernels=kernels))
        assert costs.cost(decode(1, 7)).device_s == pytest.approx(body_s(1) + head_s(1) + 100.0 + 8 * key_s)


def test_host_and_copy_works_use_no_kernels_of_a_model() -> None:
    costs = build_costs(PLAIN)
    assert costs.cost(Work(kind=Kind.HOST, host_s=0.5)) == (0.5, 0.0, 0.0, 0, 0.0)
    copy = costs.cost(Work(kind=Kind.COPY, num_bytes=7))
    assert (copy.prepare_s, copy.device_s, copy.num_kernels) == (0.0, 7.0, 1)


def test_graphs_pad_the_body_to_the_next_captured_size() -> None:
    eager, graphed = build_costs(PLAIN, cuda_graph=False), build_costs(PLAIN)
    work = decode(9, 0)
    assert graphed.cost(work).device_s - eager.cost(work).device_s == pytest.approx(body_s(16) - body_s(9))
    assert graphed.cost(work).launch_s == PLAIN.host.graph_launch_s
    assert graphed.cost(decode(16, 0)).device_s == pytest.approx(eager.cost(decode(16, 0)).device_s)


def test_a_pass_larger_than_any_graph_is_launched_eagerly_and_not_padded() -> None:
    eager, graphed = build_costs(PLAIN, cuda_graph=False), build_costs(PLAIN)
    assert graphed.cost(decode(513, 0)) == eager.cost(decode(513, 0))


def test_captured_sizes_are_those_of_vllm() -> None:
    sizes = captured_sizes(PLAIN.host)
    assert sizes[:6] == [1, 2, 4, 8, 16, 24]
    assert sizes[-1] == 512


@pytest.mark.filterwarnings("ignore::sim.costs.extrapolation.OutsideProfileWarning")
@given(rows=st.integers(1, 300), context=st.integers(0, 200_000), more=st.integers(1, 5000))
def test_more_rows_or_more_context_never_cost_less(rows: int, context: int, more: int) -> None:
    for costs in (REAL, A100):
        base = costs.cost(decode(rows, context)).device_s
        assert costs.cost(decode(rows, context + more)).device_s >= base
        assert costs.cost(decode(rows + 1, context)).device_s >= base * (1 - 1e-12)


@given(tokens=st.integers(1, 8000), history=st.integers(0, 8000), more=st.integers(1, 300))
def test_a_longer_chunk_never_costs_less(tokens: int, history: int, more: int) -> None:
    for costs in (REAL, A100):
        base, longer, later = (
            costs.cost(Work(kind=Kind.PREFILL, chunks=(chunk,), head_rows=1)).device_s
            for chunk in (Chunk(tokens, history), Chunk(tokens + more, history), Chunk(tokens, history + more))
        )
        assert longer >= base * (1 - 1e-12)
        assert later >= base * (1 - 1e-12)


@given(factor=st.floats(1.0, 4.0), rows=st.integers(1, 64), draft_tokens=st.integers(0, 7), chunk=st.integers(1, 2048))
def test_more_bandwidth_never_slows_a_lone_pass(factor: float, rows: int, draft_tokens: int, chunk: int) -> None:
    profile = load("a100-sxm/llama-2-7b+tinyllama-1.1b")
    bandwidth = profile.gpu.bandwidth_bytes_per_s * factor
    faster = msgspec.structs.replace(profile, gpu=msgspec.structs.replace(profile.gpu, bandwidth_bytes_per_s=bandwidth))
    work = msgspec.structs.replace(verify(rows, draft_tokens, 500 * rows), chunks=(Chunk(chunk, 100),))
    assert build_costs(faster).cost(work).device_s <= build_costs(profile).cost(work).device_s


def test_on_a100_verify_slows_kv_and_on_h100_it_does_not() -> None:
    def extra_s(costs: WorkCosts) -> float:
        passes = costs.passes(Model.TARGET)
        slow = passes.rows_s(8, 9, 400_000, beside_chunks=False)
        return slow / passes.rows_s(8, 8, 400_000, beside_chunks=False)

    a100, h100 = (build_costs(load(f"{gpu}/codellama-34b")) for gpu in ("a100-sxm", "h100-sxm"))
    assert extra_s(a100) == pytest.approx(6.53, abs=0.05)
    assert extra_s(h100) == pytest.approx(1.0, abs=0.01)


def test_unmeasured_overlap_demands_the_whole_device() -> None:
    for work in (decode(4, 2000), verify(4, 4, 2000), Work(kind=Kind.PREFILL, chunks=(Chunk(512, 0),), head_rows=1)):
        assert REAL.demands(work) == (1.0, 1.0)
    assert REAL.demands(Work(kind=Kind.HOST, host_s=1.0)) == (0.0, 0.0)


def test_measured_overlap_shows_decode_bound_by_bandwidth_and_prefill_by_compute() -> None:
    profile = load("h100-sxm/llama-2-7b")
    free = msgspec.structs.replace(profile.overlap, demand_floor=0.0, measured=True)
    costs = build_costs(msgspec.structs.replace(profile, overlap=free))
    compute, bandwidth = costs.demands(decode(8, 8000))
    assert compute < 0.2
    assert 0.8 < bandwidth <= 1.0
    compute, bandwidth = costs.demands(Work(kind=Kind.PREFILL, chunks=(Chunk(4096, 0),), head_rows=1))
    assert 0.7 < compute <= 1.0
    assert bandwidth < 0.5


def test_a_draft_work_without_a_draft_model_says_what_to_do() -> None:
    costs = build_costs(load("h100-sxm/llama-2-7b"))
    with pytest.raises(ValueError, match="has no draft model"):
        costs.cost(Work(kind=Kind.DRAFT, model=Model.DRAFT, rows=1, row_tokens=1, head_rows=1, draft_tokens=2))


@pytest.mark.parametrize(
    "work",
    [
        decode(1001, 0),
        decode(1, 1001),
        verify(300, 4, 0),
        Work(kind=Kind.PREFILL, chunks=(Chunk(1001, 0),)),
        Work(kind=Kind.PREFILL, chunks=(Chunk(1, 1001),)),
    ],
)
def test_outside_the_measured_range_it_warns_once(work: Work) -> None:
    costs = build_costs(PLAIN)
    with pytest.warns(OutsideProfileWarning, match="beyond the largest measured"):
        costs.cost(work)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        costs.cost(work)


def test_a_ratio_of_the_layers_stands_between_counts_on_their_logs_and_is_held_beyond() -> None:
    kernels = msgspec.structs.replace(load("h100-sxm/llama-2-7b").compact, body_ratios=((8, 1.2), (32, 0.8)))
    assert [kernels.body_ratio(tokens) for tokens in (1, 8, 16, 32, 64)] == pytest.approx([1.2, 1.2, 1.0, 0.8, 0.8])
    plain_s, served_s = (
        build_costs(msgspec.structs.replace(load("h100-sxm/llama-2-7b"), kernels=each)).passes(Model.TARGET).body_s(16)
        for each in (load("h100-sxm/llama-2-7b").compact, msgspec.structs.replace(kernels, body_ratios=((8, 2.0),)))
    )
    assert served_s == pytest.approx(2.0 * plain_s)


def with_kernels(**changes: object) -> Profile:
    return msgspec.structs.replace(PLAIN, kernels=msgspec.structs.replace(PLAIN.kernels, **changes))


@pytest.mark.parametrize(("heads", "fixed_s"), [(1, 100.0), (2, 7.0)])
def test_a_model_whose_every_query_head_has_its_own_kv_head_has_attention_constants_of_its_own(
    heads: int, fixed_s: float
) -> None:
    grouped = msgspec.structs.replace(PLAIN.compact.decode_attention, fixed_s=7.0)
    shape = msgspec.structs.replace(TINY_SHAPE, heads=heads)
    profile = msgspec.structs.replace(with_kernels(decode_attention=grouped), target=shape)
    without = msgspec.structs.replace(grouped, fixed_s=0.0)
    changes = {"decode_attention": without, "multi_head_decode_attention": without}
    free = msgspec.structs.replace(with_kernels(**changes), target=shape)
    saved_s = build_costs(profile).cost(decode(3, 57)).device_s - build_costs(free).cost(decode(3, 57)).device_s
    assert saved_s == pytest.approx(fixed_s)


def test_further_queries_of_a_row_compute_their_pairs_unless_a_padded_tile_holds_them() -> None:
    """2 rows of 3 tokens over 60 of KV; a pair of query and key is 4 FLOP at 8 FLOP/s, a tile is as good as free."""
    gpu = msgspec.structs.replace(PLAIN.gpu, peak_flops=8.0)
    tiles = VerifyAttention(kv_slowdown=2.0, query_tile=16, tile_compute_share=1e30)
    one_by_one = build_costs(msgspec.structs.replace(PLAIN, gpu=gpu))
    in_tiles = build_costs(msgspec.structs.replace(with_kernels(verify_attention=tiles), gpu=gpu))
    work = verify(2, 2, 54)
    assert one_by_one.cost(work).device_s - in_tiles.cost(work).device_s == pytest.approx(0.5 * (6 - 2) * 60 / 2)


def test_a_draft_head_projects_the_features_that_it_reads_to_one() -> None:
    """A GEMM of 10 s; 2 bytes for each of 3 weights, and of 3 inputs and 1 output per token."""
    shape = msgspec.structs.replace(TINY_SHAPE, fused_features=3)
    passes = CompactPasses(msgspec.structs.replace(PLAIN, target=shape), TARGET, ())
    assert passes.fused_s(5) == pytest.approx(10.0 + 2 * (3 + 5 * (3 + 1)))


def test_queries_are_charged_by_whole_blocks_of_128() -> None:
    """At a second per pair; a token's own keys and values take 4 s."""
    share = 4.0 / PLAIN.gpu.peak_flops
    attention = msgspec.structs.replace(
        PLAIN.compact.prefill_attention, tile_share=1.0, extra_keys=0.0, compute_share=share
    )
    passes = CompactPasses(with_kernels(prefill_attention=attention), TARGET, ())
    one, whole, more = (passes.chunks_attention_s([Chunk(tokens, 0)]) for tokens in (1, 128, 129))
    assert whole - one == pytest.approx(127 * 4)
    assert more - whole == pytest.approx(0.5 * (256**2 - 128**2) + 4)


@pytest.mark.parametrize("lengths", [(300, 100), (100, 300)])
def test_the_tail_of_prefill_attention_is_that_of_the_longest_chunk(lengths: tuple[int, int]) -> None:
    attention = msgspec.structs.replace(PLAIN.compact.prefill_attention, block_s=128.0)
    with_tail = CompactPasses(with_kernels(prefill_attention=attention), TARGET, ())
    without = CompactPasses(PLAIN, TARGET, ())
    chunks = [Chunk(tokens, 0) for tokens in lengths]
    assert with_tail.chunks_attention_s(chunks) - without.chunks_attention_s(chunks) == pytest.approx(
        128.0 * 300 / BLOCK_QUERIES
    )


@pytest.mark.parametrize(("ahead_s", "prepare_s"), [(0.0, 3.0), (1.0, 2.0), (9.0, 0.0)])
def test_what_the_host_prepared_ahead_is_over_already(ahead_s: float, prepare_s: float) -> None:
    host = msgspec.structs.replace(PLAIN.host, step_s=1.0, row_s=1.0)
    costs = build_costs(msgspec.structs.replace(PLAIN, host=host))
    assert costs.cost(msgspec.structs.replace(decode(2, 57), ahead_s=ahead_s)).prepare_s == pytest.approx(prepare_s)


def test_the_gap_between_works_is_device_time_of_every_pass() -> None:
    host = msgspec.structs.replace(PLAIN.host, gap_s=3.0)
    with_gap, without = build_costs(msgspec.structs.replace(PLAIN, host=host)), build_costs(PLAIN)
    for work in (decode(3, 57), verify(2, 2, 54)):
        assert with_gap.cost(work).device_s - without.cost(work).device_s == pytest.approx(3.0)


@pytest.mark.parametrize("share", [0.25, 1.0, 3.0])
def test_the_serial_loop_of_a_gemm_grows_with_its_depth(share: float) -> None:
    """`depth_s` holds for REFERENCE_DEPTH."""
    constants = plain(load("h100-sxm/llama-2-7b")).compact.gemm
    looped = msgspec.structs.replace(constants, depth_s=7.0)
    depth = int(share * REFERENCE_DEPTH)
    bare_s, looped_s = (gemm_s(each, PLAIN.gpu, 1, 1, depth, 2.0) for each in (constants, looped))
    assert looped_s - bare_s == pytest.approx(7.0 * share)


def test_host_inflation_is_one_alone_and_holds_beyond_the_list() -> None:
    graphed, eager = build_costs(PLAIN), build_costs(PLAIN, cuda_graph=False)
    assert graphed.host_inflation(1) == eager.host_inflation(1) == 1.0
    assert [eager.host_inflation(n) for n in (2, 3, 9)] == [1.9, 2.8, 2.8]
    assert graphed.host_inflation(2) < eager.host_inflation(2)
