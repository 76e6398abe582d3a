"""Any config.json: published parameter counts come out, and what is not understood is refused by its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from calibrate.catalogue.model_configs import format_names, shapes_of, source_of, with_formats
from calibrate.catalogue.published_models import TABLE
from calibrate.importers.plan_candidates import pair_named
from sim.costs.shapes import MODELS, Formats, ModelShape, kv_bytes_per_token
from sim.drafters.mtp import layer as mtp_layer
from tests.properties import assert_refused, some

COMMON = {"vocab_size": 100, "max_position_embeddings": 4096, "torch_dtype": "bfloat16"}
GPT_OSS_120B = TABLE["openai/gpt-oss-120b"].config
DEEPSEEK_V3 = TABLE["deepseek-ai/DeepSeek-V3"].config
QWEN3_30B_A3B = TABLE["Qwen/Qwen3-30B-A3B"].config
MIXTRAL_8X7B = TABLE["mistralai/Mixtral-8x7B-v0.1"].config
GEMMA_2_27B = TABLE["google/gemma-2-27b"].config
QWEN3_NEXT = TABLE["Qwen/Qwen3-Next-80B-A3B-Instruct"].config
GLM_5_2 = TABLE["zai-org/GLM-5.2"].config
DEEPSEEK_V4_FLASH = TABLE["deepseek-ai/DeepSeek-V4-Flash"].config
KIMI_K3: Any = TABLE["moonshotai/Kimi-K3"].config["text_config"]
MINIMAX_M3 = TABLE["MiniMaxAI/MiniMax-M3"].config
OPT_13B = {
    "model_type": "opt", "num_hidden_layers": 40, "hidden_size": 5120, "ffn_dim": 20480, "num_attention_heads": 40,
    "vocab_size": 50272, "max_position_embeddings": 2048,
}  # fmt: skip
SMOLLM3_3B = TABLE["HuggingFaceTB/SmolLM3-3B"].config
STARCODER2_3B = TABLE["bigcode/starcoder2-3b"].config
STARCODER = {
    "model_type": "gpt_bigcode", "n_layer": 40, "n_embd": 6144, "n_inner": 24576, "n_head": 48, "multi_query": True,
    "vocab_size": 49152,
}  # fmt: skip


SPARSE = {"index_topk": 2048, "index_n_heads": 64, "index_head_dim": 128}


def shape_of(folder: Path, config: dict[str, Any], **changes: Any) -> ModelShape:
    path = folder / "some-model.json"
    path.write_text(json.dumps({**COMMON, **config, **changes}))
    return source_of(str(path), plain=False).shape


@pytest.mark.parametrize(
    ("config", "billions", "active_billions"),
    [
        (GPT_OSS_120B, 116.8, 5.1),
        (DEEPSEEK_V3, 671.0, 37.0),
        (QWEN3_30B_A3B, 30.5, 3.3),
        (MIXTRAL_8X7B, 46.7, 12.9),
        (GEMMA_2_27B, 27.2, 27.2),
        (OPT_13B, 12.85, 12.85),
        (SMOLLM3_3B, 3.08, 3.08),
        (STARCODER2_3B, 3.03, 3.03),
        (STARCODER, 15.5, 15.5),
        (QWEN3_NEXT, 80.0, 3.5),
        (TABLE["meta-llama/Llama-4-Scout-17B-16E-Instruct"].config, 107.8, 17.2),
        (TABLE["meta-llama/Llama-4-Maverick-17B-128E-Instruct"].config, 400.7, 17.2),
    ],
)
def test_published_parameter_counts_come_out(
    tmp_path: Path, config: dict[str, Any], billions: float, active_billions: float
) -> None:
    shape = shape_of(tmp_path, config)
    assert shape.params / 1e9 == pytest.approx(billions, rel=0.01)
    head = shape.vocab * shape.hidden
    active = shape.layers * shape.active_layer_weights + head
    assert active / 1e9 == pytest.approx(active_billions, rel=0.12)


def test_layers_and_formats_are_the_checkpoints_own(tmp_path: Path) -> None:
    oss = shape_of(tmp_path, GPT_OSS_120B)
    assert (oss.window, oss.window_layers, oss.formats) == (128, 18, Formats(experts="mxfp4"))
    assert oss.weight_bytes / 1e9 == pytest.approx(65.2, rel=0.01)
    deepseek = shape_of(tmp_path, DEEPSEEK_V3)
    assert deepseek.formats == Formats(projections="fp8-block", mlp="fp8-block", experts="fp8-block")
    assert deepseek.kv_bytes_per_token == 61 * 576 * 2
    gemma = shape_of(tmp_path, GEMMA_2_27B)
    assert (gemma.window_layers, gemma.tied_embeddings) == (23, True)
    assert shape_of(tmp_path, MIXTRAL_8X7B).window_layers == 0
    chunks = source_of("meta-llama/Llama-4-Scout-17B-16E-Instruct", plain=False)
    assert (chunks.shape.window, chunks.shape.window_layers) == (8192, 36)
    assert "chunks" in str(chunks.assumed)


def test_an_indexer_has_matrices_and_a_key_of_every_token(tmp_path: Path) -> None:
    plain, sparse = shape_of(tmp_path, DEEPSEEK_V3), shape_of(tmp_path, DEEPSEEK_V3, **SPARSE)
    assert sparse.params - plain.params == 61 * (64 * 128 * 1536 + (128 + 64) * 7168)
    assert sparse.kv_bytes_per_token - plain.kv_bytes_per_token == 61 * 132


def test_layers_that_share_an_indexer_have_none(tmp_path: Path) -> None:
    """GLM-5.2: 47,702 bytes of KV per token in SGLang (sgl-project/sglang#30531), whose drafter keeps its indexer."""
    shape = shape_of(tmp_path, GLM_5_2)
    assert some(shape.indexer).shared_layers == 57
    assert with_formats(shape, None, "fp8").kv_bytes_per_token == 78 * 576 + 21 * 132
    assert shape.params / 1e9 == pytest.approx(743, rel=0.01)
    assert shape_of(tmp_path, GLM_5_2, layer_types=["deepseek_sparse_attention"] * 78) == shape
    every = shape_of(tmp_path, GLM_5_2, indexer_types=["full"] * 78)
    assert every.params - shape.params == 57 * (32 * 128 * 2048 + (128 + 32) * 6144)
    drafter = mtp_layer(shape)
    assert drafter.kv_bytes_per_token == 576 * 2 + 132


def kinds_of(shape: ModelShape) -> dict[str, int]:
    return {kind.name: kind.layers for kind in shape.kinds()}


def test_compressed_kv_is_an_entry_for_each_group_of_tokens_and_a_window(tmp_path: Path) -> None:
    """DeepSeek-V4-Flash: 284.33 B parameters (ggml-org/llama.cpp#24162); entries of 584 bytes, keys of 132."""
    shape = shape_of(tmp_path, DEEPSEEK_V4_FLASH)
    assert shape.params / 1e9 == pytest.approx(284.33, rel=1e-3)
    assert kinds_of(shape) == {"dsv4_csa": 21, "dsv4_hca": 20, "dsv4_swa": 2}
    assert shape.kv_bytes_per_token == round(21 * (584 + 132) / 4 + 20 * 584 / 128)
    growing = 21 * 16 * 4 * (512 + 128) + 20 * 8 * 128 * 512
    assert shape.sequence_bytes == 43 * 128 * 584 + growing
    assert shape.formats == Formats(projections="fp8-block", mlp="fp8-block", experts="mxfp4", kv="fp8")
    assert kinds_of(mtp_layer(shape)) == {"dsv4_swa": 1}


def test_kimi_k3_is_a_state_in_three_layers_of_four_and_experts_of_narrow_vectors(tmp_path: Path) -> None:
    shape = shape_of(tmp_path, KIMI_K3)
    assert shape.params / 1e12 == pytest.approx(2.8, rel=0.01)
    assert kinds_of(shape) == {"linear": 69, "latent": 24}
    assert shape.kv_bytes_per_token == 24 * 576 * 2
    assert shape.sequence_bytes == 69 * (4 * 96 * 128 * 128 + 2 * 3 * 3 * 96 * 128)
    ungated = shape_of(tmp_path, KIMI_K3, mla_use_output_gate=False)
    assert shape.params - ungated.params == 24 * 96 * 128 * 7168
    for without in (shape, shape_of(tmp_path, QWEN3_30B_A3B)):
        with pytest.raises(ValueError, match="has no MTP layer"):
            mtp_layer(without)


def test_blocks_are_chosen_in_all_but_the_first_layers(tmp_path: Path) -> None:
    shape = shape_of(tmp_path, MINIMAX_M3)
    assert kinds_of(shape) == {"msa": 57, "full": 3}
    assert shape.kv_bytes_per_token == 60 * 2 * 4 * 128 * 2 + 57 * 128 * 2
    assert kv_bytes_per_token(shape, 8) == 2 * 60 * 2 * 4 * 128 * 2 + 8 * 57 * 128 * 2
    dense = shape_of(tmp_path, MINIMAX_M3, sparse_attention_config=None)
    assert shape.params - dense.params == 57 * (4 + 1) * 128 * 6144
    assert (some(shape.experts).dense_layers, shape.intermediate) == (3, 12288)


def test_models_that_only_tables_price_are_refused_by_what_they_have(tmp_path: Path) -> None:
    for name, config, has in (
        ("dense-mla", {**COMMON, **DEEPSEEK_V3, "n_routed_experts": None}, "latent attention"),
        ("moe", QWEN3_30B_A3B, "a mixture-of-experts model"),
    ):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({**COMMON, **config}))
        assert_refused(lambda path=path: shapes_of(str(path), None), f"{has} has no cost form here")
        assert shapes_of(str(path), None, plain=False)[0].name == name


