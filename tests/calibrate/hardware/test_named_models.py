"""Models by the name that Hugging Face has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from calibrate.hardware.named_models import named_model

CONFIG: dict[str, Any] = {
    "model_type": "qwen3", "num_hidden_layers": 4, "hidden_size": 256, "intermediate_size": 512,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1000,
    "max_position_embeddings": 2048,
}  # fmt: skip
BLOCKS = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    for name, more in (("Qwen--Qwen3-32B", {}), ("Qwen--Qwen3-8B-FP8", BLOCKS), ("meta-llama--Meta-Llama-3.1-9B", {})):
        (tmp_path / f"{name}_config.json").write_text(json.dumps(CONFIG | more))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "shape", "weights"),
    [
        ("Qwen/Qwen3-32B", "qwen3-32b", None),
        ("qwen3-32b", "qwen3-32b", None),
        ("Qwen/Qwen3-32B-FP8", "qwen3-32b", "fp8-block"),
        ("RedHatAI/Qwen3-32B-FP8-dynamic", "qwen3-32b", "fp8"),
        ("Qwen/Qwen3-8B-FP8", "qwen3-8b", "fp8-block"),
        ("meta-llama/Llama-3.1-9B-Instruct", "llama-3.1-9b", None),
        ("nvidia/Llama-3.1-9B-Instruct-NVFP4", "llama-3.1-9b", "nvfp4"),
    ],
)
def test_a_name_says_model_and_format(configs: Path, name: str, shape: str, weights: str | None) -> None:
    found = named_model(name, configs).shape
    assert found.name == shape
    assert (None if found.formats is None else found.formats.mlp) == weights


def test_a_name_with_a_publisher_is_what_is_served(configs: Path) -> None:
    assert named_model("Qwen/Qwen3-32B-FP8", configs).repository == "Qwen/Qwen3-32B-FP8"
    assert named_model("qwen3-32b", configs).repository == "Qwen/Qwen3-32B"


def test_an_unknown_name_is_refused_with_the_nearest(configs: Path) -> None:
    with pytest.raises(ValueError, match=r"unknown model 'Qwen/Qwen3-33B'; did you mean 'Qwen/Qwen3-32B'\?"):
        named_model("Qwen/Qwen3-33B", configs)


def test_a_config_is_read_as_a_file(configs: Path) -> None:
    found = named_model(str(configs / "Qwen--Qwen3-8B-FP8_config.json"), configs)
    assert found.repository is None
    assert found.shape.layers == 4
