"""Models that are not plain: experts, latent attention, windows, number formats; sums by hand and published totals."""

from __future__ import annotations

from math import ceil

import msgspec
import pytest

from sim.costs.layer_kinds import Experts, Latent, Linear
from sim.costs.memory import kept_blocks
from sim.costs.passes import layer_kv_bytes, pass_use
from sim.costs.shapes import Formats, ModelShape, kv_bytes_per_token, rank_weight_bytes

TINY = ModelShape(
    name="m", layers=4, hidden=8, intermediate=16, heads=4, kv_heads=2, head_dim=2, vocab=10, tied_embeddings=False,
    max_context=64,
)  # fmt: skip
ATTENTION = (8 + 2 * 4) * 8 + 8 * 8
MLP = 3 * 8 * 16


def changed(**fields: object) -> ModelShape:
    return msgspec.structs.replace(TINY, **fields)


SPARSE = changed(experts=Experts(num=6, per_token=2, intermediate=4, shared_intermediate=2, dense_layers=1))
EXPERT, SHARED, ROUTER = 3 * 8 * 4, 3 * 8 * 2, 8 * 6


def test_experts_count_in_full_for_memory_and_by_the_token_for_arithmetic() -> None:
    dense_layer, sparse_layer = ATTENTION + MLP, ATTENTION + SHARED + ROUTER + 6 * EXPERT
    assert SPARSE.params == dense_layer + 3 * sparse_layer + 2 * 80
    active = dense_layer + 3 * (ATTENTION + SHARED + ROUTER + 2 * EXPERT)
    assert SPARSE.active_layer_weights == active / 4
    assert SPARSE.expert_bytes == 2 * 3 * 6 * EXPERT


def test_a_pass_reads_the_experts_that_its_tokens_activate() -> None:
    def moved(tokens: int) -> float:
        return pass_use(SPARSE, 1, 1, tokens, 0, (), 0).num_bytes

    unique = SPARSE.experts.unique if SPARSE.experts else None
    assert unique is not None
    per_token = layer_kv_bytes(SPARSE, 1) * 4 + 4 * SPARSE.elementwise_bytes_per_token
    assert moved(3) - moved(1) == pytest.approx(2 * 3 * EXPERT * (unique(3) - unique(1)) + 2 * per_token)


LINEAR = Linear(layers=3, key_heads=2, key_dim=2, value_heads=4, value_dim=2)


def test_linear_attention_has_matrices_of_its_own_and_a_state_instead_of_kv() -> None:
    mixed = changed(linear=LINEAR)
    of_linear = (2 * 4 + 2 * 8) * 8 + 2 * 4 * 8 + 8 * 8
    assert mixed.params == ATTENTION + 3 * of_linear + 4 * MLP + 2 * 80
    assert mixed.kv_bytes_per_token == TINY.kv_bytes_per_token / 4
    assert layer_kv_bytes(mixed, 1) == layer_kv_bytes(TINY, 1) / 4
    assert LINEAR.state_bytes == 3 * (4 * 4 * 2 * 2 + 2 * 3 * (2 * 4 + 8))
    assert not mixed.is_plain
    assert sum(columns * depth for columns, depth in LINEAR.gemms(8, 2)) == of_linear / 2


def test_a_sequence_has_a_state_for_itself_and_one_for_each_drafted_token() -> None:
    """A block of four tokens has one layer's keys and values; a window that short sequences do not fill is left out."""
    mixed, block_bytes = changed(linear=LINEAR), 4 * TINY.kv_bytes_per_token / 4
    for degree, draft_tokens, states in ((1, 0, 1), (2, 0, 1), (1, 3, 4)):
        assert kept_blocks((mixed,), degree, 4, draft_tokens) == ceil(states * LINEAR.state_bytes / block_bytes)
    assert kept_blocks((TINY, changed(window=16, window_layers=3)), 1, 4, 3) == 0


def test_a_pass_multiplies_with_the_keys_of_full_attention_alone() -> None:
    def flops(shape: ModelShape) -> float:
        return pass_use(shape, 1, 1, 1, 100, (), 0).flops - 2.0 * shape.layers * shape.active_layer_weights

    assert flops(changed(linear=LINEAR)) == pytest.approx(flops(TINY) / 4)


def test_a_gate_beside_the_queries_is_as_wide_as_they_are() -> None:
    assert changed(has_query_gate=True).attention_gemms() == ((16 + 2 * 4, 8), (8, 8))


def test_ranks_of_data_parallel_attention_share_the_experts_and_nothing_else() -> None:
    assert rank_weight_bytes(SPARSE, 1) == SPARSE.weight_bytes
    assert SPARSE.weight_bytes - rank_weight_bytes(SPARSE, 3) == pytest.approx(SPARSE.expert_bytes * 2 / 3)


def test_experts_in_marlins_kernels_are_as_wide_in_memory_as_these_want() -> None:
    """gpt-oss's 2,880 become 3,072 and 2,944."""
    experts = Experts(num=128, per_token=4, intermediate=2880)
    shape = changed(hidden=2880, experts=experts, formats=Formats(experts="mxfp4-marlin"))
    filled_bytes = shape.layers * 128 * 3 * 3072 * 2944 * 4.25 / 8
    assert rank_weight_bytes(shape, 1) - shape.weight_bytes == pytest.approx(filled_bytes - shape.expert_bytes)


def test_each_part_has_its_own_number_format() -> None:
    formats = Formats(projections="bf16", mlp="fp8", experts="mxfp4", kv="fp8")
    shape = msgspec.structs.replace(SPARSE, formats=formats)
    bits = 4 * ATTENTION * 16 + (MLP + 3 * (SHARED + ROUTER)) * 8 + 3 * 6 * EXPERT * 4.25
    assert shape.weight_bytes == bits / 8 + 2 * 2 * 80
    assert shape.kv_bytes_per_token == SPARSE.kv_bytes_per_token / 2


def test_layers_with_a_window_forget_and_take_no_more_room() -> None:
    assert changed(window=16, window_layers=3).kv_bytes_per_token == TINY.kv_bytes_per_token / 4
    assert changed(window=16, window_layers=4).kv_bytes_per_token == TINY.kv_bytes_per_token


def test_a_latent_vector_is_one_for_all_heads_and_on_every_device() -> None:
    shape = changed(latent=Latent(query_rank=4, kv_rank=6, nope_dim=2, rope_dim=1, value_dim=2))
    assert shape.kv_bytes_per_token == 4 * (6 + 1) * 2
    assert kv_bytes_per_token(shape, 4) == 4 * shape.kv_bytes_per_token
    assert shape.attention_gemms(2) == ((4 + 6 + 1, 8), (2 * 3, 4), (2 * 4, 6), (8, 2 * 2))


def test_plain_is_what_the_compact_law_knows() -> None:
    windowed = changed(window=8, window_layers=1)
    assert TINY.is_plain
    assert changed(is_gated=False).is_plain
    assert not any(shape.is_plain for shape in (SPARSE, changed(formats=Formats(kv="fp8")), windowed))