def test_layers_of_linear_attention_keep_no_kv(tmp_path: Path) -> None:
    shape = shape_of(tmp_path, QWEN3_NEXT)
    assert (shape.linear_layers, shape.has_query_gate) == (36, True)
    assert shape.kv_bytes_per_token == 12 * 2 * 2 * 256 * 2
    listed = shape_of(tmp_path, QWEN3_NEXT, layer_types=["linear_attention", "full_attention"] * 24)
    assert listed.linear_layers == 24
    named = {"model_type": "qwen3_5_moe_text", "attn_output_gate": False}
    assert not shape_of(tmp_path, {**QWEN3_NEXT, **named}).has_query_gate


def test_formats_as_checkpoints_have_them(tmp_path: Path) -> None:
    dense, sparse = MODELS["llama-3.1-8b"], shape_of(tmp_path, QWEN3_30B_A3B)
    assert with_formats(dense, "fp8", "fp8").formats == Formats(projections="fp8", mlp="fp8", kv="fp8")
    assert with_formats(sparse, "nvfp4", None).formats == Formats(mlp="nvfp4", experts="nvfp4")
    assert with_formats(sparse, "int4", None).formats == Formats(experts="int4")
    assert with_formats(with_formats(dense, "fp8", None), "bf16", None) == dense
    assert format_names(with_formats(dense, "fp8", "fp8")) == "-fp8-kv8"
    with pytest.raises(ValueError, match="Did you mean 'nvfp4'"):
        with_formats(dense, "nvfp5", None)


