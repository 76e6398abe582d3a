"""Model dimensions: what follows from them is hand-summed, and the names are checked."""

from __future__ import annotations

import msgspec
import pytest

from sim.costs.shapes import MODELS, ModelShape, model
from sim.drafters.eagle3 import head as eagle3_head
from tests.sim.costs.test_shapes_of_special_models import TINY


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
