"""Model dimensions, plain and special: sums by hand, published totals, and what a pass computes and moves."""

from __future__ import annotations

from math import ceil
from typing import Any

import msgspec
import pytest

from sim.costs.layer_kinds import Experts, Latent, Linear
from sim.costs.memory import kept_blocks
from sim.costs.passes import layer_kv_bytes, pass_use
from sim.costs.shapes import MODELS, Formats, ModelShape, kv_bytes_per_token, model, rank_weight_bytes
from sim.drafters.eagle3 import head as eagle3_head
from sim.interface.work import Chunk

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


def shape(**changes: object) -> ModelShape:
    return msgspec.structs.replace(TINY, layers=2, **changes)


def test_parameters_and_bytes_are_the_hand_sum() -> None:
    small = shape()
    assert small.gemms() == ((16, 8), (8, 8), (32, 8), (8, 16))
    assert small.layer_weights == 128 + 64 + 256 + 128
    assert small.params == 2 * 576 + 2 * 80
    assert small.weight_bytes == 2 * small.params
    assert small.kv_bytes_per_token == 2 * 2 * 2 * 2 * 2
    assert shape(tied_embeddings=True).params == 2 * 576 + 80


def test_tensor_parallelism_divides_matrices_but_never_below_one_kv_head() -> None:
    assert shape().gemms(2) == ((8, 8), (8, 4), (16, 8), (8, 8))
    assert shape().gemms(4)[0] == (2 + 2 * 2, 8)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama-2-7b", 6.74),
        ("codellama-34b", 33.74),
        ("llama-3.1-8b", 8.03),
        ("qwen2.5-0.5b", 0.49),
        ("qwen3-32b", 32.76),
    ],
)
def test_parameters_match_the_published_count(name: str, billions: float) -> None:
    assert MODELS[name].params / 1e9 == pytest.approx(billions, abs=0.01)


def test_an_mlp_without_a_gate_and_an_embedding_of_its_own_are_the_hand_sum() -> None:
    plain = shape(is_gated=False, embedding_rows=15)
    assert plain.gemms() == ((16, 8), (8, 8), (16, 8), (8, 16))
    assert plain.params == 2 * (576 - 128) + (10 + 15) * 8
    assert shape().elementwise_bytes_per_token - plain.elementwise_bytes_per_token == 16 * 2
    assert shape(tied_embeddings=True, embedding_rows=15).params == shape(tied_embeddings=True).params


def test_apertus_and_its_head_have_the_published_sizes() -> None:
    """131,072 bytes of KV per token; 293.6 million trained parameters in the head, beside its copy of the LM head."""
    target = model("apertus-8b")
    head = eagle3_head(target)
    assert target.kv_bytes_per_token == 131072
    assert head.params - head.vocab * head.hidden == 293_601_280
    assert head.vocab == 131072
    assert eagle3_head(model("llama-3.1-8b")).vocab == 32000


def test_a_width_that_devices_do_not_divide_leaves_whole_columns() -> None:
    assert shape(intermediate=17).gemms(2)[2:] == ((16, 8), (8, 8))
    assert shape(intermediate=17, is_gated=False).mlp_gemms(17, 4) == ((4, 8), (8, 4))


SMALL = ModelShape(
    name="small", layers=2, hidden=4, intermediate=8, heads=2, kv_heads=1, head_dim=2, vocab=10, tied_embeddings=True,
    max_context=64,
)  # fmt: skip
"""144 weights a layer and 40 of the LM head; 8 bytes of KV and 136 of elementwise traffic per token and layer."""


HALF, BOTH = (msgspec.structs.replace(SMALL, window=6, window_layers=layers) for layers in (1, 2))
USES: dict[str, tuple[tuple[Any, ...], tuple[float, float]]] = {
    # 2 tokens x 2 x 288 + 2 rows x 2 x 40 + 2 layers x 4 x 4 x 22 query-key pairs; 2 x 328 bytes of weights, 22 x 16 of
    # KV, 2 x 272 of the rest.
    "a row reads the weights once and all KV": ((SMALL, 1, 2, 2, 20, (), 2), (2016, 1552)),
    # 4 tokens x 2 x 288 + 2 x 40 + 2 layers x 4 x 4 x 4 (6 + 2) pairs; 656 bytes of weights, 10 x 16, 4 x 272.
    "a chunk attends to its history and half of itself": ((SMALL, 1, 0, 0, 0, (Chunk(4, 6),), 1), (3408, 1904)),
    "two devices share all but the one KV head": ((SMALL, 2, 2, 2, 20, (), 2), (2016 / 2, (656 + 544) / 2 + 352)),
    # A layer that looks back 6 tokens has 14 pairs and tokens in place of 22, and 2 x 6 + 2 of KV.
    "a window reads and meets what it holds": ((HALF, 1, 2, 2, 20, (), 2), (2016 - 4 * 4 * 8, 1552 - 8 * 8)),
    "two windows do so twice": ((BOTH, 1, 2, 2, 20, (), 2), (2016 - 2 * 4 * 4 * 8, 1552 - 2 * 8 * 8)),
    # 36 tokens of history are 30 pairs more for each of 4 tokens in 2 layers, and 30 x 16 bytes of KV.
    "a long history is met by all": ((SMALL, 1, 0, 0, 0, (Chunk(4, 36),), 1), (3408 + 3840, 1904 + 480)),
    # The window has 6 pairs in place of 38 for each token, and 10 tokens of KV in place of 40.
    "a window has a part of a long history": (
        (HALF, 1, 0, 0, 0, (Chunk(4, 36),), 1), (3408 + 3840 - 4 * 4 * 4 * 32, 1904 + 480 - 30 * 8)
    ),
}  # fmt: skip


@pytest.mark.parametrize(("given", "uses"), USES.values(), ids=USES)
def test_a_pass_uses_the_hand_sum(given: tuple[Any, ...], uses: tuple[float, float]) -> None:
    assert pass_use(*given) == uses
