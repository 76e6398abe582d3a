"""Models by what a user names them: a name of the table, a Hugging Face config.json, a local directory of weights.

Not here: the table (sim.costs.shapes), building and loading models (realrun.model.weights).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from sim.costs.shapes import EAGLE3, ModelShape, eagle3_head, model

FAMILIES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""`model_type` of a config.json -> family of the real passes."""
DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
NEEDED = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "intermediate": "intermediate_size",
    "heads": "num_attention_heads",
    "vocab": "vocab_size",
    "max_context": "max_position_embeddings",
}


class Source(NamedTuple):
    """A model to build: its shape, its family (None: told from the name), and where real weights are, if anywhere."""

    shape: ModelShape
    family: str | None
    weights: Path | None


def source_of(name: str) -> Source:
    """Raises ValueError for what is neither a known name, nor a config.json, nor a directory that holds one."""
    path = Path(name)
    if path.is_dir():
        has_weights = any(path.glob("*.safetensors")) or any(path.glob("*.bin"))
        return _from_config(path / "config.json", path if has_weights else None)
    if path.suffix == ".json":
        return _from_config(path, None)
    return Source(model(name), None, None)


def shapes_of(target: str, draft: str | None) -> tuple[ModelShape, ModelShape | None]:
    """Dimensions of a target and its draft; `eagle3` is the target's own EAGLE-3 head."""
    shape = source_of(target).shape
    if draft is None:
        return shape, None
    return shape, eagle3_head(shape) if draft == EAGLE3 else source_of(draft).shape


def with_dtype(shape: ModelShape, dtype: str) -> ModelShape:
    """`shape` with the bytes of `dtype`. Raises ValueError for an unknown one."""
    if dtype not in DTYPE_BYTES:
        raise ValueError(f"dtype={dtype!r} must be one of {', '.join(DTYPE_BYTES)}")
    return msgspec.structs.replace(shape, dtype_bytes=DTYPE_BYTES[dtype])


def _from_config(path: Path, weights: Path | None) -> Source:
    config = _read(path)
    family = FAMILIES.get(str(config.get("model_type")))
    if family is None:
        raise ValueError(
            f"{path}: model_type={config.get('model_type')!r} must be one of {', '.join(FAMILIES)} (dense decoders)"
        )
    if any(config.get(key) for key in EXPERTS):
        raise ValueError(f"{path}: mixture-of-experts models have no cost form here; want a dense decoder")
    dimensions: dict[str, Any] = {field: _whole(path, config, key) for field, key in NEEDED.items()}
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    kv_heads = config.get("num_key_value_heads") or dimensions["heads"]
    head_dim = config.get("head_dim") or dimensions["hidden"] // dimensions["heads"]
    name = (path.parent.name if path.name == "config.json" else path.stem).lower()
    try:
        shape = ModelShape(
            name=name or "model",
            kv_heads=int(kv_heads),
            head_dim=int(head_dim),
            tied_embeddings=bool(config.get("tie_word_embeddings", False)),
            dtype_bytes=DTYPE_BYTES.get(dtype, 2),
            **dimensions,
        )
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return Source(shape, family, weights)


def _read(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text())
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ValueError(f"{path}: is no JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path}: must hold a JSON object, got {type(config).__name__}")
    return config


def _whole(path: Path, config: dict[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{path}: {key}={value!r} must be a whole number of at least 1")
    return value