def test_a_config_may_end_in_the_formats_of_weights_and_kv(tmp_path: Path) -> None:
    shape = shape_of(tmp_path, QWEN3_30B_A3B)
    target, *_ = pair_named(f"{tmp_path / 'some-model.json'}-nvfp4-kv8", None)
    assert target == with_formats(shape, "nvfp4", "fp8")


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (DEEPSEEK_V3, {"index_topk": 2048}, "index_n_heads=None must be a whole number"),
        (QWEN3_30B_A3B, SPARSE, "index_topk needs latent attention (kv_lora_rank) or compressed KV"),
        (DEEPSEEK_V3, {"layer_types": ["deepseek_sparse_attention"] * 61}, "layer_types has deepseek_sparse_attention"),
        (GLM_5_2, {"indexer_types": None}, "indexer_types=None must say of each of 78 layers"),
        (GLM_5_2, {"indexer_types": ["full", "other"] * 39}, "whether its indexer is full or shared"),
        (GLM_5_2, {"indexer_types": ["shared"] * 78}, "the first one full"),
        (GLM_5_2, {"indexer_types": ["full"] * 77}, "must say of each of 78 layers"),
        (DEEPSEEK_V4_FLASH, {"compress_ratios": [4] * 42}, "must say of each of 43 layers"),
        (DEEPSEEK_V4_FLASH, {"compress_ratios": [8] * 44}, "compress_ratios=[8, 8"),
        (KIMI_K3, {"linear_attn_config": {"kda_layers": [1]}}, "a gate of low rank has no cost form here"),
        (MINIMAX_M3, {"moe_layer_freq": [1, 0] * 30}, "layers with and without experts in turn"),
        (
            GLM_5_2,
            {"index_topk_pattern": "FFS"},
            "index_topk_pattern=FFS: no cost form here for a pattern of layers that share an indexer",
        ),
        (GPT_OSS_120B, {"layer_types": ["linear_attention"] * 36}, "layer_types has linear_attention"),
        (QWEN3_NEXT, {"linear_conv_kernel_dim": 0}, "linear_conv_kernel_dim=0 must be a whole number"),
        (QWEN3_NEXT, {"layer_types": ["full_attention"] * 48}, "layers=0 must be at least 1"),
        (QWEN3_NEXT, {"layer_types": ["linear_attention"] * 48}, "linear.layers=48 must be below layers=48"),
        (QWEN3_NEXT, {"layer_types": ["linear_attention"] * 2}, "layer_types names 2 layers, num_hidden_layers=48"),
        (GPT_OSS_120B, {"num_experts_per_tok": None, "experts_per_token": None}, "mixture-of-experts"),
        (QWEN3_30B_A3B, {"decoder_sparse_step": 2}, "layers with and without experts in turn"),
        (QWEN3_30B_A3B, {"moe_intermediate_size": None}, "without moe_intermediate_size"),
        (MIXTRAL_8X7B, {"quantization_config": {"quant_method": "aqlm"}}, "quant_method='aqlm'"),
        (MIXTRAL_8X7B, {"model_type": "jamba"}, "model_type='jamba': no cost form here"),
        (SMOLLM3_3B, {"hidden_size": "64"}, "hidden_size='64' must be a whole number"),
        (SMOLLM3_3B, {"num_hidden_layers": None}, "num_hidden_layers=None"),
        (SMOLLM3_3B, {"num_key_value_heads": 3}, "multiple of kv_heads=3"),
        (SMOLLM3_3B, {"num_key_value_heads": 0}, "num_key_value_heads=0 must be a whole number of at least 1"),
        (SMOLLM3_3B, {"head_dim": 0}, "head_dim=0 must be a whole number of at least 1"),
        (SMOLLM3_3B, {"torch_dtype": "float8_e4m3fn"}, "dtype=float8_e4m3fn is not understood. Give one of float32"),
        (SMOLLM3_3B, {"torch_dtype": ["bfloat16"]}, "is not understood. Give one of float32"),
        (SMOLLM3_3B, {"dtype": "int7"}, "dtype=int7 is not understood. Give one of float32"),
        (SMOLLM3_3B, {"tie_word_embeddings": "false"}, "tie_word_embeddings=false must be true or false"),
        (SMOLLM3_3B, {"layer_types": "full_attention"}, "layer_types=full_attention must be a list"),
        (SMOLLM3_3B, {"text_config": "qwen3"}, "text_config=qwen3 must be an object"),
        (SMOLLM3_3B, {"quantization_config": "gptq"}, "'gptq' must be an object with quant_method"),
        (SMOLLM3_3B, {"text_config": SMOLLM3_3B, "quantization_config": "awq"}, "'awq' must be an object"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(
    tmp_path: Path, config: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    assert_refused(lambda: shape_of(tmp_path, config, **changes), message)
