"""Models as a user names them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from calibrate.catalogue.model_configs import source_of, with_dtype
from sim.costs.shapes import MODELS

CONFIG = {
    "model_type": "qwen3",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}


def write_config(path: Path, **changes: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({key: value for key, value in {**CONFIG, **changes}.items() if value is not None}))
    return path


def test_a_name_is_looked_up_in_the_table() -> None:
    assert source_of("llama-3.1-8b")[:3] == (MODELS["llama-3.1-8b"], None, None)
    with pytest.raises(ValueError, match="Did you mean 'tiny-draft'"):
        source_of("tiny-drft")


def test_a_config_gives_exact_dimensions_and_its_folder_the_name(tmp_path: Path) -> None:
    source = source_of(str(write_config(tmp_path / "My-Model" / "config.json")))
    shape = source.shape
    assert (shape.name, source.family, source.weights) == ("my-model", "qwen3", None)
    assert (shape.layers, shape.hidden, shape.intermediate, shape.heads, shape.kv_heads) == (2, 64, 128, 4, 2)
    assert (shape.head_dim, shape.vocab, shape.tied_embeddings, shape.dtype_bytes) == (32, 100, True, 2)
    assert source.assumed == "float32 weights are served in 16 bits (--dtype auto)"


def test_a_directory_with_weights_is_to_be_loaded(tmp_path: Path) -> None:
    write_config(tmp_path / "m" / "config.json")
    assert source_of(str(tmp_path / "m")).weights is None
    (tmp_path / "m" / "model.safetensors").touch()
    assert source_of(str(tmp_path / "m")).weights == tmp_path / "m"


def test_what_a_config_leaves_out_has_the_librarys_defaults(tmp_path: Path) -> None:
    path = write_config(tmp_path / "small.json", model_type="llama", num_key_value_heads=None, head_dim=None)
    shape = source_of(str(path)).shape
    assert (shape.name, shape.kv_heads, shape.head_dim) == ("small", 4, 16)


def test_the_dtype_sets_the_bytes() -> None:
    assert with_dtype(MODELS["tiny-target"], "bfloat16").dtype_bytes == 2
    with pytest.raises(ValueError, match="dtype='int8'"):
        with_dtype(MODELS["tiny-target"], "int8")
