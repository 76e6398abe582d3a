"""Formats of checkpoints: read as they are stated, or refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from calibrate.catalogue.model_configs import format_names, source_of
from tests.calibrate.catalogue.test_model_configs import write_config
from tests.properties import assert_refused

FLOAT8 = {"type": "float", "num_bits": 8}
BLOCKS = {**FLOAT8, "strategy": "block", "block_structure": [128, 128]}
FLOAT4 = {"type": "float", "num_bits": 4, "group_size": 16}


def compressed(*weights: dict[str, Any] | None, targets: Sequence[str] = ("Linear",), **keys: Any) -> dict[str, Any]:
    """Groups whose activations are as wide as their weights."""
    groups = {
        f"group_{number}": {"targets": list(targets), "weights": each, "input_activations": each}
        for number, each in enumerate(weights)
    }
    return {"quant_method": "compressed-tensors", "config_groups": groups, **keys}


@pytest.mark.parametrize(
    ("quantisation", "formats"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "-int4"),
        ({"quant_method": "awq", "w_bit": 4}, "-int4"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "-fp8-block"),
        (compressed(FLOAT8), "-fp8"),
        (compressed(FLOAT8, FLOAT8, kv_cache_scheme=FLOAT8), "-fp8-kv8"),
        (compressed(BLOCKS), "-fp8-block"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": FLOAT8}, "-nvfp4-kv8"),
        (compressed(FLOAT4) | {"quant_method": "modelopt", "quant_algo": "NVFP4"}, "-nvfp4"),
    ],
)
def test_a_checkpoint_is_in_the_formats_that_it_states(
    tmp_path: Path, quantisation: dict[str, Any], formats: str
) -> None:
    shape = source_of(str(write_config(tmp_path / "m.json", quantization_config=quantisation)), plain=False).shape
    assert format_names(shape) == formats


@pytest.mark.parametrize(
    ("quantisation", "message"),
    [
        ({"quant_method": "gptq", "bits": 8}, "gptq with bits=8 is not understood. Supported: bits=4"),
        ({"quant_method": "gptq", "bits": 4, "lm_head": True}, "lm_head=True"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*": {"bits": 8}}}, "gptq with dynamic"),
        ({"bits": 4}, "quant_method=None is not understood. Supported: fp8"),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, "weight_block_size=[64, 64]"),
        ({"quant_method": "fp8", "moe_quant_algo": "NVFP4"}, "fp8 with moe_quant_algo"),
        (compressed(FLOAT8, FLOAT4), "config_groups of fp8 and nvfp4"),
        (compressed(FLOAT8, None), "group_1 without weights"),
        (compressed(), "config_groups={}"),
        (compressed(FLOAT8, targets=["re:.*mlp.*"]), "group_0 with targets for some layers"),
        (compressed({**FLOAT4, "group_size": 32}), "group_0 of float4 weights in groups of 32"),
        (compressed({**BLOCKS, "block_structure": [64, 64]}), "block_structure=[64, 64]"),
        (compressed(FLOAT8, kv_cache_scheme={"type": "int", "num_bits": 8}), "a KV cache in {'type': 'int'"),
        (compressed(FLOAT8, ignore="lm_head"), "ignore='lm_head'"),
        (
            compressed(FLOAT8, ignore=[r"re:.*self_attn\\.(q|k)_proj$", "model.layers.0.self_attn.o_proj"]),
            "of projections",
        ),
        (compressed(FLOAT8) | {"quant_method": "modelopt", "quant_algo": "NVFP4"}, "config_groups of another format"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "quant_algo='MIXED_PRECISION'"),
    ],
)
def test_a_checkpoint_in_other_formats_is_refused_in_one_line(
    tmp_path: Path, quantisation: dict[str, Any], message: str
) -> None:
    path = write_config(tmp_path / "m.json", quantization_config=quantisation)
    assert_refused(lambda: source_of(str(path), plain=False), message)


def test_a_folder_of_weights_has_its_quantisation_in_a_file_beside(tmp_path: Path) -> None:
    config = write_config(tmp_path / "m" / "config.json")
    beside = config.with_name("hf_quant_config.json")
    beside.write_text(json.dumps({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}))
    assert format_names(source_of(str(config.parent), plain=False).shape) == "-fp8-kv8"
    beside.write_text(json.dumps({"quantization": "FP8"}))
    named = "hf_quant_config.json: quantization='FP8' must be an object"
    assert_refused(lambda: source_of(str(config.parent), plain=False), named)


@pytest.mark.parametrize(("ignored", "shared"), [("mlp.shared_experts*", "bf16"), ("mlp.shared_expert_gate", "nvfp4")])
def test_shared_experts_that_a_checkpoint_leaves_in_16_bits_stay_there(
    tmp_path: Path, ignored: str, shared: str
) -> None:
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512}
    quantisation = compressed(FLOAT4, ignore=[f"model.layers.0.{ignored}"])
    path = write_config(tmp_path / "m.json", model_type="qwen3_moe", quantization_config=quantisation, **experts)
    formats = source_of(str(path), plain=False).shape.formats
    assert formats is not None
    assert (formats.mlp, formats.experts) == (shared, "nvfp4")
